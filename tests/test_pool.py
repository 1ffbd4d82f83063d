"""The storage layer: what goes in comes out, for the slots that were named, and nothing else does."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minikv.block_table import BlockTable
from minikv.errors import UnwrittenSlotError
from minikv.pool import BlockPool

POISON = float("nan")


def make_pool(num_blocks: int = 6, block_size: int = 4, **more: Any) -> BlockPool:
    """A small pool, full of NaN until written."""
    pool = BlockPool(num_blocks, block_size, num_layers=2, num_kv_heads=3, head_dim=5, **more)
    pool.kv.fill_(POISON)
    return pool


def make_table(block_ids: list[int], block_size: int = 4, offset: int = 0) -> BlockTable:
    table = BlockTable(block_size, offset)
    for block_id in block_ids:
        table.append_block(block_id)
    return table


def tokens(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random k and v of some tokens."""
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, count, 3, 5, generator=generator)
    return k, v


# ---- write and read ------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_what_is_written_through_a_table_is_read_through_it(length: int, offset: int) -> None:
    pool, table = make_pool(), make_table([4, 0, 5], offset=offset)
    k, v = tokens(length)
    pool.write(1, table.slots(0, length), k, v)
    read_k, read_v = pool.read_layer(1, [table], [length])
    assert torch.equal(read_k, k.transpose(0, 1)[None])
    assert torch.equal(read_v, v.transpose(0, 1)[None])


def test_the_layout_is_block_major() -> None:
    """kv[layer, block, 0 key / 1 value, head, place, :], and one block of one layer is one run of memory."""
    pool = make_pool()
    k, v = tokens(1)
    pool.write(1, [4 * 4 + 2], k, v)
    assert pool.kv.shape == (2, 6, 2, 3, 4, 5)
    assert torch.equal(pool.kv[1, 4, 0, :, 2], k[0])
    assert torch.equal(pool.kv[1, 4, 1, :, 2], v[0])
    assert pool.kv.isfinite().sum() == k.numel() + v.numel()  # nothing else was touched
    assert pool.kv[1, 4].is_contiguous()


def test_rows_are_padded_with_zeros() -> None:
    pool, tables = make_pool(), [make_table([1, 2]), make_table([3]), make_table([])]
    for i, (table, length) in enumerate(zip(tables[:2], (7, 2), strict=True)):
        pool.write(0, table.slots(0, length), *tokens(length, seed=i))
    k, v = pool.read_layer(0, tables, [7, 2, 0])
    assert k.shape == v.shape == (3, 3, 7, 5)
    assert torch.equal(k[1, :, :2], tokens(2, seed=1)[0].transpose(0, 1))
    for x in (k, v):
        assert x.isfinite().all()
        assert not x[1, :, 2:].any() and not x[2].any()


def test_no_rows_at_all() -> None:
    k, v = make_pool().read_layer(0, [], [])
    assert k.shape == v.shape == (0, 3, 0, 5)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda s: np.array(s, dtype=np.int32)])
def test_slots_may_be_a_list_an_array_or_a_tensor(kind: Any) -> None:
    pool, (k, v) = make_pool(), tokens(3)
    pool.write(0, kind([20, 3, 9]), k, v)
    table = make_table([5, 0, 2])
    assert torch.equal(pool.kv[0, 5, 0, :, 0], k[0])
    with pytest.raises(UnwrittenSlotError):
        pool.read_layer(0, [table], [2])


@pytest.mark.parametrize("slots", [[0.5, 1.0], np.array([True, False]), torch.tensor([1.0, 2.0])])
def test_slots_that_are_no_integers_are_refused(slots: Any) -> None:
    pool = make_pool()
    with pytest.raises(TypeError, match="slots are torch"):
        pool.write(0, slots, *tokens(2))
    assert pool.bytes_committed == 0


def test_no_slots_write_nothing() -> None:
    pool = make_pool()
    pool.write(0, [], *tokens(0))
    assert pool.kv.isnan().all() and pool.bytes_committed == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_of_numbers(dtype: torch.dtype) -> None:
    pool, table, (k, v) = make_pool(dtype=dtype), make_table([2]), tokens(4)
    pool.write(0, table.slots(0, 4), k, v)
    read_k, _ = pool.read_layer(0, [table], [4])
    assert read_k.dtype == dtype
    assert torch.equal(read_k[0], k.to(dtype).transpose(0, 1))


# ---- I6: nothing unwritten is read ---------------------------------------------------------------


