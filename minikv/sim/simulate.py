"""Let time pass: requests arrive, wait, run together, store a token a step, and leave. (chapter §5)

Continuous batching, first come first served. One step, for everybody who runs:

    1  who has all its tokens leaves, and its memory is free
    2  every other request stores one more token; if there is no memory for it, the newest request is
       preempted: its memory is taken, it waits in front of all others, and what it had is recomputed later
    3  who waits is let in, in order, until one does not fit; nobody is, in a step that preempted somebody
       and left somebody running
    4  the step takes its time

Most steps are all alike: the same requests run, and each has room for its next token. So the loop goes
from event to event (somebody arrives, leaves or needs memory) and takes the steps between in one go:
m steps of B requests that hold T tokens at first are m·T + B·m(m-1)/2 token-steps. It costs as much as
there are events, however long the outputs and however large the batch.

Time is counted in whole microseconds, so that a million steps add up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Literal, NamedTuple

from minikv.sim.averages import Averages, Timeline
from minikv.sim.policy import Policy
from minikv.sim.progress import watched
from minikv.sim.results import SimResult
from minikv.sim.waiting import Queue, Waiting
from minikv.sim.workload import Request

Kind = Literal["admit", "preempt", "finish", "too large"]


class StepTime(NamedTuple):
    """How long a step takes, in seconds. An assumption: no model runs here."""

    base: float = 0.040
    per_request: float = 0.0003

    @property
    def assumption(self) -> str:
        """To print beside every result."""
        return (
            f"a step takes {1000 * self.base:g} ms and {1000 * self.per_request:g} ms per running request, "
            "a prefill no more than any other step"
        )


STEP_TIME = StepTime()


class Event(NamedTuple):
    """What happened to a request, and when."""

    seconds: float
    step: int
    kind: Kind
    key: int  # the request's number in order of arrival, from 0
    request: Request


OnEvent = Callable[[Event], None]


def simulate(
    requests: Iterable[Request],
    policy: Policy,
    step_time: StepTime = STEP_TIME,
    sample_every: float | None = None,
    on_event: OnEvent | None = None,
    progress: bool = False,
) -> SimResult:
    """Run the requests through a policy until each has finished, or been found too large for it.

    Args:
        requests: in order of arrival; read as they are needed, none is kept.
        policy: a fresh one, nothing running.
        step_time: seconds for a step; more than 0.
        sample_every: seconds between the samples for a plot over time; None: no samples.
        on_event: told of every admission, preemption and end.
        progress: show a bar.

    Raises:
        ValueError: requests out of order or without tokens, a time that is not above 0, or a policy in use.
        TypeError: a request with tokens that are no whole number.
    """
    if policy.split().free != policy.num_slots:
        raise ValueError(f"{policy.name} holds something already; take a fresh policy for a simulation")
    queue = Queue(watched(requests, policy.name, progress))
    timeline = None if sample_every is None else Timeline(sample_every)
    run = _Simulation(queue, policy, step_time, timeline, on_event)
    run.to_the_end()
    return run.result()


class _Run:
    """A running request."""

    __slots__ = ("admitted", "alive", "end", "key", "waiting")

    def __init__(self, waiting: Waiting, step: int) -> None:
        self.key = waiting.key
        self.waiting = waiting  # as it was when it was admitted
        self.admitted = step
        self.end = step + waiting.request.output_tokens - waiting.done  # the first step without it
        self.alive = True  # still running


_key = attrgetter("key")


class _Simulation:
    """The state of the loop. Times are in microseconds; steps are numbered from 0."""

    def __init__(
        self,
        queue: Queue,
        policy: Policy,
        step_time: StepTime,
        timeline: Timeline | None,
        on_event: OnEvent | None,
    ) -> None:
        self.queue, self.policy, self.timeline, self.on_event = queue, policy, timeline, on_event
        self.step_time = step_time
        self.base, self.per_request = (round(1e6 * seconds) for seconds in step_time)
        if self.base < 1 or self.per_request < 0:
            raise ValueError(f"{step_time} must have a base of at least 1e-6 s, and no time below 0")
        # By key, in order of admission. That is the order of the keys, too: who is let in last goes first.
        self.running: dict[int, _Run] = {}
        self.due: dict[int, list[_Run]] = {}  # by step: who leaves then, or must grow
        self.due_steps: list[int] = []  # a heap of the keys of `due`
        self.averages = Averages()
        self.copied_before = policy.tokens_copied
        self.step, self.now = 0, 0
        self.finished = self.too_large = self.preemptions = self.recomputed = self.output_tokens = 0
        self.latency = 0.0  # seconds, summed

    def to_the_end(self) -> None:
        """From event to event until nobody runs, waits or will come."""
        self.now = self.start = int(self.queue.next_arrival) if self.queue.has_more else 0
        while self.running or self.queue.has_more:
            if not self.running and self.queue.head(self.now) is None:
                self._idle()
            preempted = self._serve()
            waits = self._let_in() if not preempted or not self.running else True
            if self.running:
                self._pass(1 if preempted else self._quiet_steps(waits), waits)

    # ---- one step ----------------------------------------------------------------------------

    def _serve(self) -> bool:
        """Who has all its tokens leaves, the others store one more; True if somebody was preempted."""
        due = self._due_now()
        for run in due:
            if run.end == self.step:
                self._leave(run)
        before = self.preemptions
        for run in due:
            self._make_room(run)
        self.policy.advance(1)
        return self.preemptions > before

    def _due_now(self) -> list[_Run]:
        """Those for whom something happens at this step, in order of admission."""
        if not self.due_steps or self.due_steps[0] != self.step:
            return []
        heappop(self.due_steps)
        due = [run for run in self.due.pop(self.step) if run.alive]
        due.sort(key=_key)
        return due

    def _schedule(self, run: _Run, room_until: int) -> None:
        """Note when something happens next to this request: it leaves, or has no room for a token."""
        step = min(run.end, room_until)
        if step not in self.due:
            self.due[step] = []
            heappush(self.due_steps, step)
        self.due[step].append(run)

    def _make_room(self, run: _Run) -> None:
        """Room for the next token of this request, if it runs; the newest requests go until there is."""
        while run.alive:
            if self.policy.grow(run.key):
                self._schedule(run, self.step + self.policy.room(run.key))
                return
            self._preempt(next(reversed(self.running.values())))

    def _let_in(self) -> bool:
        """Admit in order until somebody does not fit; True if somebody is left waiting."""
        while (head := self.queue.head(self.now)) is not None:
            if head.request.slots > self.policy.longest:
                self.queue.pop()
                self.too_large += 1
                self._tell("too large", head)
            elif self.policy.admit(head.key, head.request, head.done):
                self.queue.pop()
                self.running[head.key] = run = _Run(head, self.step)
                self._schedule(run, self.step + 1 + self.policy.room(head.key))  # its first token is stored
                self._tell("admit", head)
            elif self.running:
                return True
            else:
                raise ValueError(
                    f"{self.policy.name} refuses request {head.key} of {head.request.slots} slots, though "
                    f"nobody runs; its `longest` is {self.policy.longest}, and so much it must have for one"
                )
        return False

    def _leave(self, run: _Run) -> None:
        """A request has all its tokens."""
        self._stop(run)
        self.finished += 1
        self.output_tokens += run.waiting.request.output_tokens
        self.latency += self.now / 1e6 - run.waiting.request.arrival
        self._tell("finish", run.waiting)

    def _preempt(self, run: _Run) -> None:
        """Take the newest request's memory away; it waits in front, and keeps only the tokens themselves."""
        self._stop(run)
        done = run.waiting.done + self.step - run.admitted
        self.queue.put_in_front(run.waiting._replace(done=done))
        self.preemptions += 1
        self.recomputed += run.waiting.request.input_tokens + done - 1
        self._tell("preempt", run.waiting)

    def _stop(self, run: _Run) -> None:
        self.policy.finish(run.key)
        del self.running[run.key]
        run.alive = False

    # ---- time --------------------------------------------------------------------------------

    def _quiet_steps(self, waits: bool) -> int:
        """Steps from this one until something happens again, this one included.

        An arrival changes nothing while somebody waits before it.
        """
        steps = self.due_steps[0] - self.step
        if not waits and self.queue.next_arrival < math.inf:
            until = int(self.queue.next_arrival) - self.now
            steps = min(steps, -(-until // self._step_time()))
        return steps

    def _step_time(self) -> int:
        return self.base + self.per_request * len(self.running)

    def _pass(self, steps: int, waits: bool) -> None:
        """Let this many steps go by in which nothing happens; `waits`: somebody waits all the time."""
        split = self.policy.split(waits)
        batch, step_time = len(self.running), self._step_time()
        self.averages.add(split, batch, steps, step_time)
        if self.timeline is not None:
            self.timeline.add(self.now, split, batch, steps, step_time)
        if steps > 1:
            self.policy.advance(steps - 1)
        self.step += steps
        self.now += steps * step_time

    def _idle(self) -> None:
        """Nobody runs and nobody waits: on to the next arrival."""
        until = int(self.queue.next_arrival)
        if self.timeline is not None:
            self.timeline.add(self.now, self.policy.split(), 0, 1, until - self.now)
        self.now = until

    # ---- what came out -------------------------------------------------------------------------

    def _tell(self, kind: Kind, waiting: Waiting) -> None:
        if self.on_event is not None:
            self.on_event(Event(self.now / 1e6, self.step, kind, waiting.key, waiting.request))

    def result(self) -> SimResult:
        """All that was counted."""
        return SimResult(
            policy=self.policy.name,
            num_slots=self.policy.num_slots,
            finished=self.finished,
            too_large=self.too_large,
            preemptions=self.preemptions,
            output_tokens=self.output_tokens,
            tokens_recomputed=self.recomputed,
            tokens_copied=self.policy.tokens_copied - self.copied_before,
            seconds=(self.now - self.start) / 1e6,
            busy_seconds=self.averages.busy / 1e6,
            steps=self.averages.steps,
            mean_latency=self.latency / self.finished if self.finished else 0.0,
            mean_batch=self.averages.mean_batch,
            peak_batch=self.averages.peak_batch,
            mean=self.averages.mean,
            peak_tokens=self.averages.peak_tokens,
            samples=[] if self.timeline is None else self.timeline.samples,
            assumptions=(self.step_time.assumption,),
        )
