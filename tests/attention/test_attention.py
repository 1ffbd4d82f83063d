"""Every way of reading against plain attention over keys and values kept side by side."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from minikv.attention import BACKENDS, paged_attention
from minikv.attention.tables import TableArray
from minikv.block_table import BlockTable
from minikv.errors import UnwrittenSlotError
from minikv.pool import BlockPool

HEAD_DIM = 8
BLOCK_SIZES = (1, 3, 5, 7, 16, 100, 544)

#: On Linux the GPU kernel is tested everywhere, by Triton's interpreter; elsewhere there is no Triton, nor
#: is there with the conda road's packages.
WITH_TRITON = sys.platform == "linux" and not (Path(sys.prefix) / "conda-meta").exists()
#: "contiguous" reads pools of one block only: see test_contiguous.py.
READERS = [name for name in BACKENDS if name != "contiguous" and (name != "triton" or WITH_TRITON)]
backends = pytest.mark.parametrize("backend", [*READERS, "auto"])


class Stored(NamedTuple):
    """Some requests in a pool of poison, and the same keys and values side by side."""

    pool: BlockPool
    tables: list[BlockTable]
    lengths: list[int]
    kv: list[tuple[Tensor, Tensor]]  # a request: [length, kv_heads, head_dim] each


def store(
    lengths: list[int],
    block_size: int,
    kv_heads: int = 2,
    offset: int = 0,
    poison: float = math.nan,
    head_dim: int = HEAD_DIM,
) -> Stored:
    """Requests of these lengths in shuffled blocks; every slot that is not theirs holds poison."""
    torch.manual_seed(sum(lengths) * 1000 + block_size)
    needed = [-(-(length + offset) // block_size) for length in lengths]
    ids = random.Random(block_size).sample(range(sum(needed) + 2), sum(needed))
    pool = BlockPool(sum(needed) + 2, block_size, num_layers=2, num_kv_heads=kv_heads, head_dim=head_dim)
    pool.kv.fill_(poison)
    tables, kv = [], []
    for length, count in zip(lengths, needed, strict=True):
        table = BlockTable(block_size, offset)
        for _ in range(count):
            table.append_block(ids.pop())
        k, v = torch.randn(2, length, kv_heads, head_dim)
        pool.write(1, table.slots(0, length), k, v)
        tables.append(table)
        kv.append((k, v))
    return Stored(pool, tables, lengths, kv)


def dense(q: Tensor, k: Tensor, v: Tensor, scale: float = HEAD_DIM**-0.5) -> Tensor:
    """Attention head by head, token by token, as the formula says: q [num_new, heads, head_dim]."""
    num_new, heads, _ = q.shape
    out = torch.zeros_like(q)
    for token in range(num_new):
        sees = len(k) - num_new + token + 1
        for head in range(heads):
            kv_head = head // (heads // k.shape[1])
            weights = torch.softmax(k[:sees, kv_head] @ q[token, head] * scale, dim=0)
            out[token, head] = weights @ v[:sees, kv_head]
    return out


def read(stored: Stored, q: Tensor, backend: str, scale: float | None = None) -> Tensor:
    return paged_attention(q, stored.pool, 1, stored.tables, stored.lengths, scale, backend)


def assert_dense(stored: Stored, q: Tensor, backend: str) -> None:
    """Read with q [batch, num_new, heads, head_dim] and compare every request with `dense`."""
    out = read(stored, q, backend)
    assert out.shape == q.shape
    assert out.isfinite().all()
    for row, query, (k, v) in zip(out, q, stored.kv, strict=True):
        expected = dense(query, k, v) if len(k) else torch.zeros_like(query)
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


# ---- against the formula -------------------------------------------------------------------------


@backends
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_lengths_around_block_boundaries(block_size: int, backend: str) -> None:
    lengths = [1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size, 2 * block_size + 1]
    assert_dense(store(lengths, block_size), torch.randn(6, 1, 4, HEAD_DIM), backend)


@backends
@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_offsets(block_size: int, backend: str) -> None:
    for offset in {1, block_size // 2, block_size - 1}:
        stored = store([1, block_size - offset, block_size, 2 * block_size + 1], block_size, offset=offset)
        assert_dense(stored, torch.randn(4, 1, 4, HEAD_DIM), backend)


@backends
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (48, 2), (40, 2), (80, 4), (5, 1), (3, 3)])
def test_grouped_heads(heads: int, kv_heads: int, backend: str) -> None:
    assert_dense(store([5, 9], 4, kv_heads=kv_heads), torch.randn(2, 1, heads, HEAD_DIM), backend)


@backends
@pytest.mark.parametrize("num_new", [1, 2, 5, 9])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_chunks_see_what_is_before_them_and_themselves(block_size: int, num_new: int, backend: str) -> None:
    stored = store([9, 10, 12, 23], block_size)
    assert_dense(stored, torch.randn(4, num_new, 4, HEAD_DIM), backend)


@backends
def test_one_new_token_needs_no_axis_of_its_own(backend: str) -> None:
    stored, q = store([5, 9], 4), torch.randn(2, 4, HEAD_DIM)
    assert torch.equal(read(stored, q, backend), read(stored, q[:, None], backend)[:, 0])


@backends
def test_scale(backend: str) -> None:
    stored, q = store([9], 4), torch.randn(1, 1, 4, HEAD_DIM)
    out = read(stored, q, backend, scale=1.7)
    torch.testing.assert_close(out[0], dense(q[0], *stored.kv[0], scale=1.7), atol=1e-5, rtol=1e-5)


@backends
def test_large_scores_do_not_overflow(backend: str) -> None:
    """exp(1000) is infinite; a softmax that does not subtract its maximum gives NaN."""
    stored = store([9], 4)
    assert_dense(stored, 300 * torch.randn(1, 1, 4, HEAD_DIM), backend)


# ---- poison: what was never written has no influence, not even times zero ------------------------


@backends
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("num_new", [1, 3])
def test_poison(num_new: int, poison: float, backend: str) -> None:
    stored = store([5, 3, 8], 4, poison=poison)
    assert not stored.pool.kv.isfinite().all()
    assert_dense(stored, torch.randn(3, num_new, 4, HEAD_DIM), backend)


@backends
def test_reading_a_slot_never_written_is_an_error(backend: str) -> None:
    stored = store([5], 4)
    stored.lengths[0] = 6
    with pytest.raises(UnwrittenSlotError, match="I6"):
        read(stored, torch.randn(1, 4, HEAD_DIM), backend)


# ---- empty rows, empty batches -------------------------------------------------------------------


@backends
@pytest.mark.parametrize("num_new", [1, 3])
def test_an_empty_row_gives_zeros_and_leaves_the_others_alone(num_new: int, backend: str) -> None:
    q = torch.randn(3, num_new, 4, HEAD_DIM)
    stored = store([7, 0, 5], 4)
    out = read(stored, q, backend)
    assert_dense(stored, q, backend)
    assert not out[1].any()
    without = Stored(stored.pool, stored.tables[::2], [7, 5], stored.kv[::2])
    assert torch.equal(out[::2], read(without, q[::2], backend))


def test_an_empty_row_gives_zeros_whatever_the_kernel_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The softmax of nothing is 0 / 0. torch's CPU kernel says 0 for it, others say NaN."""
    kernel = torch.nn.functional.scaled_dot_product_attention

    def strict(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, **options: Any) -> Tensor:
        nothing = ~attn_mask.any(-1, keepdim=True)
        return kernel(q, k, v, attn_mask=attn_mask, **options).masked_fill(nothing, math.nan)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", strict)
    stored = store([0, 5], 4)
    out = read(stored, torch.randn(2, 4, HEAD_DIM), "gather")
    assert out[0].eq(0).all() and out[1].isfinite().all()


