"""The online softmax, drawn: after each block, how much every token seen so far weighs.

OnlinePicture("three scores", [Shown(0, ("3", "6"), (0, 1), (3, 6)), Shown(1, ("16",), (3,), (16,))], base=2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from minikv.lab.fitted import fitted
from minikv.lab.svg_page import SvgPage, cut

_LEFT, _TOP, _ROW, _BAR = 20.0, 78.0, 122.0, 42.0
_GAP = 8.0  # between blocks
_INKS = ("0", "1", "2", "3", "4", "5")


class Shown(NamedTuple):
    """One block: its tokens, what each scored, and what each says (a number), if that is to be shown."""

    block_id: int
    words: Sequence[str]
    scores: Sequence[float]
    values: Sequence[float] = ()


class Stage(NamedTuple):
    """What is kept when a block has been looked at."""

    block_id: int
    best: float
    shrink: float | None  # what the earlier sums were multiplied by; None for the first block
    total: float
    mixed: float | None  # None without values
    weights: list[list[float]]  # of every token so far, block by block, relative to `best`

    @property
    def result(self) -> float | None:
        """The weighted mean of the values so far."""
        return None if self.mixed is None else self.mixed / self.total


def stages(blocks: Sequence[Shown], base: float = math.e) -> list[Stage]:
    """The online softmax by the book, a stage for each block; weights are base ** (score - best)."""
    found: list[Stage] = []
    best, total, mixed = -math.inf, 0.0, 0.0
    for number, block in enumerate(blocks):
        new_best = max(best, *block.scores)
        shrink = base ** (best - new_best) if found else None
        weights = [base ** (score - new_best) for score in block.scores]
        total = total * (shrink or 0.0) + sum(weights)
        if block.values:
            mixed = mixed * (shrink or 0.0) + sum(
                w * value for w, value in zip(weights, block.values, strict=True)
            )
        best = new_best
        earlier = [[base ** (score - best) for score in each.scores] for each in blocks[:number]]
        kept = mixed if block.values else None
        found.append(Stage(block.block_id, best, shrink, total, kept, [*earlier, weights]))
    return found


class OnlinePicture:
    """A row for each block looked at: the weight of every token so far as a bar. As text the same numbers.

    Args:
        title: what is attended to.
        blocks: in logical order.
        base: of the powers; 2 for sums in the head, e for what attention does.
    """

    def __init__(self, title: str, blocks: Sequence[Shown], base: float = math.e) -> None:
        self.title, self.blocks, self.base = title, list(blocks), base
        self.stages = stages(blocks, base)

    def to_svg(self) -> str:
        """One <svg> element."""
        page = SvgPage(self.title, repr(self))
        page.text(_LEFT, 30, f"Online softmax: {self.title}", size=15, font_weight=700)
        power = "2" if self.base == 2 else "e"
        told = f"the weight of each token seen so far, {power} to the power of (its score - the largest)"
        page.text(_LEFT, 50, told, "soft", 12)
        for number, stage in enumerate(self.stages):
            self._stage(page, number, stage, _TOP + _ROW * number)
        return page.finish(_TOP + _ROW * len(self.stages))

    def _stage(self, page: SvgPage, number: int, stage: Stage, y: float) -> None:
        page.text(_LEFT, y, self._says(stage), "ink", 12.5, font_weight=700)
        tokens = sum(len(block.words) for block in self.blocks)
        wide = min(76.0, (1000.0 - _GAP * (len(self.blocks) - 1)) / tokens)
        x = _LEFT
        for index, block in enumerate(self.blocks):
            width = wide * len(block.words)
            new, ink = index == number, _INKS[index % len(_INKS)]
            if index <= number:
                line = f"ink-{ink}" if new else "line"
                page.box(x, y + 8, (width, _ROW - 28), "panel", line, stroke_width=2 if new else 1)
                for place, word in enumerate(block.words):
                    self._token(
                        page, x + wide * place, y, wide, ink, cut(word, wide), stage.weights[index][place]
                    )
            else:
                page.box(x, y + 8, (width, _ROW - 28), "none", "line", stroke_dasharray="3 4")
                middle = x + width / 2
                page.text(middle, y + 52, f"P{block.block_id}", "soft", 11, text_anchor="middle")
                page.text(middle, y + 68, "not seen", "soft", 10.5, text_anchor="middle")
            x += width + _GAP

    def _token(
        self, page: SvgPage, x: float, y: float, wide: float, ink: str, word: str, weight: float
    ) -> None:
        middle, bar = x + wide / 2, min(40.0, wide - 8)
        page.box(middle - bar / 2, y + 14, (bar, _BAR), "well", "line", rx=2)
        if (height := round(_BAR * weight, 1)) >= 0.4:
            page.box(
                middle - bar / 2, y + 14 + _BAR - height, (bar, height), f"tint-{ink}", f"ink-{ink}", rx=2
            )
        page.text(middle, y + 71, _weight(weight), "soft", 10.5, text_anchor="middle")
        page.text(middle, y + 88, word, "ink", 11, text_anchor="middle")

    def _says(self, stage: Stage) -> str:
        shrink = "" if stage.shrink is None else f" · what was kept × {_short(stage.shrink)}"
        result = (
            "" if stage.result is None else f" · mixed {_short(stage.mixed)} · result {_short(stage.result)}"
        )
        best, total = _short(stage.best), _short(stage.total)
        return f"after P{stage.block_id}: best {best}{shrink} · total {total}{result}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return fitted(self)

    def __repr__(self) -> str:
        lines = [f"Online softmax: {self.title}"]
        for stage in self.stages:
            weights = " | ".join(" ".join(map(_weight, block)) for block in stage.weights)
            lines += [self._says(stage), f"    weights {weights}"]
        return "\n".join(lines)


def _weight(value: float) -> str:
    """At most three digits behind the point; 0 for what cannot be seen."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _short(value: float | None) -> str:
    """At most three digits behind the point, no more than needed; of less, the first digit that is not 0."""
    if value is None:
        return "–"
    if 0 < abs(value) < 0.0005:
        return f"{value:.1g}"
    return f"{value:.3f}".rstrip("0").rstrip(".")
