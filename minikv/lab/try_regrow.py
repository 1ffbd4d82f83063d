"""Let a learner's own `regrow` decide where runs go in a real engine; see where it goes another way.

tried = try_regrow(regrow)
print(tried)
tried.picture
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikv.engine.contiguous import Run
from minikv.lab.exercises import check
from minikv.lab.exercises.exercise import folded
from minikv.lab.exercises.modes import broken_by, foreign, why_not
from minikv.lab.exercises.modes import regrow as ours
from minikv.lab.modes_bench import RunBench
from minikv.lab.modes_picture import MemoryPicture

#: (prompt, max_new_tokens), all at once; in it runs stay, move, slide and find no room
STORY: tuple[tuple[str, int], ...] = (
    ("Ada has three red kites .", 4),
    ("Bo has two gold cups . Tell me what Bo has .", 6),
    ("Eva has six grey drums .", 14),
)
ASKED = 1  # whose answer is shown


class RegrowTryout:
    """What came of it.

    Attributes:
        name: of the learner's function.
        said: how the run ended, as a sentence; None if the code is not written yet.
        first: the first divergence from ours, as a sentence; None: there was none.
        accepted: whether `check` takes the function, for its states of memory are more than this run's.
        stopped: the run came to no end.
        picture: the memory at the first divergence, the place that was asked for marked; if there is none,
            before a run slides; None if nothing ran.
        kinds: how often a run stayed, moved, slid, or found no room.
        tokens_moved: in the whole run.
        ours: what comes of the same requests with our rule; None if that need not be said.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: str | None = None
        self.first: str | None = None
        self.accepted = self.stopped = False
        self.picture: MemoryPicture | None = None
        self.kinds = {"stayed": 0, "moved": 0, "slid": 0, "found no room": 0}
        self.tokens_moved = 0
        self.ours: RegrowTryout | None = None

    def __repr__(self) -> str:
        if self.said is None:
            return f"{self.name} is not written yet."
        lines = self._lines()
        if self.ours is not None:
            lines += self.ours._lines()
        if self.first:
            lines.append(f"First divergence: {self.first}")
        elif self.accepted and not self.stopped:
            lines.append("Every place asked for in this run as ours.")
        elif not self.stopped:
            lines.append('check("09.regrow", …) rejects it, for a reason that this run does not show.')
        return folded("\n".join(lines), indent="  ")

    def _lines(self) -> list[str]:
        """How the run went: the answer, and what the runs did."""
        counts = ", ".join(f"{kind} {count}×" for kind, count in self.kinds.items())
        return [f"With {self.name} {self.said}", f"  runs {counts}; {self.tokens_moved} tokens were moved."]


class _NoPlace(Exception):
    """Slots that are somebody else's were asked for: the run cannot go on."""


def try_regrow(regrow: Callable[..., Any]) -> RegrowTryout:
    """Serve some requests in a contiguous memory that grows, with the learner's function in place of ours.

    A place that is free, though it is another than ours, is taken, and the run goes on.

    Raises:
        TypeError: anything but a function.
    """
    if not callable(regrow) or isinstance(regrow, type):
        raise TypeError(f"try_regrow takes a function, not {regrow!r}")
    tried = RegrowTryout(getattr(regrow, "__name__", "the function"))
    verdict = check("09.regrow", regrow)
    if "not answered yet" in verdict.message:
        return tried
    tried.accepted = verdict.ok
    _serve(regrow, tried)
    if tried.first:
        tried.ours = RegrowTryout("ours")
        _serve(ours, tried.ours)
    return tried


def _serve(regrow: Callable[..., Any], tried: RegrowTryout) -> None:
    """Run STORY with this rule, and note what came of it."""
    bench = RunBench(num_slots=32, reserve="grow", headroom=1)
    requests = [bench.submit(prompt, limit) for prompt, limit in STORY]
    _stand_in(bench, regrow, tried)
    try:
        bench.run()
        answer = bench.said(requests[ASKED])
        tried.said = f"the model says: {answer} ({bench.engine.metrics()['preempted']} preempted)"
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        reason = "" if isinstance(error, _NoPlace) else f" with {type(error).__name__}: {error}"
        tried.said, tried.stopped = f"the run stops{reason}.", True
    tried.tokens_moved = bench.manager.tokens_moved


def _stand_in(bench: RunBench, regrow: Callable[..., Any], tried: RegrowTryout) -> None:
    """Let the bench's manager ask `regrow` where a run that holds slots goes."""
    manager: Any = bench.manager
    engines = manager._room

    def room(table: Run, size: int) -> int | None:
        right = engines(table, size)
        if not table.capacity:
            return right
        state = table.offset, table.capacity, list(manager.holes), size
        said = regrow(*state[:2], list(state[2]), size)
        if said is ... or said != right or isinstance(said, bool | float):
            _diverged(bench, tried, table, said, state)
        elif tried.first is None and (tried.picture is None or _kind(said, state) == "slid"):
            aim = None if said is None else (said, size)
            tried.picture = bench.picture(f"Before request {table.name} grows", aim)
        tried.kinds[_kind(said, state)] += 1
        return said

    manager._room = room


def _diverged(
    bench: RunBench, tried: RegrowTryout, table: Run, said: Any, state: tuple[int, int, list[Any], int]
) -> None:
    """Note the first divergence. _NoPlace: the engine could not go on from there."""
    start, held, holes, size = state
    number = isinstance(said, int) and not isinstance(said, bool)
    if tried.first is None:
        broken = broken_by(said, *state)
        where = f"request {table.name} holds slots {start} to {start + held - 1} and needs {size}"
        call = f"{tried.name}({start}, {held}, {holes}, {size}) is {said!r}"
        name = f" That breaks {broken}, conservation." if broken else ""
        tried.first = f"{where}; {call}. {why_not(said, *state)}{name}"
        inside = number and said >= 0 and said + size <= bench.manager.num_slots
        title = f"First divergence: before request {table.name} grows"
        tried.picture = bench.picture(title, (said, size) if inside else None)
    if said is None:
        return
    # A run that is copied upwards over itself is not ours to mend: the engine never does that.
    if not number or foreign(said, *state) is not None or start < said < start + held:
        raise _NoPlace


def _kind(said: int | None, state: tuple[int, int, list[Any], int]) -> str:
    start, _, holes, size = state
    if said is None:
        return "found no room"
    if said == start:
        return "stayed"
    return "moved" if any(first <= said and said + size <= first + room for first, room in holes) else "slid"
