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


def test_texts_fit_their_stage_and_answers_weigh_most() -> None:
    ids = {word: i for i, word in enumerate(ledger.vocabulary())}
    for stage in train.SMOKE:
        for tokens, weights, positions in train.batches(stage, 0, ids):
            assert tokens.shape == weights.shape == positions.shape == (stage.batch, stage.length)
            assert int(positions.min()) >= 0 and int(positions.max()) < train.CONTEXT
    text = train.ledger_text(random.Random(0), people=3, length=200)
    words = [word for word, _ in text]
    assert all(ledger.is_statement(sentence) for sentence in ledger.sentences(words))
    said: dict[str, list[str]] = {}
    for place, (word, _) in enumerate(text[:195]):
        if word == "has" and text[place + 1][0] in ledger.NUMBERS:
            fact, weights_here = words[place + 1 : place + 4], {w for _, w in text[place + 1 : place + 4]}
            name = words[place - 1]
            assert weights_here == {train.ANSWER if name in said else train.UNFORESEEABLE}
            assert said.setdefault(name, fact) == fact  # whatever is said again is true


def test_every_stage_of_the_real_course_stays_within_the_context() -> None:
    for stage in train.CURRICULUM:
        assert stage.first_position + stage.length <= train.CONTEXT


def test_the_learning_rate_warms_up_and_comes_down() -> None:
    rates = [train.learning_rate(step, 1000) for step in range(1000)]
    assert rates[0] < rates[50] < rates[99]
    assert max(rates) == pytest.approx(2e-3, rel=0.05)
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert rates[-1] == pytest.approx(1e-4, rel=0.05)
