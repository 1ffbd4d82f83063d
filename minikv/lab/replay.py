"""What each event means: the one place that turns events into a state (see patches.py) and frames.

The state, all of it plain JSON:
    num_blocks, block_size
    tape, head      the free queue is tape[head:] without its None entries. Blocks that join are
                    appended, so that a step costs one assignment whatever the queue's length
    ref, other      per block: ref count; references held by something that is no table (a cache)
    words           per block, per slot: the token's text, or None for a slot that was never written
    requests        list of {name, text, status, reason, blocks, offset, end, next}: `status` is waiting,
                    holding, prefill, decoding, finished, or freed (a table that nobody announced as a
                    request and that let its last block go); `blocks` is the
                    block table, `end` the table's slots in use (offset + tokens stored), `next` the
                    chosen token that is not stored yet, as {position, word}, or None
    memory          {tokens, unused, before, lost, free} in slots, {held, peak, saved} in blocks
    violations      list of {step, invariant, block, sentence, until}: `until` is None while it stands
"""

from __future__ import annotations

from typing import Any

from minikv.lab.books import Books
from minikv.lab.events import Event, EventError
from minikv.lab.invariants import Verdict, judge_block, judge_read, judge_table, judge_write
from minikv.lab.patches import Recorder
from minikv.lab.sentences import sentence_for

# A frame as widgets get it: {op, sentence, mark, request, blocks, slots, patch}.
RawFrame = dict[str, Any]


