"""Exercises of notebook 10: the peak of a scene, a concurrency limit, a rule for who may begin."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from minikv.lab.exercises.exercise import Exercise, Verdict, number

# ---- 10.peak: blocks held at once, while requests come to their ends one by one ------------------


def _peak(rng: random.Random) -> Exercise:
    size = rng.choice((4, 8))
    while True:
        asks = [(rng.randint(3, 5 * size), rng.randint(2, 3 * size)) for _ in range(3)]
        held = [_held(asks, step, size) for step in range(max(new for _, new in asks))]
        last, first = sum(-(-(p + n - 1) // size) for p, n in asks), held[0]
        if len({max(held), last, first}) == 3:
            break
    told = ", ".join(f"{name} has {p} and {n}" for name, (p, n) in zip("ABC", asks, strict=True))
    at = held.index(max(held))
    parts = [-(-(p + at) // size) for p, n in asks if at < n]
    sums = " + ".join(map(str, parts))
    tokens = max(sum(p + step for p, n in asks if step < n) for step in range(max(n for _, n in asks)))
    return Exercise(
        question=f"Block size {size}, a pool that is large enough. Three requests come at once; their "
        "tokens in "
        f"the prompt and in the answer: {told}. Each step stores a token of each; who has chosen the "
        "last token "
        "leaves at the end of that step. How many blocks are held at the peak (max_allocated)?",
        judge=number(
            max(held),
            f"in step {at + 1}: {sums} = {max(held)}",
            {
                last: "that is what each holds at its own end; they do not all end together",
                first: "that is the first step, with the prompts only; later they hold more",
                -(
                    -tokens // size
                ): "the rest of one request's last block is no use to another: round up for each",
            },
        ),
        hints=(
            "Step 1 stores the prompts. In step s a request has prompt + s - 1 tokens stored, if it "
            "still runs.",
            "A request with an answer of n tokens runs in steps 1 to n. Write down the blocks of each, "
            "step by "
            "step, and round up for each request.",
            f"Look at the last step of each: steps {', '.join(str(n) for _, n in asks)}; just before "
            "somebody "
            "leaves, most is held.",
        ),
        solution=f"In step {at + 1} the requests that run hold {sums} = {max(held)} blocks; in no other "
        "step are "
        "there more.",
        right=max(held),
        wrong=(
            ("everybody at his own end", last),
            ("the prompts only", first),
            ("one block too many", max(held) + 1),
            ("in slots", max(held) * size),
            ("the other way round", -max(held)),
        ),
    )


def _held(asks: Sequence[tuple[int, int]], step: int, size: int) -> int:
    """Blocks held in a step, from 0: the prompts, then a token more for each that runs."""
    return sum(-(-(prompt + step) // size) for prompt, new in asks if step < new)


# ---- 10.limit: how many fit at once ---------------------------------------------------------------


def _limit(rng: random.Random) -> Exercise:
    size = rng.choice((8, 16))
    while True:
        prompt, answer, limit = rng.randint(20, 60), rng.randint(5, 20), rng.randint(60, 200)
        slots = size * rng.randint(40, 80)
        blocks = -(-(prompt + answer - 1) // size)
        paged, contiguous = slots // size // blocks, slots // (prompt + limit - 1)
        whole = slots // (prompt + answer - 1)
        if (
            len(
                {
                    (paged, contiguous),
                    (whole, contiguous),
                    (slots // size // -(-(prompt + limit) // size),) * 2,
                }
            )
            == 3
        ):
            break
    promised = slots // size // -(-(prompt + limit - 1) // size)
    return Exercise(
        question=f"A memory of {slots} slots. Equal requests come at once: a prompt of {prompt} tokens, "
        f"max_new_tokens {limit}, and answers that end after {answer} tokens. How many run side by side "
        "to their "
        f"ends, so that nobody waits or makes room: in blocks of {size}, and in contiguous memory where each "
        "reserves the longest it may become? Answer with a pair, as in (paged, contiguous).",
        judge=_judge_pair(
            (paged, contiguous),
            f"{slots} // {size} // {blocks} = {paged}, and {slots} // {prompt + limit - 1} = {contiguous}: "
            f"{paged / contiguous:.1f} times as many",
            {
                (contiguous, paged): "the other way round: paged first",
                (whole, contiguous): "a block belongs to one request: round up to blocks for each",
                (promised, contiguous): "paged memory holds what is stored, and not what the limit allows",
                (
                    paged,
                    whole,
                ): "the contiguous reservation is made before anybody knows where the answer ends",
            },
        ),
        hints=(
            "What does each hold when it is longest? The last token of an answer is never stored.",
            f"Paged: {prompt} + {answer} - 1 tokens, in whole blocks. Contiguous: {prompt} + {limit} - 1 "
            "slots.",
            f"{slots // size} blocks, {blocks} for each; {slots} slots, {prompt + limit - 1} for each.",
        ),
        solution=f"Paged: {slots // size} blocks // {blocks} = {paged}. Contiguous: {slots} // "
        f"{prompt + limit - 1} = {contiguous}.",
        right=(paged, contiguous),
        wrong=(
            ("the other way round", (contiguous, paged)),
            ("does not round up to blocks", (whole, contiguous)),
            ("paged by the limit", (promised, contiguous)),
            ("contiguous by the answer", (paged, whole)),
            ("one number", paged),
            ("one too many", (paged + 1, contiguous)),
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
        names = ("paged", "contiguous")
        wrong = [name for name, said, true in zip(names, answer, right, strict=True) if said != true]
        again = f"{tuple(answer)} is not right: look at {' and '.join(wrong)} again; hint(…) helps"
        return Verdict(False, slips.get(tuple(answer), again))

    return judge


# ---- 10.admit: who may begin now -----------------------------------------------------------------


def admit(newcomer, running, num_blocks, block_size):  # noqa: D103 - it is what `solution` shows
    everybody = [*running, newcomer]
    return sum(-(-longest // block_size) for stored, longest in everybody) <= num_blocks


def closest(newcomer, running, num_blocks, block_size):
    """The closest rule there is: blocks of all, step by step, each a token longer until its longest."""
    everybody = [*running, newcomer]
    for step in range(max(longest - stored for stored, longest in everybody) + 1):
        going = [stored + step for stored, longest in everybody if stored + step <= longest]
        if sum(-(-tokens // block_size) for tokens in going) > num_blocks:
            return False
    return True


def _but(old: str, new: str) -> Callable[..., Any]:
    """The solution with one thing changed in its text: a mistake."""
    source = inspect.getsource(admit)
    assert source.count(old) == 1, old
    scope = {**globals(), "ceil": ceil}
    exec(source.replace(old, new), scope)
    wrong: Callable[..., Any] = scope["admit"]
    return wrong


_PROMPT_FITS = "sum(ceil(stored / block_size) for stored, longest in everybody)"
_SUM = "sum(-(-longest // block_size) for stored, longest in everybody)"
_ONE_SPARE = "sum(ceil(stored / block_size) + 1 for stored, longest in everybody)"
_NO_ROUNDING = "ceil(sum(longest for stored, longest in everybody) / block_size)"
_DOWN = "sum(longest // block_size for stored, longest in everybody)"
_IN_TOKENS = "sum(longest for stored, longest in everybody)"
_MEAN = "sum(ceil((stored + longest) / 2 / block_size) for stored, longest in everybody)"
_LARGEST = "max(ceil(longest / block_size) for stored, longest in everybody) * len(everybody)"


def _solution() -> str:
    """Both rules as code: the one that is asked for, and the closest one, which the judge takes, too."""
    asked = inspect.getsource(admit).replace("  # noqa: D103 - it is what `solution` shows", "")
    return f"{asked}\n\n{inspect.getsource(closest)}"


def _admit(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write admit(newcomer, running, num_blocks, block_size): True if the newcomer may begin "
        "now. The "
        "newcomer and each one in the list running is a pair (stored, longest): tokens stored when this "
        "step is "
        "over, and tokens stored at the most. Nobody may ever have to make room, whatever the answers' "
        "lengths; "
        "and nobody may wait if there are blocks enough for the longest of each of them.",
        judge=_judge_admit,
        hints=(
            "What must be true so that nobody is ever short of a block? Think of everybody's longest.",
            "A request that comes to `longest` tokens holds ceil(longest / block_size) blocks: its own, "
            "which "
            "nobody else can use.",
            "Add that up for all that run and for the newcomer, and compare with num_blocks. Equal still "
            "fits.",
        ),
        solution=_solution(),
        right=admit,
        wrong=(
            ("only what is stored now must fit, as in our scheduler", _but(_SUM, _PROMPT_FITS)),
            ("one spare block for each", _but(_SUM, _ONE_SPARE)),
            ("half of what may still come", _but(_SUM, _MEAN)),
            ("forgets the newcomer", _but("[*running, newcomer]", "running")),
            ("forgets those who run", _but("[*running, newcomer]", "[newcomer]")),
            ("lets blocks be shared out by the slot", _but(_SUM, _NO_ROUNDING)),
            ("rounds down", _but(_SUM, _DOWN)),
            ("compares tokens with blocks", _but(_SUM, _IN_TOKENS)),
            ("one block is always kept free", _but("<= num_blocks", "< num_blocks")),
            ("takes the largest for each", _but(_SUM, _LARGEST)),
            ("everybody may", lambda newcomer, running, num_blocks, block_size: True),
            ("one after the other", lambda newcomer, running, num_blocks, block_size: not running),
            ("nobody may", lambda newcomer, running, num_blocks, block_size: False),
            ("says how many blocks", _but(" <= num_blocks", "")),
            ("says nothing", lambda newcomer, running, num_blocks, block_size: None),
            ("takes three arguments", lambda newcomer, running, num_blocks: True),
            ("changes the list", lambda newcomer, running, num_blocks, block_size: running.clear() or False),
            ("untouched starter", lambda newcomer, running, num_blocks, block_size: ...),
        ),
    )


def _cases() -> list[tuple[tuple[int, int], list[tuple[int, int]], int, int]]:
    """Decisions: some at the edge, some at random; (newcomer, running, num_blocks, block_size)."""
    cases: list[tuple[tuple[int, int], list[tuple[int, int]], int, int]] = [
        ((4, 20), [(4, 20)], 5, 4),  # enough for either, and for both as they begin
        ((5, 8), [(5, 8)], 4, 4),  # both full together: just enough
        ((5, 9), [(5, 8)], 4, 4),
        ((1, 1), [(1, 1), (1, 1)], 3, 16),  # a block each, for a token each
        ((1, 1), [(1, 1), (1, 1)], 2, 16),
        ((11, 22), [], 6, 4),  # alone, and just enough
        ((11, 22), [], 5, 4),
    ]
    rng = random.Random(10)
    for _ in range(400):
        size = rng.choice((1, 4, 16))
        longest = [rng.randint(1, 60) for _ in range(rng.randint(1, 5))]
        newcomer, *running = [(rng.randint(1, each), each) for each in longest]
        needed = sum(-(-each // size) for each in longest)
        cases.append((newcomer, running, max(1, needed + rng.randint(-3, 3)), size))
    return cases


def _judge_admit(answer: Any) -> Verdict:
    from minikv.lab.experiment_admission import bounds  # it needs `check` of this package

    if not callable(answer):
        return Verdict(False, f"the answer is a function, not {answer!r}")
    for newcomer, running, num_blocks, block_size in _cases():
        pool = f"a pool of {num_blocks} blocks with {block_size} slots each"
        given = f"newcomer {newcomer}, running {running}, {pool}"
        theirs = list(running)
        try:
            said = answer(newcomer, theirs, num_blocks, block_size)
        except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
            return Verdict(False, f"{given}: {type(error).__name__}: {error}")
        if said is ...:
            return Verdict(False, "not answered yet: admit still returns ...")
        if not isinstance(said, bool):
            return Verdict(False, f"{given}: the answer is True or False, not {said!r}")
        if theirs != running:
            return Verdict(False, f"{given}: the list of those who run was changed; only look at it")
        if fault := bounds(newcomer, running, block_size).fault(said, num_blocks):
            return Verdict(False, f"{given}: {said}, but {fault}")
    return Verdict(True, "nobody ever has to make room, and nobody waits without need")


EXERCISES = {"10.peak": _peak, "10.limit": _limit, "10.admit": _admit}
WITH_VARIANTS = ("10.peak", "10.limit")