@backends
def test_nothing_but_empty_rows(backend: str) -> None:
    assert not read(store([0, 0], 4), torch.randn(2, 4, HEAD_DIM), backend).any()


@backends
def test_nothing_but_empty_rows_without_a_block(backend: str) -> None:
    """An offset is there before the first block is."""
    tables = [BlockTable(4, offset) for offset in (1, 0, 3)]
    out = paged_attention(
        torch.randn(3, 4, HEAD_DIM), store([], 4).pool, 0, tables, [0, 0, 0], backend=backend
    )
    assert not out.any()


@backends
def test_no_rows(backend: str) -> None:
    assert read(store([], 4), torch.zeros(0, 4, HEAD_DIM), backend).shape == (0, 4, HEAD_DIM)


# ---- a set, not a sequence -----------------------------------------------------------------------


@backends
def test_the_order_of_full_blocks_changes_nothing(backend: str) -> None:
    """Softmax sums over what it reads: two written blocks may change places in one table.

    The positions are in the keys and values, put there before they were stored, not in the table.
    """
    stored, q = store([11], 4), torch.randn(1, 4, HEAD_DIM)
    before = read(stored, q, backend)
    [table] = stored.tables
    first, second, _ = table.block_ids
    table.replace_block(0, second)
    table.replace_block(1, first)
    torch.testing.assert_close(read(stored, q, backend), before, atol=1e-6, rtol=1e-6)
    table.replace_block(1, second)  # but listing one of them twice is another set
    assert not torch.allclose(read(stored, q, backend), before, atol=1e-3)


