"""A prefix cache, drawn: which words lie in which block, after which others, and which would go first.

TreePicture(cache, model)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from minikv.engine.hash_cache import HashCache, HashEntry
from minikv.engine.radix_cache import RadixCache, RadixNode
from minikv.lab.fitted import fitted
from minikv.lab.svg_page import SvgPage, cut, paint
from minikv.lab.switches.sharing import Run, SplitAnywhere
from minikv.manager import KVCacheManager

MOST_BLOCKS = 32  # in one picture
_MARGIN, _WIDTH, _TOP = 24.0, 992.0, 76.0
_CELL, _ROW, _STEP = 50.0, 66.0, 30.0  # height of a cell and of a row; from parent to child
_NARROWEST, _LETTER = 120.0, 6.4  # of a cell; of a letter
_LONGEST = 100  # letters in a line of text


@dataclass
class Place:
    """A run of blocks in a tree. `offset`: slots of its first block that belong to nobody."""

    blocks: list[tuple[int, tuple[int, ...]]]  # block id, its tokens
    stamp: int = 0
    offset: int = 0
    salt: str | None = None  # of those that come first
    children: list[Place] = field(default_factory=list)


def places(cache: RadixCache | HashCache | SplitAnywhere) -> list[Place]:
    """What comes first in the cache, each with what follows it. TypeError for another cache."""
    if isinstance(cache, RadixCache):
        return [_of_node(node, salt) for salt, root in cache.roots.items() for node in root.children.values()]
    if isinstance(cache, HashCache):
        return _of_entries(cache.entries.values())
    if isinstance(cache, SplitAnywhere):
        return [_of_run(run, cache.manager.block_size) for run in cache.roots]
    raise TypeError(f"a {type(cache).__name__} cannot be drawn; RadixCache and HashCache can")


class TreePicture:
    """The places of a prefix cache, as a picture for light and dark pages; as text it says the same.

    In each block: its words, its ref count, and its turn if the cache had to let everything go now. What a
    request holds, too, has no turn.

    Args:
        cache: a RadixCache or a HashCache.
        text: what a token is called; for instance `model.tokenizer.word`.
        title: what is seen, in one line.

    Raises:
        ValueError: more blocks than can be drawn. TypeError: another cache.
    """

    def __init__(
        self,
        cache: RadixCache | HashCache | SplitAnywhere,
        text: Callable[[int], str],
        title: str = "The prefix cache",
    ) -> None:
        self.manager: KVCacheManager = cache.manager
        self._text, self.title = text, title
        self.places = places(cache)
        self.counts = {b: self.manager.blocks[b].ref_count for p in _all(self.places) for b, _ in p.blocks}
        if len(self.counts) > MOST_BLOCKS:
            raise ValueError(f"{len(self.counts)} blocks are cached; a picture has room for {MOST_BLOCKS}")
        lets_go = not isinstance(cache, SplitAnywhere)
        self.order = order_of_eviction(self.places, self.counts) if lets_go else []

    # ---- as a picture ------------------------------------------------------------------------

    def to_svg(self) -> str:
        """The picture."""
        page = SvgPage(self.title, repr(self))
        page.text(_MARGIN, 34, self.title, size=15, font_weight=700)
        page.text(_MARGIN, 56, self._legend, "soft", 11.5)
        deepest = max((_depth(place) for place in self.places), default=1)
        steps = max((_height(place) for place in self.places), default=1) - 1
        longest = max(
            (len(self._words(p, n)) for p in _all(self.places) for n in range(len(p.blocks))), default=0
        )
        width = min(max(_NARROWEST, _LETTER * longest + 22), (_WIDTH - steps * _STEP) / deepest)
        row = 0
        for place in self.places:
            row = self._draw(page, place, _MARGIN, row, width)
        if not self.places:
            page.text(_MARGIN, _TOP + 20, "nothing is cached", "soft", 12.5)
        return page.finish(_TOP + max(1, row) * _ROW + 4)

    @property
    def _legend(self) -> str:
        turn = " · out: its turn to go" if self.order else ""
        return f"×: ref count · solid: a request holds it, too · dashed: only the cache{turn}"

    def _draw(self, page: SvgPage, place: Place, x: float, row: int, width: float) -> int:
        """A place at this row, and its children to the right of it; the next free row."""
        y = _TOP + row * _ROW
        for number, (block_id, _) in enumerate(place.blocks):
            self._cell(page, (x + number * width, y), width - 4, block_id, self._words(place, number))
        right = x + len(place.blocks) * width
        start, below = row, row
        for child in place.children:
            middle, there = y + _CELL / 2, _TOP + below * _ROW + _CELL / 2
            path = (
                f"M{right - 4:g} {middle:g}H{right + 10:g}V{there:g}H{right + _STEP - 4:g}"
                if there != middle
                else f"M{right - 4:g} {middle:g}H{right + _STEP - 4:g}"
            )
            page.raw(f'<path d="{path}" fill="none" stroke-width="1.5"{paint("stroke", "soft")}/>', True)
            below = self._draw(page, child, right + _STEP, below, width)
        return max(below, start + 1)

    def _words(self, place: Place, number: int) -> str:
        """What is in a block of a place; a dot for each slot that is nobody's."""
        nobodys = ["·"] * (place.offset if number == 0 else 0)
        return " ".join([*nobodys, *map(self._text, place.blocks[number][1])])

    def _cell(self, page: SvgPage, at: tuple[float, float], width: float, block_id: int, words: str) -> None:
        (x, y), count = at, self.counts[block_id]
        if count > 1:
            page.pattern(x, y, (width, _CELL), "0", "0")
            page.box(x + 4, y + 5, (width - 8, _CELL - 10), "tint-0", "none", rx=3)
        else:
            page.box(x, y, (width, _CELL), "well", "soft", rx=4, stroke_dasharray="4 3")
        page.text(x + 8, y + 20, cut(words, width - 14, 11), size=11)
        page.text(x + 8, y + 39, f"P{block_id}  ×{count}", "ink", 11, font_weight=700)
        if block_id in self.order:
            turn = f"out {self.order.index(block_id) + 1}"
            page.text(x + width - 8, y + 39, turn, "soft", 11, text_anchor="end")

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        """The picture as it is, not as an image: so it takes on the page's theme. Not trusted: the text."""
        return fitted(self)

    # ---- as text -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        lines = [self.title]
        for place in self.places:
            lines += self._lines(place, 0)
        if self.order:
            lines.append(f"Would go, in this order: {' '.join(f'P{block_id}' for block_id in self.order)}")
        return "\n".join(lines)

    def _lines(self, place: Place, depth: int) -> list[str]:
        said = [
            f"P{block_id} ×{self.counts[block_id]} {self._words(place, number)}"
            for number, (block_id, _) in enumerate(place.blocks)
        ]
        lines = ["    " * depth + ("└ " if depth else "") + said[0]]
        for block in said[1:]:
            if len(lines[-1]) + len(block) > _LONGEST:
                lines.append("    " * depth + "  |")
                block = f" {block}"
            else:
                block = f" | {block}"
            lines[-1] += block
        if place.salt is not None:
            lines[-1] += f"   (salt {place.salt!r})"
        return [*lines, *(each for child in place.children for each in self._lines(child, depth + 1))]


