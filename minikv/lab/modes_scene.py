"""The same requests in paged and in contiguous memory: latency, throughput and memory, one line each.

    scene = asked(requests=24, slots=256, limit=40)
    TwoModes(scene)             # a line for each kind of memory, all with the same answers

Steps are counted, and the same on every machine. Seconds are this machine's.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

from minikv.gpt2 import GPT2
from minikv.lab.experiment_run import STEPS_PER_SECOND, Experiment, Outcome, Scene
from minikv.lab.experiment_scenes import questions
from minikv.lab.read_costs import one_thread
from minikv.sim.results import Cell, Table

#: kind of memory -> what an Engine is told
MEMORIES: dict[str, dict[str, Any]] = {
    "paged": {"cache": "paged"},
    "contiguous, max": {"cache": "contiguous", "reserve": "max"},
    "contiguous, grow": {"cache": "contiguous", "reserve": "grow"},
}


def asked(
    requests: int = 24,
    slots: int = 256,
    limit: int = 40,
    stop: bool = True,
    people: int = 3,
    block_size: int = 16,
    gap: int = 0,
    name: str = "requests",
) -> Scene:
    """Questions about ledgers, as a scene.

    Args:
        requests: how many.
        slots: of the memory, in any of its kinds; a multiple of block_size.
        limit: max_new_tokens, at least 6: all that the server knows of an answer's length.
        stop: whether an answer ends with its full stop, after 6 tokens; else it goes on to the limit.
        people: in a ledger, 1 to this many; a prompt has 6 tokens for each, and 5.
        block_size: of paged memory.
        gap: steps between one request's coming and the next one's; 0: all come at once.

    Raises:
        ValueError: a number outside its limits.
    """
    least = {"requests": 1, "slots": 1, "limit": 6, "people": 1, "block_size": 1, "gap": 0}
    given = locals()
    for what, smallest in least.items():
        if isinstance(given[what], bool) or not isinstance(given[what], int) or given[what] < smallest:
            why = " (an answer has 6 tokens)" if what == "limit" else ""
            raise ValueError(
                f"{what} is {given[what]!r}; it must be a whole number, at least {smallest}{why}"
            )
    if slots % block_size:
        raise ValueError(f"{slots} slots are no whole number of blocks of {block_size}; change one of them")
    asks = tuple(
        ask._replace(stop="." if stop else None, at=1 + gap * place)
        for place, ask in enumerate(questions(requests, limit, most_people=people))
    )
    return Scene(name, asks, slots // block_size, block_size)


@dataclass(frozen=True)
class Served:
    """What became of a scene in one kind of memory.

    Attributes:
        memory: which kind.
        outcome: of the experiment, moment by moment.
        ttft: steps from a request's coming to its first token, mean.
        tpot: steps for each token after the first, mean over the requests.
        ttft_ms, tpot_ms: the same two in milliseconds of this machine, on one thread.
        seconds: that all steps took together.
    """

    memory: str
    outcome: Outcome
    ttft: float
    tpot: float
    ttft_ms: float
    tpot_ms: float
    seconds: float

    @property
    def steps(self) -> int:
        """Until all were done."""
        return self.outcome.steps

    @property
    def refused(self) -> int:
        """Requests that could not run even alone."""
        return self.outcome.counts["oom"]

    @property
    def row(self) -> tuple[Cell, ...]:
        """Its line in a table: latency, throughput, memory; counts only."""
        outcome = self.outcome
        return (
            self.memory, self.ttft, self.tpot, self.steps, outcome.num_tokens / self.steps,
            outcome.mean_running, outcome.most_running, 100 * outcome.mean_tokens,
            outcome.counts["preempted"], outcome.tokens_moved,
        )  # fmt: skip

    @property
    def times(self) -> tuple[Cell, ...]:
        """Its line in a table of times."""
        a_step = 1000 * self.seconds / self.steps
        return self.memory, self.ttft_ms, self.tpot_ms, a_step, self.outcome.num_tokens / self.seconds


TIMES = ("memory", "TTFT, ms", "TPOT, ms", "a step, ms", "tokens a second")
HEAD = (
    "memory", "TTFT, steps", "TPOT, steps", "steps in all", "tokens a step", "running, mean", "at most",
    "slots with a token, %", "preempted", "tokens moved",
)  # fmt: skip


def serve(
    scene: Scene, memory: str = "paged", attention: str = "gather", model: GPT2 | None = None
) -> Served:
    """Run a scene to its end.

    Args:
        memory: one of MEMORIES.
        attention: how it is read.

    Raises:
        ValueError: there is no such memory.
    """
    if memory not in MEMORIES:
        raise ValueError(f"there is no memory {memory!r}; there are {', '.join(MEMORIES)}")
    experiment = Experiment(scene, model, **MEMORIES[memory], attention=attention)
    wall = _Wall(experiment)
    outcome = experiment.outcome()
    waits, paces = _Both(), _Both()
    for request, ask in zip(experiment.requests, scene.asks, strict=True):
        if request is None or request.first_token_at is None or request.ended_at is None:
            continue
        came, first, last = ask.at - 1, _ticks(request.first_token_at), _ticks(request.ended_at)
        waits.add(first - came, wall.between(came, first))
        if (more := len(request.sequences[0].generated) - 1) > 0:
            paces.add((last - first) / more, wall.between(first, last) / more)
    (ttft, ttft_ms), (tpot, tpot_ms) = waits.means, paces.means
    return Served(memory, outcome, ttft, tpot, 1000 * ttft_ms, 1000 * tpot_ms, wall.seconds[-1])


def _ticks(seconds: float) -> int:
    """The experiment's clock, in steps."""
    return round(seconds * STEPS_PER_SECOND)


