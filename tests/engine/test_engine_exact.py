"""Random workloads on the tiny GPT-2: every greedy text is transformers' own, token for token.

What transformers says is asked once, for prompts that begin alike and for random tokens. A workload is some
of these prompts, which come at different steps to an engine with too little memory; some leave early.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from minikv.benchmarks.exactness import ask_transformers, make_prompts
from minikv.engine.engine import Engine
from minikv.engine.request import Request
from minikv.gpt2 import GPT2, TINY

NEW_TOKENS = 20
BLOCK_SIZES = (1, 3, 4, 16, 64)
BUDGETS = (1, 2, 3, 7, 16, 64, 10_000)

Answers = dict[tuple[int, ...], list[int]]  # prompt -> what transformers says, NEW_TOKENS of it


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2.from_pretrained()


@pytest.fixture(scope="module")
def answers(model: GPT2) -> Answers:
    cases = ask_transformers(TINY, prompts(model), NEW_TOKENS)
    return {tuple(case.prompt): case.tokens for case in cases}


def prompts(model: GPT2) -> list[list[int]]:
    """60 of them: 40 ledgers of 1 … 40 tokens, 8 that begin as another one does, and 12 of random tokens."""
    rng = random.Random(5)
    ledgers = make_prompts(model, 40)
    branches = [base[: rng.randint(9, len(base))] + base[3:8] for base in rng.sample(ledgers[12:], 8)]
    noise = [[rng.randrange(model.vocab_size) for _ in range(rng.randint(1, 30))] for _ in range(12)]
    return ledgers + branches + noise


class Workload(NamedTuple):
    """Arguments of Engine, and requests: (step at which it comes, prompt, options, steps until it leaves)."""

    setting: dict[str, Any]
    requests: list[tuple[int, list[int], dict[str, Any], int | None]]


def make_workload(seed: int, answers: Answers, fixed: dict[str, Any], backends: Sequence[str]) -> Workload:
    """A setting with `fixed` in it, and requests of which the largest just fits."""
    rng = random.Random(seed)
    budget, block_size = rng.choice(BUDGETS), rng.choice(BLOCK_SIZES)
    known = [list(prompt) for prompt in answers if len(prompt) <= (12 if budget < 4 else 60)]
    if fixed.get("prefix_cache"):  # of few prompts, so that they come again
        known = rng.sample(known, 4)
    requests = [_request(rng, rng.choice(known), seed) for _ in range(rng.randint(2, 6))]
    need = max(_blocks(prompt, options, block_size) for _, prompt, options, _ in requests)
    num_blocks = need + rng.choice((0, 0, 1, need // 3, need))
    if fixed.get("reserve") == "grow":
        num_blocks *= 2  # or what grows could be stuck between others
    setting = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_step_tokens": budget,
        "max_batch_size": rng.choice((3, 5, 64)),
        "attention": rng.choice(backends),
        **fixed,
    }
    return Workload(setting, requests)


def _request(
    rng: random.Random, prompt: list[int], seed: int
) -> tuple[int, list[int], dict[str, Any], int | None]:
    options = {
        "max_new_tokens": rng.randint(1, NEW_TOKENS),
        "n": rng.choice((1, 1, 1, 2, 3)),
        "ignore_eos": rng.random() < 0.8,
    }
    leaves = rng.randint(1, 20) if rng.random() < 0.1 else None
    return rng.choice((0, 0, 1, 4, 9)), prompt, options, leaves


def _blocks(prompt: list[int], options: dict[str, Any], block_size: int) -> int:
    return int(options["n"]) * -(-(len(prompt) + options["max_new_tokens"]) // block_size)


def expected(answers: Answers, prompt: list[int], options: dict[str, Any]) -> list[int]:
    """The beginning of what transformers says, which went on behind the end of the text."""
    tokens = answers[tuple(prompt)][: options["max_new_tokens"]]
    if 0 in tokens and not options["ignore_eos"]:
        tokens = tokens[: tokens.index(0) + 1]
    return tokens


def run(engine: Engine, workload: Workload) -> list[tuple[Request, list[int], dict[str, Any]]]:
    """All requests, from the first step to the last."""
    waiting, asked, step = list(workload.requests), [], 0
    leaving: list[tuple[int, Request]] = []
    while waiting or engine.has_work:
        for entry in [entry for entry in waiting if entry[0] <= step]:
            waiting.remove(entry)
            _, prompt, options, leaves = entry
            request = engine.submit(prompt, **options)
            asked.append((request, prompt, options))
            if leaves is not None:
                leaving.append((step + leaves, request))
        for when, request in leaving:
            if when == step:
                engine.abort(request)
        engine.step()
        step += 1
        assert step < 5000, "it does not come to an end"
    return asked


def check(model: GPT2, answers: Answers, workload: Workload) -> Counter[str]:
    """Run it, and compare every text. Returns what happened."""
    engine = Engine(model, **workload.setting)
    asked = run(engine, workload)
    counts = Counter(
        {
            "preempted": engine.metrics()["preempted"],
            "chunked": sum(len(prompt) > engine.scheduler.max_step_tokens for _, prompt, _ in asked),
            "swapped": getattr(engine.scheduler.swap, "nbytes", 0),
            "moved": getattr(engine.manager, "tokens_moved", 0),
            workload.setting["attention"]: 1,
        }
    )
    for request, prompt, options in asked:
        if request.status == "cancelled":
            counts["cancelled"] += 1
            continue
        wanted = expected(answers, prompt, options)
        for completion in request.result():
            assert completion.token_ids == wanted, (workload.setting, prompt, options)
            counts["tokens"] += len(wanted)
            counts["hit"] += completion.num_cached_tokens > 0
        counts["resumed"] += request.num_preemptions > 0
        counts["forked"] += options["n"] > 1
    engine.check()
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    assert engine.manager.allocated_blocks == 0
    return counts


def check_all(
    model: GPT2, answers: Answers, count: int, seed: int, fixed: dict[str, Any], backends: Sequence[str]
) -> Counter[str]:
    total: Counter[str] = Counter()
    for number in range(count):
        total += check(model, answers, make_workload(seed * 1000 + number, answers, fixed, backends))
    print(dict(total))
    for what in ("chunked", "forked", "cancelled"):
        assert total[what] >= count / 20, what
    assert all(total[backend] >= count / 20 for backend in backends)
    return total


QUICK = ("cpu", "cpu", "cpu", "gather", "auto")


@pytest.mark.parametrize(("preemption", "count"), [("recompute", 110), ("swap", 90)])
def test_paged(model: GPT2, answers: Answers, preemption: str, count: int) -> None:
    total = check_all(model, answers, count, 1, {"preemption": preemption}, QUICK)
    assert total["resumed"] > count / 4
    assert (total["swapped"] > 0) == (preemption == "swap")


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_prefix_caches(model: GPT2, answers: Answers, kind: str, preemption: str) -> None:
    fixed = {"prefix_cache": kind, "preemption": preemption}
    total = check_all(model, answers, 50, 2, fixed, QUICK)
    assert total["hit"] > 25 and total["resumed"] > 10


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("reserve", ["max", "grow"])
def test_contiguous_memory(model: GPT2, answers: Answers, reserve: str, preemption: str) -> None:
    fixed = {"cache": "contiguous", "reserve": reserve, "preemption": preemption}
    total = check_all(model, answers, 60, 3, fixed, ("contiguous", "cpu"))
    assert total["resumed"] and total["moved"]


def test_reading_block_by_block(model: GPT2, answers: Answers) -> None:
    total = check_all(model, answers, 20, 4, {"prefix_cache": "radix"}, ("reference",))
    assert total["resumed"] and total["hit"]


def test_the_gpu_kernel(model: GPT2, answers: Answers) -> None:
    """Where there is no GPU, Triton's interpreter runs it: slowly, so few tokens."""
    pytest.importorskip("triton")
    short = [list(prompt) for prompt in answers if len(prompt) in (3, 5, 6)][:3]
    requests = [(0, prompt, {"max_new_tokens": 3, "n": 1, "ignore_eos": True}, None) for prompt in short]
    setting = {"num_blocks": 4, "block_size": 4, "max_step_tokens": 6, "attention": "triton"}
    assert check(model, answers, Workload(setting, requests))["tokens"] == 9
