"""A walk through an engine: requests of every kind come, run, are aborted, time out, and fail. After each
step the books are counted again, and whatever came to a good end must be what the same request says alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from torch import Tensor

from minikv.engine.engine import Engine, StepReport
from minikv.engine.request import Completion, Request, Status
from minikv.errors import RequestError, RequestTooLargeError
from minikv.gpt2 import Attend
from tests.engine import fingerprint_model as fm

MODEL = fm.FingerprintModel()

Setting = dict[str, Any]  # arguments of Engine

PAGED: list[Setting] = [
    {"num_blocks": 14, "block_size": 3, "prefix_cache": "radix", "max_step_tokens": 7, "max_batch_size": 6},
    {"num_blocks": 40, "block_size": 1, "prefix_cache": "hash", "max_step_tokens": 16, "max_batch_size": 5},
    {"num_blocks": 12, "block_size": 4, "preemption": "swap", "max_step_tokens": 5, "max_batch_size": 8},
    {"num_blocks": 9, "block_size": 5, "prefix_cache": "radix", "preemption": "swap", "max_step_tokens": 64},
    {"num_blocks": 6, "block_size": 8, "prefix_cache": "hash", "max_step_tokens": 3, "max_batch_size": 4},
    {"num_blocks": 20, "block_size": 2, "max_step_tokens": 4, "max_batch_size": 4},
]
CONTIGUOUS: list[Setting] = [
    {"num_blocks": 1, "block_size": 70, "cache": "contiguous", "max_step_tokens": 9},
    {"num_blocks": 1, "block_size": 75, "cache": "contiguous", "reserve": "grow", "max_step_tokens": 4},
    {
        "num_blocks": 1,
        "block_size": 60,
        "cache": "contiguous",
        "reserve": "grow",
        "preemption": "swap",
        "max_batch_size": 5,
    },
    {"num_blocks": 4, "block_size": 25, "cache": "contiguous", "preemption": "swap", "max_step_tokens": 16},
]
SETTINGS = PAGED + CONTIGUOUS


class Fault(Exception):
    """What the model, or an observer, raises on purpose."""


class Flaky(fm.FingerprintModel):
    """Raises now and then: before it begins, between its layers, or after them."""

    def __init__(self) -> None:
        super().__init__()
        self.fault_in: int | None = None  # calls of `attend` until it raises

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        def failing(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.fault_in == layer:
                raise Fault("the model")
            return attend(layer, q, k, v)

        logits = super().__call__(token_ids, positions, failing, wanted)
        if self.fault_in == self.num_layers:
            raise Fault("the model")
        return logits


class Solo:
    """What a request says alone, in plenty of memory, in one go. Asked once for each request."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], list[Completion]] = {}

    def __call__(self, request: Request) -> list[Completion]:
        params = {name: value for name, value in asdict(request.params).items() if name != "salt"}
        key = (tuple(request.prompt), *params.items())
        if key not in self._known:
            engine = Engine(MODEL, 64, 16, attention=fm.read)
            self._known[key] = engine.generate([request.prompt], **params)
            plain = request.params.width == 1 and not request.params.temperature and not request.params.stop
            if plain and request.params.max_new_tokens:
                wanted = fm.greedy(request.prompt, params["max_new_tokens"], params["ignore_eos"])
                assert self._known[key][0].token_ids == wanted
        return self._known[key]


def without_cached(completions: list[Completion]) -> list[Completion]:
    return [completion._replace(num_cached_tokens=0) for completion in completions]


