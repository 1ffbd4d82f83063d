"""The experiment at the scale of a service: by hand for a few requests, and against a plain loop for many."""

import random

import pytest

from minikv.lab.experiment_trace import PromptAndLimit, compare, mean_lengths, scaled
from minikv.sim.simulate import simulate
from minikv.sim.workload import ALPACA, Request, lognormal


def batches(requests, num_slots, limit, max_length):
    """Requests that run in each step, if each reserves prompt + limit - 1 slots; all are there at once.

    All reservations are equal here, so what is free is never in pieces.
    """
    sizes = {min(request.input_tokens + limit - 1, max_length) for request in requests}
    assert len(sizes) == 1
    room, waiting, running, found = num_slots // sizes.pop(), list(requests), [], []
    while waiting or running:
        while waiting and len(running) < room:
            running.append(waiting.pop(0).output_tokens)
        found.append(len(running))
        running = [left - 1 for left in running if left > 1]
    return found


def test_prompt_and_limit_step_by_step():
    rng = random.Random(3)
    requests = [Request(0.0, 20, rng.randint(1, 30)) for _ in range(60)]
    result = simulate(requests, PromptAndLimit(500, 30, 64))
    steps = batches(requests, 500, 30, 64)
    assert result.steps == len(steps)
    assert result.peak_batch == max(steps) == 500 // 49
    times = [40 + 0.3 * batch for batch in steps]
    mean = sum(b * t for b, t in zip(steps, times, strict=True)) / sum(times)
    assert result.mean_batch == pytest.approx(mean)
    assert result.preemptions == result.too_large == 0


def test_a_reservation_is_never_longer_than_a_request_may_be():
    policy = PromptAndLimit(100, 90, 40)
    assert policy.admit(0, Request(0.0, 30, 5))
    assert policy.split().free == 60  # not 100 - 119


def test_longer_requests_are_left_out_for_all_alike():
    requests = [Request(0.0, 20, 12), Request(0.0, 20, 13), Request(0.0, 20, 5)]  # 32, 33 and 25 tokens
    found = compare(requests, num_blocks=8, max_length=32)
    assert found.left_out == 1
    assert {result.finished for result in found.results} == {2}
    assert "1 of 3" in repr(found)


def test_a_limit_cuts_the_answers():
    requests = [Request(0.0, 10, 100), Request(0.0, 10, 4)]
    found = compare(requests, num_blocks=32, max_length=128, limit=8)
    assert {result.output_tokens for result in found.results} == {12}
    assert found.results[1].policy == "contiguous, prompt + 8"


def test_every_row_serves_everybody_and_paged_holds_least():
    found = compare(lognormal(ALPACA, rate=30, count=300, seed=2), num_blocks=256, max_length=512)
    assert {result.finished for result in found.results} == {300}
    held, tokens = found.column("held, mean %"), found.column("tokens, mean %")
    assert all(0 < t <= h <= 100 for h, t in zip(held, tokens, strict=True))
    empty = [h - t for h, t in zip(held, tokens, strict=True)]
    assert empty[3] == min(empty)
    assert found.ratio(3, 0) > 1
    assert found.column("tokens copied")[2] == found.results[2].tokens_copied


def test_scaled_lengths():
    requests = [Request(1.5, 100, 3), Request(2.5, 1, 1000)]
    assert list(scaled(requests, 0.1)) == [Request(1.5, 10, 1), Request(2.5, 1, 100)]
    assert mean_lengths(requests) == (50.5, 501.5)


@pytest.mark.parametrize("scale", [0, -1, float("inf"), float("nan")])
def test_scales_that_cannot_be(scale):
    with pytest.raises(ValueError, match="above 0"):
        list(scaled([Request(0.0, 1, 1)], scale))


def test_what_compare_refuses():
    with pytest.raises(ValueError, match="none of 1 requests has at most 8 tokens"):
        compare([Request(0.0, 20, 5)], 8, max_length=8)
    with pytest.raises(ValueError, match="limit is 0"):
        compare([Request(0.0, 20, 5)], 8, limit=0)
    with pytest.raises(ValueError, match="no request"):
        mean_lengths([])
