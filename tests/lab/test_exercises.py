"""Every exercise accepts its solution and rejects its wrong answers and the untouched starter."""

import pytest

from minikv.lab.exercises import EXERCISES, WITH_VARIANTS, check, get, hint, solution, variant

IDS = [*EXERCISES, *(f"{name}#{seed}" for name in WITH_VARIANTS for seed in range(40))]


@pytest.mark.parametrize("id", IDS)
def test_accepts_the_right_answer_and_rejects_every_wrong_one(id):
    exercise = get(id)
    assert exercise.judge(exercise.right).ok
    assert exercise.wrong
    for mistake, answer in exercise.wrong:
        verdict = check(id, answer)
        assert not verdict.ok, mistake
        assert verdict.message


@pytest.mark.parametrize("id", EXERCISES)
def test_an_untouched_starter_is_not_right(id):
    verdict = check(id, ...)
    assert not verdict.ok
    assert "not answered yet" in verdict.message


@pytest.mark.parametrize("id", EXERCISES)
@pytest.mark.parametrize("nonsense", [None, "four", [1], True, object()])
def test_nonsense_is_rejected_and_does_not_raise(id, nonsense):
    assert not check(id, nonsense).ok


def test_a_learners_code_that_raises_is_shown():
    def needs_new_block(num_stored, block_size):
        return num_stored / 0

    verdict = check("02.new_block", needs_new_block)
    assert not verdict.ok
    assert "ZeroDivisionError" in verdict.message


def test_first_divergence_and_invariant_are_named():
    wrong = dict(get("02.table").wrong)["slot ignores the offset"]
    verdict = check("02.table", wrong)
    assert verdict.invariant == "I5"
    assert "offset 2" in verdict.message
    assert "slot(0): 28 (block 7), should be 30 (block 7)" in verdict.message


def test_hints_come_one_after_the_other_and_the_last_one_stays():
    said = [hint("02.new_block") for _ in range(4)]
    assert [text[:6] for text in said] == ["Hint 1", "Hint 2", "Hint 3", "Hint 3"]
    assert said[2] == said[3]


def test_the_solution_of_the_table_is_code_that_passes():
    scope = {}
    exec(solution("02.table"), scope)
    assert check("02.table", scope["MyBlockTable"]).ok


def test_the_solution_of_new_block_is_code_that_passes():
    scope = {}
    exec(solution("02.new_block"), scope)
    assert check("02.new_block", scope["needs_new_block"]).ok


def test_variants_have_other_numbers_and_are_answered_by_their_id():
    seven, again, eight = variant(7, "02.slot"), variant(7, "02.slot"), variant(8, "02.slot")
    assert repr(seven) == repr(again) != repr(eight)
    assert seven.check(get("02.slot#7").right).ok
    assert variant(3).id in {f"{name}#3" for name in WITH_VARIANTS}


@pytest.mark.parametrize("id", ["99.none", "02.table#1", "02.slot#x"])
def test_unknown_ids_name_what_there_is(id):
    with pytest.raises(ValueError, match=r"02|seed"):
        get(id)


def test_shares_may_be_rounded():
    for right in ((0.88, 0.5), (0.875, 0.5), (0.87, 0.5), (88, 50), (87.5, 50.0)):
        assert check("12.Q1", right).ok
    for wrong in ((0.9, 0.5), (0.85, 0.5), (0.88, 0.52), (0.125, 0.5)):
        assert not check("12.Q1", wrong).ok
