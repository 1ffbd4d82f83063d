"""Read by gather: copy each request's blocks side by side, then ordinary attention. (chapter §2.5)

Simple, and the price of non-contiguity in full: every step copies the whole cache once.
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
    """Attention of q [batch, num_new, heads, head_dim], the last num_new of each request's tokens."""
    k, v = pool.read_layer(layer, as_tables(tables, pool), lengths)  # [batch, kv_heads, max_length, head_dim]
    if k.shape[2] == 0:
        return torch.zeros_like(q)
    positions = torch.arange(k.shape[2], device=q.device)
    ends = torch.as_tensor(lengths, device=q.device)[:, None] - torch.arange(
        q.shape[1], device=q.device
    ).flip(0)
    visible = positions < ends[..., None]  # [batch, num_new, max_length]: itself and all before
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.to(q),
        v.to(q),
        attn_mask=visible[:, None],
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[1],
    ).transpose(1, 2)
    # Where nothing is visible, some kernels give NaN and some give zeros.
    return out.masked_fill((ends < 1)[..., None, None], 0.0)
