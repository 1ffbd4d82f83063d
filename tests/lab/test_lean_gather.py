"""The lean gather against read_layer and the reference backend; what it does not take it refuses."""

import pytest
import torch

from minikv.attention import paged_attention
from minikv.block_table import BlockTable
from minikv.errors import UnwrittenSlotError
from minikv.lab.lean_gather import LeanGather
from minikv.pool import BlockPool

LENGTHS, OFFSETS = [9, 4, 0, 8], [2, 0, 0, 0]


def scene(dtype=torch.float32):
    """Four requests in scattered blocks of 4, one with an offset, one with nothing stored; NaN elsewhere."""
    made = torch.Generator().manual_seed(1)
    pool = BlockPool(9, 4, 2, 2, 8, dtype=dtype)
    pool.kv.fill_(float("nan"))
    tables, free = [], iter((5, 2, 7, 0, 3, 6, 8, 1))
    for length, offset in zip(LENGTHS, OFFSETS, strict=True):
        table = BlockTable(4, offset)
        while table.capacity < length:
            table.append_block(next(free))
        if length:
            k, v = torch.randn(2, length, 2, 8, generator=made)
            pool.write(1, table.slots(0, length), k, v)
        tables.append(table)
    return pool, tables


@pytest.mark.parametrize("keep", [True, False])
def test_its_rows_are_those_of_read_layer(keep):
    pool, tables = scene()
    lean = LeanGather(keep)
    for _ in range(2):  # what is kept must not show
        for table, length in zip(tables, LENGTHS, strict=True):
            for ours, theirs in zip(
                lean.rows(pool, 1, table, length), pool.read_layer(1, [table], [length]), strict=True
            ):
                assert ours.equal(theirs)


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_a_backend_it_reads_what_the_reference_reads(heads, dtype):
    pool, tables = scene(dtype)
    q = torch.randn(4, 1, heads, 8, generator=torch.Generator().manual_seed(2))
    lean = LeanGather()
    ours = paged_attention(q, pool, 1, tables, LENGTHS, backend=lean)
    theirs = paged_attention(q, pool, 1, tables, LENGTHS, backend="reference")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert not ours[2].any()  # nothing stored
    assert lean.seconds > 0


def test_memory_is_kept_or_is_not():
    pool, tables = scene()
    for keep in (True, False):
        lean = LeanGather(keep)
        first, _ = lean.rows(pool, 1, tables[3], 8)
        second, _ = lean.rows(pool, 1, tables[3], 8)
        assert (first.data_ptr() == second.data_ptr()) == keep


def test_what_was_not_written_and_more_than_one_token_are_refused():
    pool, tables = scene()
    with pytest.raises(UnwrittenSlotError):
        LeanGather().rows(pool, 0, tables[0], 9)
    with pytest.raises(IndexError):
        LeanGather().rows(pool, 1, tables[1], 5)
    with pytest.raises(ValueError, match="q has 2 new tokens; this backend takes decode steps, of 1 token"):
        paged_attention(torch.zeros(4, 2, 2, 8), pool, 1, tables, LENGTHS, backend=LeanGather())
