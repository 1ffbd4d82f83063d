"""Plots that follow the page's theme: matplotlib draws, the palette's style sheet colours.

Each line, bar and area has a label of its own, and a marker, a dash or a hatch beside its colour. No pyplot
anywhere: a figure belongs to nobody but its plot, so widgets may make one in a callback.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import BytesIO, StringIO
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minikv.lab.fitted import fitted

_PALETTE_CSS = (Path(__file__).parent / "static" / "palette.css").read_text(encoding="utf-8")
LIGHT = dict(re.findall(r"--mk-([\w-]+):[^;]*light-dark\((#\w+)", _PALETTE_CSS))  # colour -> its light hex
INKS = ("ink-0", "ink-1", "ink-2", "ink-cache", "ink-3", "ink-5")  # Okabe-Ito, as in the block map
MARKERS = ("o", "s", "^", "D", "v", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MANY_POINTS = 40  # above it a line's points are too close for a marker each
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: it can be selected, and takes the theme's colour
    "font.size": 11,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "hatch.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.titlecolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["soft"],
    "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"],
    "grid.color": LIGHT["line"],
    "axes.facecolor": LIGHT["bg"],
    "figure.facecolor": LIGHT["bg"],
    "legend.frameon": False,
}
Scale = Literal["linear", "log", "log2"]


class Plot:
    """A figure. Shown as SVG that follows the theme, as PNG where that is not allowed, as text elsewhere.

    Args:
        figure: drawn in the light colours of `LIGHT`; those are what the theme replaces.
        title: what it shows, for screen readers, too.
        table: the numbers it shows, as text.
    """

    def __init__(self, figure: Figure, title: str, table: str) -> None:
        self.figure, self.title, self.table = figure, title, table

    def to_svg(self) -> str:
        """One <svg> element: both themes, light where a viewer knows no style sheets. The same every time."""
        out = StringIO()
        with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": self.title}):
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return _themed(out.getvalue(), self.title, self.table)

    def to_png(self) -> bytes:
        """The same in light colours, on its own ground; few dots an inch, so that notebooks stay small."""
        out = BytesIO()
        with matplotlib.rc_context(_SETTINGS):
            self.figure.savefig(out, format="png", dpi=64, pil_kwargs={"optimize": True})
        return out.getvalue()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {**fitted(self), "image/png": base64.b64encode(self.to_png()).decode()}

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table}"


def lines(
    title: str,
    x: tuple[str, Sequence[float]],
    y: str,
    series: Mapping[str, Sequence[float]],
    scales: tuple[Scale, Scale] = ("linear", "linear"),
) -> Plot:
    """One line for each series, labelled at its end.

    Args:
        x: name and values of the horizontal axis.
        y: name of the vertical axis.
        series: label -> one value for each of x.
        scales: of the horizontal and the vertical axis.

    Raises:
        ValueError: a series of another length than x.
    """
    name, values = x
    _check_lengths(name, values, series)
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(7.6, 3.6), layout="constrained")
        _draw_lines(figure.add_subplot(), x, y, series, scales)
        figure.suptitle(title, fontsize=12, fontweight="bold")
    return Plot(figure, title, _table(x, series))


def _draw_lines(
    axes: Axes,
    x: tuple[str, Sequence[float]],
    y: str,
    series: Mapping[str, Sequence[float]],
    scales: tuple[Scale, Scale],
) -> None:
    name, values = x
    styles = zip(cycle(INKS), cycle(MARKERS), cycle(DASHES), strict=False)
    ends = []
    for (label, row), (ink, marker, dash) in zip(series.items(), styles, strict=False):
        ends.append((label, ink, (values[-1], row[-1])))
        style: dict[str, Any] = {"color": LIGHT[ink], "marker": marker, "linestyle": dash, "linewidth": 2}
        axes.plot(values, row, label=label, markevery=_marked(values, scales[0]), **style)
    _set_scale(axes.set_xscale, scales[0])
    _set_scale(axes.set_yscale, scales[1])
    for axis, scale in ((axes.xaxis, scales[0]), (axes.yaxis, scales[1])):
        if scale != "linear":
            axis.set_major_formatter(lambda value, _: _short(value))
    axes.minorticks_off()
    axes.grid(linewidth=0.8)
    axes.set(xlabel=name, ylabel=y)
    _label_lines(axes, ends)


def _marked(values: Sequence[float], scale: Scale) -> list[int]:
    """Which points get a marker: all of a few, else some that lie evenly on the axis."""
    if len(values) <= MANY_POINTS:
        return list(range(len(values)))
    place = (lambda value: value) if scale == "linear" else math.log
    first, last = place(values[0]), place(values[-1])
    wanted = [first + (last - first) * n / 8 for n in range(9)]
    return sorted({min(range(len(values)), key=lambda i: abs(place(values[i]) - at)) for at in wanted})


def _label_lines(axes: Axes, ends: Sequence[tuple[str, str, tuple[float, float]]]) -> None:
    """Each line's label (label, ink, point) at its end; in a legend where two would lie on each other."""
    heights = sorted(float(axes.transData.transform(point)[1]) for _, _, point in ends)
    if any(above - below < 16 for below, above in pairwise(heights)):
        axes.legend(loc="best")
        return
    for label, ink, point in ends:
        style: dict[str, Any] = {
            "color": LIGHT[ink],
            "fontweight": "bold",
            "va": "center",
            "annotation_clip": False,
        }
        axes.annotate(label, point, xytext=(7, 0), textcoords="offset points", **style)


