"""Lengths and block ids are integers, and ids lie in the pool: each way of reading says so, before it stores.

Else a length of 9.9 would be read as 9, and an id whose slots have no room in 64 bits as another block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minikv.attention import paged_attention
from minikv.attention.step import store_and_attend
from minikv.attention.tables import TableArray
from minikv.block_table import BlockTable
from minikv.pool import BlockPool
from tests.attention.test_attention import READERS
from tests.attention.test_contiguous import EVERY_WAY

SIZE = 4
every_way = pytest.mark.parametrize("backend", EVERY_WAY)


def full_pool() -> BlockPool:
    """One block, which every way of reading can read, all of it written: no id may pass for another's."""
    pool = BlockPool(1, SIZE, 1, 2, 8)
    pool.write(0, range(SIZE), *torch.randn(2, SIZE, 2, 8))
    return pool


def table_of(*block_ids: Any) -> BlockTable:
    table = BlockTable(SIZE)
    for block_id in block_ids:
        table.append_block(block_id)
    return table


def refused(
    backend: str, tables: Any, lengths: Any, error: type[Exception], said: str, num_new: Any = 1
) -> None:
    """By a read, and by a step, which stores nothing then."""
    pool, q = full_pool(), torch.randn(1, 1, 4, 8)
    before = pool.kv.clone()
    if num_new == 1:
        with pytest.raises(error, match=said):
            paged_attention(q, pool, 0, tables, lengths, backend=backend)
    with pytest.raises(error, match=said):
        store_and_attend(pool, tables, lengths, num_new, backend=backend)(0, q, *torch.randn(2, 1, 1, 2, 8))
    assert torch.equal(pool.kv, before)


# ---- block ids -----------------------------------------------------------------------------------


# Times 4 slots a block, the ids from 2**62 on are 0 in 64 bits: the first block.
FAR = [2**31, -(2**31) - 1, 2**32, 2**32 + 1, 2**62, 2**63, 2**64, -(2**64)]


@every_way
@pytest.mark.parametrize("block_id", [-1, 1, 2**31 - 1, *FAR])
def test_a_table_with_a_block_outside_the_pool(block_id: int, backend: str) -> None:
    refused(backend, [table_of(block_id)], [3], IndexError, r"-?\d+ is outside \[0, [14]\)")


@every_way
@pytest.mark.parametrize("block_id", FAR)
def test_a_block_far_outside_is_named(block_id: int, backend: str) -> None:
    refused(backend, [table_of(0, block_id)], [7], IndexError, rf"block {block_id} is outside \[0, 1\)")


