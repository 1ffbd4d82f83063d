"""What the compiled kernel is never to read, write or return: it looks at no bounds by itself."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from minikv.attention import paged_attention
from minikv.attention.step import store_and_attend
from minikv.attention.tables import TableArray
from minikv.block_table import BlockTable
from minikv.errors import UnwrittenSlotError
from minikv.pool import BlockPool
from tests.attention.test_attention import HEAD_DIM, dense, store
from tests.attention.test_cpu import read
from tests.attention.test_step import HEADS, KV_HEADS, as_array, pools


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_new", [1, 3, 20])
def test_a_hole_anywhere_is_noticed(num_new: int, num_threads: int) -> None:
    """In the first part or a later one, in any row of a tile, whoever reads."""
    torch.set_num_threads(num_threads)
    for hole in (0, 700, 1398, 1399):
        stored = store([30, 1400], 16, offset=3)
        slot = int(stored.tables[1].slots(hole, hole + 1)[0])
        stored.pool.release_slots(slot, slot + 1)
        with pytest.raises(UnwrittenSlotError, match="I6"):
            read(stored, torch.randn(2, num_new, 4, HEAD_DIM))


@pytest.mark.parametrize("block_id", [-1, -2, 99, 2**31 - 1, -(2**31), 2**31, 2**32, -(2**32), 2**32 + 1])
@pytest.mark.parametrize("num_new", [1, 12])
@pytest.mark.parametrize("entry", [0, 2])
def test_a_block_outside_the_pool_is_never_read(block_id: int, num_new: int, entry: int) -> None:
    """Nor one whose id would be another's in 32 bits."""
    stored = store([30], 4)
    stored.pool.written(1)[:] = True  # so that only the id itself can be what is wrong
    ids = np.array([stored.tables[0].block_ids], dtype=np.int64)
    ids[0, entry] = block_id
    with pytest.raises(IndexError, match="outside"):
        q = torch.randn(1, num_new, 4, HEAD_DIM)
        paged_attention(q, stored.pool, 1, TableArray(ids, [0]), [30], backend="cpu")


def test_the_offset_decides_which_blocks_a_step_checks() -> None:
    ours, _, tables = pools(torch.float32)
    array = as_array(tables)
    array.block_ids[1, 3] = 99  # its offset is 3: position 9 lies at place 12, in entry 3
    before = ours.kv.clone()
    step = store_and_attend(ours, array, [7, 10, 2], 1, backend="cpu")
    with pytest.raises(IndexError, match="outside"):
        step(0, torch.randn(3, 1, HEADS, 8), *torch.randn(2, 3, 1, KV_HEADS, 8))
    assert torch.equal(ours.kv.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("kv_shape", "q_shape"),
    [
        ((3, 1, 2, 16), (3, 1, 4, 8)),
        ((3, 1, 3, 8), (3, 1, 4, 8)),
        ((3, 1, 1, 8), (3, 1, 4, 8)),
        ((3, 5, 2, 8), (3, 5, 4, 8)),  # more new tokens than a request has
        ((3, 1, 2, 8), (3, 1, 3, 8)),
        ((4, 1, 2, 8), (4, 1, 4, 8)),
        ((3, 2, 2, 8), (3, 1, 4, 8)),
    ],
)
def test_shapes_are_checked_by_a_step(kv_shape: tuple[int, ...], q_shape: tuple[int, ...]) -> None:
    ours, _, tables = pools(torch.float32)
    before = ours.kv.clone()
    step = store_and_attend(ours, tables, [7, 10, 2], 1, backend="cpu")
    with pytest.raises(ValueError, match="shape"):
        step(0, torch.randn(q_shape), *torch.randn(2, *kv_shape))
    assert torch.equal(ours.kv.nan_to_num(7.0), before.nan_to_num(7.0))