def test_an_unwritten_slot_is_named() -> None:
    pool, table = make_pool(), make_table([4, 1])
    pool.write(0, table.slots(0, 5), *tokens(5))
    with pytest.raises(UnwrittenSlotError, match="I6 written-first: layer 0 reads slot 1 of block 1"):
        pool.read_layer(0, [table], [6])
    with pytest.raises(UnwrittenSlotError, match="layer 1 reads slot 0 of block 4"):
        pool.read_layer(1, [table], [5])  # each layer is written by itself


def test_a_released_block_is_unwritten_again() -> None:
    pool, table = make_pool(), make_table([4, 1])
    pool.write(0, table.slots(0, 8), *tokens(8))
    pool.release(1)
    pool.read_layer(0, [table], [4])
    with pytest.raises(UnwrittenSlotError, match="block 1"):
        pool.read_layer(0, [table], [5])


def test_a_refused_write_leaves_its_slots_unwritten() -> None:
    pool, table = make_pool(), make_table([0])
    with pytest.raises(ValueError):
        pool.write(0, table.slots(0, 2), tokens(2)[0], tokens(3)[1])
    with pytest.raises(UnwrittenSlotError):
        pool.read_layer(0, [table], [1])
    assert pool.kv.isnan().all()


# ---- copy ----------------------------------------------------------------------------------------


def test_copy_takes_every_layer_and_what_is_unwritten_stays_so() -> None:
    pool, source, copy = make_pool(), make_table([3]), make_table([5])
    for layer in range(2):
        pool.write(layer, source.slots(0, 3), *tokens(3, seed=layer))
    pool.copy_block(3, 5)
    for layer in range(2):
        k, v = pool.read_layer(layer, [copy], [3])
        assert torch.equal(k[0], tokens(3, seed=layer)[0].transpose(0, 1))
        assert torch.equal(v[0], tokens(3, seed=layer)[1].transpose(0, 1))
        with pytest.raises(UnwrittenSlotError):
            pool.read_layer(layer, [copy], [4])


def test_a_copy_is_its_own() -> None:
    pool, source, copy = make_pool(), make_table([3]), make_table([5])
    pool.write(0, source.slots(0, 4), *tokens(4))
    pool.copy_block(3, 5)
    pool.write(0, copy.slots(0, 4), *tokens(4, seed=1))
    assert torch.equal(pool.read_layer(0, [source], [4])[0][0], tokens(4)[0].transpose(0, 1))


def read_slots(pool: BlockPool, layer: int, slots: range) -> Tensor:
    """[count, 2, heads, head_dim], slot by slot, whether written or not."""
    return torch.stack([pool.kv[layer, s // pool.block_size, :, :, s % pool.block_size] for s in slots])


@pytest.mark.parametrize("shape", [(1, 24), (6, 4)])
@pytest.mark.parametrize(("src", "dst"), [(2, 14), (14, 2), (5, 3), (3, 5), (7, 7)])
def test_copied_slots_keep_numbers_and_marks_even_where_they_overlap(
    shape: tuple[int, int], src: int, dst: int
) -> None:
    """Of 8 slots the last is not written; what is neither source nor target is not touched."""
    pool = make_pool(*shape)
    for layer in range(2):
        pool.write(layer, range(src, src + 7), *tokens(7, seed=layer))
        pool.write(layer, [23], *tokens(1, seed=9))
    before = [read_slots(pool, layer, range(src, src + 7)) for layer in range(2)]
    assert pool.copy_slots(src, dst, 8) == 7
    for layer in range(2):
        assert torch.equal(read_slots(pool, layer, range(dst, dst + 7)), before[layer])
        assert torch.equal(read_slots(pool, layer, range(23, 24))[0, 0], tokens(1, seed=9)[0][0])
        left = set(range(src, src + 7)) - set(range(dst, dst + 8))
        assert pool.written(layer).nonzero()[0].tolist() == sorted({*range(dst, dst + 7), *left, 23})


def test_copied_slots_may_be_written_in_some_layers_only() -> None:
    pool = make_pool(1, 24)
    pool.write(0, [2, 4], *tokens(2))
    pool.write(1, [2], *tokens(1))
    pool.write(1, [12], *tokens(1))  # is written over, by what is not written
    assert pool.copy_slots(2, 11, 5) == 2
    assert pool.written(0).nonzero()[0].tolist() == [2, 4, 11, 13]
    assert pool.written(1).nonzero()[0].tolist() == [2, 11]
    assert pool.copy_slots(20, 2, 4) == pool.copy_slots(0, 5, 0) == 0
    assert pool.written(0).nonzero()[0].tolist() == [11, 13]


@pytest.mark.parametrize("shape", [(1, 24), (6, 4)])
def test_released_slots_are_unwritten_again(shape: tuple[int, int]) -> None:
    pool, table = make_pool(*shape), make_table(list(range(shape[0])), shape[1])
    pool.write(0, range(12), *tokens(12))
    pool.release_slots(3, 10)
    pool.release_slots(11, 11)
    assert pool.written(0).nonzero()[0].tolist() == [0, 1, 2, 10, 11]
    with pytest.raises(UnwrittenSlotError):
        pool.read_layer(0, [table], [4])


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda p: p.copy_slots(20, 0, 5), IndexError, r"\[20, 25\) reach outside \[0, 24\)"),
        (lambda p: p.copy_slots(0, 20, 5), IndexError, r"\[20, 25\) reach outside \[0, 24\)"),
        (lambda p: p.copy_slots(-1, 0, 5), IndexError, r"\[-1, 4\) reach outside"),
        (lambda p: p.copy_slots(3, 0, -1), ValueError, r"\[3, 2\) are no range"),
        (lambda p: p.copy_slots(0.0, 4, 2), TypeError, "integer"),
        (lambda p: p.release_slots(0, 25), IndexError, r"\[0, 25\) reach outside \[0, 24\)"),
        (lambda p: p.release_slots(3, 2), ValueError, r"\[3, 2\) are no range"),
        (lambda p: p.release_slots(0, 2.5), TypeError, "integer"),
    ],
)
def test_slots_that_cannot_be_copied_or_released(call: Any, error: type[Exception], said: str) -> None:
    pool = make_pool()
    pool.write(0, range(24), *tokens(24))
    before = pool.kv.clone()
    with pytest.raises(error, match=said):
        call(pool)
    assert pool.kv.equal(before) or pool.kv.nan_to_num().equal(before.nan_to_num())
    assert pool.written(0).all()


