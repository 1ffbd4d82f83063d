"""Time-outs handled wrongly: never, or twice. What is said, where the log points, and that it is put back."""

import pytest

from minikv.errors import InvariantError
from minikv.lab import sabotage
from minikv.lab.event_log import EventLog
from minikv.lab.experiment_run import Experiment, Scene, run
from minikv.lab.experiment_scenes import LATE, SCENES, SIX


def broken(name, scene=LATE):
    experiment = Experiment(scene, log=EventLog())
    with sabotage(name, experiment) as switch:
        outcome = experiment.to_the_end()
    return experiment, outcome, switch


def test_a_leak_is_seen_at_the_end():
    experiment, outcome, switch = broken("time-out-leaks")
    assert (outcome.free, outcome.max_allocated) == (1, 5)
    assert [str(request.status) for request in experiment.requests] == ["timeout", "oom", "oom"]
    first = experiment.log.violations[0]
    assert (first.name, first.block_id) == (switch.invariant, 4)
    assert first.sentence == "Block 4's ref count is 1, but it has 0 holders."
    assert sorted(violation.block_id for violation in experiment.log.violations) == [0, 1, 2, 3, 4]
    with pytest.raises(InvariantError, match="I2"):
        experiment.engine.check()


def test_the_leak_is_what_those_held_who_timed_out():
    experiment, outcome, _ = broken("time-out-leaks", SCENES["time-outs"])
    honest = run(SCENES["time-outs"])
    late = [n for n, request in enumerate(experiment.requests) if str(request.status) == "timeout"]
    held = sum(each.slots // 4 for each in honest.moments[-1].held if each.request in late)
    assert len(late) == 3
    assert outcome.free == 16 - held < 16 == honest.free
    assert outcome.counts == honest.counts


def test_twice_is_a_lie():
    experiment, outcome, switch = broken("time-out-frees-twice")
    assert outcome.texts[1] == "Bo has two gold kites ."
    first = experiment.log.violations[0]
    assert (first.name, first.block_id) == (switch.invariant, 4)
    assert first.sentence == "Block 4 is in the free queue 2 times."
    assert any("request B and request C" in violation.sentence for violation in experiment.log.violations)
    cause = experiment.requests[1].future.exception().__cause__
    assert isinstance(cause, InvariantError)
    assert str(experiment.requests[1].status) == "failed"


@pytest.mark.parametrize("name", ["time-out-leaks", "time-out-frees-twice"])
def test_nothing_is_wrong_while_nobody_times_out(name):
    experiment, outcome, _ = broken(name, SCENES["reuse"])
    assert outcome.texts == run(SCENES["reuse"]).texts
    assert experiment.log.violations == ()
    experiment.engine.check()


@pytest.mark.parametrize("name", ["time-out-leaks", "time-out-frees-twice"])
def test_it_is_put_back(name):
    experiment = Experiment(LATE, log=EventLog())
    before = experiment.engine.scheduler.remove
    with sabotage(name, experiment):
        assert experiment.engine.scheduler.remove != before
    assert experiment.engine.scheduler.remove == before
    outcome = experiment.to_the_end()
    assert (outcome.texts[1], outcome.free) == ("Bo has two gold cups .", 6)
    assert experiment.log.violations == ()


def test_preemption_is_no_time_out():
    _, outcome, _ = broken("time-out-leaks", Scene("tight", SIX, 12))
    assert outcome.counts["preempted"] > 0
    assert outcome.free == 12
