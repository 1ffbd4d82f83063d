"""Contiguous memory as a picture: runs, holes, and the word that really lies in each slot.

Colours say whose slots they are, by the books. The words are read out of the tensor (memory_words.py), so a
slot whose word is not the one that its owner stored shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from minikv.lab.fitted import fitted
from minikv.lab.memory_words import NOTHING
from minikv.lab.svg_page import SvgPage, cut, paint

COLUMNS = 16
_LEFT, _CELL, _LINE = 62, (60.0, 30.0), 40
# A request keeps its colour from picture to picture: it goes by its name's first letter. None is grey, for
# left-over words are; green is free, for no cache is drawn here.
_INKS = ("cache", "0", "1", "2", "3", "4")


def _place(slot: int) -> tuple[float, float]:
    """Where a slot's cell has its corner."""
    return _LEFT + slot % COLUMNS * _CELL[0], 52.0 + slot // COLUMNS * _LINE


def _lines(start: int, size: int) -> list[tuple[int, int]]:
    """Slots start … start + size - 1, cut where a line ends: [first, stop) each."""
    found = []
    while size > 0:
        stop = min(start + size, (start // COLUMNS + 1) * COLUMNS)
        found.append((start, stop))
        start, size = stop, start + size - stop
    return found


def _ink(name: str) -> str:
    """The colour of a request."""
    return _INKS[(ord(name[0]) - ord("A")) % len(_INKS)]


class Span(NamedTuple):
    """A request's slots [start, start + size), and the words it has stored, from the first slot on."""

    name: str
    start: int
    size: int
    words: tuple[str, ...]


class Wrong(NamedTuple):
    """A slot whose word is not what its owner stored there."""

    slot: int
    name: str
    stored: str
    found: str


class MemoryPicture:
    """One frame of a contiguous memory. Shown as SVG; as text it is a line for each run and hole.

    Args:
        num_slots: of the memory.
        spans: who holds what; in any order.
        words: of each slot, what lies there; NOTHING where no word does.
        title: what is seen.
        aim: (start, size) of slots to be marked, such as a place that was asked for.

    Raises:
        ValueError: spans that lie on each other or outside, or not one word for each slot.
    """

    def __init__(
        self,
        num_slots: int,
        spans: Sequence[Span],
        words: Sequence[str],
        title: str = "Contiguous memory",
        aim: tuple[int, int] | None = None,
    ) -> None:
        if len(words) != num_slots:
            raise ValueError(f"{len(words)} words for {num_slots} slots; give one for each")
        self.num_slots, self.words, self.title, self.aim = num_slots, tuple(words), title, aim
        self.spans = sorted(spans, key=lambda span: span.start)
        end = 0
        for span in self.spans:
            if span.start < end or span.start + span.size > num_slots:
                raise ValueError(
                    f"{span.name} holds [{span.start}, {span.start + span.size}), taken or outside"
                )
            end = span.start + span.size

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Free slots side by side, as (start, size), in address order."""
        ends = [0, *(span.start + span.size for span in self.spans)]
        starts = [*(span.start for span in self.spans), self.num_slots]
        return [(end, start - end) for end, start in zip(ends, starts, strict=True) if start > end]

    @property
    def wrong(self) -> list[Wrong]:
        """Slots in which something else lies than their owner stored, by address."""
        return [
            Wrong(span.start + place, span.name, word, self.words[span.start + place])
            for span in self.spans
            for place, word in enumerate(span.words)
            if self.words[span.start + place] != word
        ]

    # ---- as a picture ------------------------------------------------------------------------

    def to_svg(self) -> str:
        """One <svg> element, for light and dark pages."""
        page = SvgPage(self.title, repr(self))
        page.text(24, 34, self.title, size=15, font_weight=700)
        inks = {span.name: _ink(span.name) for span in sorted(self.spans)}
        for first in range(0, self.num_slots, COLUMNS):
            page.text(_LEFT - 12, _place(first)[1] + 19, str(first), "soft", 11.5, text_anchor="end")
        for start, size in self.holes:
            self._stretch(page, start, size, "", None)
        for span in self.spans:
            stored = len(span.words)
            self._stretch(page, span.start, stored, inks[span.name], span.words)
            self._stretch(page, span.start + stored, span.size - stored, inks[span.name], None)
        self._cuts(page)
        self._frames(page)
        return page.finish(self._key(page, inks, _place(self.num_slots - 1)[1] + _LINE + 8))

    def _stretch(
        self, page: SvgPage, start: int, size: int, ink: str, stored: tuple[str, ...] | None
    ) -> None:
        """Slots that are alike: a hole (no ink), tokens, or reserved and empty ones. A box for each line."""
        for first, stop in _lines(start, size):
            x, y = _place(first)
            box = ((stop - first) * _CELL[0] - 2, _CELL[1])
            if not ink:
                page.box(x, y, box, "well", "line", rx=4)
            elif stored is None:
                page.pattern(x, y, box, ink, "5")
            else:
                page.box(x, y, box, f"tint-{ink}", f"ink-{ink}", rx=4)
        if not ink or stored is not None:
            self._words_of(page, range(start, start + size), f"ink-{ink}" if ink else "soft")

    def _words_of(self, page: SvgPage, slots: range, colour: str) -> None:
        """What lies in these slots; bold if it is somebody's."""
        texts = []
        for slot in slots:
            if self.words[slot] != NOTHING:
                x, y = _place(slot)
                shown = escape(cut(self.words[slot], _CELL[0] - 6, 10.5))
                texts.append(f'<text x="{x + _CELL[0] / 2 - 1:g}" y="{y + 19:g}">{shown}</text>')
        weight = 400 if colour == "soft" else 700
        head = f'<g font-size="11" text-anchor="middle" font-weight="{weight}"{paint("fill", colour)}>'
        if texts:
            page.raw(f"{head}{''.join(texts)}</g>")

    def _cuts(self, page: SvgPage) -> None:
        """Thin gaps between the slots."""
        path = ""
        for first, stop in _lines(0, self.num_slots):
            for slot in range(first + 1, stop):
                x, y = _place(slot)
                path += f"M{x - 1:g} {y - 1:g}v{_CELL[1] + 2:g}"
        page.raw(f'<path d="{path}" stroke-width="2"{paint("stroke", "bg")}/>')

    def _frames(self, page: SvgPage) -> None:
        """Around what is marked, and around words that are not their owner's."""
        aimed = range(self.aim[0], sum(self.aim)) if self.aim else range(0)
        for slot in sorted({wrong.slot for wrong in self.wrong} | set(aimed)):
            if 0 <= slot < self.num_slots:
                x, y = _place(slot)
                size = (_CELL[0] - 2, _CELL[1] + 4)
                page.box(x, y - 2, size, "none", "warn", stroke_width=2.5, rx=5)

    def _key(self, page: SvgPage, inks: dict[str, str], y: float) -> float:
        """Who is who, and what the looks mean."""
        x = float(_LEFT)
        for name, ink in inks.items():
            page.box(x, y, (14, 14), f"tint-{ink}", f"ink-{ink}", rx=3)
            page.text(x + 20, y + 11.5, name, f"ink-{ink}", 12, font_weight=700)
            x += 34 + 8 * len(name)
        notes = [
            ("hatched: reserved, empty", 168),
            ("no colour: a hole; thin words in it are left over", 285),
        ]
        if self.wrong or self.aim:
            notes.append(("framed: see the text", 0))
        for words, width in notes:
            page.text(x + 8, y + 11.5, words, "soft", 12)
            x += width + 8
        return y + 34

    # ---- as text -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        pieces = [(span.start, span.size, span) for span in self.spans]
        pieces += [(start, size, None) for start, size in self.holes]  # type: ignore[misc]
        wide = len(str(self.num_slots))
        lines = [self.title]
        for start, size, span in sorted(pieces, key=lambda piece: piece[0]):
            where = f"slots {start:{wide}} to {start + size - 1:{wide}}"
            lines.append(f"  {where}  {self._told(span, start, size)}")
        for each in self.wrong:
            lines.append(
                f"  slot {each.slot}: {each.name} stored “{each.stored}”, in memory lies “{each.found}”"
            )
        if self.aim:
            lines.append(f"  marked: slots {self.aim[0]} to {sum(self.aim) - 1}")
        return "\n".join(lines)

    def _told(self, span: Span | None, start: int, size: int) -> str:
        if span is None:
            left = " ".join(self.words[start : start + size]).rstrip(f"{NOTHING} ")
            return f"hole of {size}; left over: {left}" if left else f"hole of {size}"
        stored = len(span.words)
        return f"{span.name}: {stored} tokens, {size - stored} reserved: {' '.join(span.words)}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return fitted(self)
