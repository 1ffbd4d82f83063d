"""Which invariants hold, and what to say when one does not.

I1, I2, I3 and the capacity part of I5 are judged on the state, for the blocks and tables that an
event touched. I4, I6 and the address part of I5 are judged at the write or read itself: a read of
another slot breaks I5 if that slot is the request's own, and I6 if it is not.
Each function gives back verdicts: (key, invariant, block or None, sentence or None when all is well).
The key tells one violation from another, so that a standing one is not reported again at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minikv.lab.books import Books
from minikv.lab.events import Event
from minikv.lab.sentences import listed

Verdict = tuple[tuple[Any, ...], str, int | None, str | None]


def judge_block(state: dict[str, Any], books: Books, block: int, may_wait: bool) -> Iterator[Verdict]:
    """I1 and I2 for one block. `may_wait`: its count has just become 0, its release may be the next event."""
    yield ("I1", block), "I1", block, _conservation(state, books, block, may_wait)
    yield ("I2", block), "I2", block, _ref_count(state, books, block)


def judge_table(state: dict[str, Any], number: int, blocks: set[int]) -> Iterator[Verdict]:
    """I3 for these blocks in one request's table, and that it covers what is stored through it (I5)."""
    request = state["requests"][number]
    for block in blocks:
        times = request["blocks"].count(block)
        repeated = (
            f"Request {request['name']}'s table lists block {block} {times} times." if times > 1 else None
        )
        yield ("I3", number, block), "I3", block, repeated
    capacity = max(0, len(request["blocks"]) * state["block_size"] - request["offset"])
    length = stored(request)
    short = f"Request {request['name']} has {length} tokens stored, its table covers {capacity}."
    last = request["blocks"][-1] if request["blocks"] else None
    yield ("I5", number), "I5", last, short if length > capacity else None


def judge_write(state: dict[str, Any], books: Books, number: int, event: Event) -> Iterator[Verdict]:
    """That each slot written is the one the table gives (I5), and I4 for the blocks written to.

    I5 first: a write that goes astray may hit a block of somebody else, but that is not where it began.
    """
    request, size = state["requests"][number], state["block_size"]
    yield from _astray(state, request, number, event)
    for block in dict.fromkeys(slot // size for slot in event["slots"]):
        if state["ref"][block] != 1:
            yield ("I4", number, block), "I4", block, _shared_write(state, books, number, block)


def _astray(state: dict[str, Any], request: dict[str, Any], number: int, event: Event) -> Iterator[Verdict]:
    size = state["block_size"]
    for position, slot in enumerate(event["slots"], event["start"]):
        if slot_of(state, request, position) is None:
            return  # beyond the table: what is stored no longer fits, and judge_table says so
        if (sentence := _misplaced("written to", state, request, position, slot)) is not None:
            yield ("I5", "write", number, slot // size), "I5", slot // size, sentence
            return


def judge_read(state: dict[str, Any], number: int, event: Event) -> Iterator[Verdict]:
    """Every slot read is written (I6), and is the one the table gives. The first bad one is named.

    One of the request's own words in another's place breaks I5, what was not written for it breaks I6.
    """
    request, size = state["requests"][number], state["block_size"]
    slots = event.get("slots")
    if slots is None and event["length"] <= stored(request) and _all_written(state, request, event["length"]):
        return
    for position in range(event["length"] if slots is None else len(slots)):
        slot = slot_of(state, request, position) if slots is None else slots[position]
        sentence = _bad_read(state, request, position, slot)
        if sentence is not None:
            block = None if slot is None else slot // size
            own = slot in (slot_of(state, request, each) for each in range(stored(request)))
            written = slot is not None and state["words"][slot // size][slot % size] is not None
            invariant = "I5" if own and written else "I6"
            yield (invariant, "read", number, block), invariant, block, sentence
            return


def stored(request: dict[str, Any]) -> int:
    """Tokens stored through a request's table."""
    return max(0, int(request["end"]) - int(request["offset"]))


def slot_of(state: dict[str, Any], request: dict[str, Any], position: int) -> int | None:
    """The flat slot that the table gives for this position, or None beyond its capacity."""
    index, place = divmod(request["offset"] + position, state["block_size"])
    if index >= len(request["blocks"]):
        return None
    return int(request["blocks"][index]) * int(state["block_size"]) + int(place)


def _conservation(state: dict[str, Any], books: Books, block: int, may_wait: bool) -> str | None:
    count, queued = state["ref"][block], books.queued[block]
    if queued > 1:
        return f"Block {block} is in the free queue {queued} times."
    if queued == 1 and count > 0:
        return f"Block {block} is both free and held: it is in the free queue, its ref count is {count}."
    if queued == 0 and count <= 0 and not may_wait:
        return f"Block {block} is lost: its ref count is {count}, yet it is not in the free queue."
    return None


def _ref_count(state: dict[str, Any], books: Books, block: int) -> str | None:
    count, others = state["ref"][block], state["other"][block]
    holders = books.entries(block) + others
    if count == holders:
        return None
    names = [state["requests"][number]["name"] for number in sorted(books.listed_by[block])]
    who = [f"request {name}" for name in names] + ["a cache"] * (others > 0)
    noun = "holder" if holders == 1 else "holders"
    return f"Block {block}'s ref count is {count}, but it has {holders} {noun}" + (
        f": {listed(who)}." if who else "."
    )


def _shared_write(state: dict[str, Any], books: Books, number: int, block: int) -> str:
    name, count = state["requests"][number]["name"], state["ref"][block]
    others = [state["requests"][n]["name"] for n in sorted(books.listed_by[block]) if n != number]
    too = f"; request {listed(others)} {'reads' if len(others) == 1 else 'read'} it too" if others else ""
    return f"Request {name} writes into block {block} while its ref count is {count}{too}."


def _misplaced(
    done: str, state: dict[str, Any], request: dict[str, Any], position: int, slot: int
) -> str | None:
    right = slot_of(state, request, position)
    if right == slot:
        return None
    size = state["block_size"]
    place = f"block {slot // size}, slot {slot % size}"
    seen = f"Position {position} of request {request['name']} was {done} {place}"
    if right is None:
        return f"{seen}, but its table ends before that position."
    return f"{seen}; it belongs in block {right // size}, slot {right % size}."


def _bad_read(state: dict[str, Any], request: dict[str, Any], position: int, slot: int | None) -> str | None:
    if slot is None:
        return f"Position {position} of request {request['name']} was read, but its table ends before it."
    block, place = divmod(slot, state["block_size"])
    if state["words"][block][place] is None:
        return (
            f"Position {position} of request {request['name']} was read from block {block}, slot {place}, "
            "which was never written."
        )
    return _misplaced("read from", state, request, position, slot)


def _all_written(state: dict[str, Any], request: dict[str, Any], length: int) -> bool:
    """The common case, block by block: a read costs little even when it is long."""
    size, start = state["block_size"], request["offset"]
    stop = start + length
    for index in range(-(-stop // size)):
        words = state["words"][request["blocks"][index]]
        if None in words[max(0, start - index * size) : stop - index * size]:
            return False
    return True
