"""Who may begin now? A learner's rule in the place of the scheduler's, and what is certain of every rule.

    tried = try_admission(admit)
    print(tried)
    tried.map()

A rule is a function admit(newcomer, running, num_blocks, block_size) -> bool. The newcomer and each of those
who run is a pair (stored, longest): tokens stored when this step is over, and tokens stored at the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minikv.engine.request import Chunk, Request, Status
from minikv.lab.event_log import EventLog
from minikv.lab.exercises import check
from minikv.lab.exercises.exercise import folded
from minikv.lab.exercises.experiment import admit, closest
from minikv.lab.experiment_run import Experiment, Outcome, Scene
from minikv.lab.experiment_scenes import SCENES
from minikv.lab.stand_in import Tryout
from minikv.lab.watched import Divergence
from minikv.sim.results import Table

Pair = tuple[int, int]
Rule = Callable[[Pair, list[Pair], int, int], Any]


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that so many tokens take."""
    return -(-tokens // block_size)


def most_together(pairs: Sequence[Pair], block_size: int) -> int:
    """The most blocks that these hold at once, if each goes on to its longest, a token a step."""
    steps = max((longest - stored for stored, longest in pairs), default=0)
    return max(
        sum(blocks_for(stored + step, block_size) for stored, longest in pairs if stored + step <= longest)
        for step in range(steps + 1)
    )


class Bounds(NamedTuple):
    """What is certain of a decision.

    Attributes:
        most: blocks that all of them together hold at once, at the worst. Above the pool: one may have to
            make room.
        reserved: blocks, if each had all of its longest at once. Within the pool: nobody can ever be short.
    """

    most: int
    reserved: int

    def fault(self, answer: bool, num_blocks: int) -> str | None:
        """What is wrong with an answer; None if nothing is."""
        if answer and self.most > num_blocks:
            return (
                f"in some step to come they may need {self.most} blocks, and there are {num_blocks}: "
                "one would have to make room"
            )
        if not answer and self.reserved <= num_blocks:
            return (
                f"even if each came to its longest at once, {self.reserved} blocks would do, and there are "
                f"{num_blocks}: it waits without need"
            )
        return None


def bounds(newcomer: Pair, running: Sequence[Pair], block_size: int) -> Bounds:
    """Of letting the newcomer in beside those who run."""
    everybody = [*running, newcomer]
    return Bounds(
        most_together(everybody, block_size), sum(blocks_for(longest, block_size) for _, longest in everybody)
    )


# ---- on the engine -------------------------------------------------------------------------------


class AdmissionTryout(Tryout):
    """What came of it.

    Attributes:
        outcome: of the run; None if it was not written yet, or the run stopped.
    """

    outcome: Outcome | None = None

    def __repr__(self) -> str:
        if self.outcome is not None and self.first is None:
            return (
                f"With {self.name} {self.said}\nIn this scene nobody had to make room, and nobody waited "
                'without need.\nOther scenes may show more: check("10.admit", …) judges.'
            )
        told = super().__repr__()
        if self.first is not None:
            step = f"step {self.first.step}"
            told = told.replace(f"{step},", f"{step} of the map,", 1)
        return folded(told, indent="  ")


def try_admission(theirs: Rule, scene: Scene = SCENES["reuse"]) -> AdmissionTryout:
    """Let a rule decide who begins, on the engine. Raises TypeError for anything but a function."""
    if not callable(theirs) or isinstance(theirs, type):
        raise TypeError(f"try_admission takes a function, not {theirs!r}; leave off the brackets")
    name = getattr(theirs, "__name__", "your function")
    if "not answered yet" in check("10.admit", theirs).message:
        return AdmissionTryout(name, None, EventLog())
    log = EventLog()
    experiment = Experiment(scene, log=log)
    gate = _Gate(theirs, experiment)
    try:
        outcome = experiment.to_the_end()
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        said = f"the run stops with {type(error).__name__}: {error}"
        return AdmissionTryout(name, said, log, gate.first)
    tried = AdmissionTryout(name, f"as the rule: {outcome!r}", log, gate.first)
    tried.outcome = outcome
    return tried


def admitting(rule: Rule, scene: Scene) -> Outcome:
    """A scene on an engine in which a rule decides who begins."""
    experiment = Experiment(scene)
    _Gate(rule, experiment)
    return experiment.to_the_end()


def three_rules(scene: Scene) -> Table:
    """What comes of a scene under three rules: what is stored now, the longest of each, and step by step."""
    rules: dict[str, Rule] = {
        "what is stored now must fit": lambda newcomer, running, num_blocks, block_size: True,
        "everybody's longest at once must fit": admit,
        "all must fit in every step to come": closest,
    }
    rows = []
    for name, rule in rules.items():
        outcome = admitting(rule, scene)
        shares = (100 * outcome.held_at_peak, 100 * outcome.mean_tokens)
        rows.append(
            (name, outcome.counts["preempted"], *shares, outcome.mean_running, outcome.steps, outcome.ttft)
        )
    head = (
        "a request begins if",
        "preempted",
        "held, peak %",
        "tokens, mean %",
        "running, mean",
        "steps",
        "ttft, s",
    )
    return Table(f"{scene.name}, three rules", head, rows)


class _Gate:
    """Stands before the scheduler's own admission, and notes the first answer that is certainly wrong."""

    def __init__(self, rule: Rule, experiment: Experiment) -> None:
        self._rule, self._experiment = rule, experiment
        self._scheduler = experiment.engine.scheduler
        self._honest = self._scheduler._admit
        self._scheduler._admit = self._admit  # type: ignore[method-assign]  # as a subclass would do
        self.first: Divergence | None = None

    def _admit(self, request: Request, budget: int) -> list[Chunk]:
        block_size = self._experiment.scene.block_size
        num_blocks = self._experiment.scene.num_blocks
        running = [_pair(each) for each in self._scheduler.running if each.status is Status.RUNNING]
        newcomer = _pair(request)
        answer = self._rule(newcomer, list(running), num_blocks, block_size)
        fault = bounds(newcomer, running, block_size).fault(bool(answer), num_blocks)
        if fault is not None and self.first is None:
            verb = "lets in" if answer else "keeps out"
            self._note(f"The rule {verb} request {request.name}, but {fault}.")
        return self._honest(request, budget) if answer else []

    def _note(self, sentence: str) -> None:
        log = self._experiment.log
        if log is not None:
            log({"op": "note", "text": sentence})
            self.first = Divergence(len(log) - 1, None, None, sentence)


def _pair(request: Request) -> Pair:
    """(stored when this step is over, stored at the most): the last token is never stored."""
    longest = len(request.prompt) + request.params.max_new_tokens - 1
    return len(request.sequences[0].token_ids), longest
