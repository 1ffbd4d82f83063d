"""Read block by block, as a PagedAttention kernel does, in plain torch. (Kwon et al. 2023, §4.1)

Nothing is copied side by side. The softmax is kept up to date while the blocks go by: a running
maximum, a running sum and a running weighted value. When a larger score appears, what was summed
so far is scaled down to the new maximum (Milakov and Gimelshein 2018), so the result is exact,
not a softmax per block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
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
    """Attention of q [batch, num_new, heads, head_dim], the last num_new of each request's tokens."""
    out = torch.empty_like(q)
    for i, slots in enumerate(pool.row_slots(as_tables(tables, pool), lengths)):
        out[i] = _one_request(q[i], pool, layer, slots, scale)
    return out


def _one_request(q: Tensor, pool: BlockPool, layer: int, slots: Tensor, scale: float) -> Tensor:
    if len(slots) == 0:
        return torch.zeros_like(q)
    pool.require_written(layer, slots)
    num_new, heads, head_dim = q.shape
    kv_heads = pool.kv.shape[3]
    q = q.reshape(num_new, kv_heads, heads // kv_heads, head_dim)  # (T, G, H/G, D)
    sees = len(slots) - num_new + torch.arange(num_new, device=q.device)  # last position each token sees
    best = q.new_full(q.shape[:-1], float("-inf"))
    total = torch.zeros_like(best)
    mixed = torch.zeros_like(q)
    start = 0
    while start < len(slots):
        block_id, place = divmod(int(slots[start]), pool.block_size)
        count = min(pool.block_size - place, len(slots) - start)  # the rest of this block, or of the request
        k, v = pool.kv[layer, block_id, :, :, place : place + count].to(q)  # (G, count, D) each
        scores = torch.einsum("tghd,gcd->tghc", q, k) * scale
        hidden = start + torch.arange(count, device=q.device) > sees[:, None]
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        new_best = torch.maximum(best, scores.amax(-1))
        shrink, weights = torch.exp(best - new_best), torch.exp(scores - new_best[..., None])
        total = total * shrink + weights.sum(-1)
        mixed = mixed * shrink[..., None] + torch.einsum("tghc,gcd->tghd", weights, v)
        best, start = new_best, start + count
    return (mixed / total[..., None]).reshape(num_new, heads, head_dim)
