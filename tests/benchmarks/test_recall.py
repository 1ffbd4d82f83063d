"""What the tiny GPT-2 knows of a ledger it has read. Seeds of their own: none of this was trained on."""

from __future__ import annotations

import random

import pytest

from minikv.assets import ledger
from minikv.benchmarks import recall
from minikv.gpt2 import GPT2


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2.from_pretrained()


def test_facts_are_recalled_whatever_the_people_and_the_distance(model: GPT2) -> None:
    outcomes = recall.recall(model, recall.make_trials(random.Random(77), per_cell=10))
    print("\n" + recall.by_distance(outcomes))
    assert len(outcomes) == len(recall.PEOPLE) * len(recall.DISTANCES) * 10
    assert recall.share(outcomes) >= 0.99


def test_nobody_is_confused_with_somebody_whose_number_and_colour_are_the_same(model: GPT2) -> None:
    """Only the name tells these facts apart. By the number and the colour alone, one in `people` is right."""
    outcomes = recall.recall(model, recall.make_trials(random.Random(78), per_cell=10, one_palette=True))
    print("\n" + recall.by_distance(outcomes))
    assert all(outcome.trial.alike for outcome in outcomes)
    assert recall.share(outcomes) >= 0.94


@pytest.mark.parametrize("people", [1, 2, 3])
def test_short_ledgers_as_in_the_notebooks(model: GPT2, people: int) -> None:
    rng, trials = random.Random(79), []
    for form in ledger.QUESTIONS:
        for talk in (0, 4, 9):
            for _ in range(10):
                facts = ledger.make_ledger(rng, people)
                asked = rng.choice(facts)
                words = ledger.filler(rng, talk) + [word for fact in facts for word in fact.words]
                prompt = words + ledger.question(asked, form)
                trials.append(recall.Trial(people, 0, 50, form, prompt, ledger.answer(asked), alike=False))
    assert recall.share(recall.recall(model, trials)) == 1


def test_asked_about_a_stranger_it_says_somebody_elses_fact(model: GPT2) -> None:
    """So a fact that a broken cache has lost is answered with another one, in good grammar."""
    rng, said = random.Random(80), []
    for _ in range(60):
        facts = ledger.make_ledger(rng, 4)
        stranger = facts.pop(rng.randrange(4))
        prompt = " ".join([fact.text for fact in facts] + ledger.question(stranger, "what"))
        tokens = model.tokenizer.encode(prompt)
        loop, _ = recall._loop(model, 16, [tokens], 4)
        words = [model.tokenizer.word(token) for token in loop.generate([tokens], 4)[0]]
        said.append(words in [ledger.answer(fact) for fact in facts])
    print(f"{sum(said)} of {len(said)}")
    assert sum(said) >= 0.9 * len(said)


@pytest.mark.parametrize("form", ledger.QUESTIONS)
def test_every_form_of_question_is_asked_evenly(form: str) -> None:
    trials = recall.make_trials(random.Random(1), per_cell=5)
    assert sum(trial.form == form for trial in trials) == len(trials) / len(ledger.QUESTIONS)


def test_a_trial_asks_at_the_distance_it_says() -> None:
    for trial in recall.make_trials(random.Random(5), per_cell=5):
        facts = [trial.prompt[i : i + 6] for i in range(0, 6 * trial.people, 6)]
        assert all(ledger.is_statement(fact) for fact in facts)
        [fact] = [fact for fact in facts if fact[0] == trial.prompt[-2]]
        end = 6 * (facts.index(fact) + 1)
        asked = len(ledger.question(ledger.Fact(*fact[:1], *fact[2:5]), trial.form))
        assert trial.prompt[-asked:] == ledger.question(ledger.Fact(*fact[:1], *fact[2:5]), trial.form)
        assert trial.distance == len(trial.prompt) - asked - end
        assert trial.answer == fact[2:]
        assert max(0, trial.column - 50) <= trial.distance <= trial.column


def test_one_pass_says_what_decoding_says(model: GPT2) -> None:
    """The fast judgement, with the answers in the input, against the paged decode loop word by word."""
    trials = recall.make_trials(random.Random(9), per_cell=1)
    judged = recall.recall(
        model, [*trials, *(t._replace(answer=["two", "red", "kites", "."]) for t in trials)]
    )
    assert {outcome.recalled for outcome in judged} == {True, False}
    for trial, recalled in judged:
        prompt = model.tokenizer.encode(" ".join(trial.prompt))
        loop, _ = recall._loop(model, 16, [prompt], 4)
        said = [model.tokenizer.word(token) for token in loop.generate([prompt], 4)[0]]
        assert recalled == (said == trial.answer)


def test_what_it_writes_freely_is_well_formed(model: GPT2) -> None:
    written = recall.grammar(model, random.Random(11), texts=100)
    print(written)
    assert written.sentences > 500
    assert written.well_formed >= 0.99 * written.sentences


def test_an_endless_sentence_counts_as_malformed(model: GPT2) -> None:
    words = model.tokenizer.encode("It is late . " + "has " * 9)
    assert list(recall._sentences(model, words)) == [["It", "is", "late", "."], ["has"] * 9]
    assert list(recall._sentences(model, words[:-1])) == [["It", "is", "late", "."]]


def test_trading_a_block_trades_the_answers(model: GPT2) -> None:
    """A table decides what a request remembers: trade the block of one fact, and only that fact moves."""
    result = recall.swap(model, random.Random(13), pairs=15, people=6)
    print(result)
    assert (result.asked_swapped, result.asked_others) == (30, 150)
    assert result.traded >= 0.9 * result.asked_swapped
    assert result.stayed >= 0.9 * result.asked_others


def test_without_the_trade_everybody_keeps_the_facts(model: GPT2) -> None:
    """The control: what `swap` measures is caused by the swap."""
    mine, other = recall.make_pair(random.Random(17), 6)
    for place in range(6):
        assert mine[place] != other[place] and mine[place].name == other[place].name
    same = recall.ask_after_swap(model, mine, mine, 2)  # the traded blocks say the same
    assert all(first == second for first, second in same)
    assert sum(first == ledger.answer(fact) for (first, _), fact in zip(same, mine, strict=True)) >= 5
