"""The block map: an event log as a picture that can be stepped, scrubbed and played.

The recorded frames go to the browser once, as patches (see patches.py), and later only what is new.
JavaScript plays them and draws; it knows nothing of what an event means.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from time import monotonic
from typing import Any

import anywidget
import traitlets

from minikv.lab.block_map_svg import frame_svg
from minikv.lab.block_map_text import frame_text
from minikv.lab.event_log import EventLog
from minikv.lab.frame import Frame
from minikv.lab.replay import RawFrame

_STATIC = Path(__file__).parent / "static"
_PAUSE = 0.1  # seconds between two deliveries to the browser while a log grows


class BlockMap(anywidget.AnyWidget):
    """Shows one step of an event log: logical rows, the pool, free queue, memory and invariants.

    Args:
        source: an EventLog, or anything whose `observer` is one (a manager, an engine).
        step: the step to show; the last one, followed while the log grows, if not given.
        highlight: block ids to mark.
        caption: what the mark says, such as "first wrong read".

    Raises:
        TypeError: `source` has no event log.
        TraitError: a step outside the log, a block outside the pool.
    """

    # Plain strings: a path would keep every instance alive to watch the file.
    _esm = (_STATIC / "block_map.js").read_text(encoding="utf-8")
    _css = "".join((_STATIC / name).read_text(encoding="utf-8") for name in ("palette.css", "block_map.css"))

    step = traitlets.Int(help="The step shown; -1 while the log is empty.").tag(sync=True)
    highlight = traitlets.List(traitlets.Int(), help="Block ids that are marked.").tag(sync=True)
    caption = traitlets.Unicode(help="What the mark says.").tag(sync=True)
    _chunks = traitlets.List(traitlets.Unicode(), help="Every frame delivered, as JSON lists.").tag(sync=True)
    _delta = traitlets.Dict(help="{start, chunk}: the newest delivery, its first step and its JSON.").tag(
        sync=True
    )

    _unfollow: Callable[[], None] = staticmethod(lambda: None)
    _delivery: asyncio.TimerHandle | None = None
    _following = False

    def __init__(self, source: object, *, step: int | None = None, **traits: Any) -> None:
        self.event_log = _log_of(source)
        self._delivered, self._delivered_at = len(self.event_log), monotonic()
        first = len(self.event_log) - 1 if step is None else step
        super().__init__(step=first, _chunks=[_chunk(self.event_log.raw_frames())], **traits)
        self._unfollow = self.event_log.follow(self._on_growth)

    @property
    def frame(self) -> Frame | None:
        """The frame that is shown; None while the log is empty."""
        return self.event_log.frame(self.step) if self.step >= 0 else None

    def to_text(self) -> str:
        """The frame as plain text."""
        frame = self.frame
        if frame is None:
            return "No events yet."
        marks = ", ".join(f"P{block}" for block in self.highlight)
        marked = f"\n\nMarked: {marks} {self.caption}".rstrip() if marks else ""
        return frame_text(frame) + marked

    def to_svg(self) -> str:
        """The frame as a static SVG, for light and dark pages."""
        return frame_svg(self.frame, tuple(self.highlight), self.caption)

    def close(self) -> None:
        """Stop following the log and take the widget off the page."""
        self._unfollow()
        self._cancel_delivery()
        super().close()

    # ---- following a log that grows ---------------------------------------------------------

    def _on_growth(self) -> None:
        """Stay at the end if the map stood there; deliver now, or when the pause is over."""
        if self.step == len(self.event_log) - 2:
            self._follow_to(len(self.event_log) - 1)
        wait = self._delivered_at + _PAUSE - monotonic()
        loop = _running_loop()
        if wait <= 0 or loop is None:
            self._deliver()
        elif self._delivery is None:
            # The loop comes round when the cell is done: the last events of a run arrive then.
            self._delivery = loop.call_later(wait, self._deliver)

    def _deliver(self) -> None:
        self._cancel_delivery()
        self._delivered_at = monotonic()
        start, self._delivered = self._delivered, len(self.event_log)
        chunk = _chunk(self.event_log.raw_frames(start))
        # The browser appends the delta to its own chunks, so here the list grows in place, unsent.
        self._chunks.append(chunk)
        self._delta = {"start": start, "chunk": chunk}

    def _cancel_delivery(self) -> None:
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None

    def _follow_to(self, step: int) -> None:
        """Move with the log, without a message: a view at the end follows, one that was moved stays."""
        self._following = True
        try:
            self.step = step
        finally:
            self._following = False

    def notify_change(self, change: Any) -> None:
        """Tell the browser, and those who observe the trait; only the latter while following the log."""
        if self._following:
            traitlets.HasTraits.notify_change(self, change)
        else:
            super().notify_change(change)

    # ---- input that is refused --------------------------------------------------------------

    @traitlets.validate("step")
    def _check_step(self, proposal: dict[str, Any]) -> int:
        step, last = proposal["value"], len(self.event_log) - 1
        if not min(0, last) <= step <= last:
            raise traitlets.TraitError(f"step {step} is outside this log of {last + 1} events")
        return int(step)

    @traitlets.validate("highlight")
    def _check_highlight(self, proposal: dict[str, Any]) -> list[int]:
        blocks = proposal["value"]
        pool = self.event_log.state(len(self.event_log) - 1).num_blocks if len(self.event_log) else 0
        for block in blocks:
            if not 0 <= block < pool:
                raise traitlets.TraitError(f"block {block} is outside the pool of {pool} blocks")
        return list(blocks)

    # ---- what is shown where no widget can be ------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle or ({}, {})
        return {**data, "text/html": self._to_html(), "text/plain": self.to_text()}, metadata

    def _to_html(self) -> str:
        """Picture and text; an image, since inline SVG is taken apart where a notebook is not trusted."""
        picture = base64.b64encode(self.to_svg().encode()).decode()
        text = escape(self.to_text())
        alt = escape(self.to_text().partition("\n")[0])
        image = f'<img alt="{alt}" src="data:image/svg+xml;base64,{picture}">'
        return f"{image}<details><summary>The same as text</summary><pre>{text}</pre></details>"

    def __repr__(self) -> str:
        return f"BlockMap(step {self.step} of {self.event_log!r})"


def _log_of(source: object) -> EventLog:
    log = source if isinstance(source, EventLog) else getattr(source, "observer", None)
    if not isinstance(log, EventLog):
        raise TypeError(
            "BlockMap needs an EventLog, or an object whose `observer` is one, such as "
            f"KVCacheManager(observer=EventLog()); this is {_named(source)}, its observer {_named(log)}"
        )
    return log


def _named(thing: object) -> str:
    return "None" if thing is None else f"of type {type(thing).__name__}"


def _chunk(frames: list[RawFrame]) -> str:
    return json.dumps(frames, ensure_ascii=False, separators=(",", ":"))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The kernel's event loop; None in a plain script, where nothing could be delivered later."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