def _set_scale(set_scale: Callable[..., Any], scale: Scale) -> None:
    if scale == "log2":
        set_scale("log", base=2)
    else:
        set_scale(scale)


def _short(value: float) -> str:
    """1,000 and 0.01, as people write them."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _check_lengths(name: str, values: Sequence[Any], series: Mapping[str, Sequence[float]]) -> None:
    for label, row in series.items():
        if len(row) != len(values):
            raise ValueError(
                f"{label!r} has {len(row)} values, but {name!r} has {len(values)}; make them equal"
            )


def _table(x: tuple[str, Sequence[Any]], series: Mapping[str, Sequence[float]]) -> str:
    """The numbers, one line for each of x; of many, every so many."""
    name, values = x
    step = max(1, -(-len(values) // 20))
    rows = [[name, *series]] + [
        [
            _short(value) if isinstance(value, int | float) else str(value),
            *(f"{row[i]:.4g}" for row in series.values()),
        ]
        for i, value in enumerate(values)
        if i % step == 0 or i == len(values) - 1
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def _themed(svg: str, title: str, table: str) -> str:
    """Let the palette's variables stand for its light colours, and keep every rule inside this picture."""
    svg = _slim(svg[svg.index("<svg") :])
    svg = re.sub(r"\b(fill|stroke): (#[0-9a-f]{6})", lambda hit: f"{hit[1]}: {_variable(hit[2])}", svg)
    svg = re.sub(
        r'\b(fill|stroke)="(#[0-9a-f]{6})"', lambda hit: f'style="{hit[1]}: {_variable(hit[2])}"', svg
    )
    font = f"font-family:{','.join(_SETTINGS['font.sans-serif'])}"
    head = f'class="minikv-frame minikv-plot" role="img" style="max-width:100%;height:auto;{font}"'
    words = f"<title>{escape(title)}</title><desc>{escape(table)}</desc>"
    style = f"<style>@supports (color:light-dark(#000,#fff)){{{_PALETTE_CSS}}}</style>"
    start, _, rest = svg.replace("*{", ".minikv-plot *{").partition(">")
    return f"{start} {head}>{words}{style}{rest}"


def _slim(svg: str) -> str:
    """Notebooks stay small: no spaces or ids that nobody needs, and a hundredth of a point is fine enough."""
    svg = re.sub(r' id="[a-z0-9.]+_\d+"| transform="rotate\(-0 [^"]*"|font-family: [^;"]*; ?', "", svg)
    return re.sub(r"\n\s*", "\n", re.sub(r"(\d\.\d\d)\d+", r"\1", svg))


def _variable(light: str) -> str:
    """The palette's variable for this light colour; the colour itself, should it not be of the palette."""
    return next((f"var(--mk-{name}, {light})" for name, own in LIGHT.items() if own == light), light)
