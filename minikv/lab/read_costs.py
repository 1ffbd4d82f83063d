"""What a read costs: one layer in GPT-2 small's shape, one request whose blocks lie shuffled.

scene = ReadScene(tokens=1024)
fastest(scene.gather), fastest(scene.write_one)
print(time_reads(scene))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minikv.attention import paged_attention
from minikv.block_table import BlockTable
from minikv.pool import BlockPool

HEADS, HEAD_DIM, BLOCK_SIZE = 12, 64, 16  # GPT-2 small, and the chapter's block size


class ReadScene:
    """A request with `tokens` tokens stored, in a pool just large enough, and the query of a decode step.

    Args:
        tokens: a multiple of the block size.

    Raises:
        ValueError: another number of tokens.
    """

    def __init__(self, tokens: int, block_size: int = BLOCK_SIZE) -> None:
        if tokens < block_size or tokens % block_size:
            raise ValueError(
                f"tokens is {tokens}; take a multiple of {block_size}, so that all blocks are full"
            )
        made = torch.Generator().manual_seed(0)
        self.tokens, self.pool = tokens, BlockPool(tokens // block_size, block_size, 1, HEADS, HEAD_DIM)
        self.table = BlockTable(block_size)
        for block_id in torch.randperm(self.pool.num_blocks, generator=made).tolist():
            self.table.append_block(block_id)
        k, v = torch.randn(2, tokens, HEADS, HEAD_DIM, generator=made)
        self.pool.write(0, range(tokens), k, v)
        self.q = torch.randn(1, HEADS, HEAD_DIM, generator=made)
        self._new = torch.randn(1, HEADS, HEAD_DIM, generator=made)

    def gather(self) -> tuple[Tensor, Tensor]:
        """Copy the request's K and V side by side."""
        return self.pool.read_layer(0, [self.table], [self.tokens])

    def lean_gather(self) -> tuple[Tensor, Tensor]:
        """The same rows by one torch.cat of the blocks: each byte is read once and written once."""
        row = torch.cat([self.pool.kv[0, block_id] for block_id in self.table.block_ids], dim=2)
        k, v = row[:, None]  # [2, heads, tokens, head_dim], and a batch of one
        return k, v

    def write_one(self) -> None:
        """Store the newest token once more."""
        self.pool.write(0, self.table.slots(self.tokens - 1, self.tokens), self._new, self._new)

    def attend(self, backend: str) -> Tensor:
        """Attention of the query over all tokens."""
        return paged_attention(self.q, self.pool, 0, [self.table], [self.tokens], backend=backend)

    def attend_rows(self, k: Tensor, v: Tensor) -> Tensor:
        """Ordinary attention of the query over rows [1, heads, tokens, head_dim] that are there already."""
        return F.scaled_dot_product_attention(self.q[:, :, None], k, v)[:, :, 0]


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch: on a busy machine several wait for each other, and one measures that."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fastest(call: Callable[[], Any], rounds: int = 9) -> float:
    """Milliseconds of the fastest of some calls, on one thread.

    Whatever else the machine does only makes the others slower.
    """
    return fastest_in_turns(call, rounds=rounds)[0]


def fastest_in_turns(*calls: Callable[[], Any], rounds: int = 9) -> list[float]:
    """As `fastest`, for calls that are to be compared: they take turns, so a busy moment hits them all."""
    times: list[list[float]] = [[] for _ in calls]
    with one_thread():
        for _ in range(rounds):
            for call, of_call in zip(calls, times, strict=True):
                start = perf_counter()
                call()
                of_call.append(perf_counter() - start)
    return [1000 * min(of_call) for of_call in times]


class ReadTimes(NamedTuple):
    """Milliseconds of one layer's attention, by what is done to read the keys and values."""

    gather: float  # read_layer, then attention
    lean: float  # one torch.cat, then attention
    kernel: float  # each block where it lies
    rows: float  # attention alone, over rows that lie side by side already

    @property
    def taken_back(self) -> float:
        """What share of the time that even a lean gather adds the kernel does without; 1 is all of it."""
        return (self.lean - self.kernel) / (self.lean - self.rows)

    def __repr__(self) -> str:
        lines = (
            ("our gather, then attention", self.gather),
            ("a lean gather, then attention", self.lean),
            ("the kernel, block by block", self.kernel),
            ("attention, all side by side", self.rows),
        )
        return "\n".join(
            f"{how:29}  {time / self.kernel:4.1f} times the kernel's time" for how, time in lines
        )


def time_reads(scene: ReadScene) -> ReadTimes:
    """The scene's attention, read in four ways that take turns."""
    k, v = scene.gather()
    return ReadTimes(
        *fastest_in_turns(
            lambda: scene.attend("gather"),
            lambda: scene.attend_rows(*scene.lean_gather()),
            lambda: scene.attend("cpu"),
            lambda: scene.attend_rows(k, v),
        )
    )


# ---- layouts ------------------------------------------------------------------------------------


def runs(part: Tensor) -> int:
    """In how many runs of memory a part of a tensor lies; 1 means side by side from end to end.

    Counted from the strides: neighbours along a dimension lie side by side if one step along it is as long as
    all that lies within.
    """
    side_by_side = 1  # numbers in one run
    for size, stride in sorted(zip(part.shape, part.stride(), strict=True), key=lambda each: each[1]):
        if size > 1 and stride == side_by_side:
            side_by_side *= size
    return math.prod(part.shape) // side_by_side


def head_major(kv: Tensor) -> Tensor:
    """The same keys and values in another order in memory: [layers, 2, heads, blocks, block_size, head_dim].

    Args:
        kv: a pool's tensor, [layers, blocks, 2, heads, block_size, head_dim].
    """
    return kv.permute(0, 2, 3, 1, 4, 5).contiguous()


class Layouts(NamedTuple):
    """How many times longer reading the same blocks takes head-major than block-major."""

    block_by_block: float
    all_at_once: float

    def __repr__(self) -> str:
        return "\n".join(
            f"{how:15} head-major takes {ratio:.2f} times as long: {_verdict(ratio)}"
            for how, ratio in (("block by block", self.block_by_block), ("all at once", self.all_at_once))
        )


def time_layouts(scene: ReadScene) -> Layouts:
    """Read every block of the scene, in the order of its table, from both layouts."""
    block_major, heads_first = scene.pool.kv[0], head_major(scene.pool.kv)[0]
    order = list(scene.table.block_ids)
    ids, rows, heads_rows = torch.tensor(order), torch.empty_like(block_major), torch.empty_like(heads_first)
    times = fastest_in_turns(
        lambda: [block_major[block_id].sum() for block_id in order],
        lambda: [heads_first[:, :, block_id].sum() for block_id in order],
        lambda: torch.index_select(block_major, 0, ids, out=rows),
        lambda: torch.index_select(heads_first, 2, ids, out=heads_rows),
    )
    return Layouts(times[1] / times[0], times[3] / times[2])


def _verdict(ratio: float) -> str:
    if 0.8 < ratio < 1.25:
        return "no clear winner on this machine"
    return "block-major wins" if ratio > 1 else "head-major wins"
