"""The logical layer: positions to slots, the offset, and what is refused."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikv.block_table import BlockTable


def table(block_size: int, offset: int, block_ids: list[int]) -> BlockTable:
    made = BlockTable(block_size, offset)
    for block_id in block_ids:
        made.append_block(block_id)
    return made


def test_the_chapters_example() -> None:
    t = table(4, 2, [5, 0, 3])
    assert (t.block_ids, t.num_blocks, t.offset, t.capacity) == ((5, 0, 3), 3, 2, 10)
    assert [t.slot(p) for p in range(10)] == [22, 23, 0, 1, 2, 3, 12, 13, 14, 15]
    assert t.slots(0, 10).tolist() == [22, 23, 0, 1, 2, 3, 12, 13, 14, 15]
    assert t.slots(1, 7).tolist() == [23, 0, 1, 2, 3, 12]


@given(st.data())
def test_slots_follow_the_formula(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    t = table(size, data.draw(st.integers(0, size - 1)), data.draw(st.lists(st.integers(0, 99), unique=True)))
    expected = [
        t.block_ids[(t.offset + p) // size] * size + (t.offset + p) % size for p in range(max(0, t.capacity))
    ]
    assert [t.slot(p) for p in range(len(expected))] == expected
    assert len(set(expected)) == len(expected)
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert t.slots(start, stop).tolist() == expected[start:stop]
    assert t.slots(start, stop).dtype == np.int64


def test_a_slot_is_where_the_words_of_the_block_are() -> None:
    """Against a brute-force memory: fill each block with (block, place), walk the table in order."""
    t = table(3, 1, [4, 2, 7])
    memory = {block * 3 + place: (block, place) for block in range(8) for place in range(3)}
    in_order = [(block, place) for block in t.block_ids for place in range(3)][t.offset :]
    assert [memory[t.slot(p)] for p in range(t.capacity)] == in_order


def test_capacity_may_wait_for_a_block() -> None:
    t = BlockTable(4, 3)
    assert t.capacity == -3
    assert t.slots(0, 0).tolist() == []
    with pytest.raises(IndexError, match=r"position 0 is outside \[0, -3\)"):
        t.slot(0)
    t.append_block(6)
    assert (t.capacity, t.slot(0)) == (1, 27)


@pytest.mark.parametrize("position", [-1, 10, 11])
def test_positions_outside_the_capacity_are_refused_by_both_numbers(position: int) -> None:
    t = table(4, 2, [5, 0, 3])
    with pytest.raises(IndexError, match=rf"position {position} is outside \[0, 10\)"):
        t.slot(position)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 11), (11, 11), (3, 2)])
def test_ranges_outside_the_capacity_are_refused(start: int, stop: int) -> None:
    t = table(4, 2, [5, 0, 3])
    with pytest.raises(IndexError, match=rf"\[{start}, {stop}\) reach outside \[0, 10\)"):
        t.slots(start, stop)


@pytest.mark.parametrize("arguments", [(1.5,), (0.0, 1)])
def test_positions_are_integers(arguments: tuple[Any, ...]) -> None:
    t = table(4, 2, [5, 0, 3])
    with pytest.raises(TypeError):
        (t.slots if len(arguments) == 2 else t.slot)(*arguments)


SIZES: list[tuple[Any, Any, type[Exception], str]] = [
    (0, 0, ValueError, "block_size is 0; .* at least 1"),
    (-4, 0, ValueError, "block_size is -4"),
    (1.5, 0, TypeError, "block_size is 1.5"),
    ("4", 0, TypeError, "block_size is '4'"),
    (None, 0, TypeError, "block_size is None"),
    (True, 0, TypeError, "block_size is True"),
    (4, 4, ValueError, r"offset is 4; .*\[0, 4\)"),
    (4, -1, ValueError, r"offset is -1; .*\[0, 4\)"),
    (4, 1.0, TypeError, "offset is 1.0"),
    (4, None, TypeError, "offset is None"),
    (4, True, TypeError, "offset is True"),
]


@pytest.mark.parametrize(("block_size", "offset", "error", "message"), SIZES)
def test_sizes_that_are_none(block_size: Any, offset: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BlockTable(block_size, offset)


def test_other_libraries_integers_become_plain_ones() -> None:
    t = BlockTable(np.int64(4), np.int32(1))  # type: ignore[arg-type]
    assert type(t.block_size) is type(t.offset) is int


def test_the_ids_are_a_copy() -> None:
    t = table(4, 0, [1, 2])
    ids = t.block_ids
    t.append_block(3)
    t.replace_block(0, 9)
    assert (ids, t.block_ids) == ((1, 2), (9, 2, 3))


def test_dropping_and_clearing() -> None:
    t = table(4, 2, [5, 0, 3])
    t.drop_blocks(2, 1)
    assert (t.block_ids, t.offset, t.capacity, t.slot(0)) == ((3,), 1, 3, 13)
    t.clear()
    assert (t.block_ids, t.offset, t.capacity) == ((), 0, 0)


def test_growing_moves_nothing() -> None:
    t = table(4, 1, [5])
    before = [t.slot(p) for p in range(t.capacity)]
    t.append_block(2)
    assert [t.slot(p) for p in range(3)] == before


def test_the_logic_needs_no_array_library() -> None:
    code = (
        "import sys\nfrom minikv.block_table import BlockTable\n"
        "t = BlockTable(2)\nt.append_block(3)\nassert t.slot(1) == 7\n"
        "import minikv.manager\nassert not {'numpy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_repr_shows_all_there_is() -> None:
    assert repr(table(4, 2, [5, 0])) == "BlockTable(block_ids=[5, 0], offset=2, capacity=6)"
