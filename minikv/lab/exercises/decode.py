"""Exercises of notebook 06: slots and blocks after some steps, the order of the calls, a step of the loop."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minikv.attention import paged_attention
from minikv.errors import OutOfBlocksError
from minikv.lab.exercises.exercise import Exercise, Verdict

# ---- 06.slots: what is stored after a prompt and some new tokens -----------------------------


def _slots(rng: random.Random) -> Exercise:
    block_size = rng.choice((4, 8, 16))
    full, new = rng.randint(2, 4), rng.randint(3, 6)
    # Often the last token would need one more block, if it were stored; else there is a rest to round up.
    rest = rng.choice((0, 1, 0, block_size - 1))
    stored = full * block_size + rest
    prompt, blocks = stored - new + 1, -(-stored // block_size)
    one_more = (stored + 1, -(-(stored + 1) // block_size))
    return Exercise(
        question=f"Block size {block_size}. A prompt of {prompt} tokens, and {new} new ones are generated. "
        "How many slots are filled, and how many blocks are held, when the last one has been chosen? "
        "Answer with a pair, as in (slots, blocks).",
        judge=_judge_pair(
            (stored, blocks),
            f"{prompt} + {new} - 1 = {stored} slots: the last token was chosen, and never fed to the model",
            {
                (stored + 1, blocks): "the KV of the last token is never stored",
                one_more: "the KV of the last token is never stored",
                (stored, stored // block_size): "a block that is filled in part is held, too: round up",
                (prompt, -(-prompt // block_size)): "that is the prompt only",
            },
        ),
        hints=(
            "A token that has just been chosen has no K and V yet. When does it get them?",
            "In the step after. The prefill stores the prompt and chooses one token. "
            "How many steps are left?",
            f"{new - 1} steps store one token each, so {prompt} + {new - 1} slots; divide and round up.",
        ),
        solution=f"{prompt} + {new} - 1 = {stored} slots, in ceil({stored} / {block_size}) = "
        f"{blocks} blocks: ({stored}, {blocks}).",
        right=(stored, blocks),
        wrong=(
            ("stores the last token, too", one_more),
            ("counts the last token, but not its block", (stored + 1, blocks)),
            ("the prompt only", (prompt, -(-prompt // block_size))),
            ("only the slots", stored),
            ("the other way round", (blocks, stored)),
            ("rounds down" if rest else "one block less", (stored, blocks - 1)),
        ),
    )


def _judge_pair(
    right: tuple[int, int], why: str, slips: dict[tuple[int, int], str]
) -> Callable[[Any], Verdict]:
    def judge(answer: Any) -> Verdict:
        if not isinstance(answer, Sequence) or isinstance(answer, str) or len(answer) != 2:
            return Verdict(False, f"the answer is a pair, as in (12, 3), not {answer!r}")
        if tuple(answer) == right:
            return Verdict(True, why)
        return Verdict(False, slips.get(tuple(answer), f"{tuple(answer)} is not right; hint(…) helps"))

    return judge


# ---- 06.order: the calls of one step ----------------------------------------------------------

_CALLS = (
    "the loop calls manager.allocate",
    "the loop calls manager.copy_on_write",
    "the loop calls manager.note_write",
    "the loop calls pool.write",
    "the backend calls pool.read_layer",
    "the loop takes the argmax of the logits",
)
#: what must come before what, why, and what breaks otherwise: places in _CALLS
_BEFORE = (
    (0, 1, "copy_on_write is asked about a position that has no block before allocate", "I5"),
    (1, 2, "note_write checks that no block there is shared, so it comes after copy_on_write", "I4"),
    (2, 3, "who writes says so first: note_write is where a mistake is noticed", "I4"),
    (3, 4, "the newest token looks at itself, too, so its K and V are written before they are read", "I6"),
    (4, 5, "there are no logits before the model has read its cache", None),
)


def _order(rng: random.Random) -> Exercise:
    shown = list(range(len(_CALLS)))
    while shown == sorted(shown):
        rng.shuffle(shown)
    letters = {call: "abcdef"[place] for place, call in enumerate(shown)}
    listed = ", ".join(f"{letters[call]}) {_CALLS[call]}" for call in shown)

    def told(*calls: int) -> str:
        return "".join(letters[call] for call in calls)

    return Exercise(
        question=f"These are calls of one decode step: {listed}. In which order do they come? "
        "Of those that come once in every layer, take the first. Answer with the letters, as in 'abcdef'.",
        judge=_judge_order(letters),
        hints=(
            "First room is made, then it is said what will be written there. Then the model runs.",
            "Within a layer: is a token's own K and V among what it looks at?",
            "Room (allocate), a block of one's own (copy_on_write), the note, the write, the read, "
            "the choice.",
        ),
        solution=f"{told(0, 1, 2, 3, 4, 5)!r}: allocate, copy_on_write, note_write, write, read_layer, "
        "argmax.",
        right=told(0, 1, 2, 3, 4, 5),
        wrong=(
            ("writes before there is room", told(3, 0, 1, 2, 4, 5)),
            ("reads before it writes", told(0, 1, 2, 4, 3, 5)),
            ("tells the manager afterwards", told(0, 1, 3, 2, 4, 5)),
            ("copies after the note", told(0, 2, 1, 3, 4, 5)),
            ("copies before there is a block", told(1, 0, 2, 3, 4, 5)),
            ("chooses first", told(5, 0, 1, 2, 3, 4)),
            ("one is missing", told(0, 1, 2, 3, 4)),
            ("one comes twice", told(0, 1, 2, 3, 4, 4)),
        ),
    )


def _judge_order(letters: dict[int, str]) -> Callable[[Any], Verdict]:
    def judge(answer: Any) -> Verdict:
        parts = [answer] if isinstance(answer, str) else answer
        if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
            return Verdict(False, f"the answer is a text of six letters, not {answer!r}")
        given = [letter for part in parts for letter in part.lower() if letter.isalpha()]
        if sorted(given) != sorted(letters.values()):
            return Verdict(
                False, f"each of the letters a to f stands in it once; {answer!r} is not like that"
            )
        place = {call: given.index(letter) for call, letter in letters.items()}
        for first, then, why, invariant in _BEFORE:
            if place[first] > place[then]:
                return Verdict(False, f"{letters[first]} comes before {letters[then]}: {why}", invariant)
        return Verdict(True, "room, a block of one's own, the note, the write, the read, the choice")

    return judge


# ---- 06.step: a step of the loop --------------------------------------------------------------


def my_step(model, manager, pool, request):  # noqa: D103 - it is what `solution` shows
    start, stop = request.num_stored, len(request.token_ids)  # what is not stored yet
    table = request.table
    if not manager.allocate(table, stop):
        raise OutOfBlocksError(f"no room for {stop} tokens; finish a request first")
    for position in range(start, stop):
        manager.copy_on_write(table, position)
    manager.note_write(table, start, stop)
    slots = table.slots(start, stop)

    def attend(layer, q, k, v):
        pool.write(layer, slots, k[0], v[0])
        return paged_attention(q, pool, layer, [table], [stop], backend="gather")

    tokens, positions = request.token_ids[start:stop], range(start, stop)
    logits = model(torch.tensor([tokens]), torch.tensor([positions]), attend)
    token = int(logits[0, -1].argmax())
    request.num_stored = stop
    request.token_ids.append(token)
    return token


def _but(old: str, new: str) -> Callable[..., Any]:
    """The solution with one thing changed in its text: a mistake."""
    source = inspect.getsource(my_step)
    assert source.count(old) == 1, old
    scope = dict(globals())
    exec(source.replace(old, new), scope)
    wrong: Callable[..., Any] = scope["my_step"]
    return wrong


_ROOM = """    if not manager.allocate(table, stop):
        raise OutOfBlocksError(f"no room for {stop} tokens; finish a request first")