# ---- memory --------------------------------------------------------------------------------------


def test_bytes_reserved_and_committed() -> None:
    pool = make_pool()
    block = 2 * 3 * 4 * 5 * 4  # key and value, heads, slots, head_dim, bytes: of one layer
    assert (pool.nbytes, pool.bytes_committed) == (2 * 6 * block, 0)
    pool.write(0, [0, 1, 9], *tokens(3))  # blocks 0 and 2 of layer 0
    assert pool.bytes_committed == 2 * block
    pool.write(0, [2], *tokens(1))
    assert pool.bytes_committed == 2 * block
    pool.copy_block(2, 4)
    assert pool.bytes_committed == 3 * block
    pool.release(0)
    assert pool.bytes_committed == 3 * block  # memory once touched stays


def test_in_one_block_the_slots_are_counted() -> None:
    """Contiguous memory is one block: a request that comes writes its own slots, not the block."""
    pool = make_pool(1, 24)
    slot = 2 * 3 * 5 * 4  # key and value, heads, head_dim, bytes: of one layer
    assert (pool.nbytes, pool.bytes_committed) == (2 * 24 * slot, 0)
    pool.write(0, range(5), *tokens(5))
    assert pool.bytes_committed == 5 * slot
    pool.copy_slots(0, 3, 5)  # over itself: 3 new slots
    assert pool.bytes_committed == 8 * slot
    pool.release_slots(0, 4)
    pool.release(0)
    assert pool.bytes_committed == 8 * slot  # memory once touched stays
    pool.write(0, range(4, 10), *tokens(6))
    assert pool.bytes_committed == 10 * slot


def test_slots_copied_between_blocks_touch_the_blocks_they_go_to() -> None:
    pool = make_pool()
    block = 2 * 3 * 4 * 5 * 4
    pool.write(0, range(3), *tokens(3))
    pool.write(1, range(3), *tokens(3))
    pool.copy_slots(0, 10, 3)  # slots 10, 11 and 12: blocks 2 and 3, in both layers
    assert pool.bytes_committed == 6 * block


RSS = """
import os, pathlib, resource, subprocess, torch
from minikv.pool import BlockPool

def memory():
    statm = pathlib.Path("/proc/self/statm")           # Linux; elsewhere ask ps, which answers in KiB
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())])) * 1024

warm = BlockPool(8, 16, 4, 4, 32)                      # what torch itself takes when first used
warm.write(0, torch.arange(16), torch.ones(16, 4, 32), torch.ones(16, 4, 32))
before = memory()
pool = BlockPool(16384, 16, 4, 4, 32)
empty = memory()
k = torch.ones(16, 4, 32)
for layer in range(4):
    for block_id in range(500):
        pool.write(layer, range(16 * block_id, 16 * block_id + 16), k, k)
print(pool.nbytes, pool.bytes_committed, empty - before, memory() - empty)
"""


