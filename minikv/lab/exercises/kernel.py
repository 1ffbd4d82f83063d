"""Exercises of notebook 07: an online softmax by hand, FLOP per byte, an own merge, which layers change."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minikv.lab.exercises.exercise import Exercise, Verdict, number
from minikv.lab.online_softmax import Partial

# ---- 07.online: three scores in two blocks, with powers of 2 ---------------------------------


def _online(rng: random.Random) -> Exercise:
    scores, values, right = _nice(rng)
    first, last = scores[:2], scores[2]
    small, shrink = max(first), 2.0 ** (max(first) - last)
    total = sum(2.0 ** (score - small) for score in first)
    mixed = sum(2.0 ** (score - small) * value for score, value in zip(first, values, strict=False))
    slips = {
        (mixed / total + values[2]) / 2: "that is the mean of the two blocks' results; a block counts by its "
        "weights",
        (mixed + values[2])
        / (total + 1): "what the first block left must be scaled when a larger score comes",
        (mixed * shrink + values[2]) / (total + 1): "the total must be scaled as well",
        (mixed + values[2]) / (total * shrink + 1): "the weighted sum must be scaled as well",
        mixed * shrink + values[2]: "that is the weighted sum; divide it by the total",
        mixed / total: "that is the first block's result",
        float(sum(values)) / 3: "that is the plain mean; larger scores weigh more",
    }
    slips.pop(float(right), None)
    return Exercise(
        question=f"With powers of 2 in place of e: the scores {first[0]} and {first[1]} lie in one block, "
        f"{last} lies in the next; their values are {values[0]}, {values[1]} and {values[2]}. What is the "
        "result of attention over all three?",
        judge=number(right, f"weights {', '.join(_weights(scores))}: the weighted mean is {right}", slips),
        hints=(
            f"After the first block: best {small}; weights 2 to the power of (score - {small}). What are "
            "total and mixed?",
            f"total {total:g}, mixed {mixed:g}. Then comes {last}: it is larger by {last - small}, so both "
            f"are multiplied by 2 to the power of -{last - small}.",
            f"total {total:g} × {shrink:g} + 1, mixed {mixed:g} × {shrink:g} + {values[2]}; divide.",
        ),
        solution=f"({mixed:g} × {shrink:g} + {values[2]}) / ({total:g} × {shrink:g} + 1) = {right}",
        right=right,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


def _nice(rng: random.Random) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
    """Scores and values whose result is a whole number, and other than that of common mistakes."""
    while True:
        low, high, last = sorted(rng.sample(range(5), 3))
        scores = (low, high, last) if rng.random() < 0.5 else (high, low, last)
        values = (rng.randint(1, 12), rng.randint(1, 12), rng.randint(1, 40))
        weights = [2**score for score in scores]
        mixed = sum(weight * value for weight, value in zip(weights, values, strict=True))
        if mixed % sum(weights) == 0 and len(set(values)) == 3 and mixed // sum(weights) not in values:
            return scores, values, mixed // sum(weights)


def _weights(scores: Sequence[int]) -> list[str]:
    return [str(2**score) for score in scores]


# ---- 07.intensity: FLOP per byte ---------------------------------------------------------------


def _intensity(rng: random.Random) -> Exercise:
    kv_heads, group = rng.choice((2, 4, 8)), rng.choice((1, 2, 4, 8))
    size, dim, batch, tokens = rng.choice((2, 4)), 64, rng.choice((8, 16)), 4096
    heads = kv_heads * group
    right = 2 * group / size
    slips: dict[Any, str] = {
        right * batch: "each request has keys and values of its own: twice the requests, twice the bytes",
        right / batch: "all requests take part in both sums",
        right * size: "that is per number, not per byte",
        right * 2: "K and V both are read",
        right / 2: "a multiplication and an addition are two operations",
        right / group: "the query heads that share a KV head use the same bytes",
        right * tokens: "each token's bytes are used once by each query head",
    }
    slips.pop(right, None)
    return Exercise(
        question=f"One decode step, {batch} requests of {tokens:,} tokens: {heads} query heads, {kv_heads} "
        f"KV heads × {dim}, numbers of {size} bytes. A query head takes 2 × {dim} operations for the score "
        "of a token and as many for its share of the sum. How many FLOP is that for each byte of K and V?",
        judge=number(right, f"4 × {dim} × {heads} / (2 × {dim} × {kv_heads} × {size}) = {right:g}", slips),
        hints=(
            "Take one token of one request in one layer: how many operations, how many bytes?",
            f"Operations: 4 × {dim} for each of {heads} query heads. Bytes: K and V, {kv_heads} heads × "
            f"{dim} numbers of {size} bytes each.",
            f"{4 * dim * heads:,} operations and {2 * dim * kv_heads * size:,} bytes. Neither the number of "
            "tokens nor that of requests matters.",
        ),
        solution=f"{4 * dim * heads:,} / {2 * dim * kv_heads * size:,} = {right:g} FLOP per byte",
        right=right,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


# ---- 07.merge: the learner's own merge ----------------------------------------------------------


# The solution of 07.merge, as a learner would write it; each wrong one differs in one thing.
def merge(a, b):
    """One part from two: best, total [heads], mixed [heads, head_dim]."""
    best = torch.maximum(a.best, b.best)
    old, new = torch.exp(a.best - best), torch.exp(b.best - best)
    total = a.total * old + b.total * new
    mixed = a.mixed * old[:, None] + b.mixed * new[:, None]
    return best, total, mixed


def _but(old: str, new: str) -> Callable[..., Any]:
    """The solution with one thing changed in its text: a mistake."""
    source = inspect.getsource(merge)
    assert source.count(old) == 1, old
    scope = dict(globals())
    exec(source.replace(old, new), scope)
    wrong: Callable[..., Any] = scope["merge"]
    return wrong


def _mean_of_results(a, b):
    best, total, _ = merge(a, b)
    mean = (a.mixed / a.total[:, None] + b.mixed / b.total[:, None]) / 2
    return best, total, mean * total[:, None]


def _without_maximum(a, b):
    total = a.total * torch.exp(a.best) + b.total * torch.exp(b.best)
    mixed = a.mixed * torch.exp(a.best)[:, None] + b.mixed * torch.exp(b.best)[:, None]
    return torch.zeros_like(a.best), total, mixed


def _first_only(a, b):
    return a.best, a.total, a.mixed


def _larger_only(a, b):
    larger = a.best >= b.best
    return (
        torch.maximum(a.best, b.best),
        torch.where(larger, a.total, b.total),
        torch.where(larger[:, None], a.mixed, b.mixed),
    )


def _untouched(a, b):
    return ...


_MAX = "best = torch.maximum(a.best, b.best)"


def _merge(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write merge(a, b), as described above.",
        judge=_judge_merge,
        hints=(
            "a.total and a.mixed were summed relative to a.best, b's relative to b.best. Before they can be "
            "added, both must be relative to the same number: the larger of the two.",
            "best = torch.maximum(a.best, b.best). To change from a.best to best, multiply by "
            "torch.exp(a.best - best); it is 1 where a has the larger score.",
            "Scale total and mixed of both, then add. The factors are [heads] and mixed is "
            "[heads, head_dim]: factor[:, None].",
        ),
        solution=inspect.getsource(merge),
        right=merge,
        wrong=(
            ("adds without scaling", _but("old, new = torch.exp(a.best - best), torch.exp(b.best - best)",
             "old, new = torch.ones_like(best), torch.ones_like(best)")),
            ("does not scale what was kept", _but("old, new = torch.exp(a.best - best),",
             "old, new = torch.ones_like(best),")),
            ("does not scale what is new", _but("torch.exp(b.best - best)\n", "torch.ones_like(best)\n")),
            ("scales the totals only", 
             _but("a.mixed * old[:, None] + b.mixed * new[:, None]", "a.mixed + b.mixed")),
            ("scales the weighted sums only", _but("a.total * old + b.total * new", "a.total + b.total")),
            ("the wrong sign", _but("torch.exp(a.best - best), torch.exp(b.best - best)",
             "torch.exp(best - a.best), torch.exp(best - b.best)")),
            ("swaps the factors", _but("old, new =", "new, old =")),
            ("powers of 2", _but("torch.exp(a.best - best), torch.exp(b.best - best)",
             "torch.exp2(a.best - best), torch.exp2(b.best - best)")),
            ("the smaller score", _but("torch.maximum", "torch.minimum")),
            ("stays with the first best", _but(_MAX, "best = a.best")),
            ("one best for all heads",
             _but(_MAX, "best = torch.maximum(a.best, b.best).max().expand_as(a.best)")),
            ("adds the scores", _but("return best, total", "return a.best + b.best, total")),
            ("forgets the new best", _but("return best, total", "return a.best, total")),
            ("divides too early", _but("return best, total, mixed",
             "return best, total, mixed / total[:, None]")),
            ("total becomes 1", _but("return best, total, mixed",
             "return best, torch.ones_like(total), mixed / total[:, None]")),
            ("another order", _but("return best, total, mixed", "return best, mixed, total")),
            ("the mean of both results", _mean_of_results),
            ("without a maximum: the powers overflow", _without_maximum),
            ("the first only", _first_only),
            ("the part with the larger score only", _larger_only),
            ("untouched starter", _untouched),
        ),
    )  # fmt: skip


def _cases() -> list[tuple[str, list[Partial]]]:
    """What is merged, from left to right, and what is special about it."""
    made = torch.Generator().manual_seed(0)

    def part(best: Sequence[float], tokens: int = 3) -> Partial:
        below = -3 * torch.rand(len(best), tokens, generator=made)
        below[:, 0] = 0  # one token has the best score itself
        weights, values = below.exp(), torch.randn(len(best), tokens, 4, generator=made)
        return Partial(torch.tensor(best), weights.sum(1), torch.einsum("ht,htd->hd", weights, values))

    return [
        ("two blocks with the same best score", [part([1.0, 1.0]), part([1.0, 1.0])]),
        ("a larger score in the second block", [part([0.0, 0.0]), part([2.0, 1.0])]),
        ("a larger score in the first block", [part([2.0, 1.0]), part([0.0, 0.0])]),
        ("one head's best in each block", [part([2.0, -1.0]), part([0.5, 1.5])]),
        ("three blocks", [part([0.0, 2.0]), part([1.0, 0.0]), part([3.0, 1.0])]),
        ("scores near 100", [part([100.0, 90.0]), part([95.0, 99.0])]),
        ("scores near -200", [part([-200.0, -210.0]), part([-201.0, -205.0])]),
        ("a score larger by 120", [part([-20.0, 0.0]), part([100.0, 1.0])]),
        ("heads with very different scores", [part([150.0, -10.0]), part([151.0, -9.0])]),
    ]


def _exact(parts: Sequence[Partial]) -> Partial:
    """All parts together, in float64: an independent sum, not a merge of two."""
    best = torch.stack([part.best for part in parts]).amax(0).double()
    factors = [torch.exp(part.best.double() - best) for part in parts]
    total = torch.stack([f * part.total.double() for f, part in zip(factors, parts, strict=True)]).sum(0)
    mixed = torch.stack([f[:, None] * part.mixed.double() for f, part in zip(factors, parts, strict=True)])
    return Partial(best, total, mixed.sum(0))


def _judge_merge(answer: Any) -> Verdict:
    from minikv.lab.try_merge import as_partial, first_head_apart  # it needs `check` of this package

    if not callable(answer) or isinstance(answer, type):
        return Verdict(False, f"the answer is a function, not {answer!r}")
    cases = _cases()
    for name, parts in cases:
        kept = parts[0]
        for part in parts[1:]:
            try:
                said = answer(_copy(kept), _copy(part))
                if said is ...:
                    return Verdict(False, "not answered yet: merge still returns ...")
                kept = as_partial(said, part)
            except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
                return Verdict(False, f"{name}: {type(error).__name__}: {error}")
        head = first_head_apart(kept, _exact(parts))
        if head is not None:
            return Verdict(False, f"{name}: {_what_is_wrong(kept, parts, head)}")
    return Verdict(True, f"exact in {len(cases)} cases, with scores from -210 to 151")


def _copy(part: Partial) -> Partial:
    return Partial(*(each.clone() for each in part))


def _what_is_wrong(kept: Partial, parts: Sequence[Partial], head: int) -> str:
    """In words, for the first head that differs."""
    result, right = kept.result[head], _exact(parts).result[head]
    if not torch.isfinite(result).all():
        return (
            f"head {head} is no number: a power became too large or 0 (e to the power of 89 is more than a "
            "float32 can hold); only differences to the largest score are safe"
        )
    if _near(result, right):
        return (
            f"the result of head {head} is right, but best and total do not fit together: the next merge "
            "would go wrong"
        )
    if _near(result, torch.stack([part.result[head] for part in parts]).mean(0)):
        return f"head {head} is the mean of the blocks' results; a block counts by its weights"
    if len(parts) == 2:
        a, b = parts
        best = torch.maximum(a.best, b.best)
        old, new, none = torch.exp(a.best - best), torch.exp(b.best - best), torch.ones_like(best)
        for slip, factors in (
            (
                f"what a kept of head {head} is still relative to a.best; scale it to the new best, too",
                (none, new),
            ),
            (
                f"what b kept of head {head} is still relative to b.best; scale it to the new best, too",
                (old, none),
            ),
            (
                f"head {head} is scaled with powers of 2; all weights are powers of e (torch.exp)",
                (torch.exp2(a.best - best), torch.exp2(b.best - best)),
            ),
            (f"head {head} is scaled the wrong way round: a's factor went to b, and b's to a", (new, old)),
        ):
            if _near(result, _with_factors(a, b, *factors)[head]):
                return slip
    return f"head {head} begins with {float(result[0]):.3f}, and should with {float(right[0]):.3f}"


def _with_factors(a: Partial, b: Partial, old: Tensor, new: Tensor) -> Tensor:
    """The result if what a and b kept is multiplied by these, [heads] each, and added."""
    return (a.mixed * old[:, None] + b.mixed * new[:, None]) / (a.total * old + b.total * new)[:, None]


def _near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() < 1e-3)


# ---- 12.Q3: which layers change when attention reads the block table itself? -----------------------

_PARTS = (
    ("BlockTable: how a position becomes a slot", False, "a kernel reads the table as it is"),
    ("KVCacheManager.allocate and free", False, "who holds which block does not depend on how it is read"),
    (
        "ref counts and copy-on-write",
        False,
        "sharing is decided before the write; a read neither knows nor changes it",
    ),
    ("BlockPool.write: where K and V are put", False, "the bytes lie where they lay"),
    ("the model and its weights", False, "it gets the same numbers back"),
    (
        "what attends: it is given the pool and the tables, in place of two rows",
        True,
        "this is the change itself",
    ),
    (
        "BlockPool.read_layer: it is not called any more",
        True,
        "a kernel that walks the table needs no row, so nobody asks for one",
    ),
)


def _layers(rng: random.Random) -> Exercise:
    shown = list(range(len(_PARTS)))
    rng.shuffle(shown)
    letters = {part: "abcdefg"[place] for place, part in enumerate(shown)}
    listed = "\n".join(f"  {letters[part]}  {_PARTS[part][0]}" for part in shown)
    right = "".join(sorted(letters[part] for part in shown if _PARTS[part][1]))
    attends, row = letters[5], letters[6]

    def told(*parts: int) -> str:
        return "".join(sorted([attends, row, *(letters[part] for part in parts)]))

    return Exercise(
        question="read_layer copies the blocks side by side, and ordinary attention reads the row. Now "
        f"attention is to read the blocks through the table itself. What changes?\n{listed}\n"
        "Answer with the letters of those that do, as in 'ab'.",
        judge=_judge_layers(letters, right),
        hints=(
            "Which of these did you see in the list of calls that are not the same?",
            "Writing is as before, and so is everything that decides which block is whose.",
            "Two of them: who attends, and the row that nobody needs any more.",
        ),
        solution=f"{right!r}: only the read. The logical layer and the management stay as they are. (The "
        "storage must let itself be read block by block: one tensor for all blocks, as ours is. In the "
        "chapter's system each block is a tensor of its own, and there that changes, too.)",
        right=right,
        wrong=(
            ("the table, too", told(0)),
            ("the manager, too", told(1)),
            ("ref counts, too", told(2)),
            ("the write, too", told(3)),
            ("the model, too", told(4)),
            ("only who attends", attends),
            ("only the row", row),
            ("everything", "abcdefg"),
            ("nothing", ""),
        ),
    )


def _judge_layers(letters: dict[int, str], right: str) -> Callable[[Any], Verdict]:
    parts = {letter: part for part, letter in letters.items()}

    def judge(answer: Any) -> Verdict:
        texts = [answer] if isinstance(answer, str) else answer
        if not isinstance(texts, Sequence | set) or not all(isinstance(text, str) for text in texts):
            return Verdict(False, f"the answer is letters, as in 'ab', not {answer!r}")
        given = sorted({letter for text in texts for letter in text.lower() if letter.isalpha()})
        if unknown := [letter for letter in given if letter not in parts]:
            return Verdict(False, f"there is no {unknown[0]!r}; the letters are a to g")
        for letter in given:
            what, changes, why = _PARTS[parts[letter]]
            if not changes:
                return Verdict(False, f"{letter}) {what}: that stays as it is; {why}")
        for letter in right:
            if letter not in given:
                return Verdict(False, "one is missing; hint(…) helps" if given else "something must change")
        return Verdict(True, "only the read; tables, counts, allocation and writes stay as they are")

    return judge


EXERCISES: dict[str, Callable[[random.Random], Exercise]] = {
    "07.online": _online,
    "07.intensity": _intensity,
    "07.merge": _merge,
    "12.Q3": _layers,
}
WITH_VARIANTS = ("07.online", "07.intensity", "12.Q3")
