"""One sentence per event: what happened, to whom, and what the numbers are now."""

from __future__ import annotations

from typing import Any

from minikv.lab.events import Event

_ORDINALS = ("first", "second", "third")


def sentence_for(event: Event, facts: dict[str, Any]) -> str:
    """The frame's sentence. `facts` are what only the replay knows: see each function below."""
    return _SENTENCES[event["op"]](event, facts)


def listed(things: list[Any]) -> str:
    """1 → "1"; 1, 2 → "1 and 2"; 1, 2, 3 → "1, 2 and 3"; more than five are counted."""
    texts = [str(thing) for thing in things]
    if len(texts) > 5:
        return f"{', '.join(texts[:4])} and {len(texts) - 4} more"
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def counted(number: int, noun: str) -> str:
    """1 token, 2 tokens."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown(word: str) -> str:
    """A token's text as it is drawn: without the space around it; what would be invisible gets a sign."""
    stripped = word.strip(" ").replace("\n", "⏎").replace("\t", "⇥")
    return stripped or "␣"


def quoted(word: str) -> str:
    """A word in a sentence."""
    return f"“{shown(word)}”"


def _queue_place(place: int | None) -> str:
    if place is None:
        return "was not in the free queue"
    ordinal = _ORDINALS[place - 1] if place <= len(_ORDINALS) else f"number {place}"
    return f"was {ordinal} in the free queue"


def _pool(event: Event, facts: dict[str, Any]) -> str:
    slots = counted(event["block_size"], "slot")
    if event["num_blocks"] == 1:
        return f"A pool of 1 block with {slots}. It is free."
    pool = f"A pool of {event['num_blocks']} blocks with {slots} each"
    return f"{pool}. All are free, block 0 is first in the free queue."


def _request(event: Event, facts: dict[str, Any]) -> str:
    text = event.get("text", "")
    return f"Request {event['request']} arrives: “{text}”" if text else f"Request {event['request']} arrives."


def _allocate(event: Event, facts: dict[str, Any]) -> str:
    """facts: place, in the free queue before, from 1; None if it was not there."""
    block = event["block_id"]
    return (
        f"Request {event['request']} gets block {block} as L{event['index']}. "
        f"Block {block} {_queue_place(facts['place'])}; its ref count is {event['ref_count']}."
    )


def _share(event: Event, facts: dict[str, Any]) -> str:
    source = event["source"]
    lender = "that is already held" if source is None else f"that request {source} holds"
    return (
        f"Request {event['request']} takes block {event['block_id']} {lender} as its L{event['index']}; "
        f"nothing is copied, the ref count is now {event['ref_count']}."
    )


def _inc_ref(event: Event, facts: dict[str, Any]) -> str:
    return (
        f"A cache takes a reference to block {event['block_id']}; its ref count is now {event['ref_count']}."
    )


def _dec_ref(event: Event, facts: dict[str, Any]) -> str:
    return (
        f"A reference to block {event['block_id']} is given back; its ref count is now {event['ref_count']}."
    )


def _drop(event: Event, facts: dict[str, Any]) -> str:
    count = event["ref_count"]
    stays = f"is now {count}, so it stays held" if count > 0 else f"is now {count}"
    entry = f"L{event['index']}, block {event['block_id']}"
    return f"Request {event['request']} lets {entry}, go; its ref count {stays}."


def _release(event: Event, facts: dict[str, Any]) -> str:
    """facts: place, in the free queue now, from 1."""
    return f"Block {event['block_id']} is free: it joins the end of the free queue as #{facts['place']}."


def _copy(event: Event, facts: dict[str, Any]) -> str:
    """facts: place, in the free queue before, from 1; None if it was not there."""
    return (
        f"Copy-on-write: request {event['request']} gets its own copy of block {event['source']}, in block "
        f"{event['block_id']}, as L{event['index']}. Block {event['source']}'s ref count is now "
        f"{event['source_ref_count']}."
    )


def _offset(event: Event, facts: dict[str, Any]) -> str:
    first = (
        "slot 0 of its first block" if event["offset"] == 0 else f"slot {event['offset']} of its first block"
    )
    return f"Request {event['request']}'s table now starts at {first} (offset {event['offset']})."


def _full(event: Event, facts: dict[str, Any]) -> str:
    verb = "is" if event["free"] == 1 else "are"
    return (
        f"Refused: request {event['request']} needs {counted(event['needed'], 'block')}, "
        f"{event['free']} {verb} free. Nothing changed."
    )


def _reset(event: Event, facts: dict[str, Any]) -> str:
    if not event["block_ids"]:
        return "Everything is released; no block was held."
    blocks = counted(len(event["block_ids"]), "block")
    return f"Everything is released: {blocks} back in the free queue, every table void."


def _queue(event: Event, facts: dict[str, Any]) -> str:
    """facts: blocks, that are in the queue more or less often than before: lost, left, held, more, joined."""
    if not facts["blocks"]:
        return "The manager keeps its free blocks in another order than that in which they came back."
    said = (
        ("lost", "{} {has} left the free queue, but nobody holds {it}."),
        ("left", "{} {has} left the free queue: somebody holds {it}."),
        ("held", "{} {is_} in the free queue, but somebody holds {it}."),
        ("more", "{} {is_} in the free queue more than once."),
        ("joined", "{} {is_} in the free queue now."),
    )
    return " ".join(_of_blocks(form, facts[key]) for key, form in said if facts[key])


def _of_blocks(form: str, blocks: list[int]) -> str:
    """A sentence with these blocks as its subject, in the singular or the plural."""
    if len(blocks) == 1:
        return form.format(f"Block {blocks[0]}", has="has", is_="is", it="it")
    return form.format(f"Blocks {listed(blocks)}", has="have", is_="are", it="them")


def _write(event: Event, facts: dict[str, Any]) -> str:
    """facts: blocks, written to, in order; place, of the first slot in its block."""
    request, words = event["request"], event["words"]
    if not words:
        return f"Request {request} writes nothing."
    if len(words) == 1:
        place = f"block {facts['blocks'][0]}, slot {facts['place']}"
        return f"Request {request} writes {quoted(words[0])} into {place}."
    noun = "block" if len(facts["blocks"]) == 1 else "blocks"
    last = event["start"] + len(words) - 1
    return (
        f"Request {request} writes {len(words)} tokens, positions {event['start']} to {last}, "
        f"into {noun} {listed(facts['blocks'])}."
    )


def _read(event: Event, facts: dict[str, Any]) -> str:
    """facts: blocks, read from, in order."""
    where = f" from {counted(len(facts['blocks']), 'block')}" if facts["blocks"] else ""
    return f"Request {event['request']}'s attention reads {counted(event['length'], 'token')}{where}."


def _token(event: Event, facts: dict[str, Any]) -> str:
    return (
        f"The model chooses {quoted(event['word'])} for position {event['position']} of request "
        f"{event['request']}; its K and V are not stored yet."
    )


def _finish(event: Event, facts: dict[str, Any]) -> str:
    return f"Request {event['request']} is finished ({event['reason']})."


def _note(event: Event, facts: dict[str, Any]) -> str:
    return str(event["text"])


_SENTENCES = {
    "pool": _pool,
    "request": _request,
    "allocate": _allocate,
    "share": _share,
    "inc_ref": _inc_ref,
    "dec_ref": _dec_ref,
    "drop": _drop,
    "release": _release,
    "copy": _copy,
    "offset": _offset,
    "full": _full,
    "reset": _reset,
    "queue": _queue,
    "write": _write,
    "read": _read,
    "token": _token,
    "finish": _finish,
    "note": _note,
}
