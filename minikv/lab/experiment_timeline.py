"""A run of the experiment over time: what is held, what of it has a token in it, and who waits."""

from __future__ import annotations

import re
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from minikv.lab.experiment_run import Outcome
from minikv.lab.fitted import fitted
from minikv.lab.plots import _SETTINGS, LIGHT, Plot

ROWS = 16  # of the text table; of a longer run every so many steps are shown


class Drawing(Plot):
    """A plot that scales to the page. It is stored once, as SVG, and not as PNG, too: a notebook has many."""

    def __init__(self, plot: Plot) -> None:
        super().__init__(plot.figure, plot.title, plot.table)

    def to_svg(self) -> str:
        """In one line, for line ends count double in a notebook's file."""
        return re.sub(r"\s*\n\s*", " ", super().to_svg())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return fitted(self)


def timeline(outcome: Outcome, title: str | None = None) -> Drawing:
    """Above, slots over the steps: with tokens, held and empty, and all there are. Below, who waits."""
    title = title or f"{outcome.scene.name}: {outcome.label}"
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(7.6, 4.3), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 1))
        _draw_slots(above, outcome)
        _draw_requests(below, outcome)
        figure.suptitle(title, fontsize=12, fontweight="bold")
    return Drawing(Plot(figure, title, table(outcome)))


def _draw_slots(axes: Axes, outcome: Outcome) -> None:
    edges = _edges(outcome)
    tokens = _closed([moment.tokens for moment in outcome.moments])
    held = _closed([moment.slots for moment in outcome.moments])
    flat: dict[str, Any] = {"step": "post", "linewidth": 0}
    axes.fill_between(edges, tokens, color=LIGHT["tint-0"], label="with a token", **flat)
    axes.fill_between(
        edges, tokens, held, facecolor=LIGHT["tint-3"], edgecolor=LIGHT["ink-3"], hatch="//",
        label="held, empty", **flat,
    )  # fmt: skip
    axes.step(edges, tokens, where="post", color=LIGHT["ink-0"], linewidth=2)
    axes.step(edges, held, where="post", color=LIGHT["ink-3"], linewidth=1.5)
    axes.axhline(outcome.slots, color=LIGHT["ink-1"], linestyle="--", linewidth=2, label="all there are")
    axes.set(ylabel="slots", ylim=(0, outcome.slots * 1.08))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def _draw_requests(axes: Axes, outcome: Outcome) -> None:
    moments, edges = outcome.moments, _edges(outcome)
    running = [len(moment.held) for moment in moments]
    both = [moment.waiting + runs for moment, runs in zip(moments, running, strict=True)]
    flat: dict[str, Any] = {"step": "post", "linewidth": 0.6}
    axes.fill_between(edges, _closed(running), color=LIGHT["ink-cache"], label="running", **flat)
    axes.fill_between(
        edges, _closed(running), _closed(both), facecolor=LIGHT["tint-2"], edgecolor=LIGHT["ink-2"],
        hatch="\\\\", label="waiting", **flat,
    )  # fmt: skip
    out = [(m.step, y + 0.9) for m, y in zip(moments, both, strict=True) if m.preempted]
    if out:
        style: dict[str, Any] = {"marker": "v", "linestyle": "none", "color": LIGHT["ink-1"]}
        axes.plot(*zip(*out, strict=True), label="one made room", **style)
    axes.set(xlabel="step", ylabel="requests", ylim=(0, max(both, default=0) + 2))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.1), borderaxespad=0)


def _edges(outcome: Outcome) -> list[float]:
    """Where each step begins on the axis, and where the last one ends."""
    return [moment.step - 0.5 for moment in outcome.moments] + [len(outcome.moments) + 0.5]


def _closed(values: list[int]) -> list[int]:
    """As `step="post"` wants them: the last one once more, for its right end. Of none: 0."""
    return [*values, *(values[-1:] or [0])]


def table(outcome: Outcome) -> str:
    """The same as text: blocks (or slots) held, tokens, and requests that run, wait, make room."""
    unit = "blocks" if outcome.unit > 1 else "slots"
    rows = [("step", f"{unit} held", "tokens stored", "running", "waiting", "made room")]
    every = max(1, -(-len(outcome.moments) // ROWS))
    for moment in outcome.moments:
        if (moment.step - 1) % every == 0 or moment.preempted or moment.step == len(outcome.moments):
            cells = (
                moment.step, moment.slots // outcome.unit, moment.tokens, len(moment.held), moment.waiting,
                moment.preempted,
            )  # fmt: skip
            rows.append(tuple(map(str, cells)))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
