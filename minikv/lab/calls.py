"""Who calls whom: a trace of real calls between the layers, as a list, a table and a sequence diagram.

with traced() as calls:
    loop.step([request])
calls.diagram()

Nothing is wrapped or changed. Python itself is asked to report each call (sys.setprofile), and the module
in which a function is written says to which layer it belongs. What counts is a call from one layer into
another.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from minikv.lab.fitted import fitted
from minikv.lab.guide import Table
from minikv.lab.sentences import counted
from minikv.lab.svg_page import WIDTH, SvgPage, paint

YOU = "notebook"
#: lane -> the modules that belong to it, and what the chapter's drawing calls it
LANES: dict[str, tuple[str, ...]] = {
    "loop": ("minikv.decode",),
    "manager": (
        "minikv.manager",
        "minikv.kv_block",
        "minikv.admission",
        "minikv.invariants",
        "minikv.news",
    ),
    "table": ("minikv.block_table",),
    "model": ("minikv.gpt2", "minikv.tokenizer"),
    "backend": ("minikv.attention",),
    "pool": ("minikv.pool",),
}
_LAYER = {"table": "LOGICAL", "manager": "MANAGEMENT", "pool": "STORAGE", "loop": "engine"}
_INK = {"loop": "5", "manager": "1", "table": "0", "model": "3", "backend": "4", "pool": "2"}
_ROW, _TOP, _LEFT = 24, 74, 92
_LONGEST = 12  # calls that repeat, one after the other, and are drawn once


class Call(NamedTuple):
    """One call from one layer into another."""

    caller: str
    callee: str
    name: str  # as in "BlockPool.write"

    @property
    def short(self) -> str:
        """The function's own name; of a class that is made or called, its name with brackets."""
        owner, _, name = self.name.rpartition(".")
        return {"__init__": f"{owner}()", "__call__": f"{owner}(…)"}.get(name, name)


class Fold(NamedTuple):
    """Some calls that come `times` times in a row."""

    calls: tuple[Call, ...]
    times: int


class Calls:
    """The calls of a trace.

    Attributes:
        crossing: calls from one layer into another, in order; looking at a property is not counted.
        by_name: how often each function of any layer was called, as in by_name["BlockPool.write"].
    """

    def __init__(self) -> None:
        self.crossing: list[Call] = []
        self.by_name: Counter[str] = Counter()

    def count(self, caller: str, callee: str, name: str = "") -> int:
        """Calls between two lanes; of one function only, if its short name is given."""
        return sum(
            (call.caller, call.callee) == (caller, callee) and name in ("", call.short)
            for call in self.crossing
        )

    def pairs(self) -> set[tuple[str, str]]:
        """(caller, callee) of every call."""
        return {(call.caller, call.callee) for call in self.crossing}

    def table(self) -> Table:
        """Who calls whom, and how often."""
        rows = []
        for caller in (YOU, *LANES):
            for callee in LANES:
                names = Counter(c.short for c in self.crossing if (c.caller, c.callee) == (caller, callee))
                if names:
                    called = ", ".join(f"{name} ×{times}" for name, times in names.items())
                    rows.append((caller, callee, called))
        return Table(("who", "calls", "what"), rows)

    def diagram(self) -> Diagram:
        """The calls as a sequence diagram."""
        return Diagram(self.crossing)

    def __repr__(self) -> str:
        return f"Calls({counted(len(self.crossing), 'call')} between layers)"


