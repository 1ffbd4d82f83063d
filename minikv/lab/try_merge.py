"""Let a learner's own merge read the cache, and see after which block it first goes another way than ours.

tried = try_merge(merge)
print(tried)
tried.map()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minikv.attention.tables import as_tables
from minikv.gpt2 import GPT2
from minikv.lab.event_log import EventLog
from minikv.lab.exercises import check
from minikv.lab.exercises.exercise import folded
from minikv.lab.online_softmax import Partial, merge, pieces
from minikv.lab.stand_in import PROMPT, Tryout, scatter
from minikv.lab.watched import Divergence
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool

NUM_BLOCKS, BLOCK_SIZE = 5, 8
TOLERANCE = 1e-3  # of results; rounding is a thousand times less
Merge = Callable[[Partial, Partial], Any]


def try_merge(theirs: Merge) -> Tryout:
    """Decode a request whose blocks are merged by `theirs`, beside ours.

    Raises TypeError for anything but a function.
    """
    if not callable(theirs) or isinstance(theirs, type):
        raise TypeError(f"try_merge takes a function, not {theirs!r}; leave off the brackets")
    name = getattr(theirs, "__name__", "your function")
    if "not answered yet" in check("07.merge", theirs).message:
        return Tryout(name, None, EventLog())
    bench = Workbench(NUM_BLOCKS, BLOCK_SIZE, model=GPT2.from_pretrained(device="cpu"))
    scatter(bench)
    bench.loop.backend = reader = _Merger(theirs, bench)
    try:
        said = f"the model says: {bench.ask(PROMPT, name='mine')}"
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        said = f"the run stops with {type(error).__name__}: {error}"
    return MergeTryout(name, said, bench.log, reader.divergence)


class MergeTryout(Tryout):
    """What came of it; every slot is read as it should be, so only a comparison can show a difference."""

    def __repr__(self) -> str:
        if self.first is None and "the run stops" not in (self.said or ""):
            return f"With {self.name} {self.said}\nEvery result, block by block, is as ours."
        return folded(super().__repr__(), indent="  ")


class _Merger:
    """Reads block by block, merges with a learner's function, and notes the first result unlike ours."""

    def __init__(self, theirs: Merge, bench: Workbench) -> None:
        self._theirs, self._bench = theirs, bench
        self.divergence: Divergence | None = None

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[Any],
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        out = torch.zeros_like(q)
        for i, slots in enumerate(pool.row_slots(as_tables(tables, pool), lengths)):
            pool.require_written(layer, slots)
            for j in range(q.shape[1]):
                position = len(slots) - q.shape[1] + j
                out[i, j] = self._one(q[i, j], pool, layer, slots[: position + 1], scale)
        return out

    def _one(self, q: Tensor, pool: BlockPool, layer: int, slots: Tensor, scale: float) -> Tensor:
        """Attention of one query over what it sees, by their merge; ours goes along beside it."""
        theirs: Partial | None = None
        ours: Partial | None = None
        for block_id, part in pieces(q, pool, layer, slots, scale):
            if theirs is None or ours is None:
                theirs = ours = part
                continue
            own = Partial(*(each.clone() for each in part))  # theirs may be changed in place
            theirs = as_partial(self._theirs(_cloned(theirs), own), part)
            ours = merge(ours, part)
            if self.divergence is None:
                self._compare(theirs, ours, layer, len(slots) - 1, block_id)
        assert theirs is not None  # a query sees itself
        return theirs.result

    def _compare(self, theirs: Partial, ours: Partial, layer: int, position: int, block_id: int) -> None:
        head = first_head_apart(theirs, ours)
        if head is None:
            return
        apart = float((theirs.result[head] - ours.result[head]).abs().max())
        what = f"is {apart:.2f} away from ours" if apart == apart else "is no number"
        if apart < 0.005:  # what it weighs is wrong, and the next merge will show it
            what = "is as ours, but best and total do not fit together"
        word = self._word(position)
        sentence = (
            f"Layer {layer}, position {position} ({word}), after block {block_id} is merged: the result of "
            f"head {head} {what}."
        )
        self._bench.log({"op": "note", "text": sentence})
        self.divergence = Divergence(len(self._bench.log) - 1, None, block_id, sentence)

    def _word(self, position: int) -> str:
        """The word that was written last at a position of the request."""
        found = "?"
        for event in self._bench.log:
            if event["op"] == "write" and event["request"] == "mine":
                place = position - event["start"]
                if 0 <= place < len(event["words"]):
                    found = event["words"][place]
        return f"“{found}”"


def as_partial(said: Any, like: Partial) -> Partial:
    """What a merge gave back, as a Partial. TypeError if it is not three tensors of the right shapes."""
    goal = [list(part.shape) for part in like]
    if not isinstance(said, tuple | list) or len(said) != 3:
        raise TypeError(f"merge gives back {_kind(said)}; it should be best, total, mixed: shapes {goal}")
    shapes = [list(part.shape) if isinstance(part, Tensor) else _kind(part) for part in said]
    if shapes != goal:
        raise TypeError(f"merge gives back {shapes}; best, total, mixed have the shapes {goal}")
    return Partial(*said)


def first_head_apart(theirs: Partial, ours: Partial) -> int | None:
    """The first head whose result or weight differs; None if none does.

    What `best` is does not matter, if the sums fit to it: only the result, and how much it will weigh
    when more is merged.
    """
    weight = [part.best + part.total.log() for part in (theirs, ours)]
    near = (theirs.result - ours.result).abs().amax(-1) < TOLERANCE
    near &= (weight[0] - weight[1]).abs() < TOLERANCE * (1 + weight[1].abs())
    return None if near.all() else int((~near).int().argmax())  # NaN is near to nothing


def _cloned(part: Partial) -> Partial:
    return Partial(*(each.clone() for each in part))


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
