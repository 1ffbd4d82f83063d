"""Hours of service in short: requests come, are aborted, time out and make room, and memory stays flat.

MINIKV_SOAK_SECONDS says for how long: 600 where nothing is said.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from minikv.benchmarks.exactness import make_prompts
from minikv.engine.engine import Engine
from minikv.engine.request import Request, Status
from minikv.gpt2 import GPT2

SECONDS = float(os.environ.get("MINIKV_SOAK_SECONDS", "600"))
STATUS = Path("/proc/self/statm")

SETTINGS: list[dict[str, Any]] = [
    {"num_blocks": 40, "block_size": 4, "prefix_cache": "radix", "max_step_tokens": 48},
    {"num_blocks": 40, "block_size": 4, "prefix_cache": "hash", "preemption": "swap"},
    {"num_blocks": 1, "block_size": 250, "cache": "contiguous", "reserve": "grow", "max_step_tokens": 32},
]


def resident_bytes() -> int:
    gc.collect()
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Service:
    """An engine, its customers, and what each of them was told, which must be the same each time."""

    def __init__(self, model: GPT2, prompts: Sequence[list[int]], setting: dict[str, Any]) -> None:
        self.engine, self.prompts, self.rng = Engine(model, **setting), prompts, random.Random(0)
        self.live: dict[Request, Any] = {}
        self.said: dict[Any, list[list[int]]] = {}
        self.ended: Counter[str] = Counter()

    def step(self) -> None:
        rng = self.rng
        if len(self.live) < 8 and rng.random() < 0.4:
            number, new, n = rng.randrange(len(self.prompts)), rng.choice((1, 6, 20)), rng.choice((1, 1, 2))
            temperature, beams = rng.choice((0.0, 0.0, 1.0)), rng.random() < 0.1
            kind: dict[str, Any] = {"n": n, "temperature": 0.0 if beams else temperature, "seed": number}
            kind |= {"beam_width": 3} if beams else {}
            timeout = 0.01 if rng.random() < 0.05 else None
            request = self.engine.submit(self.prompts[number], new, timeout=timeout, **kind)
            self.live[request] = (number, new, tuple(kind.items()))
        if self.live and rng.random() < 0.03:
            self.engine.abort(rng.choice(list(self.live)))
        self.engine.step()
        for request in [request for request in self.live if request.done]:
            key = self.live.pop(request)
            self.ended[request.status] += 1
            if request.status is Status.SUCCESS:
                tokens = [completion.token_ids for completion in request.result()]
                assert self.said.setdefault(key, tokens) == tokens

    def close(self) -> None:
        """All come to their end; no block is lost, and nobody."""
        while self.engine.has_work:
            self.engine.step()
        self.engine.check()
        if self.engine.prefix_cache is not None:
            self.engine.prefix_cache.clear()
        assert self.engine.manager.allocated_blocks == 0
        figures = self.engine.metrics()
        ends = ("success", "timeout", "oom", "cancelled", "failed")
        assert figures["submitted"] == sum(figures[name] for name in ends)
        assert (figures["oom"], figures["failed"]) == (0, 0)
        assert self.ended["success"]
        print(self.engine, dict(self.ended), f"{figures['preempted']} times preempted")


def soak(seconds: float, samples: int = 40) -> list[int]:
    """Resident bytes, noted so many times."""
    model = GPT2.from_pretrained()
    prompts = make_prompts(model, 30, seed=3)[4:]
    services = [Service(model, prompts, setting) for setting in SETTINGS]
    Engine(model).generate(prompts[:1], 2)  # compiles
    sizes, start = [], time.monotonic()
    while len(sizes) < samples:
        for service in services:
            service.step()
        if time.monotonic() - start > seconds * (len(sizes) + 1) / samples:
            sizes.append(resident_bytes())
            for service in services:
                service.engine.check()
    for service in services:
        service.close()
    total = sum((service.ended for service in services), Counter[str]())
    assert all(total[name] for name in ("success", "timeout", "cancelled")) or seconds < 60
    return sizes


def assert_flat(sizes: list[int]) -> None:
    """After a quarter of the time all is warm; from then on to the end hardly anything may be added."""
    early, late = max(sizes[10:15]), max(sizes[-5:])
    print(f"resident memory: {early / 1e6:.1f} MB, in the end {late / 1e6:.1f} MB")
    assert late < 1.03 * early


@pytest.mark.nightly
@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_memory_stays_flat() -> None:
    assert_flat(soak(SECONDS))


def test_ten_seconds_of_it() -> None:
    """Too short to speak of memory; that nobody is lost shows all the same."""
    if not STATUS.exists():
        pytest.skip("memory is read from /proc")
    assert len(soak(10, samples=2)) == 2


def test_what_grows_is_noticed() -> None:
    flat = [100_000_000] * 40
    assert_flat(flat)
    with pytest.raises(AssertionError):
        assert_flat([size + 200_000 * i for i, size in enumerate(flat)])
