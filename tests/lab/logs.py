"""Short logs, written by hand, for the tests of the log and of the map."""

from typing import Any

from minikv.lab.event_log import EventLog

Event = dict[str, Any]


def pool(num_blocks: int = 4, block_size: int = 2) -> Event:
    return {"op": "pool", "num_blocks": num_blocks, "block_size": block_size}


def allocate(request: str, index: int, block_id: int, ref_count: int = 1) -> Event:
    return {
        "op": "allocate",
        "request": request,
        "index": index,
        "block_id": block_id,
        "ref_count": ref_count,
    }


def share(request: str, index: int, block_id: int, ref_count: int, source: str | None = None) -> Event:
    return {**allocate(request, index, block_id, ref_count), "op": "share", "source": source}


def drop(request: str, index: int, block_id: int, ref_count: int) -> Event:
    return {**allocate(request, index, block_id, ref_count), "op": "drop"}


def copy(request: str, index: int, source: int, block_id: int, source_ref_count: int) -> Event:
    counts = {"ref_count": 1, "source_ref_count": source_ref_count}
    return {**allocate(request, index, block_id), "op": "copy", "source": source, **counts}


def release(block_id: int) -> Event:
    return {"op": "release", "block_id": block_id}


def count(op: str, block_id: int, ref_count: int) -> Event:
    return {"op": op, "block_id": block_id, "ref_count": ref_count}


def write(request: str, start: int, slots: list[int], text: str) -> Event:
    return {"op": "write", "request": request, "start": start, "slots": slots, "words": text.split()}


def read(request: str, length: int, **slots: list[int]) -> Event:
    return {"op": "read", "request": request, "length": length, **slots}


def token(request: str, position: int, word: str) -> Event:
    return {"op": "token", "request": request, "position": position, "word": word}


def story() -> list[Event]:
    """Everything that can happen, once, without a fault: 6 blocks of 2 slots."""
    return [
        pool(6, 2),
        {"op": "request", "request": "A", "text": "Ada has kites"},
        allocate("A", 0, 0),
        allocate("A", 1, 1),
        write("A", 0, [0, 1, 2], "Ada has kites"),
        read("A", 3),
        token("A", 3, "."),
        share("B", 0, 0, 2, "A"),
        share("B", 1, 1, 2, "A"),
        copy("B", 1, 1, 2, 1),
        write("B", 3, [5], "!"),
        write("A", 3, [3], "."),
        count("inc_ref", 0, 3),
        {"op": "offset", "request": "A", "offset": 1},
        token("A", 3, "Bo"),
        {"op": "full", "request": "A", "needed": 4, "free": 3},
        drop("A", 0, 0, 2),
        {"op": "offset", "request": "A", "offset": 0},
        drop("A", 0, 1, 0),
        release(1),
        {"op": "finish", "request": "A", "reason": "length"},
        count("dec_ref", 0, 1),
        {"op": "note", "text": "Now everything goes."},
        {"op": "reset", "block_ids": [0, 2]},
    ]


def story_log() -> EventLog:
    return EventLog(story())
