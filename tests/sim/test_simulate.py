"""The event-driven simulator: by hand, against the slow one, and what must hold whatever comes."""

from __future__ import annotations

import random
import re
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikv.sim import simulate as simulate_module
from minikv.sim.policy import Books
from minikv.sim.reservation import GrowAndMove, OrcaMax, OrcaOracle, OrcaPow2, Paged
from minikv.sim.results import SimResult
from minikv.sim.simulate import Event, StepTime, simulate
from minikv.sim.split import Split
from minikv.sim.workload import ALPACA, Request, lognormal
from tests.sim.reference import Outcome, reference

STEP = StepTime(base=0.040, per_request=0.001)
POLICIES: list[Callable[[], Books]] = [
    lambda: OrcaMax(40, 16),
    lambda: OrcaPow2(40, 16),
    lambda: OrcaOracle(37, 16),
    lambda: GrowAndMove(30, "first", 3),
    lambda: GrowAndMove(33, "best", 1),
    lambda: GrowAndMove(24, "best", 7),
    lambda: Paged(40, 1),
    lambda: Paged(8, 4),
    lambda: Paged(3, 16),
]


def watch(requests: list[Request], policy: Books, **options: float) -> tuple[list[Event], SimResult]:
    events: list[Event] = []
    return events, simulate(requests, policy, STEP, on_event=events.append, **options)


def story(events: list[Event]) -> list[str]:
    return [f"{event.step} {event.kind} {event.key}" for event in events]


# ---- by hand -----------------------------------------------------------------------------------


def test_one_request_step_by_step() -> None:
    """3 tokens in, 3 out: 3 steps; 3, 4, 5 slots filled; the last token is never stored."""
    events, result = watch([Request(1.0, 3, 3)], Paged(2, 4), sample_every=0.041)
    assert story(events) == ["0 admit 0", "3 finish 0"]
    assert [event.seconds for event in events] == [1.0, 1.123]
    assert (result.seconds, result.busy_seconds, result.steps, result.mean_batch) == (0.123, 0.123, 3, 1.0)
    assert result.mean == Split((3 + 4 + 5) / 3, (1 + 0 + 0) / 3, 3 / 3, 0, (4 + 4 + 0) / 3)
    assert [sample.split for sample in result.samples] == [
        Split(3, 1, 0, 0, 4),
        Split(4, 0, 0, 0, 4),
        Split(5, 0, 3, 0, 0),
    ]
    assert result.peak_tokens == 5 and result.mean_latency == pytest.approx(0.123)


def test_a_full_pool_preempts_the_newest_and_loses_nothing() -> None:
    """Two blocks of 2. In step 1 both need a second one; the older gets it, the newer starts anew."""
    events, result = watch([Request(0, 2, 3), Request(0, 2, 2), Request(0, 1, 1)], Paged(2, 2))
    assert story(events) == [
        "0 admit 0",
        "0 admit 1",
        "1 preempt 1",
        "3 finish 0",
        "3 admit 1",
        "4 finish 1",
        "4 admit 2",
        "5 finish 2",
    ]
    assert (result.finished, result.preemptions, result.tokens_recomputed) == (3, 1, 2)
    assert result.output_tokens == 6


def test_nobody_overtakes_who_does_not_fit() -> None:
    """Request 2 would fit at once; it waits behind 1 all the same."""
    events, _ = watch([Request(0, 3, 3), Request(0, 6, 1), Request(0, 1, 1)], OrcaOracle(8, 8))
    assert story(events)[:3] == ["0 admit 0", "3 finish 0", "3 admit 1"]


def test_a_request_beyond_all_memory_is_reported_and_the_others_go_on() -> None:
    events, result = watch([Request(0, 30, 3), Request(0, 2, 2)], Paged(4, 4))
    assert story(events) == ["0 too large 0", "0 admit 1", "2 finish 1"]
    assert (result.finished, result.too_large) == (1, 1)


def test_idle_time_counts_in_seconds_but_not_in_averages() -> None:
    _, result = watch([Request(0, 1, 1), Request(10, 1, 1)], Paged(1, 1), sample_every=5)
    assert result.seconds == pytest.approx(10.041) and result.busy_seconds == pytest.approx(0.082)
    assert result.mean == Split(1, 0, 0, 0, 0)
    assert [(sample.seconds, sample.batch) for sample in result.samples] == [(0, 1), (5, 0), (10, 1)]


def test_no_requests_no_time() -> None:
    events, result = watch([], Paged(1, 1))
    assert events == [] and (result.finished, result.seconds, result.steps) == (0, 0, 0)
    assert result.mean == Split(0, 0, 0, 0, 0)