def order_of_eviction(roots: Sequence[Place], counts: dict[int, int]) -> list[int]:
    """Blocks in the order in which a cache lets them go, if it must let go of all it can.

    Of the places with nothing behind them, the one that was used least recently; its last block. A block that
    a request holds stays, and with it all that come before it.
    """
    left = {id(place): len(place.blocks) for place in _all(roots)}
    going: list[int] = []
    while True:
        ends = [
            place
            for place in _all(roots)
            if left[id(place)]
            and not any(left[id(child)] for child in place.children)
            and counts[place.blocks[left[id(place)] - 1][0]] == 1
        ]
        if not ends:
            return going
        oldest = min(ends, key=lambda place: place.stamp)
        left[id(oldest)] -= 1
        going.append(oldest.blocks[left[id(oldest)]][0])


# ---- from the caches' own books ------------------------------------------------------------------


def _of_node(node: RadixNode, salt: str | None) -> Place:
    blocks = list(zip(node.block_ids, node.pages, strict=True))
    children = [_of_node(child, salt) for child in node.children.values()]
    return Place(blocks, node.stamp, 0, salt, children)


def _of_entries(entries: Any) -> list[Place]:
    """One place a block, for each entry has a stamp of its own."""
    made: dict[int, Place] = {}
    roots = []
    for entry in entries:  # an entry comes after the one before it
        place = made[id(entry)] = Place([(entry.block_id, entry.tokens)], entry.stamp)
        if isinstance(entry.before, HashEntry):
            made[id(entry.before)].children.append(place)
        else:
            place.salt = entry.before
            roots.append(place)
    return roots


def _of_run(run: Run, block_size: int) -> Place:
    cuts = [0, *range(block_size - run.offset, len(run.tokens), block_size), len(run.tokens)]
    pages = [tuple(run.tokens[start:stop]) for start, stop in pairwise(cuts)]
    children = [_of_run(child, block_size) for child in run.children]
    return Place(list(zip(run.block_ids, pages, strict=False)), 0, run.offset, None, children)


def _all(roots: Sequence[Place]) -> list[Place]:
    return [place for root in roots for place in (root, *_all(root.children))]


def _depth(place: Place) -> int:
    """Blocks from its first to the last of those behind it."""
    return len(place.blocks) + max((_depth(child) for child in place.children), default=0)


def _height(place: Place) -> int:
    """Places from it to the last of those behind it."""
    return 1 + max((_height(child) for child in place.children), default=0)
