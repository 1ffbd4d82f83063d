"""The compiled kernel: the same bits on any number of threads, in any batch; the same sums in any chunks."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from minikv.attention import cpu, paged_attention
from minikv.attention.tables import TableArray
from minikv.block_table import BlockTable
from minikv.errors import UnwrittenSlotError
from minikv.pool import BlockPool
from tests.attention.test_attention import HEAD_DIM, Stored, dense, store


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Tests may set torch's number of threads, which is the kernel's, too."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def read(stored: Stored, q: Tensor) -> Tensor:
    return paged_attention(q, stored.pool, 1, stored.tables, stored.lengths, backend="cpu")


def only(stored: Stored, i: int) -> Stored:
    return Stored(stored.pool, [stored.tables[i]], [stored.lengths[i]], [stored.kv[i]])


# A head_dim of less than a vector, and one of several.
@pytest.mark.parametrize("head_dim", [HEAD_DIM, 64])
@pytest.mark.parametrize("num_new", [1, 5, 8, 9, 40])
def test_the_number_of_threads_changes_no_bit(num_new: int, head_dim: int) -> None:
    stored = store([40, 1030, 700, 2100], 16, offset=3, head_dim=head_dim)
    q = torch.randn(4, num_new, 4, head_dim)
    outs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outs += [read(stored, q) for _ in range(3)]
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("num_new", [1, 30])
def test_the_rest_of_the_batch_changes_no_bit(num_new: int) -> None:
    stored = store([1500, 30, 600, 515], 16)
    q = torch.randn(4, num_new, 4, HEAD_DIM)
    together = read(stored, q)
    for i in range(4):
        assert torch.equal(read(only(stored, i), q[i : i + 1])[0], together[i])


@pytest.mark.parametrize("head_dim", [HEAD_DIM, 64])
def test_chunks_of_a_prompt_change_nothing_but_rounding(head_dim: int) -> None:
    """Token by token, in chunks, all at once: the two ways of sharing work among threads agree.

    A lone query that fetches ahead adds up in an order of its own, on processors without AVX-512.
    """
    stored = store([1100], 16, offset=5, head_dim=head_dim)
    q = torch.randn(1, 100, 4, head_dim)  # the last 100 tokens
    whole = read(stored, q)
    for size in (1, 7, 8, 33):
        for start in range(0, 100, size):
            stop = min(100, start + size)
            part = Stored(stored.pool, stored.tables, [1000 + stop], stored.kv)
            assert (read(part, q[:, start:stop])[0] - whole[0, start:stop]).abs().max() < 1e-5


@pytest.mark.parametrize("num_new", [1, 20])
def test_bfloat16_is_read_as_it_is_and_added_up_in_float32(num_new: int) -> None:
    torch.manual_seed(0)
    pool = BlockPool(40, 16, num_layers=1, num_kv_heads=2, head_dim=HEAD_DIM, dtype=torch.bfloat16)
    pool.kv.fill_(float("nan"))
    stored = store([600], 16)
    (k, v), table = stored.kv[0], stored.tables[0]
    pool.write(0, table.slots(0, 600), k, v)
    q = torch.randn(1, num_new, 4, HEAD_DIM)
    out = paged_attention(q, pool, 0, [table], [600], backend="cpu")
    expected = dense(q[0], k.bfloat16().float(), v.bfloat16().float())
    assert (out[0] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("num_new", [1, 5, 96])
def test_reading_takes_no_longer_because_the_block_is_large(num_new: int) -> None:
    """A pool of contiguous memory is one block; what is needed for a read must be as large as the read.

    When it was as large as the block, the times were 3 to 12 times as long.
    """
    torch.set_num_threads(1)
    q = torch.randn(1, num_new, 48, HEAD_DIM)
    reads = [in_one_block(block_size) for block_size in (96, 1 << 18)]
    outs, times = [], [[math.inf], [math.inf]]
    for _ in range(15):
        for stored, taken in zip(reads, times, strict=True):
            start = time.perf_counter()
            outs.append(read(stored, q))
            taken.append(time.perf_counter() - start)
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert min(times[1]) < 2 * min(times[0])


def in_one_block(block_size: int, length: int = 96) -> Stored:
    """A request at the beginning of a pool of one block."""
    torch.manual_seed(0)
    pool, table = BlockPool(1, block_size, 2, 1, HEAD_DIM), BlockTable(block_size)
    table.append_block(0)
    k, v = torch.randn(2, length, 1, HEAD_DIM)
    pool.write(1, range(length), k, v)
    return Stored(pool, [table], [length], [(k, v)])


@pytest.mark.parametrize("block_size", [16, 100])
def test_an_empty_request_beside_a_prompt(block_size: int) -> None:
    stored, q = store([40, 0, 20], block_size), torch.randn(3, 20, 4, HEAD_DIM)
    out = read(stored, q)
    assert not out[1].any()
    for i in (0, 2):
        assert (out[i] - dense(q[i], *stored.kv[i])).abs().max() < 1e-5


@pytest.mark.parametrize("spare", [0, 1, 1000])
@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("num_new", [1, 3, 8, 20, 30])
def test_a_run_anywhere_in_one_block(num_new: int, start: int, spare: int) -> None:
    """As many scores as are seen, wherever in the block they begin and however much of it lies behind."""
    torch.manual_seed(start + spare)
    length = 30
    pool = BlockPool(1, start + length + spare, 2, 2, HEAD_DIM)
    pool.kv.fill_(math.nan)
    table = BlockTable(pool.block_size, start)
    table.append_block(0)
    k, v = torch.randn(2, length, 2, HEAD_DIM)
    pool.write(1, table.slots(0, length), k, v)
    q = torch.randn(1, num_new, 4, HEAD_DIM)
    out = paged_attention(q, pool, 1, [table], [length], backend="cpu")
    assert (out[0] - dense(q[0], k, v)).abs().max() < 1e-5


def test_what_is_stored_as_nan_or_infinity_shows() -> None:
    """Fast arithmetic must not hide that the model itself went wrong."""
    for value in (float("nan"), float("inf")):
        stored = store([20], 4)
        stored.pool.kv[1, stored.tables[0].block_ids[2], 0, :, 1] = value
        assert not read(stored, torch.randn(1, 4, HEAD_DIM)).isfinite().all()


def test_scores_far_apart_and_large() -> None:
    stored = store([300], 16)
    q = torch.randn(1, 4, HEAD_DIM) * 300
    assert (read(stored, q)[0] - dense(q, *stored.kv[0])[0]).abs().max() < 1e-5


def test_what_it_refuses() -> None:
    stored = store([9], 4)
    q = torch.randn(1, 4, HEAD_DIM)
    with pytest.raises(UnwrittenSlotError, match="never written"):
        paged_attention(q, stored.pool, 1, stored.tables, [10], backend="cpu")
    ids = np.array([[0, 99, 1]], dtype=np.int32)
    with pytest.raises(IndexError, match="outside"):
        paged_attention(q, stored.pool, 1, TableArray(ids, [0]), [9], backend="cpu")

    class OnlySlots:
        def slots(self, start: int, stop: int) -> np.ndarray:
            return stored.tables[0].slots(start, stop)

    with pytest.raises(TypeError, match="OnlySlots has no block_ids"):
        paged_attention(q, stored.pool, 1, [OnlySlots()], [9], backend="cpu")
    assert paged_attention(q, stored.pool, 1, [OnlySlots()], [9]).isfinite().all()  # "auto" knows
    half = BlockPool(1, 1, 1, 1, 1, dtype=torch.float16)
    with pytest.raises(TypeError, match=r"torch\.float16"):
        cpu.attend(torch.zeros(1, 1, 1, 1), half, 0, TableArray(np.zeros((1, 1)), [0]), [0], 1.0)
    elsewhere = BlockPool(1, 1, 1, 1, 1, device="meta")
    with pytest.raises(ValueError, match="the pool is on meta"):
        cpu.attend(torch.zeros(1, 1, 1, 1), elsewhere, 0, TableArray(np.zeros((1, 1)), [0]), [0], 1.0)


def test_warming_up_leaves_nothing_to_compile() -> None:
    cpu.warm_up()
    kernels = (cpu._one_tile, cpu._many_tiles)
    before = [len(kernel.signatures) for kernel in kernels]
    stored = store([30, 20], 4)
    for num_new in (1, 12):
        read(stored, torch.randn(2, num_new, 4, HEAD_DIM))
        array = TableArray(
            np.array([t.block_ids[:5] for t in stored.tables], dtype=np.int64), np.zeros(2, int)
        )
        paged_attention(torch.randn(2, num_new, 4, HEAD_DIM), stored.pool, 1, array, [20, 20], backend="cpu")
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_torch_keeps_its_number_of_threads() -> None:
    """Numba's first parallel call sets the OpenMP that it may share with torch to a number of its own."""
    code = (
        "import torch; torch.set_num_threads(2)\n"
        "from minikv.attention import cpu; cpu.warm_up()\n"
        "print(torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={**os.environ, "NUMBA_NUM_THREADS": "4"},
    )  # fmt: skip
    assert done.stdout.strip() == "2"
