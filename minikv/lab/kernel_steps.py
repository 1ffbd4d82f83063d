"""Attention of one query, four times: each step is a kernel, and differs from the one before in one thing.

    two_passes      a loop over the tokens, once for the scores and once for the values
    one_pass        online softmax: one loop, and no row of scores
    through_table   each token is looked for through the block table
    whole_blocks    block by block, all heads of a block before the next

Compiled by Numba; `two_passes.py_func` is the same function, not compiled. Compiled code looks at no bounds
and would read whatever lies behind an array, or end the process: so what it is given is checked first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray

# Sums may be taken in another order, so that vectors can be used. Kept on disk, so compiled only once.
_COMPILED: Any = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "cache": True,
}
inlined: Callable[..., Any] = njit(inline="always", **_COMPILED)

NOTHING = np.float32(-np.inf)  # the largest score among none


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of this file; a call with what it cannot read raises a ValueError or TypeError."""
    compiled = njit(**_COMPILED)(function)
    check = _check_blocks if "table" in inspect.signature(function).parameters else _check_rows

    @wraps(function)
    def checked(*given: Any, **named: Any) -> Array:
        bound = signature.bind(*given, **named).args
        check(*bound)
        result: Array = compiled(*bound)
        return result

    signature = inspect.signature(function)
    checked.py_func = function  # type: ignore[attr-defined]  # as Numba calls it
    return checked


def _check_rows(q: Array, k: Array, v: Array, scale: float) -> None:
    _check_arrays(q=(q, 2), k=(k, 3), v=(v, 3))
    if k.shape != v.shape or (k.shape[0], k.shape[2]) != q.shape:
        raise ValueError(
            f"q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; they must be [heads, head_dim] and "
            "twice [heads, tokens, head_dim]"
        )
    if k.shape[1] < 1:
        raise ValueError("k has no token; a softmax over nothing is no number")


def _check_blocks(q: Array, kv: Array, table: Array, length: int, scale: float) -> None:
    _check_arrays(q=(q, 2), kv=(kv, 5), table=(table, 1))
    if (kv.shape[1], kv.shape[2], kv.shape[4]) != (2, *q.shape):
        raise ValueError(
            f"q is {list(q.shape)} and kv {list(kv.shape)}; they must be [heads, head_dim] and "
            "[blocks, 2, heads, block_size, head_dim]"
        )
    if table.dtype.kind not in "iu":
        raise TypeError(f"table holds {table.dtype}; block ids are whole numbers")
    room = len(table) * kv.shape[3]
    if not 1 <= length <= room:
        raise ValueError(
            f"length is {length}; a table of {len(table)} blocks of {kv.shape[3]} holds 1 to {room} tokens"
        )
    used = table[: -(-length // kv.shape[3])]
    if used.min() < 0 or used.max() >= len(kv):
        wrong = int(used[(used < 0) | (used >= len(kv))][0])
        raise ValueError(f"table lists block {wrong}; the pool has blocks 0 to {len(kv) - 1}")


def _check_arrays(**expected: tuple[Array, int]) -> None:
    """Each must be an array with so many dimensions."""
    for name, (array, dims) in expected.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} is a {type(array).__name__}; a kernel takes NumPy arrays")
        if array.ndim != dims:
            raise ValueError(f"{name} is {list(array.shape)}; it must have {dims} dimensions")


@inlined
def dot(a: Array, b: Array) -> Any:
    """The sum of a * b."""
    total = np.float32(0)
    for d in range(len(a)):
        total += a[d] * b[d]
    return total


@inlined
def add(to: Array, weight: float, x: Array) -> None:
    """Add weight * x to `to`."""
    for d in range(len(to)):
        to[d] += weight * x[d]


@kernel
def two_passes(q: Array, k: Array, v: Array, scale: float) -> Array:
    """q [heads, head_dim]; k, v [heads, tokens, head_dim], side by side."""
    out = np.zeros_like(q)
    scores = np.empty(k.shape[1], np.float32)
    for h in range(len(q)):
        for p in range(len(scores)):
            scores[p] = dot(q[h], k[h, p]) * scale
        best, total = scores.max(), np.float32(0)
        for p in range(len(scores)):
            weight = np.exp(scores[p] - best)
            total += weight
            add(out[h], weight, v[h, p])
        out[h] /= total
    return out


@kernel
def one_pass(q: Array, k: Array, v: Array, scale: float) -> Array:
    """As two_passes, but a score is used as soon as it is there."""
    out = np.zeros_like(q)
    for h in range(len(q)):
        best, total = NOTHING, np.float32(0)
        for p in range(k.shape[1]):
            score = dot(q[h], k[h, p]) * scale
            if score > best:
                shrink = np.exp(best - score)
                best, total = score, total * shrink
                out[h] *= shrink
            weight = np.exp(score - best)
            total += weight
            add(out[h], weight, v[h, p])
        out[h] /= total
    return out


@kernel
def through_table(q: Array, kv: Array, table: Array, length: int, scale: float) -> Array:
    """kv [blocks, 2, heads, block_size, head_dim]; table: the block ids, in logical order."""
    out, size = np.zeros_like(q), kv.shape[3]
    for h in range(len(q)):
        best, total = NOTHING, np.float32(0)
        for p in range(length):
            block, place = table[p // size], p % size
            score = dot(q[h], kv[block, 0, h, place]) * scale
            if score > best:
                shrink = np.exp(best - score)
                best, total = score, total * shrink
                out[h] *= shrink
            weight = np.exp(score - best)
            total += weight
            add(out[h], weight, kv[block, 1, h, place])
        out[h] /= total
    return out


@kernel
def whole_blocks(q: Array, kv: Array, table: Array, length: int, scale: float) -> Array:
    """As through_table, but the blocks are the outer loop: each is done with before the next."""
    out, size = np.zeros_like(q), kv.shape[3]
    best, total = np.full(len(q), NOTHING), np.zeros(len(q), np.float32)
    for start in range(0, length, size):
        block = kv[table[start // size]]
        for h in range(len(q)):
            for place in range(min(size, length - start)):
                score = dot(q[h], block[0, h, place]) * scale
                if score > best[h]:
                    shrink = np.exp(best[h] - score)
                    best[h], total[h] = score, total[h] * shrink
                    out[h] *= shrink
                weight = np.exp(score - best[h])
                total[h] += weight
                add(out[h], weight, block[1, h, place])
    for h in range(len(q)):
        out[h] /= total[h]
    return out
