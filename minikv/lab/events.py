"""What an event is: a plain dict with an `op` and the keys that this op needs. Anything else is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Event = dict[str, Any]


class EventError(ValueError):
    """An event that cannot be part of this log; the message names the value. The log is as it was."""


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


Kind = tuple[str, Callable[[object], bool]]
INT: Kind = ("an int", _is_int)
COUNT: Kind = ("an int of at least 0", _is_count)
SIZE: Kind = ("an int of at least 1", lambda value: _is_count(value) and value != 0)
TEXT: Kind = ("a str", _is_text)
NAME: Kind = ("a str that is not empty", _is_name)
SOURCE: Kind = ("a request's name or None", lambda value: value is None or _is_name(value))
COUNTS: Kind = ("a list of ints of at least 0", _is_counts)
TEXTS: Kind = ("a list of str", _is_texts)

# One table entry changes hands: which request, which entry, which block, and its count afterwards.
_ENTRY = {"request": NAME, "index": COUNT, "block_id": COUNT, "ref_count": INT}

REQUIRED: dict[str, dict[str, Kind]] = {
    "pool": {"num_blocks": SIZE, "block_size": SIZE},
    "request": {"request": NAME},
    "allocate": _ENTRY,
    "share": {**_ENTRY, "source": SOURCE},
    "inc_ref": {"block_id": COUNT, "ref_count": INT},
    "dec_ref": {"block_id": COUNT, "ref_count": INT},
    "drop": _ENTRY,
    "release": {"block_id": COUNT},
    "copy": {**_ENTRY, "source": COUNT, "source_ref_count": INT},
    "offset": {"request": NAME, "offset": COUNT},
    "full": {"request": NAME, "needed": COUNT, "free": COUNT},
    "reset": {"block_ids": COUNTS},
    "queue": {"block_ids": COUNTS},  # how a manager that is not ours really keeps its free blocks
    "write": {"request": NAME, "start": COUNT, "slots": COUNTS, "words": TEXTS},
    "read": {"request": NAME, "length": COUNT},
    "token": {"request": NAME, "position": COUNT, "word": TEXT},
    "finish": {"request": NAME, "reason": TEXT},
    "note": {"text": TEXT},
}
OPTIONAL: dict[str, dict[str, Kind]] = {"request": {"text": TEXT}, "read": {"slots": COUNTS}}


def check_event(event: object, step: int, pool: tuple[int, int] | None) -> Event:
    """A copy of `event` with its "step", if it may stand at place `step` of a log.

    Args:
        pool: (num_blocks, block_size) of the pool in force; None before the first "pool" event.

    Raises:
        EventError: unknown op, a key missing, unknown or of the wrong kind, a block or slot outside
            the pool, or no pool yet.
    """
    if not isinstance(event, Mapping):
        raise EventError(f"an event is a dict, not {event!r}")
    op = event.get("op")
    if not isinstance(op, str) or op not in REQUIRED:
        raise EventError(f"unknown op {op!r}; the ops are {', '.join(REQUIRED)}")
    if event.get("step", step) != step:
        raise EventError(f"{op}: step is {event['step']!r}, but this event is number {step}")
    _check_keys(op, event)
    if op != "pool":
        _check_ranges(op, event, pool)
    copied = {key: list(value) if isinstance(value, list) else value for key, value in event.items()}
    return {"step": step, "op": op, **copied}


def _check_keys(op: str, event: Mapping[str, Any]) -> None:
    kinds = {**REQUIRED[op], **OPTIONAL.get(op, {})}
    for key in REQUIRED[op]:
        if key not in event:
            raise EventError(f"{op}: {key!r} is missing from {dict(event)!r}")
    for key, value in event.items():
        if key in ("op", "step"):
            continue
        if key not in kinds:
            raise EventError(f"{op}: unknown key {key!r}; this op has {', '.join(kinds)}")
        wanted, is_right = kinds[key]
        if not is_right(value):
            raise EventError(f"{op}: {key} is {value!r}, but must be {wanted}")


def _check_ranges(op: str, event: Mapping[str, Any], pool: tuple[int, int] | None) -> None:
    if pool is None:
        raise EventError(f"{op}: there is no pool yet; the first event of a log is 'pool'")
    num_blocks, block_size = pool
    named = [event["block_id"]] if "block_id" in event else []
    if op == "copy":
        named.append(event["source"])
    for block_id in [*named, *event.get("block_ids", [])]:
        if block_id >= num_blocks:
            raise EventError(f"{op}: block {block_id} is outside the pool of {num_blocks} blocks")
    for slot in event.get("slots", []):
        if slot >= num_blocks * block_size:
            raise EventError(f"{op}: slot {slot} is outside the pool of {num_blocks * block_size} slots")
    if op == "write" and len(event["slots"]) != len(event["words"]):
        raise EventError(f"write: {len(event['slots'])} slots, but {len(event['words'])} words")
    if op == "offset" and event["offset"] >= block_size:
        raise EventError(f"offset: {event['offset']} is not below the block size, {block_size}")
