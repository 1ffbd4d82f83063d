"""Sabotage of the ref counts: what the model then says, and that the log names the block."""

import pytest

from minikv.errors import InvariantError, OutOfBlocksError, RefCountError
from minikv.lab import Workbench, sabotage
from minikv.lab.sabotage import SWITCHES

NAMES = ("no-ref-counts", "double-free", "missing-inc")
LEDGER = "Ada has three red kites . Bo has two gold cups . Eva has six grey drums ."
STRANGER = "Gita has ten pink boats . Bo has nine black horses . Finn has five green bells ."
THREE = "Eva has six grey drums . Finn has five green bells . Bo has two gold cups . Bo"


def found(bench):
    """Invariant and block of each violation, in order."""
    return [(each.invariant, each.block_id) for each in bench.log.violations]


def shared_ledger(num_blocks):
    bench = Workbench(num_blocks, block_size=6)
    a = bench.start(LEDGER, "A")
    bench.prefill(a)
    b = bench.fork(a, "B")
    bench.say(b, "Bo")
    return bench, a, b


def test_without_ref_counts_the_end_of_a_gives_b_the_words_of_c():
    bench, a, b = shared_ledger(4)
    with sabotage("no-ref-counts", bench):
        bench.finish(a)
        assert bench.manager.free_queue == (2, 1, 0)
        c = bench.start(STRANGER, "C")
        bench.prefill(c)
        bench.say(b, "has")
        assert bench.finish_sentence(b) == "nine black horses ."
    assert c.table.block_ids == (2, 1, 0)
    assert b.table.block_ids == (0, 1, 2, 3)
    assert found(bench) == [("I2", 2), ("I2", 1), ("I2", 0)]
    first = bench.log.violations[0]
    assert bench.log[first.step]["op"] == "drop"  # at A's end, before a word is overwritten
    assert first.sentence == "Block 2's ref count is 0, but it has 1 holder: request B."
    assert bench.log.state(len(bench.log) - 1).text_of("B")[6:12] == tuple(
        "Bo has nine black horses .".split()
    )


def test_with_ref_counts_c_has_to_wait_and_b_is_told_the_truth():
    bench, a, b = shared_ledger(4)
    bench.finish(a)
    c = bench.start(STRANGER, "C")
    with pytest.raises(OutOfBlocksError):
        bench.prefill(c)
    bench.say(b, "has")
    assert bench.finish_sentence(b) == "two gold cups ."
    assert not bench.log.violations


def two_after_a_has_gone(broken):
    bench = Workbench(num_blocks=5, block_size=6)
    a, z = (
        bench.start("Ada has three red kites . Mona has four white hats .", "A"),
        bench.start("It is late .", "Z"),
    )
    bench.prefill(a), bench.prefill(z)
    if broken:
        with sabotage("double-free", bench):
            bench.finish(a)
    else:
        bench.finish(a)
    bench.finish(z)
    c = bench.start(THREE, "C")
    bench.prefill(c)
    d = bench.start("Bo has nine black horses .", "D")
    bench.prefill(d)
    bench.say(c, "has")
    return bench, c, d


def test_a_double_free_gives_two_later_requests_one_block():
    bench, c, d = two_after_a_has_gone(broken=True)
    assert (c.table.block_ids, d.table.block_ids) == ((3, 4, 1, 0), (1,))
    assert bench.finish_sentence(c) == "nine black horses ."
    assert found(bench) == [("I1", 1), ("I1", 0), ("I2", 1)]
    assert bench.log.violations[0].sentence == "Block 1 is in the free queue 2 times."
    with pytest.raises(InvariantError, match="I1"):
        bench.manager.check()


def test_without_it_they_get_blocks_of_their_own():
    bench, c, d = two_after_a_has_gone(broken=False)
    assert (c.table.block_ids, d.table.block_ids) == ((3, 4, 1, 0), (2,))
    assert bench.finish_sentence(c) == "two gold cups ."
    assert not bench.log.violations
    bench.manager.check()


def test_a_double_free_reports_more_free_blocks_than_there_are():
    bench = Workbench(num_blocks=3, block_size=6)
    a = bench.start("Ada has three red kites .", "A")
    bench.prefill(a)
    with sabotage("double-free", bench):
        bench.finish(a)
    assert bench.manager.num_free_blocks == 4
    assert bench.manager.free_queue == bench.log.state(len(bench.log) - 1).free_queue == (1, 2, 0, 0)


def test_a_double_free_leaves_alone_what_others_still_hold():
    bench, a, b = shared_ledger(5)
    with sabotage("double-free", bench):
        bench.finish(a)
    assert bench.manager.free_queue == (4,)
    assert not bench.log.violations
    bench.say(b, "has")
    assert bench.finish_sentence(b) == "two gold cups ."


def taking_turns(broken):
    bench = Workbench(num_blocks=5, block_size=8)
    a = bench.start("Ada has three red kites . Bo has two gold cups .", "A")
    bench.prefill(a)

    def run():
        b = bench.fork(a, "B")
        for request, word in ((a, "Ada"), (b, "Bo"), (a, "has"), (b, "has")):
            bench.say(request, word)
        return bench.finish_sentence(a), bench.finish_sentence(b)

    if not broken:
        return bench, run()
    with sabotage("missing-inc", bench):
        return bench, run()


def test_an_uncounted_fork_writes_over_its_parents_words():
    bench, told = taking_turns(broken=True)
    assert told == ("two gold cups .", "two gold cups .")
    assert found(bench) == [("I2", 0), ("I2", 1)]
    assert not [event for event in bench.log if event["op"] == "copy"]
    with pytest.raises(InvariantError, match="I2 ref-count: block 0 has count 1 and 2 holders"):
        bench.manager.check()


def test_a_counted_fork_copies_first():
    bench, told = taking_turns(broken=False)
    assert told == ("three red kites .", "two gold cups .")
    assert len([event for event in bench.log if event["op"] == "copy"]) == 1
    assert not bench.log.violations


def test_an_uncounted_holder_is_refused_when_it_gives_back_what_is_free():
    bench = Workbench(num_blocks=4, block_size=6)
    a = bench.start(LEDGER, "A")
    bench.prefill(a)
    with sabotage("missing-inc", bench):
        b = bench.fork(a, "B")
    bench.finish(a)
    with pytest.raises(RefCountError, match="I2"):
        bench.finish(b)


@pytest.mark.parametrize("name", NAMES)
def test_the_honest_manager_comes_back_even_if_the_block_raises(name):
    bench = Workbench(num_blocks=4, block_size=6)
    honest = bench.manager
    with pytest.raises(RuntimeError), sabotage(name, bench):
        assert bench.manager is bench.loop.manager is not honest
        raise RuntimeError
    assert bench.manager is bench.loop.manager is honest


@pytest.mark.parametrize("name", NAMES)
def test_each_says_which_invariant_it_breaks_and_how(name):
    assert SWITCHES[name].invariant[:2] in ("I1", "I2")
    assert SWITCHES[name].says


@pytest.mark.parametrize("name", NAMES)
def test_an_option_is_refused(name):
    with pytest.raises(TypeError), sabotage(name, Workbench(num_blocks=4), index=0):
        pass


@pytest.mark.parametrize("name", NAMES)
def test_one_request_alone_is_answered_right_until_it_ends(name):
    """A fault in sharing shows only when something is shared, a double free only later."""
    bench = Workbench(num_blocks=6, block_size=6)
    with sabotage(name, bench):
        assert bench.ask(LEDGER + " What does Bo have ?", "A") == "Bo has two gold cups ."
    assert not bench.log.violations
    bench.manager.check()
