"""The four kernels against a plain attention in float64, and how they are compared. Speed is not tested."""

import numpy as np
import pytest
import torch

from minikv.lab import read_ways
from minikv.lab.kernel_steps import one_pass, through_table, two_passes, whole_blocks
from minikv.lab.read_ways import Layouts, Steps, Timed, Ways, order_matters, verdict

HEADS, DIM = 3, 8
SCALE = np.float32(DIM**-0.5)


def words(tokens):
    rng = np.random.default_rng(tokens)
    q = rng.standard_normal((HEADS, DIM)).astype(np.float32)
    k, v = rng.standard_normal((2, HEADS, tokens, DIM)).astype(np.float32)
    return 5 * q, k, v


def exact(q, k, v):
    scores = np.einsum("hd,htd->ht", q.astype(np.float64), k) * SCALE
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("ht,htd->hd", weights, v) / weights.sum(1)[:, None]


def in_blocks(k, v, size, seed=0):
    """A pool with these words behind a shuffled table; NaN wherever none of them lies."""
    tokens = k.shape[1]
    blocks = -(-tokens // size)
    kv = np.full((blocks + 2, 2, HEADS, size, DIM), np.nan, np.float32)
    table = np.random.default_rng(seed).permutation(blocks + 2)[:blocks]
    for p in range(tokens):
        kv[table[p // size], 0, :, p % size], kv[table[p // size], 1, :, p % size] = k[:, p], v[:, p]
    return kv, table


@pytest.mark.parametrize("tokens", [1, 2, 7, 33])
def test_side_by_side(tokens):
    q, k, v = words(tokens)
    for kernel in (two_passes, one_pass):
        np.testing.assert_allclose(kernel(q, k, v, SCALE), exact(q, k, v), atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 4, 16])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 16, 17, 33])
def test_through_a_table_and_nothing_beyond_the_length(tokens, size):
    q, k, v = words(tokens)
    kv, table = in_blocks(k, v, size)
    for kernel in (through_table, whole_blocks):
        np.testing.assert_allclose(kernel(q, kv, table, tokens, SCALE), exact(q, k, v), atol=1e-5)


def test_scores_that_no_power_can_hold():
    q, k, v = words(9)
    kv, table = in_blocks(k, v, 4)
    q = 200 * q
    for kernel, rest in (
        (two_passes, (k, v)),
        (one_pass, (k, v)),
        (through_table, (kv, table, 9)),
        (whole_blocks, (kv, table, 9)),
    ):
        np.testing.assert_allclose(kernel(q, *rest, SCALE), exact(q, k, v), atol=1e-4)


def test_what_the_notebook_shows_is_what_runs():
    q, k, v = words(6)
    kv, table = in_blocks(k, v, 4)
    np.testing.assert_allclose(two_passes.py_func(q, k, v, SCALE), exact(q, k, v), atol=1e-5)
    np.testing.assert_allclose(whole_blocks.py_func(q, kv, table, 6, SCALE), exact(q, k, v), atol=1e-5)


# ---- compared ------------------------------------------------------------------------------------


def test_all_ways_agree_and_are_named():
    ways = Ways(64)
    steps, layouts = ways.steps(), ways.layouts()
    assert list(steps.timed)[1:5] == ["two_passes", "one_pass", "through_table", "whole_blocks"]
    for found in (*steps.timed.values(), *layouts.timed.values()):
        assert found.milliseconds > 0 and found.difference < 1e-5
    assert layouts.shuffled > 0
    assert steps.table.column("")[0] == "torch, side by side"
    assert "shuffled against in order" in repr(layouts)


def test_a_way_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(read_ways, "whole_blocks", lambda q, *rest: np.zeros_like(q))
    with pytest.raises(ArithmeticError, match="differs from torch's attention"):
        Ways(64).layouts()
    with pytest.raises(ArithmeticError):
        ways = Ways(64)
        ways.time({"nan": lambda: torch.full_like(ways.torch_side_by_side(), float("nan"))})


def timed(**milliseconds):
    return {name.replace("_x_", ", "): Timed(name, took, 0.0) for name, took in milliseconds.items()}


def test_steps_that_take_longer_are_found():
    made = timed(two_passes=2.0, one_pass=2.1, through_table=6.0, whole_blocks=3.0)
    steps = Steps({"torch, side by side": Timed("torch", 2.0, 0.0), **made})
    assert steps.slower == [3]  # 2.1 against 2.0 is no clear difference
    assert steps.ratio("through_table") == 3
    assert steps.ratio("whole_blocks", "through_table") == 0.5
    said = repr(steps)
    assert "2.9 times as long as one_pass" in said and "2.0 times as fast as through_table" in said


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.1, "as fast as x"),
        (0.9, "as fast as x"),
        (3.0, "3.0 times as long as x"),
        (0.25, "4.0 times as fast as x"),
    ],
)
def test_a_ratio_in_words(ratio, said):
    assert verdict(ratio, "x") == said


def test_either_outcome_is_said_as_it_is():
    def said(fused):
        names = ("torch, side by side", "fused: the backend cpu", "fused: whole_blocks")
        return repr(
            Layouts({n: Timed(n, t, 0.0) for n, t in zip(names, (1.0, fused, fused), strict=True)}, 1.0)
        )

    assert "2.00 times torch's time: slower than side by side" in said(2.0)
    assert "0.50 times torch's time: faster than side by side" in said(0.5)
    assert "as fast as torch over what lies side by side" in said(1.0)


def test_order_is_measured_for_each_block_size():
    found = order_matters(tokens=64, block_sizes=(1, 16))
    assert [each.block_size for each in found] == [1, 16]
    assert all(each.in_order > 0 and each.shuffled > 0 for each in found)
