"""The observable experiment: a small pool, requests of different lengths, the real engine. (chapter §5.2)

    run = Experiment(SCENES["reuse"])
    outcome = run.to_the_end()
    outcome.max_allocated, outcome.counts["success"], outcome.free

Time is counted, not measured: a step takes 0.1 s, whatever the machine. So every figure here is the same
each time, time-outs included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from minikv.engine.contiguous import HEADROOM
from minikv.engine.engine import Engine
from minikv.engine.request import Request
from minikv.errors import RequestTooLargeError
from minikv.gpt2 import GPT2, Attend
from minikv.lab.event_log import EventLog
from minikv.lab.workbench import tiny_gpt2
from minikv.sim.split import Split

STEPS_PER_SECOND = 10


class Ask(NamedTuple):
    """What somebody asks for."""

    prompt: str
    limit: int  # max_new_tokens: all that the engine knows of the answer's length
    stop: str | None = None  # the answer ends here, if not at its limit
    at: int = 1  # it comes before this step


class Scene(NamedTuple):
    """Some requests, and the pool they come to."""

    name: str
    asks: tuple[Ask, ...]
    num_blocks: int
    block_size: int = 4
    timeout: float | None = None  # seconds from a request's coming


class Held(NamedTuple):
    """What one request holds while the model runs."""

    request: int  # its place in the order of coming
    slots: int
    tokens: int  # stored, those of this step included


class Moment(NamedTuple):
    """One step, as it was while the model ran: with all that the step needs, before anybody left.

    external: free slots, enough for the request that waits first, but in holes too small for it.
    """

    step: int
    held: tuple[Held, ...]
    free: int  # slots, without the external ones
    external: int
    waiting: int  # requests
    preempted: int  # requests, in this step

    @property
    def slots(self) -> int:
        """Slots that somebody holds."""
        return sum(held.slots for held in self.held)

    @property
    def tokens(self) -> int:
        """Slots with a token in them."""
        return sum(held.tokens for held in self.held)


@dataclass(frozen=True)
class Outcome:
    """What came out of a run.

    Attributes:
        label: "paged", "contiguous, max" or "contiguous, grow".
        unit: slots of what is handed out: the block size, or 1 where memory is contiguous.
        total, max_allocated, free: all there are; the most held at once; free at the end. In these units.
        moments: one for each step in which the model ran.
        counts: requests by how they ended, and "preempted": how often one had to make room.
        texts: each request's answer, as far as it came; None if it was refused.
        num_tokens: tokens generated, of all requests.
        ttft: seconds to the first token, mean of those that got one; None if nobody did.
        tokens_moved: copied because a reservation had to grow.
        steps: in which the model ran.
    """

    scene: Scene
    label: str
    unit: int
    total: int
    max_allocated: int
    free: int
    moments: tuple[Moment, ...]
    counts: dict[str, int]
    texts: tuple[str | None, ...]
    num_tokens: int
    ttft: float | None
    tokens_moved: int
    finals: dict[int, int] = field(default_factory=dict, repr=False)  # tokens each request stored in the end

    @property
    def steps(self) -> int:
        return len(self.moments)

    @property
    def held_at_peak(self) -> float:
        """Share of memory that was held when most was, in [0, 1]: max_allocated / total."""
        return self.max_allocated / self.total

    @property
    def mean_held(self) -> float:
        """Share of memory that was held, mean over the steps, in [0, 1]."""
        return _mean([moment.slots for moment in self.moments]) / self.slots

    @property
    def mean_tokens(self) -> float:
        """Share of memory with a token in it, mean over the steps, in [0, 1]."""
        return _mean([moment.tokens for moment in self.moments]) / self.slots

    @property
    def peak_tokens(self) -> int:
        """Slots with a token in them, when there were most."""
        return max((moment.tokens for moment in self.moments), default=0)

    @property
    def most_running(self) -> int:
        """Requests that ran side by side, at the most."""
        return max((len(moment.held) for moment in self.moments), default=0)

    @property
    def mean_running(self) -> float:
        """Requests that ran side by side, mean over the steps."""
        return _mean([len(moment.held) for moment in self.moments])

    @property
    def slots(self) -> int:
        """Of the whole memory."""
        return self.total * self.unit

    def split(self, moment: Moment) -> Split:
        """Where the slots were at a moment: what is held and empty is reserved for later, or never used."""
        used = [min(held.slots, self.finals[held.request]) for held in moment.held]
        reserved = sum(used) - moment.tokens
        internal = moment.slots - sum(used)
        return Split(moment.tokens, reserved, internal, moment.external, moment.free)

    @property
    def mean_split(self) -> Split:
        """The same, mean over the steps, in % of the memory."""
        parts = zip(*(self.split(moment) for moment in self.moments), strict=True)
        return Split(*(100 * _mean(part) / self.slots for part in parts))

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{name} {self.counts[name]}" for name in ("success", "oom", "timeout", "preempted")
        )
        memory = f"{self.total} {'blocks' if self.unit > 1 else 'slots'}"
        end = f"peak {self.max_allocated}, free at the end {self.free}"
        return f"{self.label}, {memory}: {end}; {counts}"


class Experiment:
    """A scene on an engine, step by step or to the end.

    Args:
        model: None is the tiny GPT-2 that ships.
        cache, reserve: as of `Engine`. Contiguous memory has num_blocks * block_size slots.
        attention: how the cache is read.
        log: an event log, for `BlockMap(experiment)`; None: nobody watches.

    Attributes:
        engine: which runs it.
        log: the event log, or None.
        requests: one for each that the scene asks for, in that order; None while it has not come, or if it
            was refused.
    """

    def __init__(
        self,
        scene: Scene,
        model: GPT2 | None = None,
        cache: Literal["paged", "contiguous"] = "paged",
        reserve: Literal["max", "grow"] = "max",
        attention: str = "gather",
        log: EventLog | None = None,
    ) -> None:
        self.scene, self.label = scene, cache if cache == "paged" else f"{cache}, {reserve}"
        self.log = log
        self._model = _Watched(model or tiny_gpt2())
        self.engine = Engine(
            self._model,
            scene.num_blocks,
            scene.block_size,
            cache=cache,
            reserve=reserve,
            attention=attention,
            max_batch_size=len(scene.asks) or 1,
            max_step_tokens=2
            ** 30,  # a prompt is stored in one step, so that the lengths are all there is to see
            observer=self.log,
            clock=lambda: self._ticks / STEPS_PER_SECOND,
        )
        self._model.told = self._note
        self._ticks = 0  # steps of the model so far
        self._seen: list[Moment] = []  # of this step, one if the model ran
        self._moments: list[Moment] = []
        self._coming = sorted(range(len(scene.asks)), key=lambda i: scene.asks[i].at)
        self.requests: list[Request | None] = [None] * len(scene.asks)

    @property
    def observer(self) -> EventLog | None:
        """The event log, under the name that `BlockMap` looks for."""
        return self.log

    @property
    def done(self) -> bool:
        """Everybody has come, and nobody runs or waits."""
        return not self._coming and not self.engine.has_work

    def step(self) -> Moment | None:
        """One step of the engine, after those have come who come now. None: the model did not run."""
        if not self.engine.has_work and self._coming:  # nothing happens until the next one comes
            self._ticks = max(self._ticks, self.scene.asks[self._coming[0]].at - 1)
        while self._coming and self.scene.asks[self._coming[0]].at <= self._ticks + 1:
            self._submit(self._coming.pop(0))
        self._seen.clear()
        with _one_thread():
            report = self.engine.step()
        if not self._seen:
            return None
        moment = self._seen[0]._replace(preempted=len(report.preempted))
        self._moments.append(moment)
        return moment

    def to_the_end(self) -> Outcome:
        """Step until everybody is done."""
        while not self.done:
            self.step()
        return self.outcome()

    def outcome(self) -> Outcome:
        """What has come out so far."""
        snapshot, metrics = self.engine.manager.snapshot(), self.engine.metrics()
        finals: dict[int, int] = {}  # what a request has stored never becomes less from moment to moment
        for moment in self._moments:
            finals.update((held.request, held.tokens) for held in moment.held)
        return Outcome(
            scene=self.scene,
            label=self.label,
            unit=self.scene.block_size if self.engine.cache == "paged" else 1,
            total=snapshot["total_blocks"],
            max_allocated=snapshot["max_allocated"],
            free=snapshot["free_blocks"],
            moments=tuple(self._moments),
            counts={name: metrics[name] for name in ("success", "oom", "timeout", "failed", "preempted")},
            texts=tuple(None if request is None else self._said(request) for request in self.requests),
            num_tokens=sum(len(request.sequences[0].generated) for request in self.requests if request),
            ttft=metrics["ttft"],
            tokens_moved=getattr(self.engine.manager, "tokens_moved", 0),
            finals=finals,
        )

    def _submit(self, index: int) -> None:
        ask = self.scene.asks[index]
        try:
            self.requests[index] = self.engine.submit(
                ask.prompt, ask.limit, stop=ask.stop, timeout=self.scene.timeout, ignore_eos=True
            )
        except RequestTooLargeError:  # which the engine has counted
            return

    def _said(self, request: Request) -> str:
        return self._model.tokenizer.decode(request.sequences[0].generated)

    def _note(self) -> None:
        """The model runs: look at what is held now; then the step has taken its time."""
        scheduler, manager = self.engine.scheduler, self.engine.manager
        places = {id(request): index for index, request in enumerate(self.requests) if request is not None}
        held = tuple(
            Held(
                places[id(request)], request.sequences[0].table.capacity, len(request.sequences[0].token_ids)
            )
            for request in scheduler.running
        )
        free = self.scene.num_blocks * self.scene.block_size - sum(each.slots for each in held)
        external = free if self._in_pieces(scheduler.waiting, manager) else 0
        self._seen.append(
            Moment(len(self._moments) + 1, held, free - external, external, len(scheduler.waiting), 0)
        )
        self._ticks += 1

    def _in_pieces(self, waiting: Any, manager: Any) -> bool:
        """True if there are slots enough for the request that waits first, but no hole is large enough."""
        if not waiting or self.engine.cache == "paged":
            return False
        request = waiting[0]
        tokens = len(request.sequences[0].token_ids)
        longest = len(request.prompt) + request.params.max_new_tokens - 1
        wanted = longest if manager.reserve == "max" else min(tokens + HEADROOM, longest)
        return bool(manager.largest_hole < wanted <= manager.num_free_blocks)

    def __repr__(self) -> str:
        return f"Experiment({self.scene.name!r}, {self.label}, {self.engine!r})"


def run(scene: Scene, **options: Any) -> Outcome:
    """A scene, to its end. Options: those of `Experiment`."""
    return Experiment(scene, **options).to_the_end()


@contextmanager
def _one_thread() -> Iterator[None]:
    """The model is so small that threads wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Watched(GPT2):
    """The same model, which says so when it runs."""

    def __init__(self, model: GPT2) -> None:
        self.__dict__.update(model.__dict__)
        self.told: Any = None

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        self.told()
        return super().__call__(token_ids, positions, attend, wanted)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
