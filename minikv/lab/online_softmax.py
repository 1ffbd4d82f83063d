"""Attention block by block: what is kept of each, and how two pieces become one.

part = seen(q, k, v, scale)         # some tokens by themselves
both = merge(part, other)           # exact: as if they had been looked at together
bench = Workbench(backend=reading(combine))

A softmax needs the sum over all tokens, but not all at once: what is kept of some tokens (their largest
score, a sum, a weighted sum) is enough to go on. (Milakov and Gimelshein 2018)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minikv.attention import Read, gather
from minikv.attention.tables import TableArray, as_tables
from minikv.pool import BlockPool, ReadTable


class Partial(NamedTuple):
    """What attention keeps of some tokens.

    Attributes:
        best: [heads], the largest score among them.
        total: [heads], the sum of exp(score - best).
        mixed: [heads, head_dim], the sum of exp(score - best) * value.
    """

    best: Tensor
    total: Tensor
    mixed: Tensor

    @property
    def result(self) -> Tensor:
        """Attention over just these tokens, [heads, head_dim]."""
        return self.mixed / self.total[..., None]


Combine = Callable[[list[Partial]], Tensor]


def seen(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Partial:
    """What one query q [heads, head_dim] keeps of some tokens, k and v [heads, tokens, head_dim]."""
    scores = torch.einsum("hd,htd->ht", q, k) * scale
    best = scores.amax(-1)
    weights = torch.exp(scores - best[:, None])
    return Partial(best, weights.sum(-1), torch.einsum("ht,htd->hd", weights, v))


def merge(a: Partial, b: Partial) -> Partial:
    """What is kept of the tokens of both: each sum is scaled to the larger of the two largest scores."""
    best = torch.maximum(a.best, b.best)
    old, new = torch.exp(a.best - best), torch.exp(b.best - best)
    total = a.total * old + b.total * new
    return Partial(best, total, a.mixed * old[:, None] + b.mixed * new[:, None])


def merged(parts: list[Partial]) -> Tensor:
    """The result over all parts, merged from the first to the last."""
    return reduce(merge, parts).result


class Piece(NamedTuple):
    """The tokens that one block holds of what a query sees."""

    block_id: int
    part: Partial


def pieces(q: Tensor, pool: BlockPool, layer: int, slots: Tensor, scale: float) -> Iterator[Piece]:
    """What one query q [heads, head_dim] keeps of each block that these flat slots lie in, in their order."""
    kv_heads, size = pool.kv.shape[3], pool.block_size
    start = 0
    while start < len(slots):
        block_id, place = divmod(int(slots[start]), size)
        count = min(size - place, len(slots) - start)  # the rest of this block, or of what is seen
        k, v = pool.kv[layer, block_id, :, :, place : place + count].to(q)  # [kv_heads, count, head_dim] each
        group = q.shape[0] // kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        yield Piece(block_id, seen(q, k, v, scale))
        start += count


def reading(combine: Combine) -> Read:
    """A backend that looks at each block by itself, and leaves it to `combine` to make one result of them.

    Args:
        combine: what one query keeps of each block it sees, in logical order -> its result,
            [heads, head_dim].
    """

    def read(
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[ReadTable] | TableArray,
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        """Attention of q [batch, num_new, heads, head_dim]. Errors as read_layer."""
        out = torch.zeros_like(q)
        for i, slots in enumerate(pool.row_slots(as_tables(tables, pool), lengths)):
            pool.require_written(layer, slots)
            for j in range(q.shape[1]):
                sees = slots[: max(0, len(slots) - q.shape[1] + j + 1)]  # itself and all before
                parts = [piece.part for piece in pieces(q[i, j], pool, layer, sees, scale)]
                if parts:
                    out[i, j] = combine(parts)
        return out

    return read


class ScoreRecorder:
    """A backend that reads as the gather does, and keeps the scores of the newest token in the last step."""

    def __init__(self) -> None:
        self._layers: dict[int, Tensor] = {}

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[Any],
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        """Attention of q [batch, num_new, heads, head_dim]. Errors as read_layer."""
        k, _ = pool.read_layer(layer, tables[:1], lengths[:1])  # of the first request
        group = q.shape[2] // k.shape[1]
        self._layers[layer] = torch.einsum("hd,htd->ht", q[0, -1], k[0].repeat_interleave(group, 0)) * scale
        return gather.attend(q, pool, layer, tables, lengths, scale)

    def scores(self, layer: int, head: int) -> list[float]:
        """Of the first request in the batch: the score of each token, in logical order.

        Raises:
            ValueError: nothing was read yet, or no such layer. IndexError: no such head.
        """
        if layer not in self._layers:
            raise ValueError(f"layer {layer} was not read yet; take a step with this backend first")
        found: list[float] = self._layers[layer][head].tolist()
        return found