class _Wall:
    """Runs an experiment to its end, and knows how much time had gone by after each step."""

    def __init__(self, experiment: Experiment) -> None:
        self.ticks, self.seconds = [0], [0.0]
        with one_thread():
            start = perf_counter()
            while not experiment.done:
                experiment.step()
                self.ticks.append(_ticks(experiment.engine.clock()))
                self.seconds.append(perf_counter() - start)

    def between(self, first: int, last: int) -> float:
        """Seconds from the end of one step to the end of another."""
        return self._after(last) - self._after(first)

    def _after(self, tick: int) -> float:
        return self.seconds[bisect_right(self.ticks, tick) - 1]


class _Both:
    """Something counted in steps and measured in seconds."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []

    def add(self, steps: float, seconds: float) -> None:
        self.pairs.append((steps, seconds))

    @property
    def means(self) -> tuple[float, float]:
        """Of steps and of seconds; 0 of nothing."""
        if not self.pairs:
            return 0.0, 0.0
        steps, seconds = zip(*self.pairs, strict=True)
        return fmean(steps), fmean(seconds)


class DifferentAnswers(AssertionError):
    """Two kinds of memory, and not the same answers."""


class TwoModes:
    """A scene in several kinds of memory. It prints itself as a table of counts.

    Args:
        scene: see `asked`.
        memories: some of MEMORIES.
        attention: how they are read.
        rounds: times that each is run, in turns; the fastest counts. The counts are the same each time.

    Attributes:
        served: memory -> what became of it.

    Raises:
        DifferentAnswers: the answers are not the same, token for token.
    """

    def __init__(
        self,
        scene: Scene,
        memories: tuple[str, ...] = tuple(MEMORIES),
        attention: str = "gather",
        model: GPT2 | None = None,
        rounds: int = 1,
    ) -> None:
        self.scene = scene
        runs = [
            {memory: serve(scene, memory, attention, model) for memory in memories} for _ in range(rounds)
        ]
        self.served = {memory: min((run[memory] for run in runs), key=_seconds) for memory in memories}
        first = next(iter(self.served.values()))
        for memory, each in self.served.items():
            for ours, theirs in zip(first.outcome.texts, each.outcome.texts, strict=True):
                if None not in (ours, theirs) and ours != theirs:
                    raise DifferentAnswers(f"{memory} says {theirs!r}, {first.memory} {ours!r}")

    @property
    def same(self) -> bool:
        """Everybody was served in every memory: what follows compares the same work."""
        return not any(each.refused for each in self.served.values())

    @property
    def table(self) -> Table:
        """Counts, the same on every machine."""
        scene = self.scene
        slots = scene.num_blocks * scene.block_size
        title = f"{scene.name}: {len(scene.asks)} in {slots} slots, limit {scene.asks[0].limit}"
        return Table(title, HEAD, [each.row for each in self.served.values()])

    @property
    def times(self) -> Table:
        """The same in milliseconds: this machine's, and other ones each time."""
        return Table(f"{self.scene.name}: times", TIMES, [each.times for each in self.served.values()])

    def _repr_markdown_(self) -> str:
        return self.table._repr_markdown_()

    def __repr__(self) -> str:
        return repr(self.table)


def _seconds(served: Served) -> float:
    return served.seconds
