"""Where a run that grows goes: the judge, another right way, and the engine that runs a learner's rule."""

import pytest

from minikv.engine.contiguous import ContiguousManager, Run
from minikv.lab import solution
from minikv.lab.exercises import check, get
from minikv.lab.exercises.modes import _cases, by_slots, regrow
from minikv.lab.try_regrow import try_regrow

RIGHT = get("09.regrow").right
WRONG = dict(get("09.regrow").wrong)


def test_the_cases_have_all_kinds():
    kinds = {"stay": 0, "none": 0, "hole": 0, "slide": 0}
    for start, held, holes, size in _cases():
        said = by_slots(start, held, holes, size)
        fits = any(first == said and room >= size for first, room in holes)
        kinds["none" if said is None else "stay" if said == start else "hole" if fits else "slide"] += 1
    assert min(kinds.values()) >= 10, kinds


@pytest.mark.parametrize("case", range(0, 400, 7))
def test_the_rule_is_the_engines(case):
    start, held, holes, size = _cases()[case]
    free = {slot for first, room in holes for slot in range(first, first + room)}
    num_slots = max([start + held, *(slot + 1 for slot in free)])
    manager = ContiguousManager(num_slots, "grow", headroom=0)
    runs = {}
    for slot in range(num_slots):  # a run for each slot; then the holes and the place of ours are cleared
        runs[slot] = Run(num_slots, max_length=num_slots)
        assert manager.allocate(runs[slot], 1) and runs[slot].offset == slot
    for slot in [*free, *range(start, start + held)]:
        manager.free(runs[slot])
    mine = Run(num_slots, max_length=num_slots)
    blocked = []  # what lies before ours, so that first fit puts it where it is to be
    for first, room in holes:
        if first < start:
            blocked.append(Run(num_slots, max_length=room))
            assert manager.allocate(blocked[-1], room)
    assert manager.allocate(mine, held)
    for run in blocked:
        manager.free(run)
    if mine.offset != start:
        pytest.skip("first fit joined ours with the hole behind a hole")
    right = by_slots(start, held, holes, size)
    assert manager.allocate(mine, size) == (right is not None)
    assert mine.offset == (start if right is None else right)


@pytest.mark.parametrize(
    ("mistake", "said", "invariant"),
    [
        ("moves though it could stay", "It could stay where it is", None),
        ("never slides", "though there is a place", None),
        ("stays though its neighbour is in the way", "neither free nor the run's own", "I1"),
        ("best fit, not the first", "The first hole that takes all of it begins at", None),
        ("slides only as far as it must", "It slides to the beginning of the hole before it", None),
        ("never moves", "neither free nor the run's own", "I1"),
        ("empties the list of holes", "the list of holes was changed; only look at it", None),
        ("sorts the list of holes", "the list of holes was changed; only look at it", None),
    ],
)
def test_the_mistake_is_named(mistake, said, invariant):
    verdict = check("09.regrow", WRONG[mistake])
    assert said in " ".join(verdict.message.split()) and verdict.invariant == invariant


def test_another_right_way_and_the_solution_are_right():
    assert check("09.regrow", by_slots).ok
    scope = {}
    exec(solution("09.regrow"), scope)
    assert check("09.regrow", scope["regrow"]).ok


@pytest.mark.parametrize("said", ["0", 1.0, True, [3], (0, 1)])
def test_odd_answers_are_rejected_and_do_not_raise(said):
    assert not check("09.regrow", lambda *state: said).ok


# ---- in the engine -----------------------------------------------------------------------------


def test_the_solution_goes_as_ours_does_and_meets_every_kind():
    tried = try_regrow(RIGHT)
    assert tried.first is None and min(tried.kinds.values()) >= 1
    assert tried.said == "the model says: Bo has two gold cups . (1 preempted)"
    assert repr(tried).endswith("Every place asked for in this run as ours.")
    assert tried.picture is not None and tried.picture.aim == (0, 15)


def test_ours_stands_beside_what_goes_another_way_and_only_there():
    tried = try_regrow(WRONG["never slides"])
    assert tried.ours.said == try_regrow(RIGHT).said and tried.ours.kinds == try_regrow(RIGHT).kinds
    lines = repr(tried).splitlines()
    assert lines[0].endswith("(3 preempted)") and lines[2] == (
        "With ours the model says: Bo has two gold cups . (1 preempted)"
    )
    assert "slid 0×" in lines[1] and "slid 1×" in lines[3]
    assert try_regrow(RIGHT).ours is None and "With ours" not in repr(try_regrow(RIGHT))


def test_a_list_that_is_changed_is_not_the_engines():
    tried = try_regrow(WRONG["empties the list of holes"])
    assert tried.first is None and not tried.accepted
    assert "rejects it, for a reason that this run does not show" in repr(tried)


def test_a_place_that_is_somebody_elses_stops_the_run():
    tried = try_regrow(WRONG["stays though its neighbour is in the way"])
    assert tried.said == "the run stops."
    assert "Slot 20 is neither free nor the run's own" in tried.first
    assert "breaks I1, conservation" in tried.first
    assert tried.picture.aim == (7, 15)


@pytest.mark.parametrize(
    "mistake", ["moves though it could stay", "never slides", "slides only as far as it must"]
)
def test_a_free_place_is_taken_and_the_answer_stays(mistake):
    tried = try_regrow(WRONG[mistake])
    assert tried.first is not None and "I1" not in tried.first
    assert "Bo has two gold cups ." in tried.said
    assert tried.tokens_moved != try_regrow(RIGHT).tokens_moved


@pytest.mark.parametrize("said", [1.5, "7", ..., -3, 99])
def test_odd_places_stop_the_run(said):
    calls = []

    def odd(start, held, holes, size):
        calls.append(start)
        return said if len(calls) > 500 else regrow(start, held, holes, size)  # the judge has 400 cases

    tried = try_regrow(lambda *state: said if said is not ... else odd(*state))
    assert tried.said is not None
    if said is not ...:
        assert tried.said == "the run stops." and tried.first is not None


def test_code_that_raises_is_shown_and_not_praised():
    tried = try_regrow(lambda *state: 1 / 0)
    assert "ZeroDivisionError" in tried.said and "as ours" not in repr(tried)
    assert tried.stopped
    assert "as ours" not in repr(try_regrow(lambda start, held, holes: start))


@pytest.mark.parametrize("mistake", [name for name in WRONG if name != "untouched starter"])
def test_what_the_check_rejects_is_not_praised(mistake):
    told = repr(try_regrow(WRONG[mistake]))
    assert "as ours" not in told and ("First divergence: " in told or "rejects it" in told)


def test_code_that_is_not_written_yet_runs_nothing_and_nonsense_is_refused():
    tried = try_regrow(WRONG["untouched starter"])
    assert tried.said is None and tried.picture is None
    assert repr(tried) == "_untouched is not written yet."
    for nonsense in (None, 3, list):
        with pytest.raises(TypeError, match="try_regrow takes a function"):
            try_regrow(nonsense)
