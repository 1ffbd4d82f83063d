"""A frame as a static SVG: no script, readable on light and dark pages, its sentence for screen readers."""

from __future__ import annotations

from collections.abc import Iterable

from minikv.invariants import INVARIANTS
from minikv.lab.block_map_text import (
    MANY_BLOCKS,
    QUEUE_SHOWN,
    blocks_line,
    gone_line,
    is_shown,
    request_line,
)
from minikv.lab.frame import Frame, PoolState, RequestView
from minikv.lab.sentences import counted, shown
from minikv.lab.svg_page import PATTERNS, WIDTH, SvgPage, cut, haloed, paint, wrapped

_INKS, _KINDS = 6, len(PATTERNS) - 1  # colours and patterns of requests; one pattern is the caches'
_MARGIN = 24
_LEFT, _BOX_GAP = 132, 8  # where logical boxes start
_POOL_LEFT, _POOL_COLUMNS, _CELL = 652, 4, (85, 54)
_ENTRIES_SHOWN = 24  # table entries of one request in a big pool
_BIG_CELLS_SHOWN = 240


def frame_svg(frame: Frame | None, highlight: tuple[int, ...] = (), caption: str = "") -> str:
    """The frame as one <svg> element. None: a note that there are no events yet."""
    if frame is None:
        page = SvgPage("No events yet.", "The map fills as the log does.")
        page.text(_MARGIN, 38, "No events yet.", size=17, font_weight=700)
        return page.finish(64)
    page = SvgPage(f"Step {frame.step} of {frame.last}", frame.sentence)
    top = _header(page, frame)
    drawing = _Drawing(page, frame, highlight)
    bottom = max(drawing.logical(top), drawing.physical(top))
    drawing.link()
    return page.finish(_footer(page, frame.state, bottom, highlight, caption))


def _header(page: SvgPage, frame: Frame) -> float:
    page.text(_MARGIN, 38, f"Step {frame.step} of {frame.last}", size=17, font_weight=700)
    lines = wrapped(frame.sentence, 104)
    for number, line in enumerate(lines):
        page.text(172, 38 + 21 * number, line, size=15)
    return 64 + 21 * (len(lines) - 1)


