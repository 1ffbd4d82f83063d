"""Where each kind of memory wins: scenes as points, latency over throughput, relative to paged memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from minikv.lab.experiment_timeline import Drawing
from minikv.lab.modes_scene import Served, TwoModes
from minikv.lab.plots import _SETTINGS, LIGHT, Plot, _short
from minikv.sim.results import Cell, Table

#: memory -> colour, marker, and on which side of the marker the numbers stand
LOOKS = {"contiguous, max": ("ink-1", "s", 1), "contiguous, grow": ("ink-0", "o", -1)}
HEAD = (
    "scene",
    "memory",
    "tokens a step, paged = 1",
    "TTFT, paged = 1",
    "TPOT, paged = 1",
    "held, %",
    "with a token, %",
)


def compared(modes: Sequence[TwoModes]) -> Table:
    """Each scene in each memory: counts relative to paged memory, and how memory was used."""
    rows: list[tuple[Cell, ...]] = []
    for each in modes:
        paged = each.served["paged"]
        for memory, served in each.served.items():
            used = 100 * served.outcome.mean_held, 100 * served.outcome.mean_tokens
            rows.append((each.scene.name, memory, *_relative(served, paged), *used))
    return Table("Latency, throughput and memory", HEAD, rows)


def _relative(served: Served, paged: Served) -> tuple[float, float, float]:
    """Tokens a step, TTFT and TPOT, each as a multiple of paged memory's."""
    pace = served.outcome.num_tokens / served.steps
    return (
        pace / (paged.outcome.num_tokens / paged.steps),
        served.ttft / paged.ttft,
        served.tpot / paged.tpot,
    )


def _places(modes: Sequence[TwoModes], memory: str) -> dict[tuple[float, float], str]:
    """Where this memory's points lie, and which scenes (by number, from 1) are there: several may meet."""
    places: dict[tuple[float, float], str] = {}
    for number, each in enumerate(modes, 1):
        x, y, _ = _relative(each.served[memory], each.served["paged"])
        place = round(x, 2), round(y, 2)
        places[place] = f"{places[place]}, {number}" if place in places else str(number)
    return places


def _points(modes: Sequence[TwoModes]) -> Table:
    """What the map shows, for those who read it as text."""
    rows = [
        (each.scene.name, memory, *_relative(each.served[memory], each.served["paged"])[:2])
        for each in modes
        for memory in LOOKS
    ]
    return Table("Right: more throughput. Down: a shorter wait.", HEAD[:4], rows)


def modes_map(title: str, modes: Sequence[TwoModes]) -> Drawing:
    """A point for each scene and each contiguous memory; paged memory is where the lines cross.

    Right is more throughput, down is a shorter wait. As text it is a table of the points; `compared` has TPOT
    and memory, too.
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(7.6, 4.6), layout="constrained")
        axes: Any = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for which in ("axvline", "axhline"):
            getattr(axes, which)(1, color=LIGHT["soft"], linestyle="--", linewidth=1.2)
        for memory, (ink, marker, side) in LOOKS.items():
            look: dict[str, Any] = {
                "marker": marker,
                "markersize": 9,
                "linestyle": "none",
                "color": LIGHT[ink],
            }
            for place, numbers in _places(modes, memory).items():
                axes.plot(*place, **look)
                axes.annotate(
                    numbers, place, xytext=(10 * side, 0), textcoords="offset points", va="center",
                    ha="left" if side > 0 else "right", color=LIGHT[ink], fontweight="bold",
                    bbox={"facecolor": LIGHT["bg"], "edgecolor": "none", "pad": 0.5},
                )  # fmt: skip
            axes.plot([], [], label=memory, **look)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: _short(value))
        axes.margins(0.18)
        axes.set(
            xlabel="tokens a step, paged = 1 (more is better)", ylabel="TTFT, paged = 1 (less is better)"
        )
        axes.legend(loc="upper right")
        figure.suptitle(title, fontsize=12, fontweight="bold")
    return Drawing(Plot(figure, title, repr(_points(modes))))
