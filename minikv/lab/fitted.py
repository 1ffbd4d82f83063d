"""Pictures that scale to the page.

JupyterLab makes an image of a bare SVG, and what an SVG says of its greatest width means nothing inside of an
image: on a narrow page its right side is cut off. An image in HTML scales, and is shown before a notebook is
trusted, too.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any, Protocol

_SWAPPED = str.maketrans("\"'", "'\"")
_WRITTEN = {ord(sign): f"%{ord(sign):02X}" for sign in '%#"<>&\n'}  # what has a meaning in a URL, or in HTML


class Picture(Protocol):
    """Anything that can be drawn; its repr says the same as text."""

    def to_svg(self) -> str:
        """One <svg> element."""
        ...


def fitted(picture: Picture) -> dict[str, str]:
    """A picture as a notebook shows it: an image at most as wide as the page, and its text."""
    text = repr(picture)
    source = f"data:image/svg+xml;charset=utf-8,{_slim(picture.to_svg()).translate(_WRITTEN)}"
    image = f'<img alt="{escape(text)}" style="max-width:100%" src="{source}">'
    return {"text/html": image, "text/plain": text}


def _slim(svg: str) -> str:
    """Without what means nothing in an image: page themes, colours that no part has, the text twice."""
    svg = re.sub(r"<desc.*?</desc>|/\*.*?\*/", "", svg, flags=re.S)
    svg = re.sub(r"\[data-jp-theme[^{}]*\{[^{}]*\}", "", svg)
    used = set(re.findall(r"var\(--mk-([\w-]+)", svg))
    svg = re.sub(r"--mk-([\w-]+):[^;]*;\s*", lambda hit: hit[0] if hit[1] in used else "", svg)
    # In a tag ' will do for ", which takes three signs in a URL.
    return re.sub(r"<[^>]*>", lambda tag: tag[0].translate(_SWAPPED), svg)


class Fitted:
    """A picture that is shown as wide as the page allows.

    Args:
        picture: what is shown.
    """

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return fitted(self.picture)

    def __repr__(self) -> str:
        return repr(self.picture)
