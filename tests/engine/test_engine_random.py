"""Random requests through engines of every kind, with tiny memories, on a model whose KV are fingerprints."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from minikv.engine.engine import Engine
from minikv.engine.request import Status
from minikv.errors import RequestTooLargeError
from tests.engine import fingerprint_model as fm
from tests.engine.engine_walk import MODEL, SETTINGS, EngineWalk, Setting, Solo, without_cached

OPERATIONS = int(os.environ.get("MINIKV_OPERATIONS", "1000000"))


def name(setting: Setting) -> str:
    return "-".join(str(value) for value in setting.values())


@pytest.fixture(scope="module")
def solo() -> Solo:
    return Solo()


def lead(setting: Setting, solo: Solo, steps: int, seed: int) -> Counter[str]:
    """Half of the steps with an observer, who slows it down."""
    total: Counter[str] = Counter()
    for observed in (False, True):
        walk = EngineWalk(setting, seed, solo, observed=observed)
        walk.random_steps(steps // 4 if observed else steps - steps // 4)
        total += walk.counts
    print(dict(total))
    return total


def assert_met(counts: Counter[str], setting: Setting, steps: int) -> None:
    """The walk met what it is there for."""
    for what in ("success", "cancelled", "timeout", "failed", "preempted", "chunked", "observer"):
        assert counts[what] > steps / 1000, what
    assert counts["success after preemption"] > steps / 1000
    assert counts["abort waiting"] and counts["abort running"] and counts["abort success"]
    if setting.get("prefix_cache"):
        assert counts["hit"] > steps / 100


@pytest.mark.parametrize("setting", SETTINGS, ids=name)
def test_random_steps(setting: Setting, solo: Solo) -> None:
    assert_met(lead(setting, solo, 2500, seed=1), setting, 2500)


@pytest.mark.nightly
@pytest.mark.parametrize("setting", SETTINGS, ids=name)
def test_many_random_steps(setting: Setting, solo: Solo) -> None:
    steps = OPERATIONS // len(SETTINGS)
    assert_met(lead(setting, solo, steps, seed=2), setting, steps)


KINDS: dict[str, Setting] = {
    "paged": {},
    "cached": {"prefix_cache": "radix"},
    "reserved": {"cache": "contiguous"},
    "growing": {"cache": "contiguous", "reserve": "grow"},
}


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_for_ever(kind: str, preemption: str, solo: Solo) -> None:
    """Up to four requests in memory that just takes the largest of them: all of them come to a good end."""
    rng = random.Random(kind + preemption)
    for _ in range(25):
        asked = [_little_request(rng) for _ in range(rng.randint(1, 4))]
        block_size, budget = rng.choice((1, 2, 5)), rng.choice((4, 5, 16, 1000))
        num_blocks = 1
        while True:
            setting = {**KINDS[kind], "preemption": preemption, "max_step_tokens": budget}
            engine = Engine(MODEL, num_blocks, block_size, attention=fm.read, **setting)
            try:
                requests = [engine.submit(**options) for options in asked]
                break
            except RequestTooLargeError:
                num_blocks += 1
        steps = 0
        while engine.has_work:
            engine.step()
            steps += 1
            assert steps < 1500, (setting, num_blocks, block_size, asked)
        for request in requests:
            assert request.status is Status.SUCCESS
            assert without_cached(request.result()) == without_cached(solo(request))


def _little_request(rng: random.Random) -> dict[str, Any]:
    """Some of them begin alike."""
    n = rng.choice((1, 2, 3, 4))
    options = {"n": n, "beam_width": n} if rng.random() < 0.3 else {"n": n}
    prompt = [*range(1, rng.randint(2, 9)), rng.randint(1, 3)]
    return {"prompt": prompt, "max_new_tokens": rng.randint(1, 16), "ignore_eos": True, "seed": 1, **options}
