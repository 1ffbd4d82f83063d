"""Pictures of what came out. Colour is never alone: every state has a hatch too, and bars carry numbers.

The colours are Okabe and Ito's, safe for colour-blind readers. The background is transparent and text beside
the bars a grey that reads on white and on black.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from minikv.sim.averages import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#7a7a7a"


class Look(NamedTuple):
    """How a state of a slot is drawn."""

    label: str
    colour: str
    hatch: str


LOOKS = {
    "tokens": Look("tokens", "#009e73", ""),
    "reserved": Look("reserved", "#56b4e9", "//"),
    "internal": Look("internal fragmentation", "#e69f00", "xx"),
    "external": Look("external fragmentation, others", "#d55e00", ".."),
    "free": Look("free", "#dddddd", ""),
}


def bars(splits: Mapping[str, Mapping[str, float]]) -> Figure:
    """A stacked bar for each label, from the top down: % of all slots by state."""
    figure, axes = _empty(height=1.3 + 0.42 * len(splits))
    for row, split in enumerate(splits.values()):
        left = 0.0
        for state, look in LOOKS.items():
            width = split.get(state, 0.0)
            axes.barh(row, width, 0.72, left, color=look.colour, hatch=look.hatch, edgecolor="white", lw=0)
            if width >= 4:
                _number(axes, left + width / 2, row, f"{width:.1f}")
            left += width
    axes.set_yticks(range(len(splits)), list(splits))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of KV memory")
    _legend(figure, [state for state in LOOKS if any(split.get(state) for split in splits.values())])
    return figure


def pairs(labels: Sequence[str], published: Sequence[float], ours: Sequence[float], unit: str) -> Figure:
    """Two bars for each label: what was published, and what came out here."""
    figure, axes = _empty(height=0.9 + 0.5 * len(labels))
    sets = (("published", published, GREY, "//", -0.2), ("ours", ours, LOOKS["tokens"].colour, "", 0.2))
    for name, values, colour, hatch, shift in sets:
        rows = [row + shift for row in range(len(labels))]
        drawn = axes.barh(rows, values, 0.38, color=colour, hatch=hatch, edgecolor="white", lw=0, label=name)
        axes.bar_label(drawn, fmt=" %.1f", color=GREY)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, labelcolor=GREY)
    return figure


def over_time(title: str, samples: Sequence[Sample]) -> Figure:
    """The states of the slots over time, stacked."""
    figure, axes = _empty(height=3.6)
    seconds = [sample.seconds for sample in samples]
    heights = [[sample.split.percent[i] for sample in samples] for i in range(len(LOOKS))]
    looks = list(LOOKS.values())
    drawn = axes.stackplot(seconds, heights, colors=[look.colour for look in looks])
    for area, look in zip(drawn, looks, strict=True):
        area.set(hatch=look.hatch, edgecolor="white", linewidth=0)
    axes.set(xlabel="seconds", ylabel="% of KV memory", ylim=(0, 100), xlim=(seconds[0], seconds[-1]))
    axes.set_title(title, color=GREY)
    _legend(figure, [state for state, row in zip(LOOKS, heights, strict=True) if any(row)])
    return figure


def _empty(height: float) -> tuple[Figure, Axes]:
    """A figure of its own, not one that pyplot would show a second time."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
    plt.close(figure)
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    axes.tick_params(colors=GREY)
    axes.xaxis.label.set_color(GREY)
    axes.yaxis.label.set_color(GREY)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    return figure, axes


def _number(axes: Axes, x: float, y: float, text: str) -> None:
    """A number on a bar, on a white label so that no hatch runs through it."""
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    axes.text(x, y, text, ha="center", va="center", color="black", fontsize="small", bbox=box)


def _legend(figure: Figure, states: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=LOOKS[s].colour, hatch=LOOKS[s].hatch, edgecolor="white", lw=0, label=LOOKS[s].label)
        for s in states
    ]
    figure.legend(handles=patches, loc="outside upper center", ncols=3, frameon=False, labelcolor=GREY)
