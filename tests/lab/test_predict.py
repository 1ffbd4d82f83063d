"""Predictions are marked cell by cell, and an empty one runs through."""

from fractions import Fraction
from importlib import import_module

import pytest
from traitlets import TraitError

from minikv.lab.predict import Prediction, predict


@pytest.fixture(autouse=True)
def nothing_asked_before(monkeypatch):
    monkeypatch.setattr(import_module("minikv.lab.predict"), "_asked", {})


def test_an_unanswered_prediction_shows_the_truth_and_nothing_else():
    guess = predict(table="the table", left="free blocks")
    assert repr(guess.mark(table=(3, 4), left=5)) == "the table: 3 4\nfree blocks: 5"
    assert guess.mark(table=(3, 4), left=5).right == 0


def test_each_cell_is_marked():
    guess = predict(table="the table").answer(table=[3, 14, 6])
    assert repr(guess.mark(table=(3, 14, 5))) == (
        "the table\n  you said  3  14  6\n  it is     3  14  5\n            ✓   ✓  ✗"
    )
    assert guess.mark(table=(3, 14, 5)).right == 0
    assert guess.mark(table=(3, 14, 6)).right == 1


def test_answers_of_the_wrong_length_are_marked_to_the_end():
    assert predict(q="q").answer(q="4 5").mark(q=[1, 2, 3]).right == 0
    guess = predict(queue="queue").answer(queue="1, 2")
    assert repr(guess.mark(queue=[1, 2, 3])).endswith("✓  ✓  ✗")
    assert guess.mark(queue=[1, 2, 3]).right == 0
    assert predict(queue="queue").answer(queue="1 2 3").mark(queue=[1, 2]).right == 0


@pytest.mark.parametrize(
    "typed",
    [
        *("[3, 4]", "3 4", " 3,4 ", "(3; 4)", "03 4"),
        *("3rd, 4th", "3RD and 4th", "P3 P4", "p3, p4", "#3 #4", "3. 4.", "3, 4."),
        *("three, four", "Three and four", "blocks 3 and 4"),
        *("P3 → P4", "P3 › P4", "3 -> 4", "L0 → P3, L1 → P4"),
    ],
)
def test_numbers_may_be_typed_in_many_ways(typed):
    guess = predict(table="the table").answer(table=typed)
    marks = guess.mark(table=(3, 4))
    assert marks.right == 1
    assert "you said  3  4\n" in repr(marks)


@pytest.mark.parametrize("typed", ["4 3", "3", "3 4 5", "34", "3-4", "3.4", "not yet", "?", "."])
def test_other_numbers_are_other_answers(typed):
    assert predict(table="the table").answer(table=typed).mark(table=(3, 4)).right == 0


def test_numbers_below_zero():
    for typed in ("-1", "−1", "#-1", "-01"):
        assert predict(count="ref count").answer(count=typed).mark(count=-1).right == 1
    assert predict(count="ref count").answer(count="1").mark(count=-1).right == 0


@pytest.mark.parametrize("typed", ["two gold cups .", "Two gold cups.", "two gold cups", "2 gold cups"])
@pytest.mark.parametrize("told", ["two gold cups .", "two gold cups"])
def test_a_sentence_needs_neither_its_full_stop_nor_its_numbers_in_words(typed, told):
    marks = predict(says="Bo has …").answer(says=typed).mark(says=told)
    assert marks.right == 1
    assert "  it is     " + "  ".join(told.split()) in repr(marks)


@pytest.mark.parametrize(
    "typed", ["two gold", "gold cups .", "three gold cups .", "two gold cups . Ada", "."]
)
def test_other_sentences_are_other_answers(typed):
    assert predict(says="Bo has …").answer(says=typed).mark(says="two gold cups .").right == 0


def test_what_is_true_is_shown_as_it_is():
    marks = predict(says="Bo has …").answer(says="2 red hats").mark(says="two gold cups .")
    assert repr(marks).splitlines() == [
        "Bo has …",
        "  you said  two   red  hats  .",
        "  it is     two  gold  cups  .",
        "              ✓     ✗     ✗  ✓",
    ]
    assert repr(Prediction(says="Bo has …").mark(says="two gold cups .")) == "Bo has …: two gold cups ."
    assert predict(stop="the next word").answer(stop=".").mark(stop=".").right == 1


def test_answers_are_cells_whatever_was_typed():
    guess = predict(table="the table", says="Bo has …", left="free").answer(table=[3, 4], says="3rd. Kites.")
    assert guess.answers == {"table": ["3", "4"], "says": ["3", "kites", "."], "left": []}


def test_words_compare_without_capitals():
    assert predict(word="next word").answer(word="Kites").mark(word="kites").right == 1


