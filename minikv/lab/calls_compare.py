"""Two traces side by side: which calls between the layers are not the same?

different_calls(with_gather, with_kernel)
"""

from __future__ import annotations

from collections import Counter

from minikv.lab.calls import Call, Calls
from minikv.lab.guide import Table

_DUTY = {"table": "logical", "manager": "management", "pool": "storage"}


class Different:
    """The calls that come more often in one trace than in the other.

    Attributes:
        rows: (call, times in the first, times in the second).
        same: how many calls are the same in both.
    """

    def __init__(self, first: Calls, second: Calls, names: tuple[str, str]) -> None:
        before, after = Counter(first.crossing), Counter(second.crossing)
        every = dict.fromkeys([*before, *after])
        self.names = names
        self.rows: list[tuple[Call, int, int]] = [
            (call, before[call], after[call]) for call in every if before[call] != after[call]
        ]
        self.same = sum((before & after).values())

    @property
    def callers(self) -> set[str]:
        """The lanes that called something else, or another number of times."""
        return {call.caller for call, _, _ in self.rows}

    @property
    def table(self) -> Table:
        """A row for each call that is not the same."""
        rows = [
            (call.caller, f"{call.callee}{_duty(call.callee)}", call.short, f"×{before}", f"×{after}")
            for call, before, after in self.rows
        ]
        return Table(("who", "calls", "what", *self.names), rows)

    def _repr_markdown_(self) -> str:
        return self.table._repr_markdown_()

    def __repr__(self) -> str:
        return repr(self.table)


def different_calls(first: Calls, second: Calls, names: tuple[str, str] = ("before", "after")) -> Different:
    """Compare the calls between layers in two traces."""
    return Different(first, second, names)


def _duty(lane: str) -> str:
    return f" ({_DUTY[lane]})" if lane in _DUTY else ""