@every_way
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32])
def test_an_array_with_a_block_outside_the_pool(dtype: type, backend: str) -> None:
    """uint64 has numbers that are negative in int64."""
    most = int(np.iinfo(dtype).max)
    for block_id in {1, 2**31, most, most // 2 + 1}:
        array = TableArray(np.array([[block_id]], dtype=dtype), [0])
        refused(backend, array, [3], IndexError, rf"block {block_id} is outside \[0, 1\)")


@every_way
@pytest.mark.parametrize(
    ("block_id", "said"), [(0.9, "0.9"), (0.0, "0.0"), (None, "None"), ("0", "'0'"), (np.float32(0), "0.0")]
)
def test_a_block_id_that_is_no_integer(block_id: Any, said: str, backend: str) -> None:
    refused(backend, [table_of(block_id)], [3], TypeError, rf"a block id is .*{said}.*must be an integer")


@every_way
@pytest.mark.parametrize("ids", [np.array([[0.9]]), torch.tensor([[0.5]]), np.array([[False]])])
def test_an_array_of_block_ids_that_are_no_integers(ids: np.ndarray | Tensor, backend: str) -> None:
    refused(backend, TableArray(ids, [0]), [3], TypeError, r"block_ids hold (0\.9|0\.5|False).*integer type")


@every_way
def test_offsets_that_are_no_integers(backend: str) -> None:
    array = TableArray(np.zeros((1, 1), dtype=np.int32), [0.5])  # type: ignore[list-item]
    refused(backend, array, [3], TypeError, r"offsets hold 0\.5.*integer type")


@pytest.mark.parametrize(("name", "value"), [("offset", 0.5), ("block_ids", [0.5])])
def test_a_table_of_ones_own_that_a_kernel_walks(name: str, value: Any) -> None:
    class Own:
        block_ids, offset = np.zeros(1, dtype=np.int32), np.int64(0)

        def slots(self, start: int, stop: int) -> np.ndarray:
            return np.arange(start, stop)

    pool, q, own = full_pool(), torch.randn(1, 4, 8), Own()
    out = paged_attention(q, pool, 0, [own], [3], backend="cpu")
    assert torch.equal(out, paged_attention(q, pool, 0, [table_of(0)], [3], backend="cpu"))
    setattr(own, name, value)
    with pytest.raises(TypeError, match=r"0\.5; it must be an integer"):
        paged_attention(q, pool, 0, [own], [3], backend="cpu")


# ---- lengths -------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ([2.9], "2.9"),
        ([3.0], "3.0"),
        ([np.float32(2.5)], "2.5"),
        (np.array([2.9]), "2.9"),
        (torch.tensor([2.5]), "2.5"),
        ([True], "True"),
        (np.array([True]), "True"),
        (["3"], "'3'"),
        ([None], "None"),
    ],
)
def test_a_length_that_is_no_integer(lengths: Any, named: str, backend: str) -> None:
    refused(backend, [table_of(0)], lengths, TypeError, f"length is .*{named}.*; it must be an integer")
    array = TableArray(np.zeros((1, 1), dtype=np.int32), [0])
    refused(backend, array, lengths, TypeError, f"length is .*{named}.*; it must be an integer")


@every_way
@pytest.mark.parametrize("num_new", [1.0, True, "1"])
def test_a_number_of_new_tokens_that_is_no_integer(num_new: Any, backend: str) -> None:
    pool = full_pool()
    with pytest.raises(TypeError, match=r"num_new is .*; it must be an integer"):
        store_and_attend(pool, [table_of(0)], [3], num_new, backend=backend)


@every_way
def test_a_length_beyond_64_bits(backend: str) -> None:
    refused(backend, [table_of(0)], [2**70], IndexError, rf"{2**70}\) reach outside \[0, 4\)")


@every_way
def test_integers_of_other_libraries_are_welcome(backend: str) -> None:
    pool, q = full_pool(), torch.randn(1, 4, 8)
    expected = paged_attention(q, pool, 0, [table_of(0)], [3], backend=backend)
    for lengths in ([np.int32(3)], np.array([3]), np.array([3], dtype=np.uint8), torch.tensor([3])):
        for block_id in (0, np.int64(0), np.uint8(0)):
            out = paged_attention(q, pool, 0, [table_of(block_id)], lengths, backend=backend)
            assert torch.equal(out, expected)
        for ids in (np.zeros((1, 1), dtype=np.uint16), torch.zeros(1, 1, dtype=torch.long)):
            out = paged_attention(q, pool, 0, TableArray(ids, torch.tensor([0])), lengths, backend=backend)
            assert torch.equal(out, expected)


NARROW = [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("backend", READERS)
def test_offsets_of_any_width_mean_the_same(dtype: type, backend: str) -> None:
    """Sums of narrow numbers would wrap around: 3 + 8 * 16 has no room in 8 bits."""
    pool = BlockPool(8, 16, 1, 2, 8)
    ids = np.arange(8)[None]
    pool.write(0, range(128), *torch.randn(2, 128, 2, 8))
    q = torch.randn(1, 4, 8)
    read = [
        paged_attention(q, pool, 0, TableArray(ids, np.array([3], dtype=each)), [125], backend=backend)
        for each in (np.int64, dtype)
    ]
    assert torch.equal(*read)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("backend", READERS)
def test_a_table_without_blocks_holds_nothing_whatever_its_offset(dtype: type, backend: str) -> None:
    """0 - 3 is no large number of slots, though unsigned it would be."""
    array = TableArray(np.zeros((1, 0), dtype=np.int32), np.array([3], dtype=dtype))
    refused(backend, array, [1], IndexError, r"reach outside \[0, -?\d+\)")
