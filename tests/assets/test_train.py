"""The program that made the checkpoint, in its short form."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from minikv.assets import ledger, train
from minikv.gpt2 import GPT2, TINY

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def run(folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "minikv.assets.train", "--smoke", "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"parameters to {folder}" in done.stdout
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("train") / "new" / "folder")


def test_what_it_writes_is_what_ships(trained: Path) -> None:
    """The same files, the same names and shapes, the same tokenizer: only the weights differ."""
    assert {path.name for path in trained.iterdir()} == {path.name for path in TINY.iterdir()} == FILES
    ours, shipped = (load_file(folder / "model.safetensors") for folder in (trained, TINY))
    assert {name: x.shape for name, x in ours.items()} == {name: x.shape for name, x in shipped.items()}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (trained / name).read_text() == (TINY / name).read_text()
    settings, of_shipped = (json.loads((folder / "config.json").read_text()) for folder in (trained, TINY))
    assert settings | {"transformers_version": ""} == of_shipped | {"transformers_version": ""}


def test_minikv_and_transformers_load_it(trained: Path) -> None:
    model, theirs = GPT2.from_pretrained(trained), AutoModelForCausalLM.from_pretrained(trained)
    assert model.num_parameters == theirs.num_parameters() <= 1_500_000
    text = "Ada has three red kites ."
    assert AutoTokenizer.from_pretrained(trained)(text)["input_ids"] == model.tokenizer.encode(text)


def test_the_same_seed_gives_the_same_weights(trained: Path, tmp_path: Path) -> None:
    first, again, other = (
        load_file(folder / "model.safetensors")
        for folder in (trained, run(tmp_path / "again"), run(tmp_path / "other", "--seed", "1"))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["transformer.wte.weight"], other["transformer.wte.weight"])


def test_the_progress_bar_changes_nothing() -> None:
    """Hidden, a bar does not count; so the learning rate must not be read from it."""
    shown, hidden = (train.train(train.SMOKE, progress=progress).state_dict() for progress in (True, False))
    assert all(torch.equal(shown[name], hidden[name]) for name in shown)


def stages(courses: tuple[train.Course, ...]) -> list[train.Stage]:
    return [stage for course in courses for stage in course.stages]


def test_texts_fit_their_stage_and_answers_weigh_most() -> None:
    ids = {word: i for i, word in enumerate(ledger.vocabulary())}
    for stage in stages(train.SMOKE):
        for tokens, weights, positions, sees in train.batches(stage, 0, ids):
            assert tokens.shape == weights.shape == positions.shape == (stage.batch, stage.length)
            assert (sees is None) == (stage.gaps == 0)
            if sees is not None:
                assert sees.shape == (stage.batch, 1, stage.length, stage.length)
            assert int(positions.min()) >= 0 and int(positions.max()) < train.CONTEXT
    text = train.ledger_text(random.Random(0), train.SMOKE[0].stages[0]._replace(people=3, length=200))
    words = [word for word, _ in text]
    assert all(ledger.is_statement(sentence) for sentence in ledger.sentences(words))
    said: dict[str, list[str]] = {}
    for place, (word, _) in enumerate(text[:195]):
        if word == "has" and text[place + 1][0] in ledger.NUMBERS:
            fact, weights_here = words[place + 1 : place + 4], {w for _, w in text[place + 1 : place + 4]}
            name = words[place - 1]
            assert weights_here == {train.ANSWER if name in said else train.UNFORESEEABLE}
            assert said.setdefault(name, fact) == fact  # whatever is said again is true


def test_the_share_of_ledgers_with_few_words_is_as_asked() -> None:
    """0: none, and no random number is drawn for it; 1: all, with no more than the palette's words."""

    def words(stage: train.Stage, kind: tuple[str, ...]) -> list[int]:
        texts = [train.ledger_text(random.Random(seed), stage) for seed in range(40)]
        return [len({word for word, _ in text if word in kind}) for text in texts]

    plain = train.Stage(steps=1, batch=1, length=96, people=12, repeats=0.0, first_position=0)
    assert max(words(plain, ledger.NUMBERS)) > 3
    for palette in (1, 3):
        alike = plain._replace(alike=1.0, palette=palette)
        for kind in (ledger.NUMBERS, ledger.COLOURS):
            assert set(words(alike, kind)) == set(range(1, palette + 1))
    drawn = random.Random(3)
    facts = ledger.make_ledger(drawn, drawn.randint(2, 12))
    text = [word for word, _ in train.ledger_text(random.Random(3), plain)]
    assert next(word for word in text if word in ledger.NUMBERS) == facts[0].number


def test_a_gap_is_seen_at_first_and_no_more_later() -> None:
    """Nobody sees what is to come, everybody sees the first word, itself and the four words before it."""
    hidden = []
    for seed in range(50):
        sees = train.gaps(random.Random(seed), 60)
        row, column = torch.meshgrid(torch.arange(60), torch.arange(60), indexing="ij")
        assert not sees[column > row].any()
        assert sees[:, 0].all() and sees[(column <= row) & (row - column <= 4)].all()
        lost = ~sees & (column <= row)
        assert torch.equal(lost[1:] & lost[:-1], lost[:-1] & (column <= row)[:-1])  # never seen again
        hidden.append(int(lost[-1].sum()))
    assert max(hidden) <= 24 and sum(count > 0 for count in hidden) > 25


def test_a_stranger_is_answered_with_a_fact_of_the_ledger() -> None:
    plain = train.Stage(steps=1, batch=1, length=200, people=3, repeats=0.0, first_position=0)
    for share in (0.0, 1.0):
        for seed in range(20):
            words = [w for w, _ in train.ledger_text(random.Random(seed), plain._replace(strangers=share))]
            facts = [s for s in ledger.sentences(words) if len(s) == 6 and s[1] == "has"]
            told = [
                fact for fact in facts if any(fact[2:] == other[2:] for other in facts if other is not fact)
            ]
            owners = {tuple(fact[2:]): {f[0] for f in facts if f[2:] == fact[2:]} for fact in told}
            assert owners and all((len(names) > 1) == (share > 0) for names in owners.values())


def test_few_people_are_one_or_two() -> None:
    plain = train.Stage(steps=1, batch=1, length=96, people=9, repeats=0.0, first_position=0)
    for share, numbers in ((0.0, set(range(2, 10))), (1.0, {1, 2})):
        texts = [train.ledger_text(random.Random(seed), plain._replace(few=share)) for seed in range(100)]
        names = [{word for word, _ in text if word in ledger.NAMES} for text in texts]
        assert {len(each) for each in names} == numbers


def test_every_stage_of_the_real_courses_stays_within_the_context() -> None:
    for stage in stages(train.COURSES):
        assert stage.first_position + stage.length <= train.CONTEXT


def test_the_learning_rate_warms_up_and_comes_down() -> None:
    rates = [train.learning_rate(step, 1000, peak=2e-3) for step in range(1000)]
    assert rates[0] < rates[50] < rates[99]
    assert max(rates) == pytest.approx(2e-3, rel=0.05)
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert rates[-1] == pytest.approx(1e-4, rel=0.05)
