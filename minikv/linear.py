"""Products with matrices, and how a CPU gets the most out of large ones.

torch gives products of float32 to MKL, which on some processors uses half of what they can do, and lays a
matrix out anew for every product. oneDNN, which is a part of torch, too, does neither. torch keeps the
operators that call it with a matrix laid out once for what its compiler makes; they work without it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 1 << 18  # numbers in a matrix; a smaller one is done with before oneDNN has begun

Linear = Callable[[Tensor], Tensor]


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The function x -> x · weightᵀ + bias, for weight [out, in], bias [out] and x [..., in].

    A large matrix is copied into another layout, so that the caller need not keep it. A caller who also looks
    up single rows, as GPT-2 does in its embeddings, keeps it twice: that layout cannot be read by rows.
    """
    return _Packed(weight, bias) if _packs(weight) else partial(F.linear, weight=weight, bias=bias)


class _Packed:
    """A product through oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = None if bias is None else bias.contiguous()  # oneDNN looks at no strides

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y

    def __reduce__(self) -> tuple[Callable[..., Linear], tuple[Tensor, Tensor | None]]:
        """To be copied or sent as the plain matrix: the layout belongs to this process."""
        return linear, (self.packed.to_dense().detach(), self.bias)


def _packs(weight: Tensor) -> bool:
    """Whether oneDNN is there, and worth while."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= LARGE
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.mkldnn.is_available()
    )