class _Drawing:
    """The two sides of the map, and the line between them."""

    def __init__(self, page: SvgPage, frame: Frame, highlight: tuple[int, ...]) -> None:
        self._page, self._frame, self._state = page, frame, frame.state
        self._marked = set(highlight)
        self._broken = {found.block_id for found in frame.state.violations}
        # What the event is about; of several blocks, one that is marked.
        self._main = next(filter(self._marked.__contains__, frame.blocks), next(iter(frame.blocks), None))
        self._numbers = {name: number for number, name in enumerate(frame.state.requests)}
        self._ends: dict[str, tuple[float, float]] = {}  # corners of the linked blocks: "logical", "physical"
        self._line_end = self._edge = 0.0  # right end of the line of boxes being drawn, of the linked one
        self._big = frame.state.num_blocks > MANY_BLOCKS
        size = frame.state.block_size
        self._columns = 1 if size == 1 else 2 if size <= 4 else 4
        self._slot = (48.0, 16.0)
        lines = 0 if self._big else -(-size // self._columns)
        self._box = (self._columns * 50 + 10 if not self._big else 104, 26 + 18 * lines + (4 if lines else 0))

    # ---- logical ------------------------------------------------------------------------------

    def logical(self, top: float) -> float:
        """Draw the request rows; where they end."""
        size = counted(self._state.block_size, "slot")
        self._page.text(_MARGIN, top + 14, "Logical: what each request sees", size=13.5, font_weight=700)
        self._page.text(_MARGIN, top + 32, f"each box a block of {size}, each cell a token", "soft", 11)
        y = top + 48
        for request in filter(is_shown, self._state.requests.values()):
            y = self._request(request, y) + 18
        if y == top + 48:
            self._page.text(_MARGIN, y + 16, "No request holds a block.", "soft")
            y += 28
        if gone := gone_line(self._state):
            self._page.text(_MARGIN, y + 10, cut(gone, 600, 11), "soft", 11)
            y += 22
        return y

    def _request(self, request: RequestView, y: float) -> float:
        ink = self._numbers[request.name] % _INKS
        label = cut(f"Request {request.name}", _LEFT - _MARGIN - 6, 13)
        self._page.text(_MARGIN, y + 16, label, f"ink-{ink}", 13, font_weight=700)
        for number, fact in enumerate(request_line(request).split(", ")):
            self._page.text(_MARGIN, y + 33 + 14 * number, fact, "soft", 11)
        entries = request.block_ids[:_ENTRIES_SHOWN] if self._big else request.block_ids
        across = max(1, int((_POOL_LEFT - 24 - _LEFT + _BOX_GAP) // (self._box[0] + _BOX_GAP)))
        for index in range(len(entries)):
            row, column = divmod(index, across)
            in_line = min(across, len(entries) - row * across)
            self._line_end = _LEFT + in_line * (self._box[0] + _BOX_GAP) - _BOX_GAP
            x = _LEFT + column * (self._box[0] + _BOX_GAP)
            self._entry(request, index, x, y + row * (self._box[1] + _BOX_GAP))
        rows = max(1, -(-len(entries) // across))
        bottom = y + rows * (self._box[1] + _BOX_GAP) - _BOX_GAP
        return max(self._overflow(request, len(entries), bottom), y + 60)

    def _overflow(self, request: RequestView, drawn: int, bottom: float) -> float:
        """Below the boxes: entries that are left out, and a chosen token that has no slot yet."""
        notes = []
        if drawn < len(request.block_ids):
            notes.append(f"and {counted(len(request.block_ids) - drawn, 'more block')}")
        if request.next_word is not None and self._is_full(request):
            notes.append(f"“{shown(request.next_word)}” is chosen and has no slot yet")
        if notes:
            self._page.text(_LEFT, bottom + 15, "; ".join(notes), "soft", 11, font_style="italic")
        return bottom + (20 if notes else 0)

    def _is_full(self, request: RequestView) -> bool:
        return request.offset + request.length == len(request.block_ids) * self._state.block_size

    def _entry(self, request: RequestView, index: int, x: float, y: float) -> None:
        block = request.block_ids[index]
        ink = self._numbers[request.name] % _INKS
        self._outlined(block, x, y, self._box, "panel", "line")
        self._page.text(x + 7, y + 16, f"L{index} →", "soft", 10.5)
        shift = 7 + 6.2 * len(f"L{index} →") + 3
        self._page.text(x + shift, y + 16, f"P{block}", "ink", 11, font_weight=700)
        if (count := self._state.ref_counts[block]) > 1:
            width = 15 + 6.5 * len(str(count))
            self._page.box(x + self._box[0] - width - 5, y + 5, (width, 15), f"ink-{ink}", "none", rx=7.5)
            place = x + self._box[0] - width / 2 - 5
            self._page.text(place, y + 16, f"×{count}", "well", 10.5, text_anchor="middle", font_weight=700)
        if (
            block == self._main
            and "logical" not in self._ends
            and request.name == self._frame.event.get("request")
        ):
            self._ends["logical"], self._edge = (x, y), self._line_end
        if not self._big:
            self._slots(request, index, x + 6, y + 25)

    def _slots(self, request: RequestView, index: int, left: float, top: float) -> None:
        ink = self._numbers[request.name] % _INKS
        size = self._state.block_size
        for place, word in enumerate(self._state.words_in(request.block_ids[index])):
            row, column = divmod(place, self._columns)
            x, y, at = left + 50 * column, top + 18 * row, index * size + place
            if at < request.offset:
                self._page.box(x, y, self._slot, "none", "line", rx=3)
                self._page.text(x + 24, y + 12, "–", "soft", 11, text_anchor="middle")
            elif word is not None:
                self._page.box(x, y, self._slot, f"tint-{ink}", "none", rx=3)
                self._word(shown(word), x, y, "ink")
            else:
                self._page.box(x, y, self._slot, "none", "line", rx=3, stroke_dasharray="3 2")
                if request.next_word is not None and at == request.offset + request.length:
                    self._word(shown(request.next_word), x, y, f"ink-{ink}", font_style="italic")

    def _word(self, word: str, x: float, y: float, colour: str, **more: object) -> None:
        self._page.text(x + 24, y + 12, cut(word, 48, 10.5), colour, 10.5, text_anchor="middle", **more)

    # ---- physical -----------------------------------------------------------------------------

    def physical(self, top: float) -> float:
        """Draw the pool; where it ends."""
        held = [block for block, count in enumerate(self._state.ref_counts) if count]
        drawn = held[:_BIG_CELLS_SHOWN] if self._big else list(range(self._state.num_blocks))
        self._page.text(_POOL_LEFT, top + 14, "Physical: the pool", size=13.5, font_weight=700)
        meaning = "number = ref count · #n = place in the free queue"
        self._page.text(_POOL_LEFT, top + 32, meaning, "soft", 11)
        places = {block: place for place, block in enumerate(self._state.free_queue, 1)}
        width, height = _CELL
        for number, block in enumerate(drawn):
            row, column = divmod(number, _POOL_COLUMNS)
            x, y = _POOL_LEFT + column * (width + 8), top + 48 + row * (height + 8)
            self._block(block, places.get(block), x, y)
        bottom = top + 48 + -(-len(drawn) // _POOL_COLUMNS) * (height + 8) + 6
        if len(drawn) < self._state.num_blocks:
            rest = f"and {counted(self._state.num_blocks - len(drawn), 'block')}, {len(places)} of them free"
            self._page.text(_POOL_LEFT, bottom + 10, rest, "soft", 11)
            bottom += 24
        return bottom

    def _block(self, block: int, place: int | None, x: float, y: float) -> None:
        count = self._state.ref_counts[block]
        owners = self._owners(block)
        is_free = place is not None and count == 0
        self._outlined(block, x, y, _CELL, "bg" if is_free else "panel", "line", is_free)
        self._page.text(x + 8, y + 16, f"P{block}", "soft" if is_free else "ink", 11)
        if place is not None:
            self._page.text(x + _CELL[0] - 8, y + 16, f"#{place}", "soft", 10.5, text_anchor="end")
        if is_free:
            self._page.text(x + _CELL[0] / 2, y + 38, "free", "soft", 11, text_anchor="middle")
            return
        at = x + _CELL[0] - 8 - (28 if place is not None else 0)
        self._page.text(at, y + 16, str(count), "ink", 12, text_anchor="end", font_weight=700)
        self._tags(owners, x + 6, y + 25, _CELL[0] - 12)
        if block == self._main:
            self._ends["physical"] = (x, y)

    def _owners(self, block: int) -> list[tuple[str, str, str]]:
        """(label, ink, pattern) of each holder."""
        numbers = [(name, self._numbers[name]) for name in self._state.owners(block)]
        found = [(name, str(number % _INKS), str(number % _KINDS)) for name, number in numbers]
        if self._state.cache_refs[block] > 0:
            found.append(("cache", "cache", "cache"))
        return found

    def _tags(self, owners: list[tuple[str, str, str]], x: float, y: float, width: float) -> None:
        drawn = owners if len(owners) <= 3 else owners[:2]
        rest = len(owners) - len(drawn)
        room = width - 3 * (len(drawn) - 1) - (24 if rest else 0)
        letters = sum(len(label) + 2 for label, _, _ in drawn)
        for label, ink, kind in drawn:  # a longer name gets more room
            own = room * (len(label) + 2) / letters
            self._page.pattern(x, y, (own, 21), ink, kind)
            self._page.raw(haloed(x + own / 2, y + 15, cut(label, own - 2, 11), ink))
            x += own + 3
        if rest:
            self._page.text(x + 11, y + 15, f"+{rest}", "ink", 11, text_anchor="middle", font_weight=700)
        if not owners:
            self._page.text(x + width / 2, y + 14, "nobody", "warn", 11, text_anchor="middle")

    def _outlined(
        self,
        block: int,
        x: float,
        y: float,
        size: tuple[float, float],
        fill: str,
        line: str,
        dashed: bool = False,
    ) -> None:
        """A block's frame: plain, the event's own, marked by the caller, or broken."""
        broken, marked, main = block in self._broken, block in self._marked, block == self._main
        colour = "warn" if broken or marked else "accent" if main else line
        more: dict[str, object] = {"stroke_width": 2.5 if colour != line else 1, "rx": 7}
        if dashed and colour == line:
            more["stroke_dasharray"] = "4 3"
        self._page.box(x, y, size, "warn-tint" if broken else fill, colour, **more)
        if broken or marked:
            sign = "!" if broken else "◆"
            self._page.raw(f'<circle cx="{x:g}" cy="{y:g}" r="8"{paint("fill", "warn")}/>')
            self._page.text(x, y + 4, sign, "well", 11, text_anchor="middle", font_weight=700)

    def link(self) -> None:
        """The line from this step's table entry to its block."""
        if len(self._ends) < 2:
            return
        (x1, y1), (x2, y2) = self._ends["logical"], self._ends["physical"]
        # Between the blocks on both sides, so that none is crossed.
        edge, first = self._edge, x2 == _POOL_LEFT
        alone = edge == x1 + self._box[0]
        x, y = x1 + self._box[0] / 2, y1 + (self._box[1] / 2 if alone else self._box[1] + 4)
        out = f"M{edge:g} {y:g}" if alone else f"M{x:g} {y - 4:g}Q{x:g} {y:g} {x + 6:g} {y:g}H{edge:g}"
        gutter, lane = (x2, y2 + _CELL[1] / 2) if first else (_POOL_LEFT - 12.0, y2 - 4)
        bend = max(24.0, (gutter - edge) / 2)
        curve = f"{out}C{edge + bend:g} {y:g} {gutter - bend:g} {lane:g} {gutter:g} {lane:g}"
        end = (gutter, lane) if first else (x2 + 16, y2)
        path = curve if first else f"{curve}H{end[0] - 5:g}Q{end[0]:g} {lane:g} {end[0]:g} {y2:g}"
        line = f'<path d="{path}" fill="none" stroke-width="2"{paint("stroke", "accent")}/>'
        self._page.raw(line, at_the_back=True)
        self._page.raw(f'<circle cx="{end[0]:g}" cy="{end[1]:g}" r="4"{paint("fill", "accent")}/>')


# ---- below the map: free queue, memory, invariants ----------------------------------------------


def _footer(page: SvgPage, state: PoolState, top: float, highlight: Iterable[int], caption: str) -> float:
    top += 8
    page.raw(f'<path d="M{_MARGIN} {top:g}H{WIDTH - _MARGIN}"{paint("stroke", "line")}/>')
    marked = ", ".join(f"P{block}" for block in highlight)
    if marked:
        page.text(_MARGIN, top + 26, f"◆ {marked}: {caption}" if caption else f"◆ {marked}", "warn", 12.5)
        top += 24
    _queue(page, state, top + 14)
    _memory(page, state, top + 48)
    return _invariants(page, state, top + 82)


def _queue(page: SvgPage, state: PoolState, y: float) -> None:
    page.text(_MARGIN, y + 16, "Free queue", "soft")
    x, queue = float(_LEFT), state.free_queue
    for number, block in enumerate(queue[:QUEUE_SHOWN]):
        label = f"P{block}"
        width = 16 + 6.6 * len(label)
        if number:
            page.text(x - 8, y + 16, "›", "soft", text_anchor="middle")
        page.box(x, y, (width, 22), "well", "line")
        page.text(x + width / 2, y + 15, label, "ink", 11, text_anchor="middle")
        x += width + 16
    if len(queue) > QUEUE_SHOWN:
        page.text(x - 8, y + 16, f"… {len(queue) - QUEUE_SHOWN} more", "soft", 11)
    if not queue:
        page.text(x, y + 16, "empty: no block is free", "soft", 11)


def _memory(page: SvgPage, state: PoolState, y: float) -> None:
    page.text(_MARGIN, y + 16, "Memory", "soft")
    memory, x, full = state.memory, float(_LEFT), 470.0
    slots = state.num_blocks * state.block_size
    parts = [
        ("tokens", "accent", "well"),
        ("unused", "unused", "ink"),
        ("before", "dead", "ink"),
        ("lost", "warn-tint", "warn"),
        ("free", "well", "soft"),
    ]
    page.box(x, y, (full, 22), "well", "line")
    for key, fill, ink in parts:
        width = full * memory[key] / slots
        if width == 0:
            continue
        page.box(x, y, (width, 22), fill, "line", rx=3)
        label = f"{key} {memory[key]}" if width > 64 else str(memory[key])
        if width > 7 * len(label):
            page.text(x + width / 2, y + 15, label, ink, 11, text_anchor="middle")
        x += width
    lost = f", {memory['lost']} lost" if memory["lost"] else ""
    split = f"{memory['unused']} unused, {memory['before']} before offset{lost}"
    page.text(_LEFT + full + 14, y + 9, split, "ink", 11)
    page.text(_LEFT + full + 14, y + 23, blocks_line(state), "soft", 11)


def _invariants(page: SvgPage, state: PoolState, y: float) -> float:
    page.text(_MARGIN, y + 16, "Invariants", "soft")
    broken, x = {found.invariant for found in state.violations}, float(_LEFT)
    for short, name in INVARIANTS.items():
        bad = short in broken
        label = f"{'✗' if bad else '✓'} {short} {name}"
        width = 20 + 6.1 * len(label)
        page.box(x, y, (width, 22), "warn-tint" if bad else "panel", "warn" if bad else "line", rx=11)
        page.text(x + width / 2, y + 15, label, "warn" if bad else "ink", 11, text_anchor="middle")
        x += width + 8
    y += 22
    for found in state.violations[:6]:
        for line in wrapped(f"✗ {found.name}, step {found.step}: {found.sentence}", 130):
            y += 19
            page.text(_LEFT, y, line, "warn", 12)
    if len(state.violations) > 6:
        y += 19
        page.text(_LEFT, y, f"and {counted(len(state.violations) - 6, 'more violation')}", "warn", 12)
    return y + 22