@contextmanager
def traced() -> Iterator[Calls]:
    """Note every call between the layers while the with block runs, in this thread. May be nested."""
    calls = Calls()
    before: Any = sys.getprofile()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if before is not None:  # an outer trace goes on
            before(frame, event, argument)
        if event != "call" or (callee := _lane(frame)) is None:
            return
        name = frame.f_code.co_qualname.replace(".<locals>", "")
        calls.by_name[name] += 1
        caller = _caller(frame)
        if caller != callee and not _is_property(frame):
            calls.crossing.append(Call(caller, callee, name))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def imports_torch(module: str) -> bool:
    """Whether a fresh Python that imports `module` has torch in its memory afterwards.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    code = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise ModuleNotFoundError(
            f"{module} cannot be imported: {done.stderr.strip().rpartition(chr(10))[2]}"
        )
    return done.stdout.strip() == "True"


def _lane(frame: FrameType) -> str | None:
    module = frame.f_globals.get("__name__", "")
    for lane, modules in LANES.items():
        if module.startswith(modules):
            return lane
    return None


def _caller(frame: FrameType) -> str:
    """The lane of the nearest frame below that has one; library frames in between are passed over."""
    below = frame.f_back
    while below is not None:
        if (lane := _lane(below)) is not None:
            return lane
        below = below.f_back
    return YOU


def _is_property(frame: FrameType) -> bool:
    owner, _, name = frame.f_code.co_qualname.rpartition(".")
    found = getattr(frame.f_globals.get(owner), "__dict__", {}).get(name)
    return isinstance(found, property) or name in ("<listcomp>", "<genexpr>", "<lambda>")


# ---- the diagram ------------------------------------------------------------------------------------


def folded(calls: Sequence[Call]) -> list[Fold]:
    """The calls in order, with what repeats one after the other told once."""
    folds: list[Fold] = []
    place = 0
    while place < len(calls):
        length, times = 1, 1
        for period in range(1, _LONGEST + 1):
            again = _repeats(calls, place, period)
            if again > 1 and again * period > length * times:
                length, times = period, again
        folds.append(Fold(tuple(calls[place : place + length]), times))
        place += length * times
    return folds


def _repeats(calls: Sequence[Call], place: int, period: int) -> int:
    pattern, times = calls[place : place + period], 1
    while calls[place + times * period : place + (times + 1) * period] == pattern:
        times += 1
    return times


class Diagram:
    """Calls as a sequence diagram: a lane for each layer, time runs down. As text where SVG is not shown."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._folds = folded(calls)
        seen = {lane for call in calls for lane in (call.caller, call.callee)}
        self._lanes = [lane for lane in (YOU, *LANES) if lane in seen]

    def to_svg(self) -> str:
        """One <svg> element."""
        page = SvgPage("Who calls whom", repr(self))
        rows = sum(len(fold.calls) for fold in self._folds)
        bottom = _TOP + _ROW * rows + 8
        for lane in self._lanes:
            self._lane_head(page, lane, bottom)
        row = 0
        for fold in self._folds:
            if fold.times > 1:
                _bracket(page, _TOP + _ROW * row, _ROW * len(fold.calls), fold.times)
            for call in fold.calls:
                self._arrow(page, call, _TOP + _ROW * row + 17)
                row += 1
        return page.finish(bottom + 12)

    def _x(self, lane: str) -> float:
        step = (WIDTH - 2 * _LEFT) / max(1, len(self._lanes) - 1)
        return _LEFT + step * self._lanes.index(lane)

    def _lane_head(self, page: SvgPage, lane: str, bottom: float) -> None:
        x, ink = self._x(lane), _INK.get(lane)
        tint, line = (f"tint-{ink}", f"ink-{ink}") if ink else ("panel", "line")
        page.raw(
            f'<path d="M{x:.1f} 56V{bottom:.1f}"{paint("stroke", line)} stroke-dasharray="4 4" fill="none"/>'
        )
        page.box(x - 62, 14, (124, 42), tint, line)
        page.text(x, 32, lane, line if ink else "ink", 13, text_anchor="middle", font_weight=700)
        page.text(x, 48, _LAYER.get(lane, ""), "soft", 10.5, text_anchor="middle")

    def _arrow(self, page: SvgPage, call: Call, y: float) -> None:
        start, end = self._x(call.caller), self._x(call.callee)
        way, ink = (1 if end > start else -1), _INK[call.callee]
        colour = paint("stroke", f"ink-{ink}")
        head = f"m{-7 * way} -4l{7 * way} 4l{-7 * way} 4"
        page.raw(
            f'<path d="M{start:.1f} {y:g}H{end - 3 * way:.1f}{head}"{colour} stroke-width="1.6" fill="none"/>'
        )
        rim = f'stroke-width="4" stroke-linejoin="round" paint-order="stroke"{paint("stroke", "bg")}'
        anchor = "end" if way > 0 else "start"
        page.raw(
            f'<text x="{end - 13 * way:.1f}" y="{y - 7:g}" font-size="12" text-anchor="{anchor}" {rim}'
            f"{paint('fill', f'ink-{ink}')}>{call.short}</text>"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return fitted(self)

    def __repr__(self) -> str:
        lines = []
        for fold in self._folds:
            if fold.times > 1:
                lines.append(f"{fold.times} times:")
            indent = "    " if fold.times > 1 else ""
            lines += [f"{indent}{c.caller:8} → {c.callee:8} {c.short}" for c in fold.calls]
        return "\n".join(lines)


def _bracket(page: SvgPage, y: float, height: float, times: int) -> None:
    page.box(8, y + 1, (WIDTH - 16, height), "none", "line", rx=6)
    page.text(16, y + 17, f"{times} times", "soft", 12, font_weight=700)
