"""What the management layer needs of its neighbours, so that a learner's own class can stand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

# Called with one dict for each change of state. An exception it raises reaches the caller of
# the operation, which has been carried out in full by then; what else it had to tell is lost.
Observer = Callable[[dict[str, Any]], None]


class Table(Protocol):
    """A block table.

    `replace_block` is called by copy-on-write only, `drop_blocks` by sliding windows only;
    for allocate, free and fork a table needs neither. `slots` is asked by note_write when somebody observes.
    """

    block_size: int
    offset: int

    def __init__(self, block_size: int, offset: int = 0) -> None: ...
    @property
    def block_ids(self) -> tuple[int, ...]: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def slot(self, position: int) -> int: ...
    def slots(self, start: int, stop: int) -> Any: ...
    def append_block(self, block_id: int) -> None: ...
    def replace_block(self, index: int, block_id: int) -> None: ...
    def drop_blocks(self, count: int, offset: int) -> None: ...
    def clear(self) -> None: ...


T = TypeVar("T", bound=Table)


class Pool(Protocol):
    """The storage, which is told when a block is copied or let go. `release` must not fail."""

    def copy_block(self, src: int, dst: int) -> None: ...
    def release(self, block_id: int) -> None: ...
