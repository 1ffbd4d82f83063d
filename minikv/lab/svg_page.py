"""A sheet for a static SVG: collects its elements, and knows colours, patterns and how wide words are.

Colours come from static/palette.css twice: as a style sheet that knows both themes, and as plain
light-theme attributes for viewers that throw style sheets away.
"""

from __future__ import annotations

import re
from hashlib import sha256
from html import escape
from pathlib import Path

_PALETTE_CSS = (Path(__file__).parent / "static" / "palette.css").read_text(encoding="utf-8")
_PLAIN_PALETTE = re.sub(r"/\*.*?\*/|\n\s*", "", _PALETTE_CSS, flags=re.S)
_LIGHT = dict(re.findall(r"--mk-([\w-]+):[^;]*light-dark\((#\w+)", _PALETTE_CSS))
PATTERNS = {  # as in block_map.css; a request takes the next of each, so 42 go by before one returns
    "0": '<path d="M-2 2l4-4M0 8l8-8M6 10l4-4"/>',
    "1": '<circle cx="2" cy="2" r="1"/><circle cx="6" cy="6" r="1"/>',
    "2": '<path d="M0 0l8 8M8 0l-8 8"/>',
    "3": '<path d="M2 0v8M6 0v8"/>',
    "4": '<path d="M0 2h8M0 6h8"/>',
    "5": '<path d="M-2 6l4 4M0 0l8 8M6-2l4 4"/>',
    "6": '<path d="M0 0h4v4h-4zM4 4h4v4h-4z"/>',
    "cache": '<path d="M0 4h8M4 0v8"/>',
}
WIDTH = 1040
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


class SvgPage:
    """SVG elements being collected; knows how a colour of the palette is written."""

    def __init__(self, title: str, description: str) -> None:
        self.uid = "mk" + sha256(f"{title}{description}".encode()).hexdigest()[:8]
        self._title, self._description = title, description
        self._body: list[str] = []
        self._patterns: dict[str, str] = {}

    def text(
        self, x: float, y: float, words: str, colour: str = "ink", size: float = 12, **more: object
    ) -> None:
        """One line of text; `more` are attributes, with _ for -."""
        self._body.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{paint("fill", colour)}{_attributes(more)}>'
            f"{escape(words)}</text>"
        )

    def box(
        self, x: float, y: float, size: tuple[float, float], fill: str, line: str, **more: object
    ) -> None:
        """A rectangle with rounded corners."""
        width, height = size
        more.setdefault("rx", 5)
        self._body.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            f"{paint('fill', fill)}{paint('stroke', line)}{_attributes(more)}/>"
        )

    def raw(self, element: str, at_the_back: bool = False) -> None:
        """Any other element, in front of or behind all that is there."""
        self._body.insert(0 if at_the_back else len(self._body), element)

    def pattern(self, x: float, y: float, size: tuple[float, float], ink: str, kind: str) -> None:
        """A rectangle filled with the pattern that belongs to an owner."""
        name = f"{self.uid}-{ink}-{kind}"
        self._patterns[name] = (
            f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<g opacity="0.38" fill="none"{paint("stroke", f"ink-{ink}")}>{PATTERNS[kind]}</g></pattern>'
        )
        self.box(x, y, size, f"tint-{ink}", f"ink-{ink}", rx=4)
        width, height = size
        self.raw(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="url(#{name})"/>'
        )

    def finish(self, height: float) -> str:
        """The whole element."""
        body = "".join([*self._patterns.values(), f"<rect{paint('fill', 'bg')}/>", *self._body])
        style = f"{_PLAIN_PALETTE}{_paint_rules(body)}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="minikv-frame" role="img" '
            f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" style="max-width:100%;height:auto" '
            f'font-family="{_FONT}" aria-labelledby="{self.uid}-title {self.uid}-desc">'
            f'<title id="{self.uid}-title">{escape(self._title)}</title>'
            f'<desc id="{self.uid}-desc">{escape(self._description)}</desc>'
            f"<style>{style}</style><defs>{''.join(self._patterns.values())}</defs>"
            f'<rect width="{WIDTH}" height="{height:g}" rx="10"{paint("fill", "bg")}/>'
            f"{''.join(self._body)}</svg>"
        )


def paint(what: str, colour: str) -> str:
    """`fill` or `stroke` with a colour of the palette: light as an attribute, both themes by class."""
    if colour == "none":
        return f' {what}="none"'
    return f' {what}="{_LIGHT[colour]}" data-{what}="{colour}"'


def _paint_rules(body: str) -> str:
    """A rule for each colour that is used: a notebook stores many frames."""
    used = sorted(set(re.findall(r'data-(fill|stroke)="([\w-]+)"', body)))
    rules = "".join(f'.minikv-frame [data-{what}="{name}"]{{{what}:var(--mk-{name})}}' for what, name in used)
    return f"@supports (color:light-dark(#000,#fff)){{{rules}}}"


def _attributes(more: dict[str, object]) -> str:
    return "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())


def cut(words: str, width: float, size: float = 11) -> str:
    """As much of `words` as fits; letters are about 0.58 of the type size wide."""
    fits = max(1, int(width / (0.58 * size)))
    return words if len(words) <= fits else words[: fits - 1] + "…"


def wrapped(words: str, letters: int) -> list[str]:
    """Lines of at most so many letters, broken between words."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def haloed(x: float, y: float, words: str, ink: str) -> str:
    """Text with a rim in its background's colour, to be legible on a pattern."""
    rim = (
        'stroke-width="3" stroke-linejoin="round" paint-order="stroke" text-anchor="middle" font-weight="700"'
    )
    colours = f"{paint('fill', f'ink-{ink}')}{paint('stroke', f'tint-{ink}')}"
    return f'<text x="{x:g}" y="{y:g}" font-size="11" {rim}{colours}>{escape(words)}</text>'
