"""A pool that does not forget, and a reader that does not stop: old words of a block that is used again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool

Believed = tuple[Sequence[Any], list[int]]  # tables, and the tokens that a broken reader believes they hold


class _Unforgetting(BlockPool):
    """The same pool, but a block that is let go stays marked as written."""

    def __init__(self, pool: BlockPool) -> None:
        self.__dict__ = pool.__dict__

    def release(self, block_id: int) -> None:
        """Look away."""
        self._check_block(block_id)


def _forget_release(bench: Workbench) -> Undo:
    """Let the manager tell its releases to nobody. A block that is handed out again keeps its wrong marks."""
    honest = bench.manager.pool
    bench.manager.pool = _Unforgetting(bench.pool)

    def undo() -> None:
        bench.manager.pool = honest
        for block_id in bench.manager.free_queue:
            bench.pool.release(block_id)

    return undo


def _read_whole_blocks(bench: Workbench) -> Undo:
    """Let every read go on to the end of the request's last block, and tell the log which slots were read."""

    def to_the_end(pool: BlockPool, tables: Sequence[Any], lengths: Sequence[int]) -> Believed:
        return tables, [table.capacity for table in tables]

    return read_beyond(bench, to_the_end)


def read_beyond(
    bench: Workbench, believe: Callable[[BlockPool, Sequence[Any], Sequence[int]], Believed]
) -> Undo:
    """Let every read take what `believe` makes of (pool, tables, lengths), and tell the log its slots."""
    honest, told = bench.loop.backend, bench.loop.observer

    def read(
        q: Tensor, pool: BlockPool, layer: int, tables: Sequence[Any], lengths: Sequence[int], scale: float
    ) -> Tensor:
        rows, ends = believe(pool, tables, lengths)
        if layer == 0:
            for table, row, end in zip(tables, rows, ends, strict=True):
                slots = [int(slot) for slot in row.slots(0, end)]
                bench.log({"op": "read", "request": table.name, "length": end, "slots": slots})
        k, v = pool.read_layer(layer, rows, ends)
        return attend_beyond(q, k, v, lengths, ends, scale)

    def tell(event: dict[str, Any]) -> None:
        if event["op"] != "read":  # the loop tells of the read it asked for, not of the one that was done
            bench.log(event)

    bench.loop.backend, bench.loop.observer = read, tell

    def undo() -> None:
        bench.loop.backend, bench.loop.observer = honest, told

    return undo


def attend_beyond(
    q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], ends: Sequence[int], scale: float
) -> Tensor:
    """Attention of q [batch, num_new, heads, head_dim] over rows that may be longer than what is stored.

    Args:
        k, v: [batch, kv_heads, longest row, head_dim].
        lengths: tokens stored. Each new token sees itself and all before, as it must.
        ends: tokens in each row. What lies from a length to its end, nobody hides: every token sees it.
    """
    positions = torch.arange(k.shape[2])
    stored, end = (torch.as_tensor(each)[:, None, None] for each in (lengths, ends))
    last = stored - torch.arange(q.shape[1]).flip(0)[:, None]  # [batch, num_new, 1]
    visible = (positions < last) | ((positions >= stored) & (positions < end))
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k,
        v,
        attn_mask=visible[:, None].to(q.device),
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[1],
    )
    return mixed.transpose(1, 2)


SWITCHES: dict[str, Switch] = {
    "no-release": Switch(
        "I6 written-first",
        "the pool is not told when a block is let go: its old words count as written",
        _forget_release,
    ),
    "whole-blocks": Switch(
        "I6 written-first",
        "the reader does not stop at the request's length: it reads its last block to the end",
        _read_whole_blocks,
    ),
}
