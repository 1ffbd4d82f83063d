"""A move that forgets a part: what the model then says, and where it is seen."""

import pytest

from minikv.lab import Workbench, sabotage
from minikv.lab.modes_bench import RunBench
from minikv.lab.sabotage import SWITCHES

STRANGER = "Bo has nine black horses . It is late . Tea is ready ."
QUESTION = "Bo has two gold cups . Tell me what Bo has ."


def about_to_move(attention="gather"):
    bench = RunBench(48, "grow", headroom=1, attention=attention)
    bench.submit(STRANGER, 2)
    b = bench.submit(QUESTION, 8, stop=" .")
    bench.submit("The road is long . It is late .", 12)
    bench.step(2)
    return bench, b


@pytest.mark.parametrize("attention", ["gather", "contiguous", "reference"])
def test_bo_is_told_what_a_stranger_wrote(attention):
    bench, b = about_to_move(attention)
    with sabotage("short-move", bench) as switch:
        bench.step()
        picture = bench.picture()
        bench.run()
    assert bench.said(b) == "Bo has nine black horses ."
    assert [(each.slot, each.stored, each.found) for each in picture.wrong] == [
        (2, "two", "nine"), (3, "gold", "black"), (4, "cups", "horses"),
    ]  # fmt: skip
    first = bench.log.violations[0]
    assert (first.name, first.block_id) == (switch.invariant, 0) == ("I6 written-first", 0)
    assert first.sentence.startswith("Position 0 of request B was read from block 0, slot 0")
    bench.manager.check()  # the books are in order


def test_a_run_that_does_not_move_takes_no_harm():
    bench = RunBench(48, "grow", headroom=1)
    b = bench.submit(QUESTION, 8, stop=" .")
    with sabotage("short-move", bench):
        bench.run()
    assert bench.said(b) == "Bo has two gold cups ."
    assert not bench.log.violations and bench.manager.tokens_moved == 0


def test_whole_pieces_take_no_harm():
    bench = RunBench(64, "grow", headroom=0)
    bench.submit(f"{STRANGER} It is late .", 1)  # 18 slots, where B's 17 go
    b = bench.submit("Bo has two gold cups . Tea is ready . Tell me what Bo has .", 8, stop=" .")
    bench.submit("The road is long . It is late .", 12)
    bench.step()
    with sabotage("short-move", bench):
        bench.step()
        assert bench.manager.tokens_moved == 16 and not bench.picture().wrong
    bench.run()
    assert bench.said(b) == "Bo has two gold cups ." and not bench.log.violations


@pytest.mark.parametrize("broken", [False, True])
def test_it_is_put_back(broken):
    bench, b = about_to_move()
    pool, tell = bench.manager.pool, bench.manager._tell_kept
    if broken:
        with pytest.raises(RuntimeError), sabotage("short-move", bench):
            raise RuntimeError
    else:
        with sabotage("short-move", bench):
            pass
    assert bench.manager.pool is pool and bench.manager._tell_kept == tell
    bench.run()
    assert bench.said(b) == "Bo has two gold cups ."


def test_it_needs_runs():
    with pytest.raises(ValueError, match="RunBench"), sabotage("short-move", Workbench(8, 4)):
        pass
    assert SWITCHES["short-move"].says
