"""What a policy for KV memory must answer, and the books that all policies keep.

Nothing is counted slot by slot. Sums are kept of what the requests hold; and as all running requests
store one token in each step, `advance` moves one clock for all of them.
"""

from __future__ import annotations

from typing import Protocol

from minikv.sim.split import Split
from minikv.sim.workload import Request


class Policy(Protocol):
    """What the simulator needs, so that your own policy can stand in. `key` is a request's number.

    Books, below, says what each method does.
    """

    name: str
    num_slots: int  # all there are
    longest: int  # slots that one request can have at most
    tokens_copied: int  # so far, by moves

    def admit(self, key: int, request: Request, done: int = 0) -> bool: ...
    def room(self, key: int) -> int: ...
    def grow(self, key: int) -> bool: ...
    def advance(self, steps: int) -> None: ...
    def finish(self, key: int) -> None: ...
    def split(self, waiting: bool = False) -> Split: ...


class Holding:
    """What one request holds."""

    __slots__ = ("capacity", "held", "key", "needed", "stored_at_zero")

    def __init__(self, key: int, needed: int) -> None:
        self.key = key
        self.needed = needed  # slots it will fill in the end
        self.capacity = 0  # slots it may fill
        self.held = 0  # slots that nobody else can have: the capacity, and what rounding up adds
        self.stored_at_zero = 0  # tokens stored, minus the clock


class Books:
    """Who holds how much. A policy adds where the slots come from: the three methods at the end.

    Args:
        name: for tables and plots.
        num_slots: token slots in all.
        longest: slots that one request can have at most.
    """

    contiguous = True  # free memory may be of no use, for it lies in pieces

    def __init__(self, name: str, num_slots: int, longest: int) -> None:
        self.name, self.num_slots, self.longest = name, num_slots, longest
        self.tokens_copied = 0
        self._holdings: dict[int, Holding] = {}
        self._clock = 0  # steps so far
        self._tokens = 0  # slots that are filled
        self._fillable = 0  # slots that are filled, or held and going to be
        self._capacity = 0
        self._held = 0

    def admit(self, key: int, request: Request, done: int = 0) -> bool:
        """Let a request in, and store its prompt and the `done` tokens it had generated before a preemption.

        Without memory for that the answer is False, and nothing has changed.

        Raises:
            ValueError: the key is in use, or the request is longer than `longest`.
        """
        if key in self._holdings:
            raise ValueError(f"request {key} is running already; finish it first, or take another key")
        if request.slots > self.longest:
            raise ValueError(
                f"request {key} needs {request.slots} slots, and {self.name} gives at most {self.longest}; "
                "leave it out, or make the memory larger"
            )
        holding, tokens = Holding(key, request.slots), request.input_tokens + done
        if not self._place(holding, request, tokens):
            return False
        holding.stored_at_zero = tokens - self._clock
        self._holdings[key] = holding
        self._tokens += tokens
        return True

    def stored(self, key: int) -> int:
        """Tokens of this request that are stored."""
        return self._holdings[key].stored_at_zero + self._clock

    def room(self, key: int) -> int:
        """Tokens this request can still store before it must grow."""
        holding = self._holdings[key]
        return holding.capacity - holding.stored_at_zero - self._clock

    def append(self, key: int) -> bool:
        """Store one more token of this request. False, and no change, if it needs memory and finds none.

        Raises:
            KeyError: it is not running. ValueError: all its tokens are stored.
        """
        if self.stored(key) == self._holdings[key].needed:
            raise ValueError(f"request {key} has stored all its {self.stored(key)} tokens; finish it")
        if self.room(key) < 1 and not self.grow(key):
            return False
        self._holdings[key].stored_at_zero += 1
        self._tokens += 1
        return True

    def advance(self, steps: int) -> None:
        """Store `steps` more tokens of every request; each must have the room. O(1)."""
        self._clock += steps
        self._tokens += steps * len(self._holdings)

    def finish(self, key: int) -> None:
        """Take back all that a request holds. KeyError: it is not running."""
        holding = self._holdings.pop(key)
        self._tokens -= holding.stored_at_zero + self._clock
        self._release(holding)
        self._book(holding, 0, 0)

    def split(self, waiting: bool = False) -> Split:
        """Where every slot is now. O(1).

        Args:
            waiting: a request waits, and what is free does not serve it.
        """
        free = self.num_slots - self._held
        useless = free if waiting and self.contiguous else 0
        return Split(
            self._tokens,
            self._fillable - self._tokens,  # reserved
            self._capacity - self._fillable,  # internal
            self._held - self._capacity + useless,  # external
            free - useless,
        )

    def _book(self, holding: Holding, capacity: int, held: int) -> None:
        """Note what a request holds from now on."""
        needed = holding.needed
        self._fillable += min(capacity, needed) - min(holding.capacity, needed)
        self._capacity += capacity - holding.capacity
        self._held += held - holding.held
        holding.capacity, holding.held = capacity, held

    def grow(self, key: int) -> bool:
        """Make room for at least one more token. False, and no change, if there is no memory."""
        raise NotImplementedError

    def _place(self, holding: Holding, request: Request, tokens: int) -> bool:
        """Find and book slots for a new request that has `tokens` to store. False: there are none."""
        raise NotImplementedError

    def _release(self, holding: Holding) -> None:
        """Give all of its slots back; the books follow."""
        raise NotImplementedError