def test_what_is_true_is_shown_with_its_capitals():
    guess = predict(hurt="who is hurt", free="free?", queue="queue")
    assert repr(guess.mark(hurt="B", free="Yes", queue="P3 P4")) == "who is hurt: B\nfree?: Yes\nqueue: 3 4"
    marks = guess.answer(hurt="b", free="YES", queue="p3 P5").mark(hurt="B", free="Yes", queue="P3 P4")
    assert marks.right == 2
    assert repr(marks).splitlines()[1:3] == ["  you said  B", "  it is     B"]
    assert "it is     3  4" in repr(marks)
    assert repr(guess.answer(hurt="C").mark(hurt="B")).splitlines()[1:3] == ["  you said  C", "  it is     B"]
    assert predict(says="Ada has …").answer(says="3 red kites").mark(says="Three Red Kites .").right == 1


def test_unknown_names_are_refused():
    guess = predict(table="the table")
    with pytest.raises(ValueError, match="'queue' was not asked; asked were table"):
        guess.mark(queue=1)
    with pytest.raises(ValueError, match="was not asked"):
        guess.answer(queue=1)
    with pytest.raises(ValueError, match="at least one question"):
        predict()


def test_it_shows_boxes_and_a_stable_text():
    guess = predict(table="the table", left="free blocks")
    bundle = guess._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == "Predict first:\n  - the table: ?\n  - free blocks: ?"
    again = guess.answer(table=3)._repr_mimebundle_()
    assert again == bundle, "every view is one of the same model, and the text does not tell what was typed"


def test_what_is_typed_in_the_browser_is_the_answer():
    guess = predict(table="the table", left="free blocks").answer(left=5)
    state = guess._boxes.get_state()
    assert state["_questions"] == guess.questions
    guess._boxes.set_state({"_answers": {**state["_answers"], "table": "3 4"}})
    assert guess.answers == {"table": ["3", "4"], "left": ["5"]}
    guess.answer(left=6)
    assert guess._boxes.get_state()["_answers"] == {"table": "3 4", "left": "6"}


def test_a_browser_cannot_answer_what_was_not_asked():
    guess = predict(table="the table")
    guess._boxes.set_state({"_answers": {"queue": "1"}})
    assert guess.answers == {"table": []}
    with pytest.raises(TraitError):
        guess._boxes.set_state({"_answers": {"table": 3}})


def test_the_boxes_name_no_memory_address():
    assert repr(predict(table="the table").answer(table=3)._boxes) == "PredictionBoxes({'table': '3'})"


@pytest.mark.parametrize("typed", ["262,144", "262144", "262_144", "262,144 tokens", "“262,144”"])
def test_a_large_number_may_have_its_commas(typed):
    assert predict(tokens="tokens").answer(tokens=typed).mark(tokens=262_144).right == 1


def test_commas_part_numbers_where_none_is_large():
    assert predict(queue="queue").answer(queue="1,234").mark(queue=(1, 234)).right == 1
    assert predict(counts="counts").answer(counts="1,000 4,000").mark(counts=(1_000, 4_000)).right == 1
    assert predict(counts="counts").answer(counts="1000,4000").mark(counts=(1_000, 4_000)).right == 1


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        *(("no", "False"), ("No.", "False"), ("false", "no"), ("yes", "True"), ("True", "yes")),
        *(
            ("empty", ()),
            ("[]", ()),
            ("none", "empty"),
            ("'empty'", "empty"),
            ("Nothing", ()),
            ("()", "empty"),
        ),
        *(('"C"', "C"), ("‘C’", "C"), ("only C", "C"), ("just c", "C")),
        *(("Bo's cups", "Bo's cups"), ("'two gold cups'", "two gold cups .")),
    ],
)
def test_what_means_the_same_is_the_same(typed, told):
    marks = predict(it="it").answer(it=typed).mark(it=told)
    assert marks.right == 1
    assert repr(marks) == repr(predict(it="it").answer(it=told or "empty").mark(it=told))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("no", "True"),
        ("yes", "False"),
        ("0", ()),
        ("empty", "3 4"),
        ("[]", "3"),
        ("only A", "C"),
        ("none", "no"),
        ("4x", 3),
        ("2", "third"),
        ("second request", "third"),
        ("falls", "stay"),
        ("Yes, it waits", False),
        ("less than 16", "more"),
        ("B and C", "B"),
        ("than more", "more"),
        ("kite", "kites"),
    ],
)
def test_what_does_not_is_not(typed, told):
    assert predict(it="it").answer(it=typed).mark(it=told).right == 0


