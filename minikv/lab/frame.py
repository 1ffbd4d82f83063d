"""One step of an event log, to be read: who holds which block, what is in it, what is broken."""

from __future__ import annotations

from typing import Any, NamedTuple

from minikv.invariants import INVARIANTS
from minikv.lab.events import Event
from minikv.lab.invariants import slot_of, stored


class Violation(NamedTuple):
    """A broken invariant: since which step, at which block (None: no block is to blame), and how."""

    step: int
    invariant: str
    block_id: int | None
    sentence: str

    @property
    def name(self) -> str:
        """The invariant with its name, as in "I2 ref-count"."""
        return f"{self.invariant} {INVARIANTS[self.invariant]}"


class RequestView(NamedTuple):
    """One request's logical side."""

    name: str
    text: str
    status: str  # waiting | holding | prefill | decoding | finished | freed
    block_ids: tuple[int, ...]
    offset: int
    length: int  # tokens stored
    next_word: str | None  # chosen, not stored yet


class PoolState:
    """The state after one step. `data` is the plain JSON that replay.py describes."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return int(self.data["num_blocks"])

    @property
    def block_size(self) -> int:
        """Slots in a block."""
        return int(self.data["block_size"])

    @property
    def free_queue(self) -> tuple[int, ...]:
        """Free block ids, next to be handed out first."""
        return tuple(block for block in self.data["tape"][self.data["head"] :] if block is not None)

    @property
    def ref_counts(self) -> tuple[int, ...]:
        """Ref count of each block."""
        return tuple(self.data["ref"])

    @property
    def cache_refs(self) -> tuple[int, ...]:
        """References held by something that is no table, for each block."""
        return tuple(self.data["other"])

    @property
    def requests(self) -> dict[str, RequestView]:
        """Every request seen so far, in order of arrival."""
        return {request["name"]: _view(request) for request in self.data["requests"]}

    @property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """Block table of each request."""
        return {request["name"]: tuple(request["blocks"]) for request in self.data["requests"]}

    def words_in(self, block_id: int) -> tuple[str | None, ...]:
        """The text in each slot of this block; None was never written."""
        return tuple(self.data["words"][block_id])

    @property
    def memory(self) -> dict[str, int]:
        """tokens, unused, before, lost, free (slots); held, peak, saved (blocks)."""
        return dict(self.data["memory"])

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What is broken at this step, oldest first."""
        return tuple(
            Violation(found["step"], found["invariant"], found["block"], found["sentence"])
            for found in self.data["violations"]
            if found["until"] is None
        )

    def text_of(self, name: str) -> tuple[str | None, ...]:
        """What the block table of this request shows, position by position. KeyError: no such request."""
        request = next((each for each in self.data["requests"] if each["name"] == name), None)
        if request is None:
            raise KeyError(f"no request {name!r}; there are {', '.join(self.requests) or 'none'}")
        slots = [slot_of(self.data, request, position) for position in range(stored(request))]
        return tuple(None if slot is None else self._word(slot) for slot in slots)

    def owners(self, block_id: int) -> tuple[str, ...]:
        """Names of the requests whose table lists this block."""
        return tuple(request["name"] for request in self.data["requests"] if block_id in request["blocks"])

    def _word(self, slot: int) -> str | None:
        word = self.data["words"][slot // self.block_size][slot % self.block_size]
        return None if word is None else str(word)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolState) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]  # it wraps a dict

    def __repr__(self) -> str:
        memory = self.data["memory"]
        return (
            f"PoolState({memory['held']} of {self.num_blocks} blocks held, {memory['tokens']} tokens stored)"
        )


class Frame(NamedTuple):
    """Everything that is shown of one step."""

    step: int
    last: int  # the log's last step
    event: Event
    sentence: str
    blocks: tuple[int, ...]  # the blocks this event is about, the main one first
    state: PoolState


def _view(request: dict[str, Any]) -> RequestView:
    chosen = request["next"]
    return RequestView(
        name=request["name"],
        text=request["text"],
        status=request["status"],
        block_ids=tuple(request["blocks"]),
        offset=request["offset"],
        length=stored(request),
        next_word=None if chosen is None else chosen["word"],
    )
