"""The event log: everything that happened to a pool, in order, to be saved, loaded and replayed.

It is an observer: hand it to a manager or an engine, which calls it with an event (a plain dict,
see events.py) for every change of state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import overload

from minikv.lab.events import Event, EventError, check_event
from minikv.lab.frame import Frame, PoolState, Violation
from minikv.lab.patches import play
from minikv.lab.replay import RawFrame, Replay
from minikv.lab.sentences import counted


class EventLog:
    """An observer that remembers. `len`, iteration and indexing give the events, each with its "step".

    An event is replayed when it arrives, at a cost of O(blocks it touches), so a wrong one is
    refused at once (EventError) and the log stays as it was.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: list[Event] = []
        self._frames: list[RawFrame] = []
        self._replay = Replay()
        self._followers: list[Callable[[], None]] = []
        for event in events:
            self(event)

    def __call__(self, event: Event) -> None:
        """Append one event. Raises EventError, naming the value, if it cannot follow what is there."""
        checked = check_event(event, len(self._events), self._pool())
        self._frames.append(self._replay.step(checked))
        self._events.append(checked)
        for follower in tuple(self._followers):
            follower()

    def _pool(self) -> tuple[int, int] | None:
        if not self._events:
            return None
        return self._replay.state["num_blocks"], self._replay.state["block_size"]

    # ---- reading ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return (_copy(event) for event in tuple(self._events))

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        if isinstance(place, slice):
            return [_copy(event) for event in self._events[place]]
        try:
            return _copy(self._events[place])
        except IndexError:
            raise IndexError(f"event {place} is outside this log of {len(self)} events") from None

    def state(self, step: int) -> PoolState:
        """The state after event `step`, in [0, len). O(step). Raises IndexError naming both numbers."""
        self._check_step(step)
        return PoolState(play(frame["patch"] for frame in self._frames[: step + 1]))

    def frame(self, step: int) -> Frame:
        """What is shown of `step`: its event, its sentence, the state after it. IndexError as in `state`."""
        state = self.state(step)
        raw = self._frames[step]
        return Frame(step, len(self) - 1, self[step], raw["sentence"], tuple(raw["blocks"]), state)

    def raw_frames(self, start: int = 0) -> list[RawFrame]:
        """The frames from `start` on as the widget plays them (see replay.py); not to be changed."""
        return self._frames[start:]

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Every violation since the last "pool" event, oldest first, those that were mended later too."""
        found = self._replay.state.get("violations", [])
        return tuple(
            Violation(each["step"], each["invariant"], each["block"], each["sentence"]) for each in found
        )

    def _check_step(self, step: int) -> None:
        if not isinstance(step, int) or isinstance(step, bool):
            raise TypeError(f"a step is an int, not {step!r}")
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is outside this log of {len(self)} events")

    # ---- following --------------------------------------------------------------------------

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback()` after each new event. Returns a function that ends it."""
        self._followers.append(callback)

        def unfollow() -> None:
            if callback in self._followers:
                self._followers.remove(callback)

        return unfollow

    # ---- files ------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the events as JSON lines, UTF-8."""
        lines = (json.dumps(event, ensure_ascii=False) + "\n" for event in self._events)
        Path(path).write_text("".join(lines), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> EventLog:
        """Read what `save` wrote. Raises EventError naming the file, the line and the value."""
        log = cls()
        # Not splitlines: a word may hold other line ends than this one.
        lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for number, line in enumerate(lines if lines != [""] else [], 1):
            try:
                log(json.loads(line))
            except json.JSONDecodeError as error:
                raise EventError(f"{path}, line {number} is not JSON ({error.msg}): {line[:80]!r}") from None
            except EventError as error:
                raise EventError(f"{path}, line {number}: {error}") from None
        return log

    def __repr__(self) -> str:
        if not self._events:
            return "EventLog(empty)"
        state, broken = self._replay.state, len(self.violations)
        size = f"{state['num_blocks']}×{state['block_size']} slots"
        requests = counted(len(state["requests"]), "request")
        return f"EventLog({counted(len(self), 'event')}, {size}, {requests}, {counted(broken, 'violation')})"


def _copy(event: Event) -> Event:
    return {key: list(value) if isinstance(value, list) else value for key, value in event.items()}
