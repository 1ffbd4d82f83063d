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
    ("told", "block", "shown", "sentence"),
    [
        (
            queue(0, 1, 2, 3),
            0,
            "Block 0 is in the free queue, but somebody holds it.",
            "Block 0 is both free and held: it is in the free queue, its ref count is 1.",
        ),
        (
            queue(1, 2),
            3,
            "Block 3 has left the free queue, but nobody holds it.",
            "Block 3 is lost: its ref count is 0, yet it is not in the free queue.",
        ),
        (
            queue(1, 2, 2, 3),
            2,
            "Block 2 is in the free queue more than once.",
            "Block 2 is in the free queue 2 times.",
        ),
    ],
)
def test_a_block_too_many_or_too_few_breaks_i1(told, block, shown, sentence):
    log = EventLog([pool(), allocate("A", 0, 0), told])
    (found,) = log.violations
    assert (found.step, found.invariant, found.block_id, found.sentence) == (2, "I1", block, sentence)
    assert log.frame(2).sentence == shown
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


def test_several_changes_are_told_in_turn():
    log = EventLog([pool(), allocate("A", 0, 0), queue(0, 3), queue(1, 2, 3)])
    assert log.frame(2).sentence == (
        "Blocks 1 and 2 have left the free queue, but nobody holds them. "
        "Block 0 is in the free queue, but somebody holds it."
    )
    assert log.frame(3).sentence == (
        "Block 0 has left the free queue: somebody holds it. Blocks 1 and 2 are in the free queue now."
    )


def test_lost_slots_are_neither_free_nor_held():
    log = EventLog([pool(), allocate("A", 0, 0), queue(1), drop("A", 0, 0, 0), release(0), queue(1, 2, 3, 0)])
    lost = [log.state(step).memory["lost"] // log.state(step).block_size for step in range(len(log))]
    assert lost == [0, 0, 2, 2, 2, 0]  # a block that has just been let go is on its way to the queue
    assert "4 lost, 2 free" in BlockMap(log, step=2).to_text()
    assert "lost" in BlockMap(log, step=2).to_svg()
    assert ", 0 lost" not in BlockMap(log, step=1).to_text()


def test_a_block_that_is_let_go_and_never_comes_back_is_lost():
    log = EventLog([pool(), allocate("A", 0, 0), drop("A", 0, 0, 0), queue(1, 2, 3)])
    assert [log.state(step).memory["lost"] > 0 for step in range(4)] == [False, False, False, True]


def test_an_entry_that_is_not_counted_saves_nothing():
    log = EventLog([pool(), allocate("A", 0, 0), allocate("B", 0, 0)])
    assert log.violations[0].invariant == "I2"
    assert log.state(2).memory["saved"] == 0