class Replay:
    """Takes events one by one. After a refused event it is as it was: handlers check, then change."""

    def __init__(self) -> None:
        self._record = Recorder()
        self._books: Books
        self._numbers: dict[str, int] = {}  # request name → its place in state["requests"]
        self._announced: set[int] = set()  # requests that a "request" event brought
        self._standing: dict[tuple[Any, ...], int] = {}  # violation's key → its place in state["violations"]
        self._awaited: int | None = None  # the block whose release must be the next event

    @property
    def state(self) -> dict[str, Any]:
        """The state after the last event; not to be changed by others."""
        return self._record.state

    def step(self, event: Event) -> RawFrame:
        """Apply one checked event and give the frame it makes. Raises EventError, changing nothing."""
        facts = getattr(self, f"_on_{event['op']}")(event)
        number = self._numbers.get(event.get("request", ""))
        blocks = self._touched(event, facts)
        changed = set(range(self.state["num_blocks"])) if event["op"] == "reset" else set(blocks)
        if self._awaited is not None:  # it comes now, or is lost
            changed.add(self._awaited)
        broken = self._judge(event, number, changed)
        self._measure(number, changed)
        return {
            "op": event["op"],
            "sentence": sentence_for(event, facts),
            "mark": broken or _mark(event),
            "request": number,
            "blocks": blocks,
            "slots": event.get("slots", []),
            "patch": self._record.take(),
        }

    # ---- one handler per op: check, change, and return what the sentence needs ------------

    def _on_pool(self, event: Event) -> dict[str, Any]:
        count, size = event["num_blocks"], event["block_size"]
        self._record.set("num_blocks", count)
        self._record.set("block_size", size)
        self._record.set("tape", list(range(count)))
        self._record.set("head", 0)
        self._record.set("ref", [0] * count)
        self._record.set("other", [0] * count)
        self._record.set("words", [[None] * size for _ in range(count)])
        for key in ("requests", "violations"):
            self._record.set(key, [])
        self._numbers, self._announced, self._standing, self._awaited = {}, set(), {}, None
        self._books = Books(self.state)
        self._record.set("memory", self._books.measure(set()))
        return {"blocks": []}

    def _on_request(self, event: Event) -> dict[str, Any]:
        if event["request"] in self._numbers:
            raise EventError(f"request: there is a request {event['request']!r} already")
        self._announced.add(self._request(event["request"], event.get("text", "")))
        return {}

    def _on_allocate(self, event: Event) -> dict[str, Any]:
        self._check_next_index(event)
        number, block = self._request(event["request"]), event["block_id"]
        place = self._take(block)
        self._record.set("words", block, [None] * self.state["block_size"])
        self._append(number, event)
        return {"place": place}

    def _on_share(self, event: Event) -> dict[str, Any]:
        self._check_next_index(event)
        number, block = self._request(event["request"]), event["block_id"]
        source = self._numbers.get(event["source"] or "")
        if event["index"] == 0 and source is not None:  # a fork starts where its parent's table starts
            self._set_if_new("requests", number, "offset", self.state["requests"][source]["offset"])
        self._append(number, event)
        written = [place for place, word in enumerate(self.state["words"][block]) if word is not None]
        if written:
            self._reach(number, event["index"] * self.state["block_size"] + written[-1] + 1)
        return {}

    def _on_inc_ref(self, event: Event) -> dict[str, Any]:
        self._record.set("ref", event["block_id"], event["ref_count"])
        self._record.set("other", event["block_id"], self.state["other"][event["block_id"]] + 1)
        return {}

    def _on_dec_ref(self, event: Event) -> dict[str, Any]:
        self._record.set("ref", event["block_id"], event["ref_count"])
        self._set_if_new("other", event["block_id"], max(0, self.state["other"][event["block_id"]] - 1))
        return {}

    def _on_drop(self, event: Event) -> dict[str, Any]:
        self._check_entry(event, event["block_id"])
        number, index = self._numbers[event["request"]], event["index"]
        request, size = self.state["requests"][number], self.state["block_size"]
        left = request["blocks"][:index] + request["blocks"][index + 1 :]
        # Positions count from the table's start: what lies behind a dropped entry moves up by a block.
        end = (
            request["end"] - size
            if request["end"] > (index + 1) * size
            else min(request["end"], index * size)
        )
        self._record.set("requests", number, "blocks", left)
        self._set_if_new("requests", number, "end", end)
        self._record.set("ref", event["block_id"], event["ref_count"])
        self._books.unlist_block(number, event["block_id"])
        if not left:
            self._empty(number)
        return {}

    def _on_release(self, event: Event) -> dict[str, Any]:
        self._queue(event["block_id"])
        return {"place": self._books.waiting}

    def _on_copy(self, event: Event) -> dict[str, Any]:
        self._check_entry(event, event["source"])
        number, block, source = self._numbers[event["request"]], event["block_id"], event["source"]
        place = self._take(block)
        self._record.set("words", block, list(self.state["words"][source]))
        self._record.set("requests", number, "blocks", event["index"], block)
        self._record.set("ref", block, event["ref_count"])
        self._record.set("ref", source, event["source_ref_count"])
        self._books.unlist_block(number, source)
        self._books.list_block(number, block)
        return {"place": place}

    def _on_offset(self, event: Event) -> dict[str, Any]:
        self._set_if_new("requests", self._request(event["request"]), "offset", event["offset"])
        return {}

    def _on_full(self, event: Event) -> dict[str, Any]:
        self._request(event["request"])
        return {}

    def _on_reset(self, event: Event) -> dict[str, Any]:
        for block in range(self.state["num_blocks"]):
            self._set_if_new("ref", block, 0)
            self._set_if_new("other", block, 0)
            self._books.listed_by[block].clear()
        for number in range(len(self.state["requests"])):
            self._set_if_new("requests", number, "blocks", [])
            self._empty(number)
        for block in event["block_ids"]:
            self._queue(block)
        return {"blocks": event["block_ids"]}

    def _on_queue(self, event: Event) -> dict[str, Any]:
        self._record.set("tape", event["block_ids"])
        self._set_if_new("head", 0)
        changed = sorted(self._books.requeue(event["block_ids"]))
        now, held = self._books.queued, [count > 0 for count in self.state["ref"]]
        return {
            "blocks": changed,
            "lost": [block for block in changed if not now[block] and not held[block]],
            "left": [block for block in changed if not now[block] and held[block]],
            "held": [block for block in changed if now[block] and held[block]],
            "more": [block for block in changed if now[block] > 1 and not held[block]],
            "joined": [block for block in changed if now[block] == 1 and not held[block]],
        }

    def _on_write(self, event: Event) -> dict[str, Any]:
        number, size = self._request(event["request"]), self.state["block_size"]
        request = self.state["requests"][number]
        for slot, word in zip(event["slots"], event["words"], strict=True):
            self._record.set("words", slot // size, slot % size, word)
        if event["slots"]:
            self._reach(number, request["offset"] + event["start"] + len(event["slots"]))
        if request["next"] is None:
            self._set_if_new("requests", number, "status", "prefill")
        elif event["start"] <= request["next"]["position"] < event["start"] + len(event["slots"]):
            self._record.set("requests", number, "next", None)
        blocks = list(dict.fromkeys(slot // size for slot in event["slots"]))
        return {"blocks": blocks, "place": event["slots"][0] % size if event["slots"] else None}

    def _on_read(self, event: Event) -> dict[str, Any]:
        request, size = self.state["requests"][self._request(event["request"])], self.state["block_size"]
        if "slots" in event:
            return {"blocks": list(dict.fromkeys(slot // size for slot in event["slots"]))}
        stop = -(-(request["offset"] + event["length"]) // size) if event["length"] else 0
        return {"blocks": request["blocks"][:stop]}

    def _on_token(self, event: Event) -> dict[str, Any]:
        number = self._request(event["request"])
        self._record.set("requests", number, "next", {"position": event["position"], "word": event["word"]})
        self._set_if_new("requests", number, "status", "decoding")
        return {}

    def _on_finish(self, event: Event) -> dict[str, Any]:
        number = self._request(event["request"])
        self._record.set("requests", number, "status", "finished")
        self._record.set("requests", number, "reason", event["reason"])
        return {}

    def _on_note(self, event: Event) -> dict[str, Any]:
        return {}

    # ---- the steps that several handlers share --------------------------------------------

    def _check_next_index(self, event: Event) -> None:
        number = self._numbers.get(event["request"])
        entries = 0 if number is None else len(self.state["requests"][number]["blocks"])
        if event["index"] != entries:
            raise EventError(
                f"{event['op']}: index is {event['index']}, but the next entry of request "
                f"{event['request']!r} is {entries}"
            )

    def _check_entry(self, event: Event, block: int) -> None:
        number = self._numbers.get(event["request"])
        table = [] if number is None else self.state["requests"][number]["blocks"]
        if event["index"] >= len(table) or table[event["index"]] != block:
            raise EventError(
                f"{event['op']}: entry {event['index']} of request {event['request']!r} is not "
                f"block {block}; its table is {table}"
            )

    def _request(self, name: str, text: str = "") -> int:
        """The number of the request with this name, which is created at first sight."""
        if name not in self._numbers:
            self._numbers[name] = number = len(self._numbers)
            fresh = {"name": name, "text": text, "status": "waiting", "reason": "", "blocks": []}
            self._record.set("requests", number, {**fresh, "offset": 0, "end": 0, "next": None})
        return self._numbers[name]

    def _append(self, number: int, event: Event) -> None:
        self._record.set("requests", number, "blocks", event["index"], event["block_id"])
        self._record.set("ref", event["block_id"], event["ref_count"])
        self._books.list_block(number, event["block_id"])
        if self.state["requests"][number]["status"] in ("waiting", "freed"):
            self._record.set("requests", number, "status", "holding")

    def _empty(self, number: int) -> None:
        """A table without blocks: nothing stored, nothing chosen, offset 0."""
        for key in ("offset", "end"):
            self._set_if_new("requests", number, key, 0)
        self._set_if_new("requests", number, "next", None)
        if self.state["requests"][number]["status"] != "finished":
            left = "waiting" if number in self._announced else "freed"
            self._set_if_new("requests", number, "status", left)

    def _reach(self, number: int, end: int) -> None:
        if end > self.state["requests"][number]["end"]:
            self._record.set("requests", number, "end", end)

    def _take(self, block: int) -> int | None:
        """Take a block out of the free queue; its place there before, from 1, or None if it was not there."""
        if self._books.queued[block] == 0:
            return None
        tape, head = self.state["tape"], self.state["head"]
        where = tape.index(block, head)
        place = 1 + sum(waiting is not None for waiting in tape[head:where])
        self._books.leave_queue(block)
        if place > 1:  # not first in the queue: it leaves a gap
            self._record.set("tape", where, None)
            return place
        self._record.set("head", where + 1)
        return place

    def _queue(self, block: int) -> None:
        self._record.set("tape", len(self.state["tape"]), block)
        self._books.join_queue(block)

    def _set_if_new(self, *path_and_value: Any) -> None:
        *path, value = path_and_value
        now: Any = self.state
        for key in path:
            now = now[key]
        if now != value:
            self._record.set(*path, value)

    # ---- judging and measuring --------------------------------------------------------------

    def _touched(self, event: Event, facts: dict[str, Any]) -> list[int]:
        """The blocks this event is about, the main one first."""
        named = [event[key] for key in ("block_id", "source") if isinstance(event.get(key), int)]
        return [*named, *facts.get("blocks", [])]

    def _judge(self, event: Event, number: int | None, blocks: set[int]) -> str | None:
        """Bring the violations up to date; the first invariant that this event broke, or None."""
        self._awaited = self._unheld_by(event)
        verdicts: list[Verdict] = []
        for block in sorted(blocks):
            verdicts += judge_block(self.state, self._books, block, may_wait=block == self._awaited)
        if event["op"] == "reset":
            for each in range(len(self.state["requests"])):
                verdicts += judge_table(self.state, each, blocks)
        elif number is not None:
            verdicts += judge_table(self.state, number, blocks)
        if event["op"] == "write" and number is not None:
            verdicts += judge_write(self.state, self._books, number, event)
        if event["op"] == "read" and number is not None:
            verdicts += judge_read(self.state, number, event)
        return self._note_verdicts(event["step"], verdicts)

    def _unheld_by(self, event: Event) -> int | None:
        """The block that this event left without a holder, whose release should come next."""
        left = {"drop": "block_id", "dec_ref": "block_id", "copy": "source"}.get(event["op"])
        if left is None or self.state["ref"][event[left]] != 0 or self._books.queued[event[left]]:
            return None
        return int(event[left])

    def _note_verdicts(self, step: int, verdicts: list[Verdict]) -> str | None:
        first = None
        for key, invariant, block, sentence in verdicts:
            if sentence is None and key in self._standing:
                self._record.set("violations", self._standing.pop(key), "until", step)
            elif sentence is not None and key not in self._standing:
                self._standing[key] = where = len(self.state["violations"])
                found = {
                    "step": step,
                    "invariant": invariant,
                    "block": block,
                    "sentence": sentence,
                    "until": None,
                }
                self._record.set("violations", where, found)
                first = first or invariant
        return first

    def _measure(self, number: int | None, blocks: set[int]) -> None:
        if number is not None and self.state["requests"][number]["blocks"]:
            blocks = blocks | {self.state["requests"][number]["blocks"][0]}  # its offset may have changed
        for key, value in self._books.measure(blocks, self._awaited).items():
            self._set_if_new("memory", key, value)


def _mark(event: Event) -> str | None:
    """What the timeline calls this step, if it is worth finding again."""
    if event["op"] in ("share", "copy", "full", "reset"):
        return str(event["op"])
    if event["op"] == "drop" and event["ref_count"] > 0:
        return "unshare"
    return None
