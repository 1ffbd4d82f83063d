"""What memory is used for, as stacked bars: each kind of slot with a look of its own, never as one lump.

The looks are those of the packing game (static/packing.css): whoever has played it can read every bar here.
"""

from __future__ import annotations

from collections.abc import Mapping

from minikv.lab.fitted import fitted
from minikv.lab.packing_split import KINDS
from minikv.lab.svg_page import SvgPage, haloed, paint

# How each kind is drawn: colour of the palette, and pattern of svg_page.
LOOKS = {
    "tokens": ("accent", ""),
    "reserved": ("0", "1"),
    "internal": ("3", "0"),
    "unknown": ("5", "5"),
    "external": ("2", "2"),
    "free": ("well", ""),
}
_MARGIN, _RIGHT, _HEIGHT = 24, 1016, 24
_NARROW = 30  # below so many pixels a piece has no number


class MemoryBars:
    """One bar for each memory, its kinds in per cent. Shown as a picture; as text it is a table.

    Args:
        title: what it shows.
        bars: label -> kind -> per cent of the memory. What is missing to 100 is left white: not known.
        source: where published numbers come from, if there are any.

    Raises:
        ValueError: a kind that there is not, or parts that make more than the whole.
    """

    def __init__(self, title: str, bars: Mapping[str, Mapping[str, float]], source: str = "") -> None:
        for label, parts in bars.items():
            if unknown := set(parts) - set(KINDS):
                raise ValueError(f"{label}: there is no kind {min(unknown)!r}; there are {', '.join(KINDS)}")
            if sum(parts.values()) > 100.5:  # published parts are rounded
                raise ValueError(f"{label}: the parts make {sum(parts.values()):.1f} %, more than 100 %")
        self.title, self.source = title, source
        self.bars = {label: dict(parts) for label, parts in bars.items()}

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur, in their usual order."""
        return [kind for kind in KINDS if any(parts.get(kind) for parts in self.bars.values())]

    def to_svg(self) -> str:
        """The picture, for light and dark pages."""
        page = SvgPage(self.title, repr(self))
        page.text(_MARGIN, 36, self.title, size=15, font_weight=700)
        left = _MARGIN + 12 + 7 * max(map(len, self.bars), default=0)
        y = 54.0
        for label, parts in self.bars.items():
            page.text(left - 12, y + 16, label, size=12.5, text_anchor="end")
            stacked_bar(page, parts, (left, y), _RIGHT - left, "%")
            y += _HEIGHT + 9
        y = legend(page, left, y + 8, self.kinds)
        if self.source:
            page.text(left, y + 2, f"Source: {self.source}", "soft", 11.5)
            y += 20
        return page.finish(y)

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return fitted(self)

    def __repr__(self) -> str:
        names = [KINDS[kind] for kind in self.kinds]
        wide = max(map(len, self.bars), default=0)
        lines = [f"{self.title}, per cent", "  ".join([" " * wide, *names])]
        for label, parts in self.bars.items():
            cells = [f"{parts[kind]:.1f}" if kind in parts else "–" for kind in self.kinds]
            aligned = [cell.rjust(len(name)) for cell, name in zip(cells, names, strict=True)]
            lines.append("  ".join([label.ljust(wide), *aligned]))
        return "\n".join([*lines, *([f"Source: {self.source}"] if self.source else [])])


def stacked_bar(
    page: SvgPage, parts: Mapping[str, float], corner: tuple[float, float], width: float, unit: str
) -> None:
    """One bar with its numbers, from `corner` on: in "%" of 100, or in "slots", which are all of it."""
    (x, y), whole = corner, 100.0 if unit == "%" else sum(parts.values())
    page.box(x, y, (width, _HEIGHT), "none", "line", rx=3)
    for kind, amount in parts.items():
        part = width * amount / whole
        if part > 0.5:
            piece(page, kind, x, y, (part, _HEIGHT))
        if part > _NARROW:
            _number(page, kind, f"{amount:.0f}" if unit == "slots" else f"{amount:.1f}", x + part / 2, y)
        x += part


def piece(page: SvgPage, kind: str, x: float, y: float, size: tuple[float, float]) -> None:
    """A rectangle in the look of a kind."""
    colour, pattern = LOOKS[kind]
    if pattern:
        page.pattern(x, y, size, colour, pattern)
    else:
        page.box(x, y, size, colour, "line", rx=3)


def pieces(page: SvgPage, kind: str, path: str) -> None:
    """A whole path in the look of a kind. Its pattern is made by `legend`, on the same page."""
    colour, pattern = LOOKS[kind]
    fill, line = (f"tint-{colour}", f"ink-{colour}") if pattern else (colour, "line")
    page.raw(f'<path d="{path}"{paint("fill", fill)}{paint("stroke", line)}/>')
    if pattern:
        page.raw(f'<path d="{path}" fill="url(#{page.uid}-{colour}-{pattern})"/>')


def legend(page: SvgPage, x: float, y: float, kinds: list[str]) -> float:
    """What the looks mean, in one line; where it ends."""
    for kind in kinds:
        piece(page, kind, x, y, (14, 14))
        page.text(x + 20, y + 11.5, KINDS[kind], "soft", 11.5)
        x += 40 + 6.1 * len(KINDS[kind])
    return y + 34


def _number(page: SvgPage, kind: str, words: str, x: float, y: float) -> None:
    colour, pattern = LOOKS[kind]
    if pattern:
        page.raw(haloed(x, y + 16, words, colour))
    else:
        ink = "well" if kind == "tokens" else "ink"
        page.text(x, y + 16, words, ink, 11, text_anchor="middle", font_weight=700)
