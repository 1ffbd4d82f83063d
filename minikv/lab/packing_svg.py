"""The packing board as a static SVG: no script, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from minikv.lab.packing_split import KINDS, Split
from minikv.lab.packing_text import COLUMNS, Slot, slots_of, waiting_line
from minikv.lab.plots_memory import legend, pieces, stacked_bar
from minikv.lab.sentences import counted
from minikv.lab.svg_page import SvgPage, cut, paint, wrapped

if TYPE_CHECKING:
    from minikv.lab.packing import PackingGame
    from minikv.lab.packing_paged import Paged

_MARGIN, _LEFT, _RIGHT = 24, 64, 1016
_CELL = (39.6, 30.0)
_INKS = 6


def board_svg(game: PackingGame, paged: Paged | None, aim: tuple[int, int] | None = None) -> str:
    """The board as one <svg> element. `aim`: start and size of slots to be marked."""
    title = f"Packing game, step {game.steps} of {game.num_steps}"
    page = SvgPage(title, game.sentence)
    inks = {request.name: number % _INKS for number, request in enumerate(game.requests)}
    y = _header(page, game)
    page.text(_MARGIN, y, cut(waiting_line(game), 990, 12.5), "soft", 12.5)
    y = _strip(page, slots_of(game), inks, y + 18, aim)
    y = _bar(page, "Now", game.now(), y + 12, "slots")
    if game.steps:
        y = _history(page, game.splits, game.num_steps, y + 10)
        y = _score_line(page, game, y)
    if paged:
        y = _paged(page, paged, inks, y + 14)
    return page.finish(legend(page, _LEFT, y + 16, list(KINDS)))


def _header(page: SvgPage, game: PackingGame) -> float:
    page.text(_MARGIN, 38, f"Step {game.steps} of {game.num_steps}", size=17, font_weight=700)
    lines = wrapped(game.sentence, 104)
    for number, line in enumerate(lines):
        page.text(172, 38 + 21 * number, line, size=15)
    return 70 + 21 * (len(lines) - 1)


def _strip(
    page: SvgPage, slots: Sequence[Slot], inks: dict[str, int], top: float, aim: tuple[int, int] | None = None
) -> float:
    """The slots in lines of 24; where they end. What is alike side by side is one element, to stay small."""
    width, height = _CELL
    for first in range(0, len(slots), COLUMNS):
        y = top + first // COLUMNS * (height + 8)
        page.text(_LEFT - 10, y + 20, str(first), "soft", 11, text_anchor="end")
        line = slots[first : first + COLUMNS]
        for slot, places in groupby(range(len(line)), key=lambda place: line[place]):
            _stretch(page, slot, inks, list(places), y)
        cuts = "".join(f"M{_LEFT + place * width - 1:g} {y:g}v{height:g}" for place in range(1, len(line)))
        page.raw(f'<path d="{cuts}" stroke-width="2"{paint("stroke", "bg")}/>')
        if aim:
            _aim(page, max(aim[0], first) - first, min(sum(aim), first + COLUMNS) - first, y)
    return top + -(-len(slots) // COLUMNS) * (height + 8)


def _stretch(page: SvgPage, slot: Slot, inks: dict[str, int], places: list[int], y: float) -> None:
    """Slots of one line that are all alike."""
    x, size = _LEFT + places[0] * _CELL[0], (len(places) * _CELL[0] - 2, _CELL[1])
    if slot is None:
        page.box(x, y, size, "well", "line", rx=4)
        return
    ink = inks[slot[0]]
    if not slot[1]:
        page.pattern(x, y, size, str(ink), "5")
        return
    page.box(x, y, size, f"tint-{ink}", f"ink-{ink}", rx=4)
    for place in places:
        middle = _LEFT + (place + 0.5) * _CELL[0] - 1
        page.text(middle, y + 19.5, slot[0], f"ink-{ink}", 12.5, text_anchor="middle", font_weight=700)


def _aim(page: SvgPage, first: int, stop: int, y: float) -> None:
    """A frame around the places first … stop - 1 of a line, if there are any."""
    if first < stop:
        size = ((stop - first) * _CELL[0], _CELL[1] + 6)
        page.box(_LEFT + first * _CELL[0] - 1, y - 3, size, "none", "warn", stroke_width=2.5, rx=5)


def _bar(page: SvgPage, label: str, found: Split, y: float, unit: str) -> float:
    """One bar, split by kind; where it ends."""
    page.text(_LEFT - 10, y + 16, label, "soft", 11.5, text_anchor="end")
    stacked_bar(page, found._asdict(), (_LEFT, y), _RIGHT - _LEFT, unit)
    return y + 34


def _history(page: SvgPage, splits: Sequence[Split], num_steps: int, top: float) -> float:
    """A column for each step; where they end. One path holds all pieces of a kind."""
    height, width = 84.0, (_RIGHT - _LEFT) / num_steps
    page.text(_LEFT - 10, top + height / 2, "So far", "soft", 11.5, text_anchor="end")
    paths: dict[str, str] = dict.fromkeys(KINDS, "")
    for number, found in enumerate(splits):
        y = top + height
        for kind, amount in found._asdict().items():
            part = height * amount / found.slots
            y -= part
            if part:
                x = _LEFT + number * width
                paths[kind] += f"M{x:.1f} {y:.1f}h{width - 3:.1f}v{part:.1f}h{3 - width:.1f}z"
    for kind, path in paths.items():
        if path:
            pieces(page, kind, path)
    page.raw(f'<path d="M{_LEFT} {top + height + 1:g}H{_RIGHT}"{paint("stroke", "soft")}/>')
    return top + height + 6


def _score_line(page: SvgPage, game: PackingGame, y: float) -> float:
    score = game.score
    facts = [
        f"{score.split.tokens:.1f} % of the memory held tokens",
        f"{score.served} served",
        f"{counted(score.tokens_copied, 'token')} copied",
        f"dropped {score.dropped}×",
    ]
    page.text(_LEFT, y + 16, " · ".join(facts), size=13.5, font_weight=700)
    return y + 26


def _paged(page: SvgPage, paged: Paged, inks: dict[str, int], y: float) -> float:
    page.raw(f'<path d="M{_MARGIN} {y:g}H{_RIGHT}"{paint("stroke", "line")}/>')
    score = paged.score
    title = f"The same requests, paged (blocks of {paged.block_size}): {score.split.tokens:.1f} % tokens"
    facts = f"{score.served} served, nothing copied, dropped {score.dropped}×; below, its memory at the end"
    page.text(_LEFT, y + 24, title, size=13.5, font_weight=700)
    page.text(_LEFT, y + 42, facts, "soft", 12)
    y = _bar(page, "Mean", score.split, y + 54, "%")
    return _strip(page, paged.slots, inks, y + 4)
