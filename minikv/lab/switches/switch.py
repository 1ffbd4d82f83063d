"""What a switch is: one way to break the cache, and what puts it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Undo = Callable[[], None]


class Switch(NamedTuple):
    """One way to break the cache."""

    invariant: str  # which promise is broken
    says: str  # what is wrong, in a sentence
    install: Callable[..., Undo]  # (bench, **options) -> what puts it back
