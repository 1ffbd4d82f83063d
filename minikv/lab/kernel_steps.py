"""Attention of one query, four times: each step is a kernel, and differs from the one before in one thing.

    two_passes      a loop over the tokens, once for the scores and once for the values
    one_pass        online softmax: one loop, and no row of scores
    through_table   each token is looked for through the block table
    whole_blocks    block by block, all heads of a block before the next

Compiled by Numba; `two_passes.py_func` is the same function, not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
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
kernel: Callable[..., Any] = njit(**_COMPILED)
inlined: Callable[..., Any] = njit(inline="always", **_COMPILED)

NOTHING = np.float32(-np.inf)  # the largest score among none


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
    """As through_table, but the blocks are the outer loop: each is read once, from end to end."""
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
