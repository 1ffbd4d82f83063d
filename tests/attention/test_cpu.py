"""The compiled kernel: the same bits on any number of threads, in any batch; the same sums in any chunks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from minikv.attention import cpu, paged_attention
from minikv.attention.tables import TableArray
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


# With a head_dim of 64 a head's keys fill a page of memory: a lone query fetches ahead.
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