class EngineWalk:
    """An engine, the requests that were given to it, and what became of them.

    Args:
        setting: arguments of Engine.
        make: makes the engine; a mutant makes a broken one.
        observed: an observer listens, and raises now and then.
    """

    def __init__(
        self,
        setting: Setting,
        seed: int,
        solo: Solo,
        make: Callable[..., Engine] = Engine,
        observed: bool = False,
    ) -> None:
        self.rng, self.solo, self.now = random.Random(seed), solo, 0.0
        self.asks = random.Random(-seed - 1)  # so that the requests are the same, whatever becomes of them
        self.model = Flaky()
        self.observer_fault_in = -1  # events until the observer raises
        self.engine = make(
            self.model,
            attention=fm.read,
            observer=self.observe if observed else None,
            clock=lambda: self.now,
            **setting,
        )
        self.slots = setting["num_blocks"] * setting["block_size"]
        self.live: dict[Request, None] = {}
        self.done: list[Request] = []
        self.resolved: Counter[str] = Counter()  # how often each future was
        self.counts: Counter[str] = Counter()
        self.idle_steps = 0
        roots = [[self.asks.randint(1, 26) for _ in range(20)] for _ in range(3)]
        self.prompts = [
            self.asks.choice(roots)[: self.asks.randint(1, 16)]
            + [self.asks.randint(0, 26) for _ in range(self.asks.randint(0, 6))]
            for _ in range(25)
        ]

    def observe(self, event: dict[str, Any]) -> None:
        self.observer_fault_in -= 1
        if self.observer_fault_in == 0:
            self.counts["observer"] += 1
            raise Fault("an observer")

    # ---- what happens ------------------------------------------------------------------------

    def random_steps(self, count: int) -> None:
        for _ in range(count):
            choice = self.rng.random()
            if choice < 0.32 and len(self.live) < 12:
                self.submit()
            elif choice < 0.36 and self.live:
                self.abort(self.rng.choice(list(self.live)))
            elif choice < 0.37 and self.done:
                self.abort(self.rng.choice(self.done))
            elif choice < 0.375 and self.engine.prefix_cache is not None:
                self.engine.prefix_cache.evict(self.rng.randint(1, 3))
            elif choice < 0.4:
                self.observer_fault_in = self.rng.randint(1, 30)
            self.step()
        self.drain()

    def submit(self) -> None:
        rng = self.asks
        options: dict[str, Any] = {"max_new_tokens": rng.choice((0, 1, 2, 5, 5, 12, 12)), "seed": 3}
        kind = rng.random()
        if kind < 0.15:
            options["beam_width"] = rng.randint(1, 4)
            options["n"] = rng.randint(1, options["beam_width"])
        elif kind < 0.35:
            options |= {"n": rng.choice((2, 3)), "temperature": rng.choice((0.0, 0.7, 1.5))}
        elif kind < 0.5:
            options |= {"temperature": rng.choice((0.3, 1.0)), "seed": rng.randint(1, 2)}
        elif kind < 0.6:
            options["stop"] = rng.choice(("a", ("ab", "c"), "xyz"))
        options["ignore_eos"] = rng.random() < 0.6
        if rng.random() < 0.1:
            options["timeout"] = rng.choice((0, 3, 10, 30))
        if rng.random() < 0.1:
            options["salt"] = rng.choice("ab")
        free = self.engine.manager.num_free_blocks
        try:
            request = self.engine.submit(list(rng.choice(self.prompts)), **options)
        except (RequestTooLargeError, ValueError):
            self.counts["refused"] += 1
            assert self.engine.manager.num_free_blocks == free
            return
        self.live[request] = None
        request.future.add_done_callback(lambda _: self.resolved.update([request.name]))
        self.look()

    def abort(self, request: Request) -> None:
        was = request.status
        with suppress(Fault):
            self.engine.abort(request)
        assert request.status == (Status.CANCELLED if request in self.live and not was_done(was) else was)
        self.counts[f"abort {was}"] += 1
        self.look()

    def step(self) -> None:
        self.now += self.rng.choice((0.0, 0.5, 1.0))
        faulty = self.rng.random() < 0.01
        self.model.fault_in = self.rng.randint(0, self.model.num_layers) if faulty else None
        before = {request: (request.status, len(request.prompt)) for request in self.live}
        try:
            report: StepReport | None = self.engine.step()
        except Fault:
            report = None
        late = [r for r in before if r.deadline is not None and r.deadline <= self.now]
        assert all(request.status is Status.TIMEOUT for request in late), "its time was up"
        failed = [r for r in before if r.status is Status.FAILED]
        assert faulty or not failed, failed and failed[0].future.exception().__cause__
        if report is not None:
            self.look_at_report(report, before)
        self.look()

    def drain(self) -> None:
        """To the end, without anything new; then all memory is free."""
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work and not self.live, "it does not come to an end"
        if self.engine.prefix_cache is not None:
            self.engine.prefix_cache.clear()
        manager = self.engine.manager
        assert manager.num_free_blocks == manager.snapshot()["total_blocks"], "memory is lost"
        assert not manager.tables
        figures = self.engine.metrics()
        ends = ("success", "timeout", "oom", "cancelled", "failed")
        assert figures["submitted"] == sum(figures[name] for name in ends)
        assert figures["preempted"] >= self.counts["preempted"]  # steps whose observer raised had no report

    # ---- what must hold ----------------------------------------------------------------------

    def look_at_report(self, report: StepReport, before: dict[Request, Any]) -> None:
        scheduler = self.engine.scheduler
        assert report.num_tokens <= scheduler.max_step_tokens, "more tokens than the budget"
        assert set(report.ended) == {request for request in before if request.done}
        assert report.num_running == len(scheduler.running) and report.num_waiting == len(scheduler.waiting)
        assert not any(
            r.done and r not in report.ended and r.running and r in before for r, _, _ in report.tokens
        )
        self.counts["steps"] += 1
        self.counts["preempted"] += len(report.preempted)
        self.counts["chunked"] += any(r.sequences[0].pending > 1 for r in scheduler.running)
        idle = bool(before and not report.num_tokens and not report.ended)
        self.idle_steps = self.idle_steps + 1 if idle else 0
        assert self.idle_steps < 3, "nobody gets on"
        self.counts["idle"] += idle

    def look(self) -> None:
        """Everything that must hold between two steps."""
        engine, scheduler = self.engine, self.engine.scheduler
        engine.check()
        assert sum(len(request.running) for request in scheduler.running) <= scheduler.max_batch_size
        holders = [s.table for r in scheduler.running for s in r.running if s.table is not None]
        held = {id(table) for table in holders if table.capacity}
        assert {id(table) for table in engine.manager.tables} == held, "somebody else holds blocks"
        for request in scheduler.waiting:
            assert request.status is Status.WAITING
            assert all(s.table is None and s.num_stored == 0 for s in request.sequences)
        assert all(request.status is Status.RUNNING for request in scheduler.running)
        assert set(self.live) >= {*scheduler.running, *scheduler.waiting}
        for request in [request for request in self.live if request.done]:
            self.look_at_end(request)
        assert set(self.live) == {*scheduler.running, *scheduler.waiting}, "a request has vanished"

    def look_at_end(self, request: Request) -> None:
        del self.live[request]
        self.done.append(request)
        self.counts[request.status] += 1
        assert request.future.done() and self.resolved[request.name] == 1, "it ended not exactly once"
        assert all(sequence.table is None for sequence in request.sequences), "it holds a table"
        assert request.saved is None, "it keeps a copy of its KV"
        if request.status is Status.SUCCESS:
            assert without_cached(request.result()) == without_cached(self.solo(request))
            assert all(c.num_cached_tokens < len(request.prompt) for c in request.result())
            if request.num_cached_tokens:
                self.counts["hit"] += 1
            if request.num_preemptions:
                self.counts["success after preemption"] += 1
        else:
            error = request.future.exception()
            assert isinstance(error, RequestError) and error.status == request.status
            assert (error.__cause__ is not None) == (request.status is Status.FAILED)


def was_done(status: Status) -> bool:
    return status not in (Status.WAITING, Status.RUNNING)