"""
_COPY = """    for position in range(start, stop):
        manager.copy_on_write(table, position)
"""
_NOTE = "    manager.note_write(table, start, stop)\n"
_ATTEND = """        pool.write(layer, slots, k[0], v[0])
        return paged_attention(q, pool, layer, [table], [stop], backend="gather")
"""
_READ_FIRST = """        mixed = paged_attention(q, pool, layer, [table], [stop], backend="gather")
        pool.write(layer, slots, k[0], v[0])
        return mixed
"""


def _untouched(model, manager, pool, request):
    return ...


def _step(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write my_step(model, manager, pool, request): it stores K and V of every token of the "
        "request that is not stored yet, chooses the next token, appends it and returns it.",
        judge=_judge_step,
        hints=(
            "Make room first: allocate for all tokens there are, copy_on_write for each position that will "
            "be written, then note_write. Only then ask the table for its slots.",
            "The model calls attend(layer, q, k, v) once in each layer; q, k, v are [1, new tokens, heads, "
            "head_dim]. Write k[0] and v[0] to the slots, then return paged_attention(q, pool, layer, "
            '[table], [stop], backend="gather").',
            "Positions count from the beginning of the request: torch.tensor([range(start, stop)]). The new "
            "token is int(logits[0, -1].argmax()). num_stored becomes stop: the new token is not stored yet.",
        ),
        solution=inspect.getsource(my_step).replace("  # noqa: D103 - it is what `solution` shows", ""),
        right=my_step,
        wrong=(
            ("forgets allocate", _but(_ROOM, "")),
            ("ignores that there is no room", _but(_ROOM, "    manager.allocate(table, stop)\n")),
            ("stores before it allocates", _but(_ROOM, "    slots = table.slots(start, stop)\n" + _ROOM)),
            ("room for the prompt only", _but("allocate(table, stop)", "allocate(table, start)")),
            ("no copy_on_write", _but(_COPY, "")),
            ("copies behind the note", _but(_COPY + _NOTE, _NOTE + _COPY)),
            ("does not tell the manager", _but(_NOTE, "")),
            ("neither copies nor tells", _but(_COPY + _NOTE, "")),
            ("positions begin again at 0", _but(", range(start, stop)\n", ", range(stop - start)\n")),
            (
                "each word's place in its block for its position",
                _but(", range(start, stop)\n", ", [p % table.block_size for p in range(start, stop)]\n"),
            ),
            ("positions one too high", _but(", range(start, stop)\n", ", range(start + 1, stop + 1)\n")),
            (
                "feeds the last stored token again",
                _but(
                    "token_ids[start:stop]", "token_ids[max(0, start - 1) : max(0, start - 1) + stop - start]"
                ),
            ),
            (
                "one slot early",
                _but("slots(start, stop)", "slots(start - 1, stop - 1) if start else table.slots(0, stop)"),
            ),
            ("reads before it writes", _but(_ATTEND, _READ_FIRST)),
            (
                "leaves the new tokens out of the read",
                _but("[stop], backend", "[max(stop - start, stop - 1)], backend"),
            ),
            ("writes layer 0 only", _but("pool.write(layer", "pool.write(0")),
            ("takes the first logits", _but("logits[0, -1]", "logits[0, 0]")),
            ("does not move on", _but("    request.num_stored = stop\n", "")),
            ("counts the new token as stored", _but("num_stored = stop", "num_stored = stop + 1")),
            ("does not append", _but("    request.token_ids.append(token)\n", "")),
            ("returns nothing", _but("    return token\n", "")),
            ("returns a list", _but("return token\n", "return [token]\n")),
            ("returns a tensor", _but("return token\n", "return torch.tensor(token)\n")),
            ("appends a tensor", _but("append(token)", "append(torch.tensor(token))")),
            ("untouched starter", _untouched),
        ),
    )


def _judge_step(answer: Any) -> Verdict:
    from minikv.lab.try_step import (
        in_a_full_pool,
        try_step,
    )  # it runs the model, and needs `check` of this package

    if not callable(answer):
        return Verdict(False, f"the answer is a function, not {answer!r}")
    tried = try_step(answer)
    if tried.said is None:
        return Verdict(False, "not answered yet: my_step still returns ...")
    if tried.first is not None:
        return Verdict(False, f"first divergence: {tried.first.sentence}", tried.first.invariant)
    if "the run stops" in tried.said:
        return Verdict(False, tried.said.rpartition("\n")[2])
    if wrong := in_a_full_pool(answer):
        return Verdict(False, f"{wrong}; raise OutOfBlocksError there")
    return Verdict(True, "token for token as ours, through a prompt, a fork and two questions more")


EXERCISES = {"06.slots": _slots, "06.order": _order, "06.step": _step}
WITH_VARIANTS = ("06.slots", "06.order")
