"""Read contiguous memory: ordinary attention over slices of the pool, with nothing copied. (chapter §1)

In a pool of one block the keys of a head lie side by side, position after position, and so do the values.
torch's own attention takes such a slice as it is: no gather, and no kernel that knows of blocks. This is
what paging gives away, and what a PagedAttention kernel wins back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minikv.attention.tables import TableArray, as_tables
from minikv.pool import BlockPool, ReadTable


def attend(
    q: Tensor,
    pool: BlockPool,
    layer: int,
    tables: Sequence[ReadTable] | TableArray,
    lengths: Sequence[int],
    scale: float,
) -> Tensor:
    """Attention of q [batch, num_new, heads, head_dim], the last num_new of each request's tokens.

    Nothing is copied as long as q has the pool's dtype; else the slices are converted.

    Raises:
        ValueError: the pool has more than one block, or a request's slots are no run.
        IndexError, UnwrittenSlotError: as read_layer.
    """
    if pool.num_blocks != 1:
        raise ValueError(
            f'the "contiguous" backend reads a pool of one block, and this one has {pool.num_blocks}; '
            'read it with "gather", or keep the requests in contiguous memory (minikv.engine.contiguous)'
        )
    out = torch.zeros_like(q)
    for i, slots in enumerate(pool.row_slots(as_tables(tables, pool), lengths)):
        if len(slots):
            pool.require_written(layer, slots)
            start, stop = _ends(slots)
            k, v = pool.kv[layer, 0, :, :, start:stop].to(q)  # views: [kv_heads, length, head_dim]
            out[i] = _one_request(q[i], k, v, scale)
    return out


def _ends(slots: Tensor) -> tuple[int, int]:
    """The run [start, stop) that these slots are."""
    start, stop = int(slots[0]), int(slots[-1]) + 1
    if not torch.equal(slots, torch.arange(start, start + len(slots))):
        raise ValueError(
            f"the slots of a request begin at {start} and end at {stop - 1}, but are no run of {len(slots)}: "
            'read them with "gather"'
        )
    return start, stop


def _one_request(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [num_new, heads, head_dim] over k, v [kv_heads, length, head_dim].

    Query heads that share a kv head become rows of one query, so that no key is repeated for them.
    """
    num_new, heads, head_dim = q.shape
    kv_heads, length, _ = k.shape
    rows = q.reshape(num_new, kv_heads, -1, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
    sees = None
    if num_new > 1:  # itself and all before; a single new token sees everything
        sees = torch.ones(num_new, length, dtype=torch.bool, device=q.device).tril(length - num_new)
        sees = sees.repeat(heads // kv_heads, 1)
    out = F.scaled_dot_product_attention(rows[None], k[None], v[None], attn_mask=sees, scale=scale)[0]
    return out.view(kv_heads, -1, num_new, head_dim).permute(2, 0, 1, 3).reshape(num_new, heads, head_dim)
