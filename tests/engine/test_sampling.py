"""Drawing tokens: the same seed gives the same text whatever else happens, and the odds are the model's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from minikv.engine.engine import Engine
from minikv.engine.sampling import best_beams, sample
from tests.engine import fingerprint_model as fm

MODEL = fm.FingerprintModel()
PROMPTS = [[3, 1, 4, 1, 5, 9], [3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8], [3, 1, 4, 1, 5, 9]]
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "n": 2, "seed": 7, "ignore_eos": True}


def said(**setting: Any) -> tuple[list[list[int]], Engine]:
    engine = Engine(MODEL, attention=fm.read, **setting)
    return [completion.token_ids for completion in engine.generate(PROMPTS, **OPTIONS)], engine


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """Each prompt in an engine of its own."""
    texts = []
    for i, prompt in enumerate(PROMPTS):
        engine = Engine(MODEL, attention=fm.read)
        texts += [c.token_ids for c in engine.generate([prompt], **{**OPTIONS, "seed": 7 + i})]
    return texts


def test_same_seed_same_tokens_in_any_batch(alone: list[list[int]]) -> None:
    assert said()[0] == alone
    assert said(max_batch_size=2)[0] == alone


@pytest.mark.parametrize("budget", [1, 2, 5, 16])
def test_same_seed_same_tokens_in_any_chunks(alone: list[list[int]], budget: int) -> None:
    assert said(max_step_tokens=budget)[0] == alone


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("prefix_cache", [None, "radix", "hash"])
def test_same_seed_same_tokens_with_preemption_and_hits(
    alone: list[list[int]], preemption: str, prefix_cache: str | None
) -> None:
    memory: dict[str, Any] = {"num_blocks": 20, "block_size": 2, "max_batch_size": 4}
    texts, engine = said(preemption=preemption, prefix_cache=prefix_cache, **memory)
    assert texts == alone
    assert engine.metrics()["preempted"] > 0
    assert (engine.metrics()["hit_rate"] > 0) == (prefix_cache is not None)


@pytest.mark.parametrize("reserve", ["max", "grow"])
def test_same_seed_same_tokens_in_contiguous_memory(alone: list[list[int]], reserve: str) -> None:
    texts, engine = said(num_blocks=60, block_size=1, cache="contiguous", reserve=reserve)
    assert texts == alone
    assert engine.metrics()["preempted"] > 0 or reserve == "grow"


def test_continuations_and_seeds_differ(alone: list[list[int]]) -> None:
    assert len({tuple(text) for text in alone}) == len(alone)


def test_without_a_seed_each_request_draws_its_own() -> None:
    engine = Engine(MODEL, attention=fm.read)
    texts = {tuple(engine.generate([[1, 2]], 12, temperature=1.0)[0].token_ids) for _ in range(5)}
    assert len(texts) > 1


def test_temperature_0_is_greedy() -> None:
    engine = Engine(MODEL, attention=fm.read)
    found = engine.generate(PROMPTS, 9, ignore_eos=True, seed=3)
    assert [c.token_ids for c in found] == [fm.greedy(prompt, 9, ignore_eos=True) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [1e-310, 1e-30, 1e-4])
def test_nearly_no_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([1.0, 3.0, 80.0, -90.0, 79.9])
    assert {sample(logits, temperature, random.Random(seed)) for seed in range(50)} == {2}


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_odds_are_those_of_softmax(temperature: float) -> None:
    """Of 40,000 tokens: the sum of (seen - expected)² / expected lies where chance puts it, near 11 ± 4.7."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(0))
    expected = torch.softmax(logits.double() / temperature, -1) * 40_000
    rng = random.Random(1)
    seen = torch.bincount(
        torch.tensor([sample(logits, temperature, rng) for _ in range(40_000)]), minlength=12
    )
    statistic = float(((seen - expected) ** 2 / expected).sum())
    print(statistic)
    assert 1.5 < statistic < 31.3  # 999 in 1000 lie below, and 999 in 1000 above


def test_a_token_that_cannot_be_is_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf])
    rng = random.Random(0)
    assert {sample(logits, 1.0, rng) for _ in range(500)} == {1, 3}

    class Edge(random.Random):
        def random(self) -> float:
            return self.number

        number = 0.0

    edge = Edge()
    assert sample(logits, 1.0, edge) == 1
    edge.number = 1 - 2**-53  # the largest there is
    assert sample(logits, 1.0, edge) == 3


def test_one_number_of_chance_for_each_token() -> None:
    """So that a text never depends on what was drawn for others, and a resumed one goes on as it would."""
    ours, theirs = random.Random(4), random.Random(4)
    for _ in range(10):
        sample(torch.zeros(7), 1.0, ours)
        theirs.random()
    assert ours.random() == theirs.random()


def test_the_best_of_several_beams() -> None:
    """Two beams, scores -1 and -1.5, and two tokens: log 0.9, log 0.1 and log 0.6, log 0.4."""
    logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    found = best_beams(logits, [-1.0, -1.5], 9)
    assert [(beam.parent, beam.token) for beam in found] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert [beam.score for beam in found] == pytest.approx([-1.105, -2.011, -2.416, -3.303], abs=1e-3)
    assert len(best_beams(logits, [-1.0, -1.5], 3)) == 3
