"""Products with matrices, small and large, against the same in float64."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from minikv.linear import LARGE, linear

SMALL, WIDE = (128, 384), (768, 2304)  # in, out


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3), (4, 129)])
@pytest.mark.parametrize("size", [SMALL, WIDE])
def test_the_product(size: tuple[int, int], shape: tuple[int, ...], with_bias: bool) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(size[1], size[0]), torch.randn(size[1]) if with_bias else None
    x = torch.randn(*shape, 2 * size[0])[..., ::2]  # not side by side
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    out = linear(weight, bias)(x)
    assert out.shape == (*shape, size[1])
    assert (out - expected).abs().max() < 1e-3  # of sums whose terms add up to some hundreds


def test_a_large_matrix_is_not_kept() -> None:
    """The copy is what counts, whatever happens to the original."""
    weight = torch.ones(WIDE)
    assert weight.numel() >= LARGE
    product = linear(weight)
    weight.zero_()
    if torch.backends.mkldnn.is_available():
        assert product(torch.ones(1, WIDE[1])).unique().tolist() == [WIDE[1]]


@pytest.mark.parametrize("size", [SMALL, WIDE])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_does_the_same(copied: Callable[[Any], Any], size: tuple[int, int]) -> None:
    product, x = linear(torch.randn(size[1], size[0]), torch.randn(size[1])), torch.randn(3, size[0])
    assert torch.equal(copied(product)(x), product(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_numbers_are_left_to_torch(dtype: torch.dtype) -> None:
    weight, x = torch.randn(WIDE).to(dtype), torch.randn(3, WIDE[1]).to(dtype)
    assert torch.equal(linear(weight)(x), torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("bias", [torch.arange(2.0 * 2304)[::2], torch.ones(1).expand(2304)])
def test_a_bias_that_is_not_side_by_side(bias: torch.Tensor) -> None:
    assert torch.equal(linear(torch.zeros(2304, 768), bias)(torch.ones(3, 768)), bias.expand(3, -1))


def test_other_devices_are_left_to_torch() -> None:
    product = linear(torch.empty(WIDE, device="meta"))
    assert product(torch.empty(3, WIDE[1], device="meta")).shape == (3, WIDE[0])
