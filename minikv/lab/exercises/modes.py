"""Exercises of notebook 09: a run's slots, a scene for each kind of memory, where a run that grows goes."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

from minikv.lab.exercises.exercise import Exercise, Verdict

Hole = tuple[int, int]

# ---- 09.slot: where does a request begin, and where is its token? -----------------------------


def _slot(rng: random.Random) -> Exercise:
    prompts = [rng.randint(5, 12) for _ in range(4)]
    limits = [rng.randint(8, 16) for _ in range(4)]
    sizes = [prompt + limit - 1 for prompt, limit in zip(prompts, limits, strict=True)]
    while sizes[3] <= sizes[1] + 1:  # D does not fit where B was
        limits[3] += 3
        sizes[3] += 3
    position = rng.randint(3, prompts[3] - 1)
    start = sum(sizes[:3])
    right = (start, start + position)
    memory = -(-(sum(sizes) + rng.randint(2, 9)) // 8) * 8
    slips = {
        (sizes[0], sizes[0] + position): f"the hole that B left has {sizes[1]} slots, D takes {sizes[3]}",
        (
            sum(prompts[:3]),
            sum(prompts[:3]) + position,
        ): "a run is reserved for prompt and answer, not for the prompt alone",
        (start + 3, start + 3 + position): "the last token's KV is never stored: prompt + max_new_tokens - 1",
        (start - sizes[1], start - sizes[1] + position): "C does not move down when B leaves",
        (start, position): "that is the position; the slot is offset + position",
        (start, start + position + 1): "positions count from 0",
        (start - sizes[2], start - sizes[2] + position): "C runs still, and holds the slots behind B's",
        (start + position, start): "the other way round: first the offset, then the slot",
    }
    slips.pop(right, None)
    listed = ", ".join(
        f"{name} ({prompt} tokens, {limit} new ones at most)"
        for name, prompt, limit in zip("ABC", prompts, limits, strict=False)
    )
    return Exercise(
        question=f'A contiguous memory of {memory} slots, reserve="max", first fit. {listed} come in this '
        f"order and all run. Then B ends, and D comes ({prompts[3]} tokens, {limits[3]} new ones at most). "
        f"At which offset does D's run begin, and which flat slot has its position {position}? Answer with "
        "both, as in (30, 34).",
        judge=_pair(
            right, f"{sizes[0]} + {sizes[1]} + {sizes[2]} = {start}, and {start} + {position}", slips
        ),
        hints=(
            "How many slots does each reserve? The last token's KV is never stored.",
            f"A reserves {prompts[0]} + {limits[0]} - 1 = {sizes[0]} slots; the others likewise. Is the hole "
            "that B left large enough for D?",
            f"It has {sizes[1]} slots, and D takes more. So D begins behind C; position p is p on.",
        ),
        solution=f"({start}, {start + position}): D takes {sizes[3]} slots, B left {sizes[1]}, so D begins "
        f"behind C, at {sizes[0]} + {sizes[1]} + {sizes[2]} = {start}",
        right=right,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


def _pair(right: tuple[int, int], why: str, slips: dict[tuple[int, int], str]) -> Callable[[Any], Verdict]:
    def judge(answer: Any) -> Verdict:
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            return Verdict(False, f"the answer is two numbers, as in (30, 34), not {answer!r}")
        if tuple(answer) == right:
            return Verdict(True, why)
        return Verdict(False, slips.get(tuple(answer), f"{tuple(answer)} is not right; hint(…) helps"))

    return judge


# ---- 09.paged_wins, 09.contiguous_wins: a scene, run in both ------------------------------------

MOST_REQUESTS, MOST_SLOTS, MOST_TOKENS = 48, 2048, 1500
LEAST_BLOCKS = 4  # a block as large as the memory is contiguous memory for one request
MOST_LIMIT, FACTOR = 60, 4  # of 09.paged_wins


def _paged_wins(rng: random.Random) -> Exercise:
    from minikv.lab.modes_scene import asked

    return Exercise(
        question=f"Find a scene, asked(…), with a limit of at most {MOST_LIMIT}, in which paged memory needs "
        'a quarter of the steps of contiguous memory (reserve="max") of the same size, or fewer, and the '
        f"first tokens come earlier on average. Nobody may be refused; at least {LEAST_BLOCKS} blocks.",
        judge=_judge_scene(_paged_is_better, MOST_LIMIT),
        hints=(
            "What does contiguous memory reserve for a request, and what of it is used?",
            "Let the limit be far above what is said, and let more requests come than fit at once. Then look "
            "at the prompts: when does a request fill its blocks to the last slot?",
            "With people=1 a prompt has 11 tokens: 11 + 6 - 1 slots are just one block of 16. What does "
            "contiguous memory reserve for it?",
        ),
        solution="For instance asked(requests=24, slots=256, limit=60, people=1): each request fills one "
        "block, so 16 run at once; contiguous memory reserves 11 + 60 - 1 = 70 slots for each, so 3 do.",
        right=asked(requests=24, slots=256, limit=60, people=1),
        wrong=(
            ("the scene of section 2", asked(requests=24, slots=256, limit=40)),
            ("the limit is above 60", asked(requests=16, slots=256, limit=80, people=1)),
            ("better, but not by so much", asked(requests=16, slots=256, limit=48)),
            ("room for all of them", asked(requests=8, slots=1024, limit=20)),
            ("one request alone: a draw", asked(requests=1, slots=256, limit=48)),
            ("room for all: a draw", asked(requests=4, slots=1024, limit=48)),
            ("the limit is what is said", asked(requests=24, slots=192, limit=6, people=2)),
            ("all go on to the limit, and are computed again", asked(24, 256, 24, stop=False)),
            ("one block holds everything", asked(requests=16, slots=256, limit=48, block_size=256)),
            ("somebody is refused", asked(requests=6, slots=64, limit=60)),
            ("too large to be run here", asked(requests=400, slots=256, limit=48)),
            ("a dict of numbers", {"requests": 16, "slots": 256}),
            ("a word", "paged"),
        ),
    )


def _contiguous_wins(rng: random.Random) -> Exercise:
    from minikv.lab.modes_scene import asked

    return Exercise(
        question='Find a scene, asked(…), in which contiguous memory (reserve="max") is better than paged '
        "memory of the same size: in none of three counts worse (steps in all, TTFT, TPOT), and better in "
        f"one of them. Nobody may be refused; paged memory has at least {LEAST_BLOCKS} blocks.",
        judge=_judge_scene(_contiguous_is_better),
        hints=(
            "What does paged memory waste, and when does contiguous memory reserve nothing in vain?",
            "Paged memory rounds up to whole blocks, and that costs most where prompt and answer are short "
            "compared with a block. Contiguous memory reserves nothing in vain if the limit is what is said.",
            "Try prompts of 11 and 17 tokens (people=2), and the limit that every answer needs. What does a "
            "block of 16 waste then? Let more requests come than fit at once.",
        ),
        solution="For instance asked(requests=24, slots=192, limit=6, people=2): every answer has 6 tokens "
        "and the server knows it, so nothing is reserved in vain; blocks of 16 round up.",
        right=asked(requests=24, slots=192, limit=6, people=2),
        wrong=(
            ("one request alone: a draw", asked(requests=1, slots=256, limit=40)),
            ("room for all: a draw", asked(requests=4, slots=1024, limit=40)),
            ("blocks of one: a draw or worse", asked(24, 192, 6, people=2, block_size=1)),
            ("nobody knows the length", asked(requests=24, slots=256, limit=40)),
            ("one block for all", asked(24, 256, 40, block_size=256)),
            ("two blocks", asked(24, 192, 6, people=2, block_size=96)),
            ("better in TPOT, worse in steps", asked(12, 128, 40, stop=False)),
            ("somebody is refused", asked(requests=6, slots=64, limit=60)),
            ("too large to be run here", asked(requests=400, slots=256, limit=6)),
            ("the name of a memory", "contiguous, max"),
            ("True", True),
        ),
    )


def _judge_scene(
    better: Callable[[Any, Any], Verdict], most_limit: int | None = None
) -> Callable[[Any], Verdict]:
    """Runs the scene in both kinds of memory, and asks which was better."""

    def judge(answer: Any) -> Verdict:
        from minikv.lab.experiment_run import Scene
        from minikv.lab.modes_scene import TwoModes

        if isinstance(answer, TwoModes):
            return Verdict(False, "the answer is the scene itself, asked(…), not the TwoModes that ran it")
        if not isinstance(answer, Scene):
            return Verdict(False, f"the answer is a scene, asked(…), not {answer!r:.60}")
        limit = max((ask.limit for ask in answer.asks), default=0)
        if most_limit is not None and limit > most_limit:
            return Verdict(False, f"the limit is {limit}: take a limit of at most {most_limit}")
        tokens = sum(ask.limit for ask in answer.asks)
        slots = answer.num_blocks * answer.block_size
        if not answer.asks or len(answer.asks) > MOST_REQUESTS or slots > MOST_SLOTS or tokens > MOST_TOKENS:
            return Verdict(
                False,
                f"{len(answer.asks)} requests, {slots} slots, limits of {tokens} tokens together: take 1 to "
                f"{MOST_REQUESTS} requests, at most {MOST_SLOTS} slots and {MOST_TOKENS} tokens, so that it "
                "can be run here",
            )
        if answer.num_blocks < LEAST_BLOCKS:
            return Verdict(
                False,
                f"{slots} slots in blocks of {answer.block_size} are {answer.num_blocks}: that is no paged "
                f"memory; take smaller blocks, so that there are at least {LEAST_BLOCKS}",
            )
        try:
            modes = TwoModes(answer, ("paged", "contiguous, max"))
        except Exception as error:  # whatever a scene made by hand contains
            return Verdict(False, f"the scene does not run: {type(error).__name__}: {error}")
        if not modes.same:
            return Verdict(False, "somebody is refused, so it is not the same work; take a larger memory")
        return better(modes.served["paged"], modes.served["contiguous, max"])

    return judge


def _counts(each: Any) -> str:
    return f"{each.steps} steps, TTFT {each.ttft:.2f}, TPOT {each.tpot:.2f}"


def _paged_is_better(paged: Any, contiguous: Any) -> Verdict:
    both = f"paged {_counts(paged)}; contiguous {_counts(contiguous)}"
    if paged.steps < contiguous.steps and paged.ttft < contiguous.ttft:
        enough = FACTOR * paged.steps <= contiguous.steps
        return Verdict(enough, both if enough else f"better, but not by a factor of {FACTOR}: {both}")
    if paged.steps == contiguous.steps and paged.ttft == contiguous.ttft:
        return Verdict(False, f"a draw: {both}")
    worse = "the steps" if paged.steps >= contiguous.steps else "the first tokens"
    return Verdict(False, f"not better in {worse}: {both}")


def _contiguous_is_better(paged: Any, contiguous: Any) -> Verdict:
    both = f"contiguous {_counts(contiguous)}; paged {_counts(paged)}"
    ours, theirs = ((each.steps, each.ttft, each.tpot) for each in (contiguous, paged))
    for what, a, b in zip(("steps", "TTFT", "TPOT"), ours, theirs, strict=True):
        if a > b:
            return Verdict(False, f"worse in {what}: {both}")
    if ours == theirs:
        return Verdict(False, f"a draw: {both}")
    return Verdict(True, both)


# ---- 09.regrow: where does a run go that must grow? ---------------------------------------------


# The solution of 09.regrow, as a learner would write it; each wrong one differs in one thing.
def regrow(start, held, holes, size):
    """The first slot of a run that held [start, start + held) and needs `size` slots; None: no room."""
    behind = next((room for first, room in holes if first == start + held), 0)
    before = next((room for first, room in holes if first + room == start), 0)
    if held + behind >= size:
        return start
    for first, room in holes:
        if room >= size:
            return first
    if before + held + behind >= size:
        return start - before
    return None


def _but(old: str, new: str) -> Callable[..., Any]:
    """The solution with one thing changed in its text: a mistake."""
    source = inspect.getsource(regrow)
    assert source.count(old) == 1, old
    scope: dict[str, Any] = {}
    exec(source.replace(old, new), scope)
    wrong: Callable[..., Any] = scope["regrow"]
    return wrong


def _best_fit(start, held, holes, size):
    fitting = [hole for hole in holes if hole[1] >= size]
    if regrow(start, held, holes, size) != start and fitting:
        return min(fitting, key=lambda hole: hole[1])[0]
    return regrow(start, held, holes, size)


def _last_hole(start, held, holes, size):
    fitting = [first for first, room in holes if room >= size]
    said = regrow(start, held, holes, size)
    return fitting[-1] if said != start and fitting else said


def _slides_first(start, held, holes, size):
    before = next((room for first, room in holes if first + room == start), 0)
    behind = next((room for first, room in holes if first == start + held), 0)
    if held + behind < size <= before + held + behind:
        return start - before
    return regrow(start, held, holes, size)


def _counts_all_that_is_free(start, held, holes, size):
    said = regrow(start, held, holes, size)
    if said is None and sum(room for _, room in holes) >= size:
        return max(holes, key=lambda hole: hole[1])[0]
    return said


def _a_shorter_slide(start, held, holes, size):
    said = regrow(start, held, holes, size)
    if said is not None and said < start and all(first != said or room < size for first, room in holes):
        behind = next((room for first, room in holes if first == start + held), 0)
        return start - (size - held - behind)
    return said


def _never_moves(start, held, holes, size):
    return start


def _empties_the_list(start, held, holes, size):
    said = regrow(start, held, holes, size)
    holes.clear()
    return said


def _sorts_the_list(start, held, holes, size):
    said = regrow(start, held, holes, size)
    holes.sort(key=lambda hole: hole[1])
    return said


def _untouched(start, held, holes, size):
    return ...


def _regrow(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write regrow(start, held, holes, size), as described above.",
        judge=_judge_regrow,
        hints=(
            "Three questions, in this order: does the run reach far enough where it is? Is there another "
            "hole for all of it? Does it fit if it slides over the hole before it?",
            "The hole right behind begins at start + held; the hole right before ends at start. There may be "
            "neither.",
            "Staying takes held + behind slots, sliding before + held + behind; a hole must have all of "
            "`size`, for the old place is free only after the move.",
        ),
        solution=inspect.getsource(regrow),
        right=regrow,
        wrong=(
            ("moves though it could stay", _but("if held + behind >= size:", "if False:")),
            ("forgets its own slots when it looks behind",
             _but("if held + behind >= size", "if behind >= size")),
            ("any later hole counts as the one behind",
             _but("first == start + held", "first >= start + held")),
            ("one slot too careful behind", _but("if held + behind >= size", "if held + behind > size")),
            ("one slot too careful in a hole", _but("if room >= size", "if room > size")),
            ("counts its own slots for another hole", _but("if room >= size", "if room + held >= size")),
            ("takes only what is missing from a hole", _but("if room >= size", "if room >= size - held")),
            ("never slides", _but("if before + held + behind >= size", "if False")),
            ("slides, but forgets the hole behind",
             _but("if before + held + behind >= size", "if before + held >= size")),
            ("forgets its own slots when it slides",
             _but("before + held + behind", "before + behind")),
            ("says how far it slides", _but("return start - before", "return before")),
            ("stays though its neighbour is in the way",
             _but("if held + behind >= size:", "if before + held + behind >= size:")),
            ("gives the hole's size", _but("return first", "return room")),
            ("best fit, not the first", _best_fit),
            ("the last hole", _last_hole),
            ("slides before it looks for a hole", _slides_first),
            ("takes the largest hole if enough is free in all", _counts_all_that_is_free),
            ("slides only as far as it must", _a_shorter_slide),
            ("never moves", _never_moves),
            ("empties the list of holes", _empties_the_list),
            ("sorts the list of holes", _sorts_the_list),
            ("untouched starter", _untouched),
        ),
    )  # fmt: skip


def by_slots(start: int, held: int, holes: Sequence[Hole], size: int) -> int | None:
    """The same, slot by slot: an independent way to say it."""
    free = {slot for first, room in holes for slot in range(first, first + room)}
    own = set(range(start, start + held))
    if set(range(start, start + size)) <= free | own:
        return start
    starts = sorted(first for first in free if first - 1 not in free)
    for first in starts:
        if set(range(first, first + size)) <= free:
            return first
    first = start
    while first - 1 in free:
        first -= 1
    return first if set(range(first, first + size)) <= free | own else None


def _cases() -> list[tuple[int, int, list[Hole], int]]:
    """Small memories in all sorts of states: (start, held, holes, size)."""
    made = random.Random(9)
    cases = [(0, 4, [(4, 4)], 6), (4, 4, [(0, 4)], 8), (4, 4, [(0, 4), (8, 2), (14, 6)], 9), (0, 4, [], 5)]
    while len(cases) < 400:
        pieces: list[tuple[str, int]] = []
        for _ in range(made.randint(2, 7)):
            kind = "held" if pieces and pieces[-1][0] == "hole" else made.choice(("hole", "held"))
            pieces.append((kind, made.randint(1, 9)))
        runs: list[Hole] = []
        holes: list[Hole] = []
        at = 0
        for kind, length in pieces:
            (holes if kind == "hole" else runs).append((at, length))
            at += length
        if runs:
            start, held = made.choice(runs)
            cases.append((start, held, holes, held + made.randint(1, 8)))
    return cases


def _judge_regrow(answer: Any) -> Verdict:
    if not callable(answer) or isinstance(answer, type):
        return Verdict(False, f"the answer is a function, not {answer!r}")
    cases = _cases()
    for start, held, holes, size in cases:
        call = f"regrow({start}, {held}, {holes}, {size})"
        theirs = list(holes)
        try:
            said = answer(start, held, theirs, size)
        except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
            return Verdict(False, f"{call}: {type(error).__name__}: {error}")
        if said is ...:
            return Verdict(False, "not answered yet: regrow still returns ...")
        right = by_slots(start, held, holes, size)
        if said != right or isinstance(said, bool | float):
            why = why_not(said, start, held, holes, size)
            broken = broken_by(said, start, held, holes, size)
            return Verdict(False, f"{call} is {said!r}, should be {right}. {why}", broken)
        if theirs != holes:
            return Verdict(False, f"{call}: the list of holes was changed; only look at it")
    return Verdict(True, f"right in {len(cases)} states of memory")


def broken_by(said: Any, start: int, held: int, holes: Sequence[Hole], size: int) -> str | None:
    """The invariant that a run of `size` from there on would break, if any."""
    if isinstance(said, bool) or not isinstance(said, int):
        return None
    taken = foreign(said, start, held, holes, size)
    return None if taken is None else "I1"


def foreign(said: int, start: int, held: int, holes: Sequence[Hole], size: int) -> int | None:
    """The first slot of [said, said + size) that is neither free nor the run's own; None: there is none."""
    mine = [(start, held), *holes]
    for slot in range(said, said + size):
        if not any(first <= slot < first + room for first, room in mine):
            return slot
    return None


def why_not(said: Any, start: int, held: int, holes: Sequence[Hole], size: int) -> str:
    """What is wrong about a place, in a sentence."""
    right = by_slots(start, held, holes, size)
    if said is None:
        return "The request would be preempted, though there is a place."
    if isinstance(said, bool) or not isinstance(said, int):
        return "A place is the number of its first slot, or None."
    taken = foreign(said, start, held, holes, size)
    if taken is not None:
        return f"Slot {taken} is neither free nor the run's own: somebody else's, or outside the memory."
    if right == start:
        return "It could stay where it is, and nothing need be copied."
    if any(first == right and room >= size for first, room in holes):
        return f"The first hole that takes all of it begins at {right}."
    return f"It slides to the beginning of the hole before it, slot {right}."


EXERCISES: dict[str, Callable[[random.Random], Exercise]] = {
    "09.slot": _slot,
    "09.paged_wins": _paged_wins,
    "09.contiguous_wins": _contiguous_wins,
    "09.regrow": _regrow,
}
WITH_VARIANTS = ("09.slot",)
