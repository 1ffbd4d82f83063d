"""A learner's step runs the model beside ours; the first difference and its invariant are named."""

import inspect

import pytest

from minikv.lab.exercises import get
from minikv.lab.exercises.decode import my_step
from minikv.lab.try_step import in_a_full_pool, try_step

WRONG = dict(get("06.step").wrong)


def test_ours_goes_through():
    tried = try_step(my_step)
    assert tried.first is None
    assert tried.said == (
        "A says: Bo has two gold cups .\n"
        "A, asked what Ada has: Ada has three red kites .\n"
        "B, asked what Bo has: Bo has two gold cups ."
    )
    assert tried.log.violations == ()


@pytest.mark.parametrize(
    ("mistake", "invariant"),
    [
        ("forgets allocate", "I5"),
        ("stores before it allocates", "I5"),
        ("no copy_on_write", "I4"),
        ("copies behind the note", "I4"),
        ("does not tell the manager", "I4"),
        ("one slot early", "I5"),
        ("reads before it writes", "I6"),
        ("writes layer 0 only", "I6"),
        ("leaves the new tokens out of the read", "I6"),
        ("positions begin again at 0", None),
        ("feeds the last stored token again", None),
        ("takes the first logits", None),
        ("does not move on", None),
        ("returns nothing", None),
    ],
)
def test_the_first_divergence_and_its_invariant(mistake, invariant):
    first = try_step(WRONG[mistake]).first
    assert first is not None
    assert first.invariant == invariant


def test_wrong_positions_break_no_invariant_and_say_something_false():
    tried = try_step(WRONG["positions begin again at 0"])
    assert tried.log.violations == ()
    assert "A says: Bo has two gold cups ." not in tried.said
    assert "position 17 the positions given to the model are [0]; ours: [17]" in tried.first.sentence


def test_places_for_positions_give_bo_adas_kites_and_break_no_invariant():
    tried = try_step(WRONG["each word's place in its block for its position"])
    assert tried.log.violations == ()
    assert "A says: Bo has three red kites ." in tried.said
    assert "the positions given to the model are" in tried.first.sentence


def test_a_write_into_a_shared_block_is_seen_even_if_nobody_is_told():
    tried = try_step(WRONG["neither copies nor tells"])
    assert "I4" in {violation.invariant for violation in tried.log.violations}


def test_the_map_opens_at_the_first_divergence():
    tried = try_step(WRONG["one slot early"])
    assert (tried.map().step, tried.map().highlight) == (tried.first.step, [4])
    assert try_step(lambda model, manager, pool, request: ...).map().frame is None


def test_a_step_that_never_stops_is_given_up():
    def always(model, manager, pool, request):
        my_step(model, manager, pool, request)
        request.token_ids[-1] = 23
        return 23

    assert try_step(always).first is not None


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="function"):
        try_step("step")


MOVED = "    request.num_stored = stop\n"


@pytest.mark.parametrize("before", ["    def attend(", "    logits = model(", "    for position in"])
def test_a_step_may_move_num_stored_before_the_model_runs(before):
    early = _moved_before(before)
    assert try_step(early).first is None
    assert try_step(early).log.violations == ()
    assert get("06.step").judge(early).ok


def _moved_before(line):
    """The solution with the line that moves num_stored somewhere else."""
    text = inspect.getsource(my_step).replace(MOVED, "").replace(line, MOVED + line, 1)
    scope = dict(my_step.__globals__)
    exec(text, scope)
    return scope["my_step"]


@pytest.mark.parametrize("mistake", ["returns a list", "returns a tensor", "appends a tensor"])
def test_a_token_of_another_type_is_shown_as_it_is(mistake):
    sentence = try_step(WRONG[mistake]).first.sentence
    assert "(list)" in sentence or "tensor" in sentence


def test_an_order_may_be_a_list():
    exercise = get("06.order")
    assert exercise.judge(list(exercise.right)).ok
    assert not exercise.judge(list(exercise.right[::-1])).ok
    assert not exercise.judge(5).ok
    assert not exercise.judge([1, 2]).ok


def test_slots_and_blocks_often_leave_a_rest():
    asked = [get(f"06.slots#{seed}") for seed in range(12)]
    assert any("rounds down" in dict(each.wrong) for each in asked)
    assert not all("rounds down" in dict(each.wrong) for each in asked)
    assert "rounds down" not in dict(asked[0].wrong)


def test_in_a_full_pool_only_out_of_blocks_is_right():
    assert in_a_full_pool(my_step) is None
    assert "returns False" in in_a_full_pool(WRONG["ignores that there is no room"])
    assert "goes on" in in_a_full_pool(lambda *parts: 1)
