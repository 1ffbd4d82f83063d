"""Concurrency limits: against sums of lengths, and against what the limits mean."""

import random
from math import ceil

import pytest

from minikv.lab.experiment_limit import CACHES, Fitting, fitting, side_by_side, undisturbed
from minikv.lab.experiment_run import Ask
from minikv.lab.experiment_scenes import SIX

TALK = "Ada has three red kites . What does Ada have ?"  # 11 tokens


@pytest.mark.parametrize("cache", CACHES)
def test_equal_requests_by_hand(cache):
    """11 + 6 - 1 = 16 tokens, 4 blocks; 11 + 21 - 1 = 31 slots; with headroom 27, which is enough."""
    asks = [Ask(TALK, 21, stop=".")] * 9
    expected = {"paged": 6, "contiguous, max": 3, "contiguous, grow": 3}[cache]
    assert side_by_side(asks, num_blocks=24 if cache == "paged" else 25, **CACHES[cache]) == expected


def test_all_fit():
    assert side_by_side(SIX, 33) == 6
    assert side_by_side(SIX, 32) < 6
    assert side_by_side((), 4) == 0


@pytest.mark.parametrize(
    ("asks", "blocks", "fine"),
    [
        ([Ask(TALK, 6)], 4, True),  # 16 tokens in 4 blocks
        ([Ask(TALK, 7)], 4, False),  # it is refused
        ([Ask(TALK, 6), Ask(TALK, 30)], 8, False),  # the second one is refused, and the first does not mind
        ([Ask(TALK, 6)] * 2, 8, True),
        ([Ask(TALK, 6)] * 2, 7, False),  # one makes room, in the second step
        ([Ask(TALK, 6)] * 2, 5, False),  # one waits
    ],
)
def test_what_disturbs(asks, blocks, fine):
    assert undisturbed(asks, blocks) is fine


def test_fitting_is_division():
    rng = random.Random(0)
    for _ in range(300):
        size = rng.choice((1, 4, 16))
        prompt, limit = rng.randint(1, 90), rng.randint(1, 90)
        answer, slots = rng.randint(1, limit), size * rng.randint(1, 40)
        blocks = ceil((prompt + answer - 1) / size)
        expected = Fitting(slots // size // blocks, slots // (prompt + limit - 1))
        assert fitting(prompt, answer, limit, slots, size) == expected


def test_the_ratio():
    assert Fitting(6, 3).ratio == 2
    assert Fitting(6, 0).ratio == float("inf")


def test_twice_as_many_fit_from_the_prompt_and_twice_the_answer_on():
    """The notebook's rule, with blocks of 1, where nothing is rounded up, and a memory without a rest."""
    for prompt, answer in ((100, 50), (40, 40), (7, 3)):
        edge = prompt + 2 * answer - 1  # 2 (p + a - 1) = p + m - 1
        slots = 60 * (prompt + answer - 1)
        assert fitting(prompt, answer, edge, slots, 1).ratio == 2
        if edge - 1 >= answer:
            assert fitting(prompt, answer, edge - 1, 30 * (prompt + edge - 2), 1).ratio < 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": 0}, "prompt is 0"),
        ({"answer": 0}, "answer 0"),
        ({"answer": 21}, "answer 21, limit 20"),
        ({"slots": 100}, "100 slots are no whole number of blocks of 16"),
        ({"slots": 0}, "0 slots"),
    ],
)
def test_nonsense_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        fitting(**{"prompt": 10, "answer": 5, "limit": 20, "slots": 160, **given})