# ---- address arithmetic --------------------------------------------------------------------------


@backends
def test_addresses_beyond_32_bits(backend: str) -> None:
    """The default pool with GPT-2 small has more elements than an int32 counts, from block 7,281 on.

    One byte an element, so that 4.8 GB are reserved; only the blocks written are ever in memory. The compiled
    kernel takes no bytes: two an element, and half the layers.
    """
    layers, dtype = (6, torch.bfloat16) if backend == "cpu" else (12, torch.int8)
    pool = BlockPool(16384, 16, layers, num_kv_heads=12, head_dim=64, dtype=dtype)
    assert pool.kv.numel() == layers * 402_653_184 > 2**31
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randint(-2, 3, (20, 12, 64), generator=generator).float() for _ in range(2))
    q = torch.randn(1, 12, 64, generator=generator)
    outs = []
    for layer, block_ids in (
        (0, (0, 1)),
        (0, (7281, 7282)),
        (layers - 1, (16383, 3)),
        (layers - 1, (7280, 16382)),
    ):
        table = BlockTable(16)
        for block_id in block_ids:
            table.append_block(block_id)
        pool.write(layer, table.slots(0, 20), k, v)
        for index, block_id in enumerate(block_ids):
            places = min(16, 20 - 16 * index)
            offset = (
                ((layer * 16384 + block_id) * 2) * 12 * 16 * 64
            )  # in Python's integers, which have no end
            run = pool.kv.as_strided((12, places, 64), (16 * 64, 64, 1), offset)
            assert torch.equal(run.float(), k[16 * index : 16 * index + places].transpose(0, 1))
        outs.append(paged_attention(q, pool, layer, [table], [20], backend=backend))
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert outs[0].any()


def test_a_table_of_int32_block_ids_gives_64_bit_slots() -> None:
    table = BlockTable(2**20)
    table.append_block(int(np.int32(2**20)))
    assert int(table.slots(5, 6)[0]) == table.slot(5) == 2**40 + 5


# ---- what is refused -----------------------------------------------------------------------------


@backends
@pytest.mark.parametrize(("heads", "kv_heads"), [(33, 2), (3, 2), (1, 2)])
def test_heads_that_cannot_share(heads: int, kv_heads: int, backend: str) -> None:
    with pytest.raises(ValueError, match=f"{heads} query heads cannot share {kv_heads} kv heads"):
        read(store([5], 4, kv_heads=kv_heads), torch.randn(1, heads, HEAD_DIM), backend)


