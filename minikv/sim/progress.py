"""A progress bar for long runs, on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def watched(items: Iterable[T], label: str, show: bool = True, total: int | None = None) -> Iterable[T]:
    """The same items; a bar shows how many have been taken. Without tqdm there is no bar, and all else works.

    Args:
        label: what stands before the bar.
        show: False gives the items back as they are.
        total: how many there will be, where the items themselves cannot tell.
    """
    if not show:
        return items
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return items
    bar: Iterable[T] = tqdm(items, desc=label, total=total, mininterval=0.5)
    return bar