def test_nothing_is_shown_as_empty():
    assert repr(predict(queue="free queue").mark(queue=())) == "free queue: empty"


@pytest.mark.parametrize("typed", ["ten silver coins", "Bo has ten silver coins .", "bo has 10 silver coins"])
def test_the_beginning_that_the_question_gives_may_be_said_again(typed):
    guess = predict(says="Bo has …").answer(says=typed)
    assert guess.mark(says="ten silver coins .").right == 1
    assert guess.mark(says="five grey shells .").right == 0
    assert predict(says="Ada has …").answer(says=typed).mark(says="five grey shells .").right == 0


@pytest.mark.parametrize("typed", ["I5", "i5", "5", "I5 capacity", "invariant I5", "five"])
def test_an_invariant_may_be_said_by_its_number(typed):
    assert predict(first="which one").answer(first=typed).mark(first=5).right == 1
    assert predict(first="which one").answer(first=typed).mark(first=4).right == 0


@pytest.mark.parametrize("typed", ["I5", "i5", "5"])
def test_a_number_is_the_invariant_of_that_number(typed):
    marks = predict(first="which one").answer(first=typed).mark(first="I5")
    assert marks.right == 1 and "you said  I5" in repr(marks)
    assert predict(first="which one").answer(first="I7").mark(first=7).right == 0


@pytest.mark.parametrize(("typed", "told"), [("n", "no"), ("N", "False"), ("y", "yes"), ("Y.", "True")])
def test_yes_and_no_may_be_letters(typed, told):
    assert predict(it="it").answer(it=typed).mark(it=told).right == 1


@pytest.mark.parametrize("typed", ["15", "35", "30 %", "30%", "about 30", "25.4", "34.9%"])
def test_a_number_may_be_near(typed):
    guess = predict(share="share", served="served").answer(share=typed)
    marks = guess.mark(share=25, served=6, within={"share": 10})
    assert marks.right == 1
    assert repr(marks).splitlines()[3].strip() == "✓ near"
    assert guess.mark(share=25).right == 0, "only where it is allowed"


@pytest.mark.parametrize("typed", ["235.9", "236.4 MB", "~236", "≈ 236", "about 235.9 MB", "230mb"])
def test_a_measured_number_may_have_its_unit_and_its_decimals(typed):
    guess = predict(written="MB").answer(written=typed)
    assert guess.mark(written=236, within={"written": 10}).right == 1


@pytest.mark.parametrize("typed", ["0", "0.02", "<1", "< 1 %", "less than 1", "0.0", "none", "nothing"])
def test_next_to_nothing_is_near_to_nothing(typed):
    guess = predict(made="per cent").answer(made=typed)
    assert guess.mark(made=0, within={"made": 1}).right == 1
    assert guess.mark(made=5, within={"made": 1}).right == 0


@pytest.mark.parametrize("typed", ["1 96", "1x96 KB", "1 × 96", "1×96kb", "1 * 96", "1 run of 96 KB"])
def test_a_product_is_two_numbers(typed):
    assert predict(runs="runs, and KB in each").answer(runs=typed).mark(runs=(1, 96)).right == 1


@pytest.mark.parametrize("typed", ["error", "an error", "Error!", "the error"])
def test_articles_and_exclamation_marks_do_no_harm(typed):
    assert predict(reader="reader broken: Bo has …").answer(reader=typed).mark(reader="error").right == 1


def test_only_what_stands_behind_the_colon_may_be_said_again():
    guess = predict(both="both broken: Bo has …")
    for typed in ("Bo has nine black horses .", "nine black horses", "9 black horses."):
        assert guess.answer(both=typed).mark(both="nine black horses").right == 1
    assert guess.answer(both="Ada has nine black horses").mark(both="nine black horses").right == 0


@pytest.mark.parametrize(
    ("typed", "marks"),
    [
        ("Bo has nine black horses .", "✗✓✓✓✓✓✓"),
        (". Bo has 9 black horses", "✓✓✓✓✓✓✓"),
        ("Bo has black horses .", "✗✓✓✗✓✓✓"),
        ("nine", "✗✗✗✓✗✗✗"),
    ],
)
def test_what_is_missing_does_not_shift_the_rest(typed, marks):
    found = predict(behind="words").answer(behind=typed).mark(behind=". Bo has nine black horses .".split())
    assert "".join(repr(found).splitlines()[3].split()) == marks
    assert found.right == ("✗" not in marks)


@pytest.mark.parametrize("typed", ["14", "36", "35.1", "much", "nan", "25 25"])
def test_what_is_too_far_off_is_not_near(typed):
    marks = predict(share="share").answer(share=typed).mark(share=25, within={"share": 10})
    assert marks.right == 0 and "✗" in repr(marks)