def test_free_memory_counts_as_external_only_while_somebody_waits() -> None:
    _, result = watch([Request(0, 4, 1), Request(0, 8, 1)], OrcaOracle(8, 8), sample_every=0.041)
    assert [sample.split for sample in result.samples] == [Split(4, 0, 0, 4, 0), Split(8, 0, 0, 0, 0)]


def test_a_request_that_grew_into_a_corner_starts_again_at_the_front() -> None:
    """Alone, but in the middle of memory: nothing behind is long enough, nothing before. It must not hang."""
    requests = [Request(0, 5, 1), Request(0, 2, 14)]
    events, result = watch(requests, GrowAndMove(16, "first", 2))
    assert "preempt 1" in " ".join(story(events)) and result.finished == 2


# ---- against the slow one ------------------------------------------------------------------------

REQUESTS = st.lists(
    st.tuples(st.sampled_from([0, 0, 0.01, 0.041, 0.3]), st.integers(1, 12), st.integers(1, 12)), max_size=14
)


def timed(drawn: list[tuple[float, int, int]]) -> list[Request]:
    """Gaps become times of arrival."""
    requests, arrival = [], 0.0
    for gap, inputs, outputs in drawn:
        arrival = round(arrival + gap, 6)
        requests.append(Request(arrival, inputs, outputs))
    return requests


def assert_same(requests: list[Request], make: Callable[[], Books]) -> Outcome:
    events, result = watch(requests, make(), sample_every=0.02)
    slow = reference(requests, make(), STEP)
    assert events == slow.events
    assert result.mean == slow.mean
    assert result.mean_batch == slow.mean_batch
    assert (result.peak_batch, result.peak_tokens) == (slow.peak_batch, slow.peak_tokens)
    starts = [seconds for seconds, _, _ in slow.splits]
    for sample in result.samples:
        if sample.batch:
            assert (sample.batch, sample.split) == slow.splits[bisect_right(starts, sample.seconds) - 1][1:]
    return slow


@pytest.mark.parametrize("make", POLICIES)
@given(drawn=REQUESTS)
def test_the_same_as_step_by_step_and_slot_by_slot(
    make: Callable[[], Books], drawn: list[tuple[float, int, int]]
) -> None:
    assert_same(timed(drawn), make)


@pytest.mark.parametrize("make", POLICIES)
def test_the_same_on_longer_runs(make: Callable[[], Books]) -> None:
    rng = random.Random(4)
    drawn = [(rng.choice([0, 0.05, 0.2]), rng.randint(1, 12), rng.randint(1, 14)) for _ in range(150)]
    slow = assert_same(timed(drawn), make)
    kinds = [event.kind for event in slow.events]
    assert kinds.count("finish") + kinds.count("too large") == 150


@pytest.mark.parametrize("make", POLICIES)
@given(drawn=REQUESTS)
def test_every_request_ends_once(make: Callable[[], Books], drawn: list[tuple[float, int, int]]) -> None:
    policy = make()
    requests = timed(drawn)
    events, result = watch(requests, policy)
    ends = sorted(event.key for event in events if event.kind in ("finish", "too large"))
    assert ends == list(range(len(requests)))
    for event in events:
        assert (event.kind == "too large") == (event.request.slots > policy.longest)
    admitted = sum(event.kind == "admit" for event in events)
    assert admitted == result.finished + result.preemptions
    assert policy.split() == Split(0, 0, 0, 0, policy.num_slots)
    if isinstance(policy, Paged):
        policy.manager.check()
        assert policy.manager.num_free_blocks == policy.manager.num_blocks


# ---- faults that the comparison must find --------------------------------------------------------


def preempts_the_oldest(self: simulate_module._Simulation, run: simulate_module._Run) -> None:
    while run.alive:
        if self.policy.grow(run.key):
            self._schedule(run, self.step + self.policy.room(run.key))
            return
        self._preempt(next(iter(self.running.values())))


def forgets_what_was_generated(self: simulate_module._Simulation, run: simulate_module._Run) -> None:
    self._stop(run)
    self.queue.put_in_front(run.waiting)
    self.preemptions += 1
    self._tell("preempt", run.waiting)


