"""Sliders to turn: what changes when one number does. Each redraws a picture, and has its numbers as text."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import ipywidgets
import numpy as np

from minikv.lab.sentences import counted
from minikv.lab.svg_page import SvgPage, paint

#: The block sizes of the slider: every one up to 16, then some of each octave.
SIZES = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
ROWS = 5  # requests that are drawn
_HEIGHT, _CHART = 352, (430, 120)  # of the picture, of one chart in it
_ROW_LEFT, _ROW_WIDTH = 124, 892
_LEAST_WIDTH = 4  # blocks narrower than this are not drawn one by one


class BlockCosts(NamedTuple):
    """What a block size costs, on average over some requests."""

    entries: float  # table entries a request, which is its blocks
    empty: float  # slots a request that its last block holds and it does not use
    share: float  # of all slots held, in [0, 1]


def block_costs(lengths: Sequence[int], block_size: int) -> BlockCosts:
    """The costs of a block size when requests of these lengths (tokens stored, at least 1) are all held.

    Raises:
        ValueError: no lengths, one below 1, or block_size below 1.
    """
    tokens = np.asarray(lengths)
    if tokens.size == 0 or tokens.min() < 1:
        raise ValueError("lengths are tokens stored: at least one request, each with at least 1 token")
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be at least 1")
    blocks = -(-tokens // block_size)
    empty = blocks * block_size - tokens
    return BlockCosts(
        float(blocks.mean()), float(empty.mean()), float(empty.sum() / (blocks.sum() * block_size))
    )


class BlockSizeExplorer:
    """A slider for the block size, and a picture of both things that it changes.

    Args:
        lengths: name of a workload -> tokens stored by each of its requests.
        block_size: where the slider begins; one of `SIZES`.

    Attributes:
        slider, workload, picture: the widgets; setting the first two redraws the third.
    """

    def __init__(self, lengths: Mapping[str, Sequence[int]], block_size: int = 16) -> None:
        self.lengths = dict(lengths)
        self._curves = {
            name: [block_costs(each, size) for size in SIZES] for name, each in self.lengths.items()
        }
        self.slider = ipywidgets.SelectionSlider(
            options=SIZES, value=block_size, description="block size", layout={"width": "28em"}
        )
        self.workload = ipywidgets.Dropdown(options=list(self.lengths), description="requests")
        # The height is fixed, so that nothing below the picture moves.
        self.picture = ipywidgets.HTML(layout={"height": f"{_HEIGHT + 12}px", "overflow": "hidden"})
        for control in (self.slider, self.workload):
            control.observe(self._redraw, names="value")
        self._redraw()

    @property
    def costs(self) -> BlockCosts:
        """At the place where the slider stands."""
        return self._curves[self.workload.value][SIZES.index(self.slider.value)]

    def _redraw(self, change: object = None) -> None:
        self.picture.value = self.to_svg()

    def to_svg(self) -> str:
        """The picture as one <svg> element."""
        name, size, costs = self.workload.value, self.slider.value, self.costs
        page = SvgPage(f"Block size {size}, requests like {name}", _sentence(costs))
        page.text(24, 36, f"Block size {size}", size=17, font_weight=700)
        page.text(176, 36, _sentence(costs), size=13.5)
        curves = self._curves[name]
        _chart(page, 66, "Empty: per cent of the slots held", [100 * c.share for c in curves], size)
        _chart(page, 582, "Table entries a request", [c.entries for c in curves], size)
        _rows(page, _sample(self.lengths[name]), size)
        return page.finish(_HEIGHT)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        controls = ipywidgets.HBox([self.slider, self.workload])
        data = ipywidgets.VBox([controls, self.picture])._repr_mimebundle_(**kwargs) or {}
        picture = base64.b64encode(self.to_svg().encode()).decode()
        image = f'<img alt="{escape(repr(self))}" src="data:image/svg+xml;base64,{picture}">'
        return {**data, "text/html": image, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Block size {self.slider.value}, {self.workload.value}: {_sentence(self.costs)}"


def _sentence(costs: BlockCosts) -> str:
    return (
        f"On average a request leaves {costs.empty:.1f} slots of its last block empty, "
        f"{100 * costs.share:.1f} per cent of what it holds, and its table has {costs.entries:.1f} entries."
    )


def _sample(lengths: Sequence[int]) -> list[int]:
    """Some lengths from short to long: the middles of as many equal parts of all."""
    ordered = sorted(lengths)
    return [ordered[(2 * n + 1) * len(ordered) // (2 * ROWS)] for n in range(ROWS)]


# ---- drawing --------------------------------------------------------------------------------


def _chart(page: SvgPage, left: float, title: str, values: Sequence[float], size: int) -> None:
    """One curve over all sizes (their logarithm), with a dot where the slider stands."""
    width, height = _CHART
    top, most = 84.0, max(values) or 1.0
    points = [
        (left + width * math.log2(each) / 8, top + height * (1 - value / most))
        for each, value in zip(SIZES, values, strict=True)
    ]
    page.text(left, top - 14, title, size=12.5, font_weight=700)
    page.text(left - 8, top + 8, f"{most:.3g}", "soft", 11, text_anchor="end")
    page.text(left - 8, top + height, "0", "soft", 11, text_anchor="end")
    for tick in (1, 4, 16, 64, 256):
        x = left + width * math.log2(tick) / 8
        page.raw(f'<path d="M{x:g} {top:g}v{height:g}"{paint("stroke", "line")} fill="none"/>')
        page.text(x, top + height + 16, str(tick), "soft", 11, text_anchor="middle")
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    page.raw(f'<path d="M{line}"{paint("stroke", "ink-0")} stroke-width="2.5" fill="none"/>')
    here = SIZES.index(size)
    x, y = points[here]
    page.raw(
        f'<path d="M{x:.1f} {y:.1f}V{top + height:g}"{paint("stroke", "ink-1")} stroke-dasharray="4 3"/>'
    )
    page.raw(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6"{paint("fill", "ink-1")}/>')
    left_half, high = here < len(SIZES) / 2, y < top + 20
    x, y = x + (11 if left_half else -11), y + (14 if high else -8)
    rim = 'stroke-width="4" stroke-linejoin="round" paint-order="stroke" font-size="13" font-weight="700"'
    colours = f"{paint('fill', 'ink-1')}{paint('stroke', 'bg')}"
    anchor = "start" if left_half else "end"
    page.raw(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {rim}{colours}>{values[here]:.1f}</text>')


def _rows(page: SvgPage, tokens: Sequence[int], size: int) -> None:
    """Some requests as rows of blocks; what the last block holds in vain is hatched."""
    page.text(24, 246, "Five of the requests, short to long", size=12.5, font_weight=700)
    page.text(1016, 246, "hatched: empty slots of the last block", "soft", 11, text_anchor="end")
    # One scale for every block size: the longest row never grows beyond the picture.
    slot = _ROW_WIDTH / (max(tokens) + max(SIZES) - 1)
    for number, length in enumerate(tokens):
        y = 258 + 18 * number
        blocks = -(-length // size)
        held, used = blocks * size * slot, length * slot
        page.text(_ROW_LEFT - 10, y + 11, counted(length, "token"), "soft", 11, text_anchor="end")
        page.box(_ROW_LEFT, y, (used, 14), "tint-0", "ink-0", rx=1)
        if held > used:
            page.pattern(_ROW_LEFT + used, y, (held - used, 14), "3", "0")
        if size * slot >= _LEAST_WIDTH:
            edges = "".join(f"M{_ROW_LEFT + n * size * slot:.1f} {y}v14" for n in range(1, blocks))
            page.raw(f'<path d="{edges}"{paint("stroke", "ink-0")} fill="none"/>')
        page.text(_ROW_LEFT + held + 8, y + 11, counted(blocks, "block"), "soft", 11)
