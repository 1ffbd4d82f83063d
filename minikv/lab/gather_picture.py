"""The gather, drawn: blocks where they lie in memory, and the row they are copied into.

GatherPicture(bench, request)
"""

from __future__ import annotations

from minikv.decode import Request
from minikv.lab.fitted import fitted
from minikv.lab.memory_words import MemoryWords, words_in_memory, words_of_keys
from minikv.lab.svg_page import SvgPage, cut, paint
from minikv.lab.workbench import Workbench

MOST_SLOTS = 32  # more do not fit side by side
_MARGIN, _WIDTH = 24.0, 992.0
_TOP, _BOTTOM, _CELL = 96.0, 262.0, 30.0  # where the two rows begin, and their height
_GAP = 6.0  # between blocks
_INKS = ("0", "1", "2", "3", "cache", "5", "4")
_PATTERNS = ("0", "1", "2", "3", "4", "5", "6")


class GatherPicture:
    """What one `read_layer` does for a request in layer 0. Its words are read out of memory, not a log.

    Shown as a picture for light and dark pages; as text it says the same.

    Raises:
        ValueError: a pool with more slots than can be drawn, or a request with nothing stored.
    """

    def __init__(self, bench: Workbench, request: Request) -> None:
        pool, self.table = bench.pool, request.table
        if (slots := pool.num_blocks * pool.block_size) > MOST_SLOTS:
            raise ValueError(f"the pool has {slots} slots; a picture has room for {MOST_SLOTS}")
        self.length = request.num_stored - request.num_dropped
        if self.length < 1:
            raise ValueError(f"request {request.name} has nothing stored; prefill it first")
        self.name = request.name
        self.memory: MemoryWords = words_in_memory(pool, bench.model)
        k, _ = pool.read_layer(0, [self.table], [self.length])  # [1, heads, length, head_dim]
        self.row = words_of_keys(k[0].transpose(0, 1), bench.model)
        self.bytes_a_token = 2 * k.element_size() * k.shape[1] * k.shape[3]  # of one layer

    @property
    def pieces(self) -> list[tuple[int, int, int, int]]:
        """What is copied in one go, in order of the row: (block, place there, place in the row, tokens)."""
        size, found, position = self.memory.block_size, [], 0
        while position < self.length:
            block_id, place = divmod(int(self.table.slot(position)), size)
            tokens = min(size - place, self.length - position)
            found.append((block_id, place, position, tokens))
            position += tokens
        return found

    @property
    def title(self) -> str:
        """What is seen, in one line."""
        blocks = len(self.pieces)
        return f"The gather of request {self.name}, layer 0: {self.length} words out of {blocks} blocks"

    @property
    def sum(self) -> str:
        """The bytes, in one line."""
        moved = self.length * self.bytes_a_token
        return (
            f"{self.length} × {self.bytes_a_token:,} bytes (K and V) = {moved:,} bytes read, "
            "and as many written into the row"
        )

    def to_svg(self) -> str:
        """The picture."""
        page = SvgPage(self.title, repr(self))
        page.text(_MARGIN, 36, self.title, size=15, font_weight=700)
        page.text(_MARGIN, 62, "The pool, as it lies in memory", size=12.5, font_weight=700)
        page.text(_MARGIN + 226, 62, "dashed: words that are not in this table", "soft", 11.5)
        self._bands(page)
        self._memory(page)
        self._row(page)
        page.text(_MARGIN, _BOTTOM + _CELL + 58, self.sum, size=12.5)
        return page.finish(_BOTTOM + _CELL + 76)

    # ---- the parts of the picture ------------------------------------------------------------

    @property
    def _slot(self) -> float:
        blocks = len(self.memory.words) // self.memory.block_size
        return (_WIDTH - _GAP * (blocks - 1)) / len(self.memory.words)

    def _slot_left(self, block_id: int, place: int) -> float:
        size = self.memory.block_size
        return _MARGIN + (block_id * size + place) * self._slot + block_id * _GAP

    def _row_left(self, position: int) -> float:
        """The pieces keep the gaps of blocks between them, so that one sees where each begins."""
        entry = sum(start <= position for _, _, start, _ in self.pieces) - 1
        return _MARGIN + position * self._slot + entry * 2

    def _memory(self, page: SvgPage) -> None:
        size = self.memory.block_size
        copied = {
            (block, first + n): entry
            for entry, (block, first, _, tokens) in enumerate(self.pieces)
            for n in range(tokens)
        }
        for slot, word in enumerate(self.memory.words):
            block_id, place = divmod(slot, size)
            x = self._slot_left(block_id, place)
            if place == 0:
                page.text(x, _TOP - 8, f"block {block_id}", "soft", 11)
            self._cell(page, x, _TOP, word, copied.get((block_id, place)))

    def _row(self, page: SvgPage) -> None:
        words = iter(self.row)
        for entry, (block_id, _, position, tokens) in enumerate(self.pieces):
            for n in range(tokens):
                self._cell(page, self._row_left(position) + n * self._slot, _BOTTOM, next(words), entry)
            for line, label in enumerate((f"from {block_id}", f"{tokens * self.bytes_a_token:,} B")):
                page.text(self._row_left(position), _BOTTOM + _CELL + 15 + 14 * line, label, "soft", 11)
        end = self._row_left(self.length - 1) + self._slot + 12
        page.text(end, _BOTTOM + 19, "the row that attention reads", size=12.5, font_weight=700)

    def _bands(self, page: SvgPage) -> None:
        """A band from each piece to its place in the row."""
        for entry, (block_id, place, position, tokens) in enumerate(self.pieces):
            left, right = self._slot_left(block_id, place), self._slot_left(block_id, place + tokens - 1)
            goal, width = self._row_left(position), tokens * self._slot
            top, bottom, middle = _TOP + _CELL, _BOTTOM, (_TOP + _CELL + _BOTTOM) / 2
            right += self._slot
            ink = _INKS[entry % len(_INKS)]
            path = (
                f"M{left:.1f} {top:g}C{left:.1f} {middle:g} {goal:.1f} {middle:g} {goal:.1f} {bottom:g}"
                f"h{width:.1f}C{goal + width:.1f} {middle:g} {right:.1f} {middle:g} {right:.1f} {top:g}z"
            )
            colours = f"{paint('fill', f'tint-{ink}')}{paint('stroke', f'ink-{ink}')}"
            page.raw(f'<path d="{path}" opacity="0.75"{colours}/>')

    def _cell(self, page: SvgPage, x: float, y: float, word: str, entry: int | None) -> None:
        size = (self._slot, _CELL)
        if entry is None:
            page.box(x, y, size, "well", "line", rx=3, stroke_dasharray="3 3")
        else:
            page.pattern(x, y, size, _INKS[entry % len(_INKS)], _PATTERNS[entry % len(_PATTERNS)])
            page.box(x + 2, y + 8, (self._slot - 4, 15), f"tint-{_INKS[entry % len(_INKS)]}", "none", rx=3)
        colour = "soft" if entry is None else "ink"
        page.text(x + self._slot / 2, y + 19, cut(word, self._slot, 9.6), colour, 10.5, text_anchor="middle")

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        """The picture as it is, not as an image: so it takes on the page's theme. Not trusted: the text."""
        return fitted(self)

    def __repr__(self) -> str:
        blocks = range(len(self.memory.words) // self.memory.block_size)
        memory = " | ".join(f"{block} {' '.join(self.memory.in_block(block))}" for block in blocks)
        words = iter(self.row)
        row = " | ".join(
            f"{' '.join(next(words) for _ in range(tokens))} (from {block_id})"
            for block_id, _, _, tokens in self.pieces
        )
        return f"{self.title}\nmemory: {memory}\nrow:    {row}\n{self.sum}"
