"""A patch is a list of [path, value] assignments into a state made of dicts, lists and scalars.

Replay states what an event means once, in Python, and records it as a patch. Whoever plays the
patches in order (a few lines in any language) has the state at every step, knowing nothing of blocks.
Setting the index one past a list's end appends; nothing else grows, and a list shrinks by being
assigned anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

Path = list[str | int]
Patch = list[list[Any]]  # [[path, value], ...]


def assign(state: Any, path: Path, value: Any) -> None:
    """Set `value` at `path` in `state`, in place. Lists and dicts are copied: a patch can be played twice."""
    *way, last = path
    for key in way:
        state = state[key]
    if isinstance(value, (list, dict)):
        value = deepcopy(value)
    if isinstance(state, list) and last == len(state):
        state.append(value)
    else:
        state[last] = value


def play(patches: Iterable[Patch]) -> dict[str, Any]:
    """The state after these patches, played in order on an empty state."""
    state: dict[str, Any] = {}
    for patch in patches:
        for path, value in patch:
            assign(state, path, value)
    return state


class Recorder:
    """A state that is changed by `set` only, so that every change is on the record."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._patch: Patch = []

    def set(self, *path_and_value: Any) -> None:
        """`set("requests", 0, "offset", 2)` makes state["requests"][0]["offset"] equal 2."""
        *path, value = path_and_value
        assign(self.state, path, value)
        # Lists and dicts inside the state go on changing; the record keeps them as they are now.
        self._patch.append([path, deepcopy(value) if isinstance(value, (list, dict)) else value])

    def take(self) -> Patch:
        """What was set since the last call."""
        patch, self._patch = self._patch, []
        return patch
