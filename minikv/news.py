"""What observers hear of the management layer, and what they call the tables.

The news of an operation are collected while it runs and told when it is over: an observer always
sees whole books, and one that raises cannot leave an operation half done.
"""

from __future__ import annotations

from typing import Any

from minikv.protocols import Observer, Table


class News:
    """Collects events for one observer; without an observer it keeps nothing.

    Attributes:
        wanted: somebody listens. Where news come block by block, the manager asks before it words them.
    """

    def __init__(self, observer: Observer | None) -> None:
        self.observe(observer)
        self._unsent: list[dict[str, Any]] = []
        self._labels: dict[
            int, tuple[Table, str]
        ] = {}  # by id(); holds the table, so that its id stays its own
        self._told: set[str] = set()  # names in use: no letter may stand for two tables

    def observe(self, observer: Observer | None) -> None:
        """From now on tell this observer, or nobody."""
        self.observer, self.wanted = observer, observer is not None

    def add(self, op: str, table: Table | None = None, **facts: Any) -> None:
        """Note an event, of the request that `table` belongs to if one is given."""
        if self.wanted:
            request = {} if table is None else {"request": self.name(table)}
            self._unsent.append({"op": op, **request, **facts})

    def send(self) -> None:
        """Tell the observer what was noted, in order."""
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        if self.observer is not None:
            for event in unsent:
                self.observer(event)

    def name(self, table: Table) -> str:
        """The table's own name, else the first free letter, which it then keeps."""
        name = str(getattr(table, "name", None) or self._label(table))
        self._told.add(name)
        return name

    def _label(self, table: Table) -> str:
        if id(table) not in self._labels:
            number = len(self._labels)
            while letters(number) in self._told:
                number += 1
            self._labels[id(table)] = (table, letters(number))
        return self._labels[id(table)][1]


def letters(number: int) -> str:
    """A, B, …, Z, AA, AB, … for 0, 1, 2, …"""
    label = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        label = chr(ord("A") + rest) + label
    return label
