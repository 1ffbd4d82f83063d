"""What the slots of a memory are used for, kind by kind, now and with hindsight. (chapter §1, E8)

A slot of a reservation that holds no token yet is either reserved for later or will never be used
(internal fragmentation). Which of the two, nobody knows before the request has ended: until then it is
not yet known. So a moment is recorded as it was, and split again whenever more has become known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """What one request held at one moment."""

    stay: int  # which admission: a request that was dropped comes back as another one
    size: int  # slots
    tokens: int  # of them written


class Moment(NamedTuple):
    """A memory at the end of one step. Slots that nobody holds are `external` or `free`, never both.

    external: free slots, enough for the request that waits, but in holes too small for it.
    """

    held: tuple[Held, ...]
    external: int
    free: int


class Split(NamedTuple):
    """Slots (or their mean) of each kind. They add up to the memory."""

    tokens: float
    reserved: float  # for tokens that will still come
    internal: float  # internal fragmentation: will never be used
    unknown: float  # one of the two, not yet known
    external: float  # external fragmentation
    free: float

    @property
    def slots(self) -> float:
        """All of them."""
        return sum(self)

    @property
    def shares(self) -> Split:
        """The same in per cent of the memory."""
        return Split(*(100 * part / self.slots for part in self))


#: The name of each kind in a sentence or a legend, in the order of `Split`.
KINDS = {
    "tokens": "tokens",
    "reserved": "reserved for later",
    "internal": "internal fragmentation",
    "unknown": "not yet known",
    "external": "external fragmentation",
    "free": "free",
}


def split(moment: Moment, finals: Mapping[int, int]) -> Split:
    """The kinds at this moment, as far as they are known.

    Args:
        finals: stay -> tokens when it ended, of those that have ended.
    """
    tokens = reserved = internal = unknown = 0
    for stay, size, written in moment.held:
        tokens += written
        if stay in finals:
            used = min(size, finals[stay])
            reserved += used - written
            internal += size - used
        else:
            unknown += size - written
    return Split(tokens, reserved, internal, unknown, moment.external, moment.free)


def mean(splits: Sequence[Split]) -> Split:
    """The mean of each kind over some moments, at least one."""
    return Split(*(sum(parts) / len(splits) for parts in zip(*splits, strict=True)))
