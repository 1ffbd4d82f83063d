"""A learner's merge: judged by exact sums, and run by the model beside ours; the other exercises of 07."""

import re
from fractions import Fraction

import pytest
import torch

from minikv.lab import solution
from minikv.lab.exercises import check, get
from minikv.lab.exercises.kernel import _PARTS, _cases, _exact
from minikv.lab.online_softmax import Partial
from minikv.lab.roofline import decode_work
from minikv.lab.try_merge import try_merge

RIGHT = get("07.merge").right
WRONG = dict(get("07.merge").wrong)

# ---- the judge -------------------------------------------------------------------------------


def test_the_cases_have_what_they_say():
    cases = dict(_cases())
    a, b = cases["one head's best in each block"]
    assert a.best[0] > b.best[0] and a.best[1] < b.best[1]
    assert len(cases["three blocks"]) == 3
    for parts in cases.values():
        assert torch.isfinite(_exact(parts).result).all()


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("does not scale what was kept", "what a kept of head 0 is still relative to a.best"),
        ("adds without scaling", "what a kept of head 0 is still relative to a.best"),
        ("does not scale what is new", "what b kept of head 0 is still relative to b.best"),
        ("powers of 2", "head 0 is scaled with powers of 2; all weights are powers of e"),
        ("swaps the factors", "head 0 is scaled the wrong way round"),
        ("the mean of both results", "head 0 is the mean of the blocks' results"),
        ("without a maximum: the powers overflow", "scores near 100: head 0 is no number"),
        ("stays with the first best", "a score larger by 120: head 0 is no number"),
        ("forgets the new best", "best and total do not fit together"),
        ("total becomes 1", "best and total do not fit together"),
        ("another order", "merge gives back [[2], [2, 4], [2]]"),
    ],
)
def test_the_mistake_is_named(mistake, said):
    assert said in " ".join(check("07.merge", WRONG[mistake]).message.split())


def with_logarithms(a, b):
    """Another right way: `best` as the logarithm of the whole sum, so that total is always 1."""
    weight = torch.stack([a.best + a.total.log(), b.best + b.total.log()])
    best = weight.logsumexp(0)
    shares = torch.exp(weight - best)
    mixed = shares[0, :, None] * a.result + shares[1, :, None] * b.result
    return best, torch.ones_like(best), mixed


def in_place(a, b):
    best = torch.maximum(a.best, b.best)
    a.total.mul_(torch.exp(a.best - best)).add_(b.total * torch.exp(b.best - best))
    a.mixed.mul_(torch.exp(a.best - best)[:, None]).add_(b.mixed * torch.exp(b.best - best)[:, None])
    return [best, a.total, a.mixed]


@pytest.mark.parametrize("other", [with_logarithms, in_place])
def test_another_right_way_is_right_too(other):
    assert check("07.merge", other).ok
    tried = try_merge(other)
    assert tried.first is None and tried.said == "the model says: Bo has two gold cups ."


@pytest.mark.parametrize("said", [None, 3, (1, 2), (1, 2, 3), torch.zeros(3), (torch.zeros(2),) * 3, "abc"])
def test_odd_answers_are_rejected_and_do_not_raise(said):
    verdict = check("07.merge", lambda a, b: said)
    assert not verdict.ok and "merge gives back" in verdict.message


def test_the_solution_is_code_that_passes():
    scope = {"torch": torch}
    exec(solution("07.merge"), scope)
    assert check("07.merge", scope["merge"]).ok


# ---- beside ours -----------------------------------------------------------------------------


def test_the_solution_reads_as_ours_does():
    tried = try_merge(RIGHT)
    assert tried.first is None and not tried.log.violations
    assert repr(tried).endswith("Every result, block by block, is as ours.")


def test_a_merge_without_scaling_says_something_false_and_the_map_opens_there():
    tried = try_merge(WRONG["does not scale what was kept"])
    assert tried.said == "the model says: Bo has three red kites ."
    assert not tried.log.violations  # every slot was the right one
    assert (tried.first.invariant, tried.first.block_id) == (None, 4)
    assert tried.first.sentence.startswith("Layer 0, position 8 (“two”), after block 4 is merged")
    shown = tried.map()
    assert (shown.step, shown.highlight) == (tried.first.step, [4])


@pytest.mark.parametrize("mistake", [m for m in WRONG if m not in ("untouched starter", "another order")])
def test_whatever_the_model_can_show_is_shown(mistake):
    """Some mistakes need scores that this model does not have; those the judge finds."""
    tried = try_merge(WRONG[mistake])
    harmless = (
        "the smaller score",
        "stays with the first best",
        "one best for all heads",
        "without a maximum: the powers overflow",
    )
    assert (tried.first is None) == (mistake in harmless)


def test_what_cannot_be_read_stops_the_run():
    tried = try_merge(WRONG["another order"])
    assert "the run stops with TypeError: merge gives back" in tried.said
    assert "the run stops" in repr(try_merge(lambda a, b: 1 / 0))


def test_a_result_that_is_no_number_is_called_that():
    tried = try_merge(lambda a, b: Partial(a.best, a.total, a.mixed * float("nan")))
    assert "is no number" in tried.first.sentence


def test_code_that_is_not_written_yet_runs_nothing_and_nonsense_is_refused():
    tried = try_merge(WRONG["untouched starter"])
    assert tried.said is None and len(tried.log) == 0
    assert repr(tried) == "_untouched is not written yet."
    for nonsense in (None, 3, list):
        with pytest.raises(TypeError, match="try_merge takes a function"):
            try_merge(nonsense)


# ---- the other exercises of 07 -----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_online_is_the_weighted_mean(seed):
    exercise = get(f"07.online#{seed}")
    numbers = [int(n) for n in re.findall(r"\d+", exercise.question)][1:]  # the first is the 2 of the powers
    scores, values = numbers[:3], numbers[3:6]
    weights = [Fraction(2) ** score for score in scores]
    assert exercise.right == sum(w * x for w, x in zip(weights, values, strict=True)) / sum(weights)
    assert len(exercise.wrong) >= 5


@pytest.mark.parametrize("seed", range(40))
def test_intensity_is_that_of_the_work(seed):
    exercise = get(f"07.intensity#{seed}")
    heads, kv_heads, size = (
        int(re.search(pattern, exercise.question)[1])
        for pattern in (r"(\d+) query heads,", r"(\d+) KV heads", r"numbers of (\d+) bytes")
    )
    plain = decode_work(100, heads=1)
    assert exercise.right == plain.intensity * (heads / kv_heads) * (4 / size)


@pytest.mark.parametrize("seed", range(12))
def test_two_parts_change_and_both_are_the_read(seed):
    exercise = get(f"12.Q3#{seed}")
    told = dict(re.findall(r"^  (\w)  (.+)$", exercise.question, re.M))
    assert sorted(told[letter] for letter in exercise.right) == sorted(p[0] for p in _PARTS if p[1])
    assert exercise.judge(list(exercise.right)).ok and exercise.judge(exercise.right[::-1].upper()).ok
    assert exercise.judge({*exercise.right}).ok