def test_v_is_checked_too() -> None:
    ours, _, tables = pools(torch.float32)
    step = store_and_attend(ours, tables, [7, 10, 2], 1, backend="cpu")
    with pytest.raises(ValueError, match="v has shape"):
        step(0, torch.randn(3, 1, 4, 8), torch.randn(3, 1, 2, 8), torch.randn(3, 1, 1, 8))


def test_what_the_kernel_refuses_is_never_returned() -> None:
    """A table of somebody's own, whose slots are not where its block_ids say."""

    class Own(BlockTable):
        def slots(self, start: int, stop: int) -> np.ndarray:
            return np.arange(start, stop)

    pool = BlockPool(8, 4, 1, 1, 8)
    pool.kv.fill_(math.nan)
    pool.write(0, range(9), *torch.randn(2, 9, 1, 8))
    table = Own(4)
    for block_id in (99, 1, 2):
        table.append_block(block_id)
    with pytest.raises(IndexError, match="slots"):
        paged_attention(torch.randn(1, 2, 8), pool, 0, [table], [9], backend="cpu")


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("num_new", [1, 2, 20])
@pytest.mark.parametrize("scale", [0.3, 40.0])
def test_a_lone_query_that_fetches_ahead_against_the_formula(num_new: int, offset: int, scale: float) -> None:
    stored = store([600, 30, 515], 16, offset=offset, head_dim=64)
    q = torch.randn(3, num_new, 6, 64)
    out = paged_attention(q, stored.pool, 1, stored.tables, stored.lengths, scale, backend="cpu")
    for row, query, (k, v) in zip(out, q, stored.kv, strict=True):
        expected = dense(query.double(), k.double(), v.double(), scale).float()
        assert (row - expected).abs().max() < (2e-5 if scale < 1 else 1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_result_has_the_type_of_the_query(dtype: torch.dtype) -> None:
    stored = store([9], 4)
    q = torch.randn(1, 4, HEAD_DIM).to(dtype).requires_grad_()
    out = paged_attention(q, stored.pool, 1, stored.tables, [9], backend="cpu")
    expected = dense(q[0, None].detach().float(), *stored.kv[0])[0]
    assert out.dtype == dtype and (out.float() - expected).abs().max() < 2e-2


def test_fewer_threads_of_numba_than_of_torch() -> None:
    code = "import torch; torch.set_num_threads(2)\nfrom minikv.attention import cpu; cpu.warm_up()"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "NUMBA_NUM_THREADS": "1"})


def test_nothing_is_stored_if_a_later_block_of_a_chunk_is_not_there() -> None:
    pool = BlockPool(8, 4, 1, 2, 8)
    pool.kv.fill_(math.nan)
    ids = TableArray(np.array([[0, 99]], dtype=np.int32), [0])
    step = store_and_attend(pool, ids, [8], 8, backend="cpu")
    with pytest.raises(IndexError, match="outside"):
        step(0, torch.randn(1, 8, 4, 8), torch.randn(1, 8, 2, 8), torch.randn(1, 8, 2, 8))
    assert pool.kv.isnan().all() and not pool.written(0).any()


TWO_AT_ONCE = """
import threading, torch
from minikv.attention import paged_attention
from minikv.block_table import BlockTable
from minikv.pool import BlockPool
torch.set_num_threads(2)
pool, table = BlockPool(64, 16, 1, 12, 64), BlockTable(16)
for block in range(64):
    table.append_block(block)
pool.write(0, table.slots(0, 1024), *torch.randn(2, 1024, 12, 64))
q = torch.randn(4, 1, 12, 64)
def read(): return paged_attention(q, pool, 0, [table] * 4, [1024] * 4, backend="cpu")
expected, wrong = read(), []
def often():
    wrong.extend(i for i in range(200) if not torch.equal(read(), expected))
threads = [threading.Thread(target=often) for _ in range(2)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert not wrong
"""


def test_two_threads_may_read_at_once() -> None:
    """Numba's plainest thread pool ends the process when it is entered twice at a time."""
    plain = {**os.environ, "NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", TWO_AT_ONCE], check=True, env=plain)
