"""Predictions are marked cell by cell, and an empty one runs through."""

import pytest

from minikv.lab.predict import predict


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
    guess = predict(queue="queue").answer(queue="1, 2")
    assert repr(guess.mark(queue=[1, 2, 3])).endswith("✓  ✓  ✗")
    assert guess.mark(queue=[1, 2, 3]).right == 0
    assert predict(queue="queue").answer(queue="1 2 3").mark(queue=[1, 2]).right == 0


@pytest.mark.parametrize("typed", ["[3, 4]", "3 4", " 3,4 ", "(3; 4)", "03 4"])
def test_what_is_typed_may_be_written_in_many_ways(typed):
    guess = predict(table="the table")
    guess._boxes["table"].value = typed
    assert guess.mark(table=(3, 4)).right == 1


def test_words_compare_without_capitals():
    assert predict(word="next word").answer(word="Kites").mark(word="kites").right == 1


def test_unknown_names_are_refused():
    guess = predict(table="the table")
    with pytest.raises(ValueError, match="'queue' was not asked; asked were table"):
        guess.mark(queue=1)
    with pytest.raises(ValueError, match="was not asked"):
        guess.answer(queue=1)
    with pytest.raises(ValueError, match="at least one question"):
        predict()


def test_it_shows_boxes_and_a_stable_text():
    bundle = predict(table="the table")._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == "Predict first:\n  - the table: ?"
