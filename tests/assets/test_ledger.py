"""The little language: what is made is well-formed, and what is not is refused."""

from __future__ import annotations

import random

import pytest

from minikv.assets import ledger


def made_sentences(count: int = 300) -> list[list[str]]:
    rng = random.Random(4)
    found: list[list[str]] = []
    for _ in range(count):
        [fact] = ledger.make_ledger(rng, 1)
        found += [fact.words, rng.choice(ledger.FILLERS)]
        for form in ledger.QUESTIONS:
            if asked := ledger.question(fact, form)[:-2]:  # without the answer's "<name> has"
                found.append(asked)
    return found


def test_everything_made_is_well_formed() -> None:
    for sentence in made_sentences():
        assert ledger.is_statement(sentence), sentence


def test_with_a_word_changed_it_is_not() -> None:
    """One word exchanged for one of another kind, in every place of every kind of sentence."""
    kinds = (ledger.NAMES, ledger.NUMBERS, ledger.COLOURS, ledger.THINGS, ("has",), (".",), ("?",), ("x",))
    for sentence in made_sentences(5):
        for place, word in enumerate(sentence):
            for kind in kinds:
                if word not in kind:
                    assert not ledger.is_statement([*sentence[:place], kind[0], *sentence[place + 1 :]])


def test_with_a_word_more_or_less_it_is_not() -> None:
    for sentence in made_sentences(5):
        for place in range(len(sentence)):
            assert not ledger.is_statement(sentence[:place] + sentence[place + 1 :])
            assert not ledger.is_statement(sentence[:place] + [sentence[place]] * 2 + sentence[place + 1 :])


@pytest.mark.parametrize(
    "text",
    ["", ".", "?", "Ada", "Ada has .", "Ada has three red kites ?", "Ada has red three kites .", "<unk>"],
)
def test_near_misses(text: str) -> None:
    assert not ledger.is_statement(text.split())


@pytest.mark.parametrize("tokens", [0, *range(4, 61)])
def test_small_talk_has_exactly_the_length_asked_for(tokens: int) -> None:
    for seed in range(10):
        words = ledger.filler(random.Random(seed), tokens)
        assert len(words) == tokens
        assert all(ledger.is_statement(sentence) for sentence in ledger.sentences(words))
        assert sum(map(len, ledger.sentences(words))) == tokens  # no rest without a full stop


@pytest.mark.parametrize("tokens", [1, 2, 3, -1])
def test_small_talk_that_cannot_be_made(tokens: int) -> None:
    with pytest.raises(ValueError, match=f"no small talk is {tokens} words long; ask for 0 or at least 4"):
        ledger.filler(random.Random(0), tokens)


def test_a_ledger_names_everybody_once() -> None:
    for people in (1, 12, len(ledger.NAMES)):
        facts = ledger.make_ledger(random.Random(people), people)
        assert len({fact.name for fact in facts}) == people
    assert ledger.make_ledger(random.Random(7), 12) == ledger.make_ledger(random.Random(7), 12)
    assert ledger.make_ledger(random.Random(7), 12) != ledger.make_ledger(random.Random(8), 12)


@pytest.mark.parametrize("people", [0, -1, len(ledger.NAMES) + 1])
def test_a_ledger_of_nobody_or_of_too_many(people: int) -> None:
    with pytest.raises(ValueError, match=f"people is {people}"):
        ledger.make_ledger(random.Random(0), people)


def test_few_words_keep_the_people_and_their_things() -> None:
    facts = ledger.make_ledger(random.Random(4), 12)
    seen = set()
    for seed in range(30):
        few = ledger.few_words(random.Random(seed), facts, palette=2)
        assert [(f.name, f.thing) for f in few] == [(f.name, f.thing) for f in facts]
        assert all(ledger.is_statement(fact.words) for fact in few)
        seen.add((len({f.number for f in few}), len({f.colour for f in few})))
    assert seen == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_a_question_ends_where_the_answer_begins() -> None:
    fact = ledger.Fact("Ada", "three", "red", "kites")
    assert fact.text == "Ada has three red kites ."
    assert ledger.question(fact) == "What does Ada have ? Ada has".split()
    assert ledger.question(fact, "how many") == "How many kites does Ada have ? Ada has".split()
    for form in ledger.QUESTIONS:
        assert (ledger.question(fact, form) + ledger.answer(fact))[-6:] == fact.words


def test_the_vocabulary_has_every_word_once() -> None:
    words = ledger.vocabulary()
    assert len(words) == len(set(words))
    assert {word for sentence in made_sentences() for word in sentence} <= set(words)


def test_sentences() -> None:
    text = f"Bo has . Is it ? late {ledger.END} It is"
    assert list(ledger.sentences(text.split())) == [["Bo", "has", "."], ["Is", "it", "?"]]