def sleeps_a_step_too_long(self: simulate_module._Simulation, waits: bool) -> int:
    return self.due_steps[0] - self.step  # through every arrival


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("_make_room", preempts_the_oldest),
        ("_preempt", forgets_what_was_generated),
        ("_quiet_steps", sleeps_a_step_too_long),
    ],
)
def test_a_faulty_loop_is_found_out(
    monkeypatch: pytest.MonkeyPatch, method: str, fault: Callable[..., object]
) -> None:
    monkeypatch.setattr(simulate_module._Simulation, method, fault)
    rng = random.Random(4)
    drawn = [(rng.choice([0, 0.05, 0.2, 0.9]), rng.randint(1, 12), rng.randint(1, 14)) for _ in range(60)]
    with pytest.raises(AssertionError):
        assert_same(timed(drawn), lambda: Paged(8, 4))


# ---- what else it promises -----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_result() -> None:
    results = [simulate(lognormal(ALPACA, 30, 300, seed), Paged(200, 16)) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2]


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    """A queue that only gets longer: it is read one request ahead, however many wait.

    Python keeps some freed tuples for itself, so a few bytes a request are allowed; to keep one takes 100.
    """

    def peak(count: int) -> int:
        policy = OrcaOracle(1024, 1024)
        tracemalloc.start()
        simulate(lognormal(ALPACA, 1000, count, max_length=1024), policy)
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return memory

    few, many = 2_000, 20_000
    assert (peak(many) - peak(few)) / (many - few) < 10


def test_requests_are_read_only_as_they_are_needed() -> None:
    taken = []

    def stream() -> Iterator[Request]:
        for number in range(5):
            taken.append(number)
            yield Request(float(number), 1, 1)

    at: list[int] = []
    simulate(stream(), Paged(1, 1), STEP, on_event=lambda event: at.append(len(taken)))
    assert at == [2, 2, 3, 3, 4, 4, 5, 5, 5, 5]


def test_longer_outputs_cost_events_and_not_tokens() -> None:
    """A hundred times the tokens in blocks a hundred times the size are as many events."""
    calls = []

    class Counted(Paged):
        def split(self, waiting: bool = False) -> Split:
            calls.append(1)
            return super().split(waiting)

    counts = []
    for factor in (1, 100):
        calls.clear()
        simulate([Request(0, 4 * factor, 40 * factor)], Counted(20, 4 * factor))
        counts.append(len(calls))
    assert counts[0] == counts[1]


# ---- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([Request(2, 1, 1), Request(1, 1, 1)], "request 1 arrives at 1 s, earlier than the one before"),
        ([Request(0, 0, 1)], "request 0 is Request(arrival=0, input_tokens=0, output_tokens=1); it needs"),
        ([Request(0, 1, 1), Request(0, 1, 0)], "it needs at least 1 token in and 1 out"),
        ([Request(float("nan"), 1, 1)], "request 0 arrives at nan s; a time is a finite number"),
        ([Request(float("inf"), 1, 1)], "request 0 arrives at inf s"),
    ],
)
def test_requests_that_make_no_sense_are_refused(requests: list[Request], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        simulate(requests, Paged(4, 4))


def test_tokens_are_whole() -> None:
    with pytest.raises(TypeError, match=r"input_tokens is 1\.5; it must be an integer"):
        simulate([Request(0, 1.5, 1)], Paged(4, 4))  # type: ignore[arg-type]


def test_a_policy_in_use_is_refused_and_one_that_was_used_is_fine() -> None:
    policy = GrowAndMove(32, "first", 2)
    results = [simulate([Request(0, 4, 9), Request(0, 3, 6)], policy) for _ in range(2)]
    assert results[0] == results[1] and results[0].tokens_copied > 0
    policy.admit(0, Request(0, 1, 1))
    with pytest.raises(ValueError, match=r"grow and move \(first fit\) holds something already"):
        simulate([], policy)


@pytest.mark.parametrize("step_time", [StepTime(0, 0.1), StepTime(-1, 0), StepTime(0.1, -0.1)])
def test_steps_take_time(step_time: StepTime) -> None:
    with pytest.raises(ValueError, match="must have a base of at least 1e-6 s"):
        simulate([], Paged(4, 4), step_time)


@pytest.mark.parametrize("every", [0, -1, float("nan")])
def test_samples_are_some_time_apart(every: float) -> None:
    with pytest.raises(ValueError, match=r"sample_every is .*; it must be at least 1e-6 seconds, or None"):
        simulate([], Paged(4, 4), sample_every=every)


def test_a_policy_that_promises_too_much_is_named() -> None:
    policy = Paged(4, 4)
    policy.longest = 100
    with pytest.raises(ValueError, match=r"paged \(block 4\) refuses request 0 of 30 slots"):
        simulate([Request(0, 30, 1)], policy)