@pytest.mark.parametrize(
    "shape", [(2, 4, HEAD_DIM), (1, 4, HEAD_DIM + 1), (4, HEAD_DIM), (1, 1, 1, 4, HEAD_DIM)]
)
def test_shapes_of_q(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="q has shape"):
        read(store([5], 4), torch.randn(shape), "auto")


def test_more_new_tokens_than_stored_ones() -> None:
    with pytest.raises(ValueError, match="5 stored tokens cannot have 6 new"):
        read(store([5], 4), torch.randn(1, 6, 4, HEAD_DIM), "auto")


@backends
@pytest.mark.parametrize(("lengths", "error"), [([-1], ValueError), ([9], IndexError), ([5, 5], ValueError)])
def test_lengths(lengths: list[int], error: type[Exception], backend: str) -> None:
    stored = store([5], 4)._replace(lengths=lengths)
    with pytest.raises(error, match=r"length|capacity"):
        read(stored, torch.randn(1, 4, HEAD_DIM), backend)


def test_an_unknown_backend_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'fast' is unknown; there are 'auto' and 'reference', 'gather'"):
        read(store([5], 4), torch.randn(1, 4, HEAD_DIM), "fast")


@pytest.mark.skipif(not WITH_TRITON, reason="there is no Triton here")
def test_triton_that_came_too_early_is_named() -> None:
    """Something else, such as transformers, may import Triton before anybody asks for the interpreter."""
    lines = ("import triton", "try:", "    import minikv.attention.gpu", "except RuntimeError as error:")
    command = [sys.executable, "-c", "\n".join([*lines, "    print(error)"])]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    expected = "" if torch.cuda.is_available() else "set TRITON_INTERPRET=1 before Python starts"
    assert expected in done.stdout


def test_a_function_of_ones_own_may_read() -> None:
    stored, q = store([5], 4), torch.randn(1, 4, HEAD_DIM)
    seen: list[object] = []

    def mine(q: Tensor, *rest: object) -> Tensor:
        seen.extend([q.shape, *rest])
        return q * 2

    out = paged_attention(q, stored.pool, 1, stored.tables, stored.lengths, backend=mine)
    assert torch.equal(out, q * 2)
    assert seen == [(1, 1, 4, HEAD_DIM), stored.pool, 1, stored.tables, stored.lengths, HEAD_DIM**-0.5]


@backends
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_a_padded_array_of_tables_reads_what_the_tables_read(
    backend: str, offset: int, as_tensors: bool
) -> None:
    stored = store([1, 9, 30, 4], block_size=4, offset=offset)
    block_ids = np.full((4, 12), -1, dtype=np.int32)  # -1: a padding that would show if it were read
    for row, table in zip(block_ids, stored.tables, strict=True):
        row[: table.num_blocks] = table.block_ids
    offsets = np.full(4, offset, dtype=np.int32)
    array = TableArray(block_ids, offsets)
    if as_tensors:
        array = TableArray(torch.from_numpy(block_ids), torch.from_numpy(offsets))
    q = torch.randn(4, 4, HEAD_DIM)
    expected = paged_attention(q, stored.pool, 1, stored.tables, stored.lengths, backend=backend)
    assert torch.equal(paged_attention(q, stored.pool, 1, array, stored.lengths, backend=backend), expected)


@backends
def test_a_table_array_of_the_wrong_shape_is_refused(backend: str) -> None:
    stored = store([9], block_size=4)
    q, ids = torch.randn(1, 4, HEAD_DIM), np.array([stored.tables[0].block_ids], dtype=np.int32)
    for array, said in (
        (TableArray(ids[0], [0]), r"block_ids has shape \[3\]"),
        (TableArray(ids, [0, 0]), r"offsets \[2\]"),
        (TableArray(ids, [4]), r"offset is 4; it must be in \[0, 4\)"),
    ):
        with pytest.raises(ValueError, match=said):
            paged_attention(q, stored.pool, 1, array, [9], backend=backend)
    with pytest.raises(IndexError, match=r"\[0, 13\) reach outside \[0, 12\)"):
        paged_attention(q, stored.pool, 1, TableArray(ids, [0]), [13], backend=backend)
