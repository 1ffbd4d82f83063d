"""A log can be told how a manager that is not ours really keeps its free blocks."""

import pytest

from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from minikv.lab.events import EventError
from minikv.lab.patches import play
from tests.lab.logs import allocate, drop, pool, release


def queue(*block_ids: int) -> dict:
    return {"op": "queue", "block_ids": list(block_ids)}


def test_another_order_is_drawn_and_breaks_nothing():
    log = EventLog([pool(), allocate("A", 0, 0), queue(3, 2, 1), allocate("A", 1, 3)])
    assert log.state(2).free_queue == (3, 2, 1)
    assert log.state(3).free_queue == (2, 1)
    assert "another order" in log.frame(2).sentence
    assert "Block 3 was first in the free queue" in log.frame(3).sentence
    assert not log.violations
    assert play(frame["patch"] for frame in log.raw_frames()) == log.state(3).data


@pytest.mark.parametrize(
    ("told", "block", "sentence"),
    [
        (queue(0, 1, 2, 3), 0, "Block 0 is both free and held: it is in the free queue, its ref count is 1."),
        (queue(1, 2), 3, "Block 3 is lost: its ref count is 0, yet it is not in the free queue."),
        (queue(1, 2, 2, 3), 2, "Block 2 is in the free queue 2 times."),
    ],
)
def test_a_block_too_many_or_too_few_breaks_i1(told, block, sentence):
    log = EventLog([pool(), allocate("A", 0, 0), told])
    (found,) = log.violations
    assert (found.step, found.invariant, found.block_id, found.sentence) == (2, "I1", block, sentence)
    assert f"see block {block}" in log.frame(2).sentence
    log(queue(1, 2, 3))
    assert not log.state(3).violations


def test_the_blocks_in_it_are_counted_from_then_on():
    log = EventLog([pool(), allocate("A", 0, 0), queue(1), drop("A", 0, 0, 0), release(0)])
    assert log.state(4).free_queue == (1, 0)
    assert log.frame(4).sentence == "Block 0 is free: it joins the end of the free queue as #2."


def test_a_block_that_waits_twice_is_listed_twice_and_has_the_first_place():
    text = BlockMap(EventLog([pool(), allocate("A", 0, 0), queue(2, 1, 3, 2)])).to_text()
    assert "Free queue: P2 › P1 › P3 › P2" in text


def test_a_block_outside_the_pool_is_refused():
    log = EventLog([pool()])
    with pytest.raises(EventError, match="block 4 is outside the pool of 4 blocks"):
        log(queue(4))
    assert len(log) == 1
