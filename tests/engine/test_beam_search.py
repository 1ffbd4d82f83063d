"""Beam search: the texts, their order and their scores are those of `generate` in transformers."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import GPT2LMHeadModel

from minikv.benchmarks.exactness import make_prompts
from minikv.engine.engine import Engine
from minikv.engine.request import Request
from minikv.gpt2 import GPT2, TINY
from tests.test_gpt2 import save_random

NEW_TOKENS = 9
ROOMY: dict[str, Any] = {"num_blocks": 200, "block_size": 4}


class Question(NamedTuple):
    prompt: list[int]
    beam_width: int
    n: int
    max_new_tokens: int
    ignore_eos: bool


class Answer(NamedTuple):
    texts: list[list[int]]
    scores: list[float]


def ask(theirs: GPT2LMHeadModel, question: Question) -> Answer:
    """transformers' answer, without what it pads with."""
    eos = theirs.config.eos_token_id
    stops = {eos} if isinstance(eos, int) else set(eos)
    theirs.generation_config.pad_token_id = 0
    theirs.generation_config.eos_token_id = None if question.ignore_eos else eos
    ids = torch.tensor([question.prompt])
    out = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=question.beam_width,
        num_return_sequences=question.n,
        max_new_tokens=question.max_new_tokens,
        output_scores=True,
        return_dict_in_generate=True,
    )
    texts = []
    for row in out.sequences[:, len(question.prompt) :].tolist():
        ends = [] if question.ignore_eos else [i for i, token in enumerate(row) if token in stops]
        texts.append(row[: ends[0] + 1] if ends else row)
    return Answer(texts, out.sequences_scores.tolist())


def submit(engine: Engine, question: Question) -> Request:
    prompt, beam_width, n, max_new_tokens, ignore_eos = question
    return engine.submit(prompt, max_new_tokens, n=n, beam_width=beam_width, ignore_eos=ignore_eos)


def assert_same(request: Request, answer: Answer) -> None:
    found = request.result()
    assert [completion.token_ids for completion in found] == answer.texts
    assert [completion.score for completion in found] == pytest.approx(answer.scores, abs=2e-5)


@pytest.fixture(scope="module", params=["tiny", "one end", "two ends"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny GPT-2, or random weights, whose texts end soon and often."""
    if request.param == "tiny":
        return TINY
    eos = 3 if request.param == "one end" else [3, 7]
    shape = {"n_positions": 48, "vocab_size": 9, "n_embd": 16}
    return save_random(tmp_path_factory.mktemp("random"), eos_token_id=eos, **shape)


@pytest.fixture(scope="module")
def model(folder: Path) -> GPT2:
    return GPT2.from_pretrained(folder)


@pytest.fixture(scope="module")
def cases(folder: Path, model: GPT2) -> list[tuple[Question, Answer]]:
    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    rng = random.Random(2)
    if folder == TINY:
        prompts = make_prompts(model, 18, seed=4)
    else:
        prompts = [[rng.randrange(9) for _ in range(length)] for length in range(1, 19)]
    questions = []
    for i, prompt in enumerate(prompts * (1 if folder == TINY else 3)):
        width = rng.choice((1, 2, 3, 4, 6)) if i else 4
        new_tokens = rng.choice((1, 2, NEW_TOKENS, NEW_TOKENS, 20))
        if width > 1:  # with one beam transformers is greedy, and has no scores
            questions.append(Question(prompt, width, rng.randint(1, width), new_tokens, i % 4 == 3))
    with torch.inference_mode():
        return [(question, ask(theirs, question)) for question in questions]


def test_texts_and_scores(model: GPT2, cases: list[tuple[Question, Answer]], folder: Path) -> None:
    engine, reasons = Engine(model, **ROOMY), Counter[str]()
    for question, answer in cases:
        request = submit(engine, question)
        while not request.done:
            engine.step()
        assert_same(request, answer)
        reasons.update(completion.finish_reason for completion in request.result())
    assert engine.manager.allocated_blocks == 0
    assert reasons["length"] and (folder == TINY or reasons["eos"] > 10), reasons


TIGHT: dict[str, dict[str, Any]] = {
    "recompute": {"block_size": 3},
    "swap": {"block_size": 4, "preemption": "swap"},
    "prefix cache": {"block_size": 2, "prefix_cache": "radix"},
    "small steps": {"block_size": 1, "max_step_tokens": 13},
    "contiguous": {"block_size": 1, "cache": "contiguous", "preemption": "swap"},
    "growing": {"block_size": 1, "cache": "contiguous", "reserve": "grow"},
}


@pytest.mark.parametrize("setting", TIGHT.values(), ids=TIGHT)
def test_with_too_little_memory(
    model: GPT2, cases: list[tuple[Question, Answer]], setting: dict[str, Any]
) -> None:
    """All at once, in memory for little more than the largest."""
    grows = setting.get("reserve") == "grow"
    need = max(
        (2 * q.beam_width - 1 if grows else q.beam_width)
        * -(-(len(q.prompt) + q.max_new_tokens - 1) // setting["block_size"])
        for q, _ in cases
    )
    engine = Engine(model, need, **setting)
    requests = [submit(engine, question) for question, _ in cases]
    while engine.has_work:
        engine.step()
        engine.check()
    for request, (_, answer) in zip(requests, cases, strict=True):
        assert_same(request, answer)
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    assert engine.manager.allocated_blocks == 0
    if not grows and "max_step_tokens" not in setting:  # for there hardly anybody must make room
        assert engine.metrics()["preempted"] > 0


def test_one_beam_is_greedy(model: GPT2, cases: list[tuple[Question, Answer]]) -> None:
    engine = Engine(model, **ROOMY)
    for prompt in [question.prompt for question, _ in cases][:6]:
        beam = engine.generate([prompt], 8, beam_width=1)[0]
        greedy = engine.generate([prompt], 8)[0]
        assert beam[:3] == greedy[:3]


def test_beams_share_what_they_have_in_common() -> None:
    """4 beams of a 40-token prompt, block size 4: its 10 full blocks are held once."""
    model = GPT2.from_pretrained()
    engine = Engine(model, 64, 4)
    prompt = make_prompts(model, 40)[-1]
    request = engine.submit(prompt, 6, n=4, beam_width=4, ignore_eos=True)
    for _ in range(3):
        engine.step()
    counts = engine.metrics()["kv_cache"]["ref_counts"]
    assert sorted(counts.values(), reverse=True)[:10] == [4] * 10
    assert len(counts) <= 10 + 4
    engine.abort(request)
    assert engine.manager.allocated_blocks == 0