def test_a_pool_of_the_default_size_takes_memory_only_as_it_is_written() -> None:
    """16,384 blocks for the tiny GPT-2 reserve 1 GiB; the system says what is really taken."""
    done = subprocess.run([sys.executable, "-c", RSS], capture_output=True, text=True, check=True)
    nbytes, committed, for_nothing, for_500_blocks = map(int, done.stdout.split())
    print(f"reserved {nbytes:,}, committed {committed:,}, empty {for_nothing:,}, written {for_500_blocks:,}")
    assert nbytes == 2**30
    assert committed == nbytes * 500 // 16384
    assert for_nothing < 2**24  # the marks of what is written: a bit over 1 MB
    assert committed * 0.9 < for_500_blocks < committed * 1.2


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "num_layers", "num_kv_heads", "head_dim"])
@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError)])
def test_sizes(name: str, size: Any, error: type[Exception]) -> None:
    sizes: dict[str, Any] = dict.fromkeys(
        ["num_blocks", "block_size", "num_layers", "num_kv_heads", "head_dim"], 2
    )
    with pytest.raises(error, match=name if error is ValueError else None):
        BlockPool(**{**sizes, name: size})


@pytest.mark.parametrize("device", ["cuda:99", "no such thing"])
def test_unknown_devices(device: str) -> None:
    with pytest.raises(ValueError, match="cannot be used here"):
        BlockPool(1, 1, 1, 1, 1, device=device)


@pytest.mark.parametrize("slot", [-1, 24, 1000])
def test_slots_outside_the_pool(slot: int) -> None:
    with pytest.raises(IndexError, match=rf"slot {slot} is outside \[0, 24\)"):
        make_pool().write(0, [slot], *tokens(1))


@pytest.mark.parametrize("layer", [-1, 2])
def test_layers_outside_the_pool(layer: int) -> None:
    pool = make_pool()
    with pytest.raises(IndexError, match=f"layer {layer}"):
        pool.write(layer, [0], *tokens(1))
    with pytest.raises(IndexError, match=f"layer {layer}"):
        pool.read_layer(layer, [], [])


@pytest.mark.parametrize("block_id", [-1, 6])
def test_blocks_outside_the_pool(block_id: int) -> None:
    pool = make_pool()
    for misuse in (
        lambda: pool.release(block_id),
        lambda: pool.copy_block(block_id, 0),
        lambda: pool.copy_block(0, block_id),
    ):
        with pytest.raises(IndexError, match=f"block {block_id} is outside"):
            misuse()


@pytest.mark.parametrize("wrong", [(2, 3, 5), (3, 4, 5), (3, 3, 6), (9, 5)])
def test_shapes_that_do_not_fit(wrong: tuple[int, ...]) -> None:
    for k, v in ((torch.zeros(wrong), tokens(3)[1]), (tokens(3)[0], torch.zeros(wrong))):
        with pytest.raises(ValueError, match=r"3 slots take \[3, 3, 5\]"):
            make_pool().write(0, [0, 1, 2], k, v)


def test_lengths_that_do_not_fit() -> None:
    pool, table = make_pool(), make_table([1])
    pool.write(0, table.slots(0, 4), *tokens(4))
    with pytest.raises(IndexError, match="capacity"):
        pool.read_layer(0, [table], [5])
    with pytest.raises(ValueError, match="length is -1"):
        pool.read_layer(0, [table], [-1])
    with pytest.raises(ValueError, match="1 tables but 2 lengths"):
        pool.read_layer(0, [table], [1, 1])


@pytest.mark.parametrize("length", [9.9, 3.0, True, "3", None])
def test_a_length_is_an_integer(length: Any) -> None:
    pool, table = make_pool(), make_table([1])
    pool.write(0, table.slots(0, 4), *tokens(4))
    with pytest.raises(TypeError, match="length is"):
        pool.read_layer(0, [table], [length])
    assert pool.read_layer(0, [table], [np.int64(3)])[0].shape[2] == 3  # type: ignore[list-item]


def test_a_copy_is_a_pool_of_its_own() -> None:
    """What is written to it is marked in it, whoever writes."""
    pool = BlockPool(2, 4, 1, 1, 8)
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        table = BlockTable(4)
        table.append_block(1)
        twin.write(0, table.slots(0, 2), *torch.ones(2, 2, 1, 8))
        assert twin.written(0).tolist() == [False] * 4 + [True] * 2 + [False] * 2
        twin.written(0)[6] = True
        twin.require_written(0, torch.tensor([4, 5, 6]))
    assert not pool.written(0).any()
