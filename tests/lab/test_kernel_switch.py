"""The reader that walks one entry too far: when, what the model then says, and where the log points."""

import pytest

from minikv.errors import UnwrittenSlotError
from minikv.lab import Workbench, sabotage
from minikv.lab.sabotage import SWITCHES
from minikv.lab.stand_in import scatter
from minikv.lab.switches.kernel import reach

B = "Bo has two gold cups . Ada has three red kites . Tell me what Bo has ."
A = "Tea is ready . It is late . Tea is ready . Bo has seven black horses ."


def serve(bench):
    scatter(bench)
    b = bench.start(B, "B")
    bench.prefill(b)
    bench.prefill(bench.start(A, "A"))
    return b


@pytest.mark.parametrize("size", [1, 3, 4, 16])
@pytest.mark.parametrize("offset", [0, 2])
def test_it_reads_one_block_too_much_exactly_when_the_last_is_full(size, offset):
    if offset >= size:
        return
    for length in range(1, 5 * size):
        full = (offset + length) % size == 0
        entries, end = reach(length, offset, size)
        assert end == length + (size if full else 0)
        assert entries == -(-(offset + length) // size) + full


def test_b_is_told_a_number_that_only_a_was_given():
    bench = Workbench(12, 4)
    b = serve(bench)
    assert 0 in [
        event["block_id"] for event in bench.log if event["op"] == "allocate" and event["request"] == "A"
    ]
    with sabotage("one-entry-more", bench) as switch:
        assert bench.finish_sentence(b) == "Bo has seven gold cups ."
    first = bench.log.violations[0]
    assert (first.name, first.block_id) == (switch.invariant, 0)
    read = bench.log[first.step]
    assert (read["op"], read["request"], read["length"]) == ("read", "B", 24)
    assert read["slots"][20:] == [0, 1, 2, 3]
    bench.manager.check()


def test_lengths_within_a_block_do_no_harm():
    bench = Workbench(12, 4)
    b = serve(bench)
    with sabotage("one-entry-more", bench):
        assert bench.step(b) == "has"  # 19 words
    assert not bench.log.violations


def test_a_block_that_nobody_wrote_is_refused_by_the_pool():
    bench = Workbench(4, 4)
    first = bench.start("Tea is ready .", "X")
    bench.prefill(first)
    bench.finish(first)
    a = bench.start("It is late .", "A")  # block 1; block 0 is free
    with sabotage("one-entry-more", bench), pytest.raises(UnwrittenSlotError, match="slot 0 of block 0"):
        bench.prefill(a)


@pytest.mark.parametrize("broken", [False, True])
def test_it_is_put_back(broken):
    bench = Workbench(12, 4)
    parts = bench.loop.backend, bench.loop.observer
    if broken:
        with pytest.raises(RuntimeError), sabotage("one-entry-more", bench):
            raise RuntimeError
    assert (bench.loop.backend, bench.loop.observer) == parts
    assert bench.finish_sentence(serve(bench)) == "Bo has two gold cups ."


def test_it_says_what_it_breaks():
    assert SWITCHES["one-entry-more"].invariant == "I6 written-first"
    assert SWITCHES["one-entry-more"].says
