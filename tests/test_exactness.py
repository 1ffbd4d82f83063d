"""Against transformers on the same checkpoint: the same tokens, and logits within 1e-4."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from minikv.benchmarks.exactness import (
    BATCH,
    BLOCK_SIZES,
    Case,
    Row,
    ask_transformers,
    compare,
    make_prompts,
)
from minikv.gpt2 import GPT2, TINY

LIMIT = 1e-4


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2.from_pretrained()


@pytest.fixture(scope="module")
def cases(model: GPT2) -> list[Case]:
    """200 prompts of 1, 2, …, 200 tokens."""
    return ask_transformers(TINY, make_prompts(model, 200), new_tokens=6)


def near_boundaries(cases: list[Case], longest: int) -> list[Case]:
    """The cases of up to `longest` tokens that end at a block boundary, or one token beside it."""
    boundaries = {k * size for size in BLOCK_SIZES[2:] for k in (1, 2, longest // size)}
    lengths = {length + beside for length in boundaries for beside in (-1, 0, 1)}
    return [case for case in cases if len(case.prompt) in lengths and len(case.prompt) <= longest]


def assert_exact(row: Row, tokens: int) -> None:
    print(row)
    assert row.tokens == tokens
    assert row.differing == 0
    assert row.logit_difference < LIMIT


def test_prompts_lie_on_both_sides_of_every_block_boundary(cases: list[Case]) -> None:
    lengths = {len(case.prompt) for case in cases}
    for size in BLOCK_SIZES:
        for boundary in range(size, 200, size):
            assert {boundary - 1, boundary, boundary + 1} - {0} <= lengths
    assert len({tuple(case.prompt) for case in cases}) == 200


@pytest.mark.parametrize("backend", ["gather", "cpu"])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_single_requests(model: GPT2, cases: list[Case], block_size: int, backend: str) -> None:
    assert_exact(compare(model, cases, block_size, backend), tokens=200 * 6)


@pytest.mark.parametrize("backend", ["gather", "cpu"])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_mixed_batches(model: GPT2, cases: list[Case], block_size: int, backend: str) -> None:
    mixed = random.Random(block_size).sample(cases, len(cases))
    assert_exact(compare(model, mixed, block_size, backend, BATCH), tokens=200 * 6)


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_reading_block_by_block(model: GPT2, cases: list[Case], block_size: int, batch: int) -> None:
    chosen = near_boundaries(cases, longest=66)
    assert len(chosen) >= 15
    assert_exact(compare(model, chosen, block_size, "reference", batch), tokens=len(chosen) * 6)


def test_a_difference_would_be_counted(model: GPT2, cases: list[Case]) -> None:
    """The comparison itself: one wrong token and one wrong logit show."""
    prompt, tokens, logits = cases[20]
    wrong = Case(prompt, [tokens[0] + 1, *tokens[1:]], logits + 0.5)
    row = compare(model, [cases[19], wrong], 16)
    assert row.differing == 1
    assert row.logit_difference == pytest.approx(0.5, abs=LIMIT)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint of GPT-2's real shape, its 124 M weights random: 500 MB, removed afterwards."""
    folder = tmp_path_factory.mktemp("gpt2-shape")
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("backend", ["gather", "reference", "cpu"])
def test_the_real_shape_of_gpt2(large: Path, backend: str) -> None:
    model = GPT2.from_pretrained(large)
    assert model.num_parameters == 124_439_808
    rng = random.Random(3)
    prompts = [[rng.randrange(model.vocab_size) for _ in range(length)] for length in (2, 15, 33)]
    cases = ask_transformers(large, prompts, new_tokens=4)
    for block_size in (3, 16):
        assert_exact(compare(model, cases, block_size, backend, batch=3), tokens=12)
