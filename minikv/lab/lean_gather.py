"""A gather as cheap as we can make it, so that what a gather costs is not what ours costs.

lean = LeanGather()                  # its memory is kept from call to call
bench = Workbench(backend=lean)
LeanGather(keep=False)               # the same call, into new memory each time
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minikv.attention.tables import TableArray, as_tables
from minikv.pool import BlockPool


class LeanGather:
    """A backend for decode steps: one call copies a request's blocks to where they belong in its row, so each
    byte is read once and written once. Then torch's attention over the row. It looks at the pool's marks as
    read_layer does.

    Args:
        keep: hold the memory until a request needs another number of blocks; False asks for new memory in
            each call.

    Attributes:
        seconds: what gathering took in all calls so far, without the attention behind it.
    """

    def __init__(self, keep: bool = True) -> None:
        self.keep, self.seconds = keep, 0.0
        self._kept: Tensor | None = None

    def rows(self, pool: BlockPool, layer: int, table: Any, length: int) -> tuple[Tensor, Tensor]:
        """K and V of a request, [1, kv_heads, length, head_dim] each; good until the next call.

        Raises:
            IndexError, UnwrittenSlotError: as read_layer.
        """
        pool.require_written(layer, pool.row_slots([table], [length])[0])
        kv, size = pool.kv[layer], pool.block_size
        entries = -(-(table.offset + length) // size)
        ids = torch.tensor(table.block_ids[:entries], dtype=torch.int64, device=kv.device)
        row = self._memory([2, kv.shape[2], entries, size, kv.shape[4]], kv)
        torch.index_select(kv.permute(1, 2, 0, 3, 4), 2, ids, out=row)
        k, v = row.flatten(2, 3)[:, None, :, table.offset : table.offset + length]
        return k, v

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[Any] | TableArray,
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        """Attention of q [batch, 1, heads, head_dim].

        Raises:
            ValueError: more than one new token. IndexError, UnwrittenSlotError: as read_layer.
        """
        if q.shape[1] != 1:
            raise ValueError(f"q has {q.shape[1]} new tokens; this backend takes decode steps, of 1 token")
        out = torch.zeros_like(q)
        for i, (table, length) in enumerate(zip(as_tables(tables, pool), lengths, strict=True)):
            if length == 0:
                continue
            start = perf_counter()
            k, v = self.rows(pool, layer, table, length)
            self.seconds += perf_counter() - start
            grouped = q.shape[2] != k.shape[1]
            query = q[i : i + 1].transpose(1, 2)
            seen = F.scaled_dot_product_attention(query, k.to(q), v.to(q), scale=scale, enable_gqa=grouped)
            out[i] = seen[0].transpose(0, 1)
        return out

    def _memory(self, shape: list[int], like: Tensor) -> Tensor:
        """Room for a tensor of this shape: the room of the last call, or new."""
        if self._kept is not None and list(self._kept.shape) == shape and self._kept.dtype == like.dtype:
            return self._kept
        room = torch.empty(shape, dtype=like.dtype, device=like.device)
        if self.keep:
            self._kept = room
        return room
