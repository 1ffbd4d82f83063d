"""Is what a request reads the KV of its own words? Compute it once more, without any cache, and compare.

The invariants look at who holds which slot; only this looks at the numbers in it.

print(first_foreign(bench, request))
"""

from __future__ import annotations

from typing import NamedTuple

from minikv.decode import Request
from minikv.lab.workbench import Workbench

TOLERANCE = 1e-3  # of K and V; rounding is a hundred times less


class Foreign(NamedTuple):
    """The first position whose K or V is not that of the request's words up to it."""

    position: int
    word: str
    block_id: int
    place: int  # in the block
    num_wrong: int  # positions, this one included

    def __repr__(self) -> str:
        others = "" if self.num_wrong == 1 else f", and {self.num_wrong - 1} more"
        return (
            f"position {self.position} (“{self.word}”), block {self.block_id}, place {self.place}: "
            f"its K and V were computed after other words{others}"
        )


def first_foreign(bench: Workbench, request: Request) -> Foreign | None:
    """The first position where the pool and a computation without any cache differ; None if none does.

    Args:
        request: nothing of its front has been let go.
    """
    length, size = request.num_stored, bench.manager.block_size
    fresh = Workbench(-(-length // size), size, bench.model, backend="gather")
    again = fresh.loop.start(request.token_ids[:length])
    fresh.loop.prefill(again)
    wrong: set[int] = set()
    for layer in range(bench.model.num_layers):
        ours = bench.pool.read_layer(layer, [request.table], [length])
        theirs = fresh.pool.read_layer(layer, [again.table], [length])
        for seen, true in zip(ours, theirs, strict=True):  # K, then V: [1, heads, length, head_dim]
            apart = (seen - true).abs().amax((0, 1, 3)) > TOLERANCE
            wrong.update(apart.nonzero().flatten().tolist())
    if not wrong:
        return None
    position = min(wrong)
    block_id, place = divmod(int(request.table.slot(position)), size)
    word = bench.model.text([request.token_ids[position]])
    return Foreign(position, word, block_id, place, len(wrong))