def test_what_is_right_is_more_than_near_and_each_name_has_its_own_limit():
    guess = predict(share="share", served="served").answer(share="25%", served=8)
    marks = guess.mark(share=25, served=6, within={"share": 10})
    assert [line.strip() for line in repr(marks).splitlines() if set(line) & set("✓✗")] == ["✓", "✗"]
    assert guess.mark(share=25, served=6, within={"served": 2}).right == 2
    assert predict(share="share").mark(share=25, within={"share": 10}).right == 0, "nothing said is not near"


def test_within_names_what_was_asked():
    guess = predict(share="share")
    with pytest.raises(ValueError, match="'served' was not asked; asked were share"):
        guess.mark(share=25, within={"served": 2})
    with pytest.raises(ValueError, match="'share': -1}: a number differs by at least 0"):
        guess.mark(share=25, within={"share": -1})
    with pytest.raises(ValueError, match="no question can be called 'within'"):
        predict(within="how far")


# ---- sets and fractions --------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["backend pool", "pool, backend", "Pool and Backend", "{pool; backend}"])
def test_the_order_of_a_set_does_not_matter(typed):
    marks = predict(who="who").answer(who=typed).mark(who={"backend", "pool"})
    assert marks.right == 1 and "you said  backend  pool\n" in repr(marks)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("pool", ["–", "pool"]),
        ("pool, loop", ["loop", "pool"]),
        ("loop, pool, backend", ["backend", "pool", "loop"]),
        ("loop and table and backend", ["backend", "loop", "table"]),
    ],
)
def test_what_is_wrong_in_a_set_is_marked(typed, said):
    marks = predict(who="who").answer(who=typed).mark(who=frozenset({"backend", "pool"}))
    assert marks.right == 0 and marks.rows[0][1] == said


def test_a_set_of_numbers_an_empty_one_and_no_answer():
    assert predict(n="n").answer(n="steps 4 and 3").mark(n={3, 4}).right == 1
    assert predict(n="n").answer(n="none").mark(n=set()).right == 1
    assert repr(Prediction(n="n").mark(n={4, 3})) == "n: 3 4"


@pytest.mark.parametrize("typed", ["1/6", "1 / 6", "1:6", "2/12", "about 1/6", "1/6 FLOP per byte"])
def test_a_fraction_is_a_number(typed):
    assert predict(n="n").answer(n=typed).mark(n=Fraction(1, 6)).right == 1


def test_a_fraction_may_be_near_and_other_answers_are_others():
    for typed, right in (
        ("0.17", 1),
        ("0.167", 1),
        ("0.2", 0),
        ("6", 0),
        ("1/3", 0),
        ("1/0", 0),
        ("small", 0),
    ):
        marks = predict(n="n").answer(n=typed).mark(n=Fraction(1, 6), within={"n": 0.01})
        assert marks.right == right, typed
    assert predict(n="n").answer(n="0.17").mark(n=Fraction(1, 6)).right == 0
    assert repr(Prediction(n="n").mark(n=Fraction(1, 6))) == "n: 1/6"


def test_wrong_is_false():
    assert predict(n="right or false?").answer(n="wrong").mark(n="false").right == 1
    assert predict(n="right or false?").answer(n="right").mark(n="false").right == 0


def test_a_cell_that_is_run_again_keeps_what_was_typed():
    predict(table="the table", left="free").answer(table=[3, 4])
    again = predict(table="the table", left="free")
    assert again.answers == {"table": ["3", "4"], "left": []}
    again.answer(left=1)
    assert predict(table="the table", left="free").mark(table=[3, 4], left=1).right == 2
    assert predict(table="the table").answers == {"table": []}  # another question


def test_the_sentence_may_be_said_where_the_question_goes_on():
    full = "Ada has …, when two full blocks change places"
    for typed in ("Ada has six gold coins", "six gold coins"):
        assert predict(full=full).answer(full=typed).mark(full="six gold coins").right == 1
    assert predict(full=full).answer(full="Ada has two gold coins").mark(full="six gold coins").right == 0


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("3x", 3),
        ("3×", 3),
        ("3 x", 3),
        ("4.6x", 4.6),
        ("3", "third"),
        ("3rd", "third"),
        ("third request", "third"),
        ("the third", "third"),
        ("stays", "stay"),
        ("Falls", "fall"),
        ("No, it waits", False),
        ("no, it waits", "no"),
        ("yes, it fits", True),
        ("More than 16", "more"),
    ],
)
def test_what_people_typed_and_meant_right(typed, told):
    marks = predict(what="it").answer(what=typed).mark(what=told)
    assert marks.right == 1, marks
