"""What a manager tells an event log is enough to know the manager's whole state, and breaks no invariant."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikv.block_table import BlockTable
from minikv.lab.event_log import EventLog
from minikv.lab.frame import PoolState
from minikv.manager import KVCacheManager
from tests.books import Walk

NUMBERS = st.integers(0, 2**16 - 1)
STEPS = st.lists(
    st.tuples(st.sampled_from((*sorted(set(Walk.OPS)), "release_all")), NUMBERS, NUMBERS, NUMBERS),
    max_size=40,
)


def last_state(log: EventLog) -> PoolState:
    return log.state(len(log) - 1)


def compare(log: EventLog, manager: KVCacheManager, tables: dict[str, BlockTable]) -> None:
    state = last_state(log)
    assert log.violations == ()
    assert state.free_queue == manager.free_queue
    assert state.ref_counts == tuple(block.ref_count for block in manager.blocks)
    assert state.cache_refs == tuple(manager._cached[block] for block in range(manager.num_blocks))
    assert state.memory["held"] == manager.allocated_blocks
    assert state.memory["peak"] == manager.max_allocated
    for name, table in tables.items():
        if table.num_blocks:
            assert state.tables[name] == table.block_ids
            assert state.requests[name].offset == table.offset
            assert state.requests[name].length == manager._stored[id(table)], name
    held = {name for name, blocks in state.tables.items() if blocks}
    assert held == {name for name, table in tables.items() if table.num_blocks}


@given(st.sampled_from([(6, 4), (8, 1), (5, 3)]), STEPS)
def test_the_log_follows_whatever_happens(
    pool: tuple[int, int], steps: list[tuple[str, int, int, int]]
) -> None:
    log = EventLog()
    walk = Walk(*pool, observer=log)
    for step in steps:
        walk.step(*step)
    compare(log, walk.manager, walk.tables)


@pytest.mark.parametrize("seed", range(3))
def test_the_log_follows_a_long_walk(seed: int) -> None:
    log = EventLog()
    walk = Walk(8, 3, observer=log)
    for _ in range(6):
        walk.random_steps(200, seed)
        compare(log, walk.manager, walk.tables)


def test_a_saved_log_tells_the_same(tmp_path: Path) -> None:
    log = EventLog()
    Walk(8, 3, observer=log).random_steps(300, 5)
    log.save(tmp_path / "walk.jsonl")
    again = EventLog.load(tmp_path / "walk.jsonl")
    assert last_state(again) == last_state(log)


# ---- exact events of the things that are easy to get wrong ----------------------------------------------


def told(log: EventLog, start: int) -> list[tuple]:
    """(op, request, block_id, ref_count) of the events from `start` on."""
    keys = ("op", "request", "block_id", "ref_count")
    return [tuple(event[key] for key in keys if key in event) for event in log[start:]]


def test_a_table_filled_by_hand_is_announced_when_it_is_first_used() -> None:
    log = EventLog()
    m, a, prefix = KVCacheManager(6, 4, observer=log), BlockTable(4, name="a"), BlockTable(4, 1, "prefix")
    m.allocate(a, 8)
    for block_id in a.block_ids:
        m.inc_ref(block_id)
        prefix.append_block(block_id)
    start = len(log)
    assert m.allocate(prefix, 8)
    assert told(log, start) == [
        ("offset", "prefix"),
        ("share", "prefix", 0, 3),
        ("dec_ref", 0, 2),
        ("share", "prefix", 1, 3),
        ("dec_ref", 1, 2),
        ("allocate", "prefix", 2, 1),
    ]
    assert [event["source"] for event in log if event["op"] == "share"] == [None, None]
    compare(log, m, {"a": a, "prefix": prefix})


def test_free_tells_each_drop_and_its_release() -> None:
    log = EventLog()
    m, a = KVCacheManager(6, 4, observer=log), BlockTable(4, name="a")
    m.allocate(a, 8)
    m.fork(a, "b")
    m.copy_on_write(a, 5)
    start = len(log)
    m.free(a)
    assert told(log, start) == [("drop", "a", 2, 0), ("release", 2), ("drop", "a", 0, 1)]


def test_unnamed_tables_get_letters_that_nobody_has() -> None:
    log = EventLog()
    m = KVCacheManager(6, 4, observer=log)
    tables = [BlockTable(4, name="A"), BlockTable(4), BlockTable(4)]
    for table in tables:
        m.allocate(table, 4)
    m.fork(tables[0])
    assert list(last_state(log).tables) == ["A", "B", "C", "D"]
    assert log.violations == ()


def test_a_write_of_nothing_stores_nothing() -> None:
    log = EventLog()
    m, a = KVCacheManager(6, 4, observer=log), BlockTable(4, name="a")
    m.allocate(a, 4)
    events = len(log)
    m.note_write(a, 3, 3)
    assert len(log) == events
    log({"op": "write", "request": "a", "start": 3, "slots": [], "words": []})
    assert last_state(log).requests["a"].length == 0
