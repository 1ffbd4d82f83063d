"""Read in one pass on a GPU: the kernel of attention/cpu.py once more, in Triton.

What a thread does there, a program does here: one part of the blocks, for some rows of one kv head.
A row is one query head of one new token; all rows of a kv head want the same keys and values, so they
are loaded once. The parts are merged in the end.

Without a GPU, Triton's interpreter runs the same code on the CPU: slowly, but to the same result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from minikv.attention.tables import TableArray, as_arrays, as_tables
from minikv.pool import BlockPool, ReadTable

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton looks at it when it is first imported

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'backend="triton" needs Triton, which comes with torch\'s CUDA builds; on Linux: pip install triton'
    ) from error

if os.environ.get("TRITON_INTERPRET") == "1" and isinstance(tl.sum, triton.JITFunction):
    raise RuntimeError(
        "there is no CUDA GPU, and something else imported Triton before its interpreter was asked for; "
        "set TRITON_INTERPRET=1 before Python starts"
    )

ROWS = 16  # in a program; the smallest matrix product that a GPU offers
PART = 512  # tokens; at least one block
NUMBERS = 4096  # of keys, and as many of values, in one go: with copies on their way, 99 KB of fast memory


def attend(
    q: Tensor,
    pool: BlockPool,
    layer: int,
    tables: Sequence[ReadTable] | TableArray,
    lengths: Sequence[int],
    scale: float,
) -> Tensor:
    """Attention of q [batch, num_new, heads, head_dim], the last num_new of each request's tokens.

    Raises:
        TypeError: a table has no block_ids and offset. IndexError, UnwrittenSlotError: as read_layer.
    """
    block_ids, offsets, ends = (torch.from_numpy(x).to(q.device) for x in as_arrays(tables, lengths, pool))
    for row in pool.row_slots(as_tables(tables, pool), lengths):
        pool.require_written(layer, row)
    batch, num_new, heads, head_dim = q.shape
    kv_heads, block_size = pool.kv.shape[3:5]
    entries = max(1, PART // block_size)
    parts = max(1, -(-block_ids.shape[1] // entries))
    tiles = -(-num_new * (heads // kv_heads) // ROWS)
    shape = (batch, parts, num_new, heads)
    best = q.new_full(shape, float("-inf"), dtype=torch.float32)
    total = torch.zeros_like(best)
    mixed = q.new_zeros((*shape, head_dim), dtype=torch.float32)
    if mixed.numel():
        _part[batch, kv_heads * tiles, parts](
            q.contiguous(), pool.kv[layer], block_ids, offsets, ends, best, total, mixed, scale,
            block_ids.shape[1], entries, num_new, heads, kv_heads, block_size, head_dim, tiles,
            ROWS, *tile_of(block_size, head_dim),
        )  # fmt: skip
    return _merged(best, total, mixed).to(q)


def tile_of(block_size: int, head_dim: int) -> tuple[int, int]:
    """Places of a block, and numbers of each, that a program looks at in one go: powers of two from 16 on."""
    dims = max(16, triton.next_power_of_2(head_dim))
    return max(16, min(triton.next_power_of_2(block_size), NUMBERS // dims)), dims


@triton.jit
def _part(  # type: ignore[no-untyped-def]  # these become pointers and numbers on the GPU
    q_start, kv_start, block_ids_start, offsets_start, ends_start, best_start, total_start, mixed_start,
    scale, max_blocks, entries, num_new, heads, kv_heads, block_size, head_dim, tiles,
    ROWS: tl.constexpr, PLACES: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Entries part * entries … of request i's table, for one tile of the rows of kv head g.

    ROWS, PLACES and DIMS are powers of two, as Triton wants its shapes; what they exceed is masked.
    """
    i, part = tl.program_id(0), tl.program_id(2)
    g, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    end, offset = tl.load(ends_start + i), tl.load(offsets_start + i)
    group = heads // kv_heads

    row = tile * ROWS + tl.arange(0, ROWS)
    token, head = row // group, g * group + row % group
    dim = tl.arange(0, DIMS)
    is_row, is_dim = row < num_new * group, dim < head_dim
    at = (i * num_new + token) * heads + head
    q = tl.load(q_start + at[:, None] * head_dim + dim, mask=is_row[:, None] & is_dim, other=0.0).to(
        tl.float32
    )
    sees = end - num_new + token  # the last position that a row sees

    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIMS), tl.float32)
    last = tl.minimum((part + 1) * entries, (offset + end + block_size - 1) // block_size)
    last = tl.where(end > 0, last, 0)  # an empty request may have no entry at all, and an offset all the same
    for entry in range(part * entries, last):
        block_id = tl.load(block_ids_start + i * max_blocks + entry).to(tl.int64)  # addresses exceed 32 bits
        k_start = kv_start + (block_id * 2 * kv_heads + g) * block_size * head_dim
        for first in range(0, block_size, PLACES):  # a large block in pieces
            place = first + tl.arange(0, PLACES)
            position = entry * block_size + place - offset
            stored = (place < block_size) & (position >= 0) & (position < end)
            inside = place[:, None] * head_dim + dim
            there = stored[:, None] & is_dim  # nothing else is loaded: 0 times NaN would be NaN
            k = tl.load(k_start + inside, mask=there, other=0.0).to(tl.float32)
            v_start = k_start + kv_heads * block_size * head_dim
            v = tl.load(v_start + inside, mask=there, other=0.0).to(tl.float32)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            visible = stored & (position <= sees[:, None]) & is_row[:, None]
            scores = tl.where(visible, scores, float("-inf"))
            top = tl.maximum(best, tl.max(scores, 1))
            seen = top > float("-inf")
            shrink = tl.where(seen, tl.exp(best - tl.where(seen, top, 0.0)), 0.0)
            weights = tl.where(visible, tl.exp(scores - tl.where(seen, top, 0.0)[:, None]), 0.0)
            total = total * shrink + tl.sum(weights, 1)
            mixed = mixed * shrink[:, None] + tl.dot(weights, v, input_precision="ieee")
            best = top

    out = ((i * tl.num_programs(2) + part) * num_new + token) * heads + head
    tl.store(best_start + out, best, mask=is_row)
    tl.store(total_start + out, total, mask=is_row)
    tl.store(mixed_start + out[:, None] * head_dim + dim, mixed, mask=is_row[:, None] & is_dim)


def _merged(best: Tensor, total: Tensor, mixed: Tensor) -> Tensor:
    """What the parts saw, together: [batch, num_new, heads, head_dim]. Zeros where nothing was seen."""
    top = best.amax(1, keepdim=True)
    weight = torch.where(total != 0, torch.exp(best - top), 0.0)
    total, mixed = (weight * total).sum(1), (weight[..., None] * mixed).sum(1)
    return torch.where(total[..., None] != 0, mixed / total[..., None], 0.0)
