"""Sabotage of the manager: a block that is free and held at once, or neither, and what comes of it."""

import pytest

from minikv.errors import InvariantError, OutOfBlocksError
from minikv.lab import Workbench, sabotage
from minikv.lab.sabotage import SWITCHES
from minikv.lab.switches import books

FIRST = "Eva has seven green stamps . Bo has five grey shells ."
SECOND = "Ada has ten silver coins ."


def two_requests(bench: Workbench) -> tuple:
    b, a = bench.start(FIRST, "B"), bench.start(SECOND, "A")
    bench.prefill(b), bench.prefill(a)
    return b, a


def test_they_are_registered():
    assert SWITCHES.items() >= books.SWITCHES.items()
    assert {switch.invariant for switch in books.SWITCHES.values()} == {"I1 conservation"}


def test_a_block_left_in_the_queue_is_handed_out_twice_and_the_model_says_something_false():
    bench = Workbench(num_blocks=8, block_size=6)
    with sabotage("left-in-queue", bench):
        b, a = two_requests(bench)
    assert (b.table.block_ids, a.table.block_ids) == ((0, 1), (1,))
    bench.say(b, "What does Bo have ?")
    assert bench.finish_sentence(b) == "Bo has ten silver coins ."
    first = bench.log.violations[0]
    assert (first.invariant, first.block_id) == ("I1", 1)
    assert bench.log.frame(first.step).sentence == ("Block 1 is in the free queue, but somebody holds it.")
    assert bench.log.state(first.step).free_queue[:2] == (1, 2)


def test_without_the_switch_the_same_requests_get_blocks_of_their_own_and_the_answer_is_right():
    bench = Workbench(num_blocks=8, block_size=6)
    b, a = two_requests(bench)
    assert (b.table.block_ids, a.table.block_ids) == ((0, 1), (2,))
    bench.say(b, "What does Bo have ?")
    assert bench.finish_sentence(b) == "Bo has five grey shells ."
    bench.manager.check()
    assert not bench.log.violations


def test_the_queue_is_mended_but_the_two_tables_are_not():
    bench = Workbench(num_blocks=8, block_size=6)
    honest = bench.manager
    with sabotage("left-in-queue", bench):
        two_requests(bench)
        assert bench.loop.manager is bench.manager is not honest
    assert bench.loop.manager is bench.manager is honest
    assert honest.free_queue == (2, 3, 4, 5, 6, 7)
    assert bench.log.state(len(bench.log) - 1).free_queue == honest.free_queue
    with pytest.raises(InvariantError, match=r"I2.*block 1 has count 1 and 2 holders"):
        honest.check()


def test_blocks_lost_on_refusal_belong_to_nobody_until_they_are_found_again():
    bench = Workbench(num_blocks=6, block_size=4)
    a = bench.start("Ada has three red kites .", "A")
    bench.prefill(a)
    with sabotage("lost-on-refusal", bench):
        with pytest.raises(OutOfBlocksError):
            bench.prefill(bench.start(f"{FIRST} {SECOND}", "B"))
        assert (bench.manager.allocated_blocks, bench.manager.num_free_blocks) == (2, 0)
        with pytest.raises(InvariantError, match=r"I1.*block 2 is neither free nor held"):
            bench.manager.check()
        with pytest.raises(OutOfBlocksError):
            bench.prefill(bench.start("Tea is ready .", "C"))
    assert [(v.invariant, v.block_id) for v in bench.log.violations] == [("I1", b) for b in (2, 3, 4, 5)]
    lost = bench.log.violations[0].step
    assert bench.log.frame(lost).sentence == (
        "Blocks 2, 3, 4 and 5 have left the free queue, but nobody holds them."
    )
    assert (bench.log.state(lost).memory["lost"], bench.log.state(lost).memory["free"]) == (16, 0)
    mended = bench.log.frame(len(bench.log) - 2)  # after it comes only the note that all is put back
    assert mended.sentence == "Blocks 2, 3, 4 and 5 are in the free queue now."
    assert bench.log.state(len(bench.log) - 1).memory["lost"] == 0
    assert bench.manager.free_queue == (2, 3, 4, 5)
    bench.manager.check()
    assert not bench.log.state(len(bench.log) - 1).violations


def test_a_switch_that_did_no_harm_says_nothing_of_the_queue():
    bench = Workbench(num_blocks=8, block_size=6)
    with sabotage("lost-on-refusal", bench):
        two_requests(bench)
    assert "queue" not in {event["op"] for event in bench.log}
    assert not bench.log.violations
