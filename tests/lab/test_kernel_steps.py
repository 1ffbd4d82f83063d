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


def bad_rows():
    """What compiled code would read beyond, and the words that refuse it."""
    q, k, v = words(8)
    return {
        "no token": ((q, k[:, :0], v[:, :0]), "k has no token"),
        "fewer values than keys": ((q, k, v[:, :5]), "they must be"),
        "more heads that ask": ((np.concatenate([q, q]), k, v), "they must be"),
        "another head_dim": ((q[:, :4], k, v), "they must be"),
        "one head only": ((q[0], k, v), "q is .8.; it must have 2 dimensions"),
    }


def bad_blocks():
    q, k, v = words(8)
    kv, table = in_blocks(k, v, 4)  # 4 blocks, of which 2 are used
    return {
        "no token": ((q, kv, table, 0), "length is 0; a table of 2 blocks of 4 holds 1 to 8 tokens"),
        "below none": ((q, kv, table, -1), "length is -1"),
        "a token too many": ((q, kv, table, 9), "length is 9"),
        "an empty table": ((q, kv, table[:0], 1), "a table of 0 blocks"),
        "a block too far": ((q, kv, np.array([0, 4]), 8), "table lists block 4; the pool has blocks 0 to 3"),
        "a block below 0": ((q, kv, np.array([-1, 0]), 8), "table lists block -1"),
        "more heads that ask": ((np.concatenate([q, q]), kv, table, 8), "they must be"),
        "another head_dim": ((q[:, :4], kv, table, 8), "they must be"),
        "all layers of a pool": ((q, kv[None], table, 8), "kv is .* must have 5 dimensions"),
    }


@pytest.mark.parametrize("case", bad_rows())
@pytest.mark.parametrize("kernel", [two_passes, one_pass])
def test_rows_that_cannot_be_read_are_refused(kernel, case):
    given, said = bad_rows()[case]
    with pytest.raises(ValueError, match=said):
        kernel(*given, SCALE)


@pytest.mark.parametrize("case", bad_blocks())
@pytest.mark.parametrize("kernel", [through_table, whole_blocks])
def test_a_table_that_leads_out_of_the_pool_is_refused(kernel, case):
    given, said = bad_blocks()[case]
    with pytest.raises(ValueError, match=said):
        kernel(*given, SCALE)


def test_other_things_than_arrays_are_refused():
    q, k, v = words(8)
    kv, table = in_blocks(k, v, 4)
    with pytest.raises(TypeError, match="q is a Tensor; a kernel takes NumPy arrays"):
        one_pass(torch.from_numpy(q), k, v, SCALE)
    with pytest.raises(TypeError, match="table is a list"):
        whole_blocks(q, kv, [0, 1], 8, SCALE)
    with pytest.raises(TypeError, match="table holds float64; block ids are whole numbers"):
        whole_blocks(q, kv, table.astype(float), 8, SCALE)
    with pytest.raises(TypeError, match="missing a required argument"):
        whole_blocks(q, kv, table, 8)


def test_entries_behind_the_length_may_be_anything():
    q, k, v = words(8)
    kv, table = in_blocks(k, v, 4)
    long = np.array([*table, 99, -1])
    np.testing.assert_allclose(
        whole_blocks(q, kv, table=long, length=8, scale=SCALE), exact(q, k, v), atol=1e-5
    )


# ---- compared ------------------------------------------------------------------------------------


def test_all_ways_agree_and_are_named():
    ways = Ways(64)
    steps, layouts = ways.steps(), ways.layouts()
    assert list(steps.timed)[1:5] == ["two_passes", "one_pass", "through_table", "whole_blocks"]
    for found in (*steps.timed.values(), *layouts.timed.values()):
        assert found.milliseconds > 0 and found.difference < 1e-5
    assert layouts.shuffled > 0 and layouts.shuffled_gather > 0
    assert all(ratio > 0 for ratio in ways.walk_alone())
    assert steps.table.column("")[0] == "torch, side by side"
    for what in ("whole_blocks", "the lean gather"):
        assert f"{what}, shuffled against in order" in repr(layouts)
    assert "lean gather into kept memory, then torch" in layouts.timed


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
            Layouts({n: Timed(n, t, 0.0) for n, t in zip(names, (1.0, fused, fused), strict=True)}, 1.0, 3.0)
        )

    assert "2.00 times torch's time: slower than side by side" in said(2.0)
    assert "0.50 times torch's time: faster than side by side" in said(0.5)
    assert "as fast as torch over what lies side by side" in said(1.0)
    assert "whole_blocks, shuffled against in order: no clear difference" in said(1.0)
    assert "the lean gather, shuffled against in order: 3.0 times as long" in said(1.0)
    assert "the backend cpu against whole_blocks: no clear difference" in said(1.0)


def test_order_is_measured_for_each_block_size():
    found = order_matters(tokens=64, block_sizes=(1, 16))
    assert [each.block_size for each in found] == [1, 16]
    assert all(time > 0 for each in found for time in (each.cached, each.in_order, each.shuffled))


@pytest.mark.parametrize("size", [0, -4, 3, 5, 12, 100, 128])
def test_a_block_size_that_does_not_divide_is_refused(size):
    with pytest.raises(ValueError, match=f"a block of {size} tokens for 64; the size must .* divide"):
        order_matters(tokens=64, block_sizes=(16, size))


def test_no_tokens_at_all_are_refused():
    for tokens in (0, -16):
        with pytest.raises(ValueError):
            order_matters(tokens=tokens, block_sizes=(16,))
    for tokens in (0, 8, 100):
        with pytest.raises(ValueError, match="take a multiple of 16"):
            Ways(tokens)
