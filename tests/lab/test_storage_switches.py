"""Sabotage of the storage: what the model then says, and that the log names the block."""

import pytest

from minikv.errors import UnwrittenSlotError
from minikv.lab import Workbench, sabotage
from minikv.lab.sabotage import SWITCHES

NAMES = ("no-release", "whole-blocks")
STRANGER = (
    "The shop opens at noon . Bo has twenty black horses . "
    "Finn has five green bells . The train was on time ."
)
QUESTION = "Ada has three red kites . Bo has two gold cups . What does Bo have ?"


def stranger_then_b(bench):
    stranger = bench.start(STRANGER, "S")
    bench.prefill(stranger)
    bench.finish(stranger)
    return bench.start(QUESTION, "B")


def test_a_reader_that_does_not_stop_is_refused_by_the_pool():
    bench = Workbench(num_blocks=2, block_size=12)
    with (
        sabotage("whole-blocks", bench),
        pytest.raises(UnwrittenSlotError, match="slot 5 of block 0, never written"),
    ):
        bench.prefill(stranger_then_b(bench))
    (found,) = bench.log.violations
    assert (found.invariant, found.block_id) == ("I6", 0)


def test_a_pool_that_does_not_forget_does_no_harm_by_itself():
    bench = Workbench(num_blocks=2, block_size=12)
    with sabotage("no-release", bench):
        assert bench.finish_sentence(stranger_then_b(bench)) == "Bo has two gold cups ."
    assert not bench.log.violations


def test_both_together_give_b_a_strangers_fact():
    bench = Workbench(num_blocks=2, block_size=12)
    with sabotage("no-release", bench), sabotage("whole-blocks", bench):
        b = stranger_then_b(bench)
        assert bench.finish_sentence(b) == "Bo has twenty black horses ."
    first = bench.log.violations[0]
    assert (first.invariant, first.block_id) == ("I6", 0)
    assert (
        first.sentence == "Position 17 of request B was read from block 0, slot 5, which was never written."
    )
    read = bench.log[first.step]
    assert read["op"] == "read" and len(read["slots"]) == 24


def test_a_reader_of_whole_blocks_is_right_where_all_blocks_are_full():
    bench = Workbench(num_blocks=4, block_size=1)
    with sabotage("whole-blocks", bench):
        assert bench.prefill(bench.start("Tea is ready", "A")) == "."
    assert not bench.log.violations


def test_what_was_not_released_is_released_when_it_is_put_back():
    bench = Workbench(num_blocks=2, block_size=12)
    with sabotage("no-release", bench):
        stranger = bench.start(STRANGER, "S")
        bench.prefill(stranger)
        bench.finish(stranger)
        assert bench.pool.written(0).all()
    assert not bench.pool.written(0).any()


@pytest.mark.parametrize("name", NAMES)
def test_the_honest_parts_come_back_even_if_the_block_raises(name):
    bench = Workbench(num_blocks=2, block_size=12)
    before = bench.manager.pool, bench.loop.backend, bench.loop.observer
    with pytest.raises(RuntimeError), sabotage(name, bench):
        assert before != (bench.manager.pool, bench.loop.backend, bench.loop.observer)
        raise RuntimeError
    assert before == (bench.manager.pool, bench.loop.backend, bench.loop.observer)
    assert bench.finish_sentence(stranger_then_b(bench)) == "Bo has two gold cups ."


@pytest.mark.parametrize("name", NAMES)
def test_each_says_which_invariant_it_breaks_and_how(name):
    assert SWITCHES[name].invariant == "I6 written-first"
    assert SWITCHES[name].says
    with pytest.raises(TypeError), sabotage(name, Workbench(num_blocks=2), index=0):
        pass
