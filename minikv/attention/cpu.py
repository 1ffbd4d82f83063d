"""Read in one pass, compiled for the CPU: a PagedAttention kernel in Numba. (Kwon et al. 2023, §4.3)

What `gather` first copies side by side is read here where it lies. The work is cut in two directions:

    tile   up to 8 new tokens of one request: a block that the processor has fetched serves them all
    part   512 tokens of what they see: one long request keeps every thread busy

Each tile walks the blocks of a part with the online softmax of attention/reference.py; then the parts
are merged (flash-decoding: Dao et al. 2023). The cuts lie at fixed positions, whatever the number of
threads and whatever else is in the batch: the same sums in the same order, so the same bits. Cut into other
chunks, a prompt may come out with another rounding: a lone query is read by a loop of its own, see `_block`.

All that one layer keeps in one block is one run of memory (minikv/pool.py). A thread that reads it
from end to end, all heads in one go, reads nearly as fast as memory can deliver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic, overload
from torch import Tensor

from minikv.attention.tables import TableArray, as_arrays, as_tables
from minikv.block_table import BlockTable
from minikv.pool import BlockPool, ReadTable

if numba.config.DISABLE_JIT:  # some of what follows is written for the compiler, and means nothing in Python
    raise RuntimeError(
        'the "cpu" backend is compiled code, and NUMBA_DISABLE_JIT forbids Numba to compile; unset it before '
        'Python starts, or read with backend="auto", which then finds another way'
    )

Array = np.ndarray

TILE = 8  # new tokens
LINE = 64  # bytes that come from memory together
PART = 512  # tokens; at least one block
SMALL = 1 << 16  # products of numbers of q and k: below it, to wake another thread costs more than it helps

# Sums may be taken in another order, so that vectors can be used. NaN and infinity stay what they are.
LOOSE = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}
# What another compiled function calls becomes a part of it. Else it stands in several pieces of code, in each
# one with its sums in another order, and which of them runs depends on what was compiled and what loaded.
INNER = {**LOOSE, "forceinline": True}
# The innermost functions see arrays that their callers hold. To count holders at every slice, as Numba does,
# takes a quarter of their time.
BORROWED = {**INNER, "_nrt": False}
NOTHING = np.float32(-np.inf)  # the largest score among none

_entered = Lock()  # Numba's plainest thread pool must not be entered twice at a time


def attend(
    q: Tensor,
    pool: BlockPool,
    layer: int,
    tables: Sequence[ReadTable] | TableArray,
    lengths: Sequence[int],
    scale: float,
) -> Tensor:
    """Attention of q [batch, num_new, heads, head_dim], the last num_new of each request's tokens.

    Raises:
        TypeError: the pool holds neither float32 nor bfloat16, a table has no block_ids and offset, or a
            length or a block id is no integer.
        ValueError: the pool is on another device. IndexError, UnwrittenSlotError: as read_layer.
    """
    return Kernel(pool, tables, lengths, scale).run(layer, q)


def store_and_attend(
    pool: BlockPool, tables: Sequence[ReadTable] | TableArray, lengths: Sequence[int], scale: float
) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    """For one step of these requests: a function that stores each layer's new K and V, and then reads.

    `lengths` include the new tokens. What does not change from layer to layer is looked at once, here:
    in a small model that is a third of the step. Errors as `attend`.
    """
    return Kernel(pool, tables, lengths, scale).run


class Kernel:
    """The compiled functions for one step of some requests, and what they are called with in every layer.

    Arguments and errors as `store_and_attend`.
    """

    def __init__(
        self,
        pool: BlockPool,
        tables: Sequence[ReadTable] | TableArray,
        lengths: Sequence[int],
        scale: float,
    ) -> None:
        self.pool, self.tables, self.kv = pool, tables, _stored(pool)
        self.rows = as_arrays(tables, lengths, pool)  # block_ids, offsets, ends
        self.lengths: list[int] = self.rows[2].tolist()
        self.how = np.float32(scale), max(1, PART // pool.block_size)
        self.num_tokens = int(self.rows[2].sum())
        self.shortest = min((length for length in self.lengths if length), default=math.inf)

    def run(self, layer: int, q: Tensor, k: Tensor | None = None, v: Tensor | None = None) -> Tensor:
        """Write k, v [batch, num_new, kv heads, head_dim], if given, and read with q.

        Raises:
            ValueError: shapes that do not fit each other and the pool. Compiled code looks at no bounds.
        """
        self._check_shapes(q, k, v)
        new = _plain(q)
        stored = (new[:, :0],) * 2 if k is None or v is None else (_plain(k), _plain(v))
        out = np.zeros(new.shape, dtype=np.float32)
        few, threads = new.shape[1] <= TILE, torch.get_num_threads()
        given = (new, *stored, self.kv, layer, *self.rows, *self.pool.marks(layer), *self.how, out)
        if threads == 1 or self.num_tokens * math.prod(new.shape[1:]) <= SMALL:
            sound = (_one_tile_alone if few else _many_tiles_alone)(*given)
        else:
            sound = on_threads(threads, _one_tile if few else _many_tiles, *given)
        if not sound:
            self.refuse([layer])
        return torch.from_numpy(out).to(q)

    def refuse(self, layers: Iterable[int]) -> None:
        """Compiled code met what is not to be read: the plain way of looking finds out what, and raises."""
        for row in self.pool.row_slots(as_tables(self.tables, self.pool), self.lengths):
            for layer in layers:
                self.pool.require_written(layer, row)
        raise IndexError(
            "a table's block_ids and offset do not say what its slots(…) says: the kernel walks them"
        )

    def _check_shapes(self, q: Tensor, k: Tensor | None, v: Tensor | None) -> None:
        batch, kv_heads, head_dim = len(self.rows[2]), self.kv.shape[3], self.kv.shape[5]
        if q.ndim != 4 or q.shape[0] != batch or q.shape[3] != head_dim or q.shape[2] % kv_heads:
            raise ValueError(
                f"q has shape {list(q.shape)}; {batch} requests, {kv_heads} kv heads and a head_dim of "
                f"{head_dim} take [{batch}, num_new, a multiple of {kv_heads}, {head_dim}]"
            )
        if q.shape[1] > self.shortest:
            raise ValueError(
                f"q has shape {list(q.shape)}: {q.shape[1]} new tokens, but a request stores {self.shortest}"
            )
        stored = (batch, q.shape[1], kv_heads, head_dim)
        for name, x in (("k", k), ("v", v)):
            if x is not None and x.shape != stored:
                raise ValueError(
                    f"{name} has shape {list(x.shape)}; with q {list(q.shape)} it must be {list(stored)}"
                )


def on_threads(threads: int, compiled: Callable[..., bool], *given: object) -> bool:
    """Call compiled code that shares its work among so many threads."""
    with _entered:
        torch_threads = torch.get_num_threads()
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        try:
            return compiled(*given)
        finally:
            if torch.get_num_threads() != torch_threads:  # torch and Numba may share one OpenMP, which the
                torch.set_num_threads(torch_threads)  # first parallel call sets to its own number


def _plain(x: Tensor) -> np.ndarray:
    """The numbers as float32 side by side; no copy where they are so already."""
    if x.requires_grad or x.dtype != torch.float32:
        x = x.detach().float()
    return np.ascontiguousarray(x.numpy())


def warm_up() -> None:
    """Compile for both kinds of pool, or load what was compiled before. The first time: half a minute."""
    for dtype in (torch.float32, torch.bfloat16):
        length = 2 * TILE
        pool = BlockPool(1, length, 1, 1, 1, dtype=dtype)
        table = BlockTable(length)
        table.append_block(0)
        for num_new in (length, 1):
            for heads in (1, SMALL // length + 1):  # a small step, and one for all threads
                q, k = torch.zeros(1, num_new, heads, 1), torch.zeros(1, num_new, 1, 1)
                store_and_attend(pool, [table], [length], 1.0)(0, q, k, k)


def _stored(pool: BlockPool) -> np.ndarray:
    """The pool's tensor as an array, without a copy; bfloat16, which NumPy does not know, as its 16 bits."""
    if pool.device.type != "cpu":
        raise ValueError(f'the pool is on {pool.device.type}; the "cpu" backend reads pools on the CPU')
    if pool.kv.dtype == torch.float32:
        return pool.kv.numpy()
    if pool.kv.dtype == torch.bfloat16:
        return pool.kv.view(torch.uint16).numpy()
    raise TypeError(f'the pool holds {pool.kv.dtype}; the "cpu" backend reads float32 and bfloat16')


# ---- writing -----------------------------------------------------------------------------------


def _as_stored(x, like):  # type: ignore[no-untyped-def]
    """A float32 as the pool keeps it: itself, or the nearest bfloat16, the even one of two."""
    raise NotImplementedError("only compiled code calls this")


@overload(_as_stored, inline="always")
def _stored_as(x, like):  # type: ignore[no-untyped-def]  # Numba compares this signature with the one above
    if like == types.uint16:

        def rounded(x, like):  # type: ignore[no-untyped-def]
            bits = np.float32(x).view(np.uint32)
            if x != x:  # NaN: rounding must not make it infinite
                return np.uint16((bits >> np.uint32(16)) | np.uint32(64))
            even = (bits >> np.uint32(16)) & np.uint32(1)
            return np.uint16((bits + np.uint32(32767) + even) >> np.uint32(16))

        return rounded
    return lambda x, like: x


@njit(**INNER)
def _num_entries(offset: int, end: int, block_size: int) -> int:
    """Entries of a table that hold `end` tokens."""
    return 0 if end == 0 else (offset + end - 1) // block_size + 1


@njit(**BORROWED)
def in_pool(kv: Array, block_ids: Array, offsets: Array, ends: Array) -> bool:
    """Whether all blocks that hold the requests' tokens are blocks of the pool."""
    num_blocks, block_size = kv.shape[1], kv.shape[4]
    for i in range(len(ends)):
        for entry in range(_num_entries(offsets[i], ends[i], block_size)):
            if not 0 <= block_ids[i, entry] < num_blocks:
                return False
    return True


@njit(**BORROWED)
def store(
    k: Array, v: Array, kv: Array, layer: int, row: Array, offset: int, end: int,
    written: Array, touched: Array,
) -> None:  # fmt: skip
    """Write one request's last new tokens, k and v [num_new, kv heads, head_dim], to their slots."""
    num_new, heads, head_dim = k.shape
    block_size = kv.shape[4]
    for j in range(num_new if end else 0):
        place = offset + end - num_new + j
        block_id = np.int64(row[place // block_size])  # a slot may exceed 32 bits
        place %= block_size
        for g in range(heads):
            for d in range(head_dim):
                kv[layer, block_id, 0, g, place, d] = _as_stored(k[j, g, d], kv[0, 0, 0, 0, 0, 0])
                kv[layer, block_id, 1, g, place, d] = _as_stored(v[j, g, d], kv[0, 0, 0, 0, 0, 0])
        written[block_id * block_size + place] = True
        touched[block_id] = True


# ---- one block --------------------------------------------------------------------------------


def _number(x):  # type: ignore[no-untyped-def]
    """What is stored, as float32: itself, or a bfloat16, which is the upper half of one."""
    raise NotImplementedError("only compiled code calls this")


@overload(_number, inline="always")
def _number_of(x):  # type: ignore[no-untyped-def]  # Numba compares this signature with the one above
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


@njit(fastmath={"contract"}, inline="always")
def exp(x: Any) -> Any:
    """e ** x for x <= 0; unlike np.exp, short enough for the compiler to vectorise.

    x = n log 2 + r with a small r: a polynomial for e ** r (Cephes, Moshier 1992), and 2 ** n by
    writing n where a float32 keeps its exponent. Below -87 the result is as good as 0.
    """
    x = max(x, np.float32(-87.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * r * r + r + np.float32(1.0)) * power


@intrinsic
def _prefetch(typing: Any, row: types.Array, at: types.Integer) -> Any:
    """Ask for the cache line that holds row[at], and go on without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(row)(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        number = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [address.type], ir.FunctionType(ir.VoidType(), [address.type, *[number] * 3])
        )
        builder.call(function, [address, number(0), number(3), number(1)])  # to read; keep close; data
        return context.get_dummy_value()

    return types.void(row, at), generate


@njit(inline="always")
def _fetch(row: Array) -> None:
    """Have a row's first 256 bytes on their way from memory while others are worked on; the rest follows.

    A fixed number of lines: a loop over all of them the compiler unrolls again wherever it is used.
    """
    for line in range(4):
        _prefetch(row, line * (LINE // row.itemsize))


@njit(**BORROWED)
def _score(query: Array, keys: Array, scale: float, scores: Array) -> np.float32:
    """scores = scale * keys · query, four keys at a time; the largest of them is returned."""
    top, fours = NOTHING, len(keys) // 4 * 4
    for t in range(0, fours, 4):
        k0, k1, k2, k3 = keys[t], keys[t + 1], keys[t + 2], keys[t + 3]
        s0, s1, s2, s3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for d in range(len(query)):
            s0 += query[d] * _number(k0[d])
            s1 += query[d] * _number(k1[d])
            s2 += query[d] * _number(k2[d])
            s3 += query[d] * _number(k3[d])
        s0, s1, s2, s3 = s0 * scale, s1 * scale, s2 * scale, s3 * scale
        scores[t], scores[t + 1], scores[t + 2], scores[t + 3] = s0, s1, s2, s3
        top = max(top, max(max(s0, s1), max(s2, s3)))
    for t in range(fours, len(keys)):
        key, score = keys[t], np.float32(0)
        for d in range(len(query)):
            score += query[d] * _number(key[d])
        scores[t] = score * scale
        top = max(top, scores[t])
    return top


@njit(**BORROWED)
def _score_ahead(query: Array, keys: Array, scale: float, scores: Array, ahead: Array) -> np.float32:
    """As _score, key by key as memory delivers them; meanwhile the keys in `ahead` are fetched."""
    top = NOTHING
    for t in range(len(keys)):
        _fetch(ahead[t])
        key, score = keys[t], np.float32(0)
        for d in range(len(query)):
            score += query[d] * _number(key[d])
        scores[t] = score * scale
        top = max(top, scores[t])
    return top


@njit(**BORROWED)
def _mix(weights: Array, values: Array, mix: Array) -> None:
    """mix += weights · values, four values at a time."""
    fours = len(values) // 4 * 4
    for t in range(0, fours, 4):
        v0, v1, v2, v3 = values[t], values[t + 1], values[t + 2], values[t + 3]
        w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        for d in range(len(mix)):
            mix[d] += (w0 * _number(v0[d]) + w1 * _number(v1[d])) + (
                w2 * _number(v2[d]) + w3 * _number(v3[d])
            )
    for t in range(fours, len(values)):
        value, weight = values[t], weights[t]
        for d in range(len(mix)):
            mix[d] += weight * _number(value[d])


@njit(**BORROWED)
def _mix_ahead(weights: Array, values: Array, mix: Array, ahead: Array) -> None:
    """As _mix, value by value as memory delivers them; meanwhile the values in `ahead` are fetched."""
    for t in range(len(values)):
        _fetch(ahead[t])
        value, weight = values[t], weights[t]
        for d in range(len(mix)):
            mix[d] += weight * _number(value[d])


@njit(**BORROWED)
def _block(
    q: Array, kv: Array, layer: int, block_id: int, place: int, after: int, start: int, sees: int,
    scale: float, scores: Array, best: Array, total: Array, mixed: Array,
) -> None:  # fmt: skip
    """Add one block to what a tile has seen: positions start, start + 1, … lie at its places from `place` on.

    Query j sees the positions below sees + j. scores [rows, heads, width] is for the block's own use; width
    is at least what the last query sees of a block. best, total [rows, heads] and mixed [rows, heads,
    head_dim] are the running maximum, sum of weights and weighted sum of values.

    A block is read in the order of its memory: the keys of each head, then the values of each head. Where
    such a run ends, the processor cannot tell that the next one follows, and after the last one it cannot
    know the block that comes next, `after`. So a lone query, which waits for memory more than it computes,
    asks for one run while it works on the one before. Several queries wait once and compute often.
    """
    rows, heads, head_dim = q.shape
    kv_heads, block_size = kv.shape[3:5]
    runs = kv[layer, block_id].reshape(2 * kv_heads, block_size, head_dim)
    group = heads // kv_heads
    waits = rows == 1
    for h in range(heads):
        r = h // group
        for j in range(rows):
            seen = place + min(block_size - place, sees + j - start)
            if seen <= place:
                continue
            keys, weights = runs[r, place:seen], scores[j, h]
            if waits and h % group == 0:
                top = _score_ahead(q[j, h], keys, scale, weights, runs[r + 1, place:])
            else:
                top = _score(q[j, h], keys, scale, weights)
            if top > best[j, h]:
                shrink = np.float32(0) if total[j, h] == 0 else exp(best[j, h] - top)
                best[j, h] = top
                total[j, h] *= shrink
                for d in range(head_dim):
                    mixed[j, h, d] *= shrink
            high, more = best[j, h], np.float32(0)
            for t in range(len(keys)):
                weights[t] = exp(weights[t] - high)
                more += weights[t]
            total[j, h] += more
    for h in range(heads):
        r = kv_heads + h // group
        for j in range(rows):
            seen = place + min(block_size - place, sees + j - start)
            if seen <= place:
                continue
            values, weights = runs[r, place:seen], scores[j, h]
            if waits and h % group == 0:
                ahead = runs[r + 1, place:] if r + 1 < len(runs) else kv[layer, after, 0, 0]
                _mix_ahead(weights, values, mixed[j, h], ahead)
            else:
                _mix(weights, values, mixed[j, h])


# ---- one part of what one tile sees ------------------------------------------------------------


@njit(**BORROWED)
def _part(
    q: Array, kv: Array, layer: int, row: Array, offset: int, first: int, last: int, sees: int,
    written: Array, scale: float, scores: Array, best: Array, total: Array, mixed: Array,
) -> bool:  # fmt: skip
    """Walk entries first … last-1 of the table `row`. False if a slot is not to be read."""
    block_size = kv.shape[4]
    best[:] = NOTHING
    total[:] = 0
    mixed[:] = 0
    sound = True
    for entry in range(first, last):
        block_id = np.int64(row[entry])  # a slot may exceed 32 bits
        place = offset if entry == 0 else 0
        start = entry * block_size - offset + place
        seen = min(block_size - place, sees + len(q) - 1 - start)
        slot = block_id * block_size + place
        for t in range(seen):
            sound &= written[slot + t]
        after = np.int64(row[entry + 1]) if entry + 1 < last else block_id
        _block(q, kv, layer, block_id, place, after, start, sees, scale, scores, best, total, mixed)
    return sound


@njit(**INNER)
def _merge(
    best: Array, total: Array, mixed: Array, part_best: Array, part_total: Array, part_mixed: Array
) -> None:
    """Add what one part saw to what the parts before it saw."""
    rows, heads, head_dim = mixed.shape
    for j in range(rows):
        for h in range(heads):
            if part_total[j, h] == 0:  # it saw nothing
                continue
            top = max(best[j, h], part_best[j, h])
            old = np.float32(0) if total[j, h] == 0 else exp(best[j, h] - top)
            new = exp(part_best[j, h] - top)
            best[j, h] = top
            total[j, h] = total[j, h] * old + part_total[j, h] * new
            for d in range(head_dim):
                mixed[j, h, d] = mixed[j, h, d] * old + part_mixed[j, h, d] * new


@njit(**INNER)
def _finish(total: Array, mixed: Array, out: Array) -> None:
    rows, heads, head_dim = out.shape
    for j in range(rows):
        for h in range(heads):
            for d in range(head_dim):
                out[j, h, d] = mixed[j, h, d] / total[j, h]


@njit(**INNER)
def read_tile(
    q: Array, kv: Array, layer: int, row: Array, offset: int, sees: int, written: Array, scale: float,
    part: int, out: Array,
) -> bool:  # fmt: skip
    """One tile, q and out [rows, heads, head_dim], part by part; `sees` as in _block, False as in _part."""
    rows, heads, head_dim = q.shape
    block_size = kv.shape[4]
    width = max(0, min(block_size, sees + rows - 1))  # a block may be as long as all memory
    scores = np.empty((rows, heads, width), np.float32)
    best, total = np.full((2, rows, heads), NOTHING), np.zeros((2, rows, heads), np.float32)
    mixed = np.zeros((2, rows, heads, head_dim), np.float32)
    entries, sound = _num_entries(offset, sees + rows - 1, block_size), True
    for first in range(0, entries, part):
        sound &= _part(
            q, kv, layer, row, offset, first, min(first + part, entries), sees, written, scale, scores,
            best[1], total[1], mixed[1],
        )  # fmt: skip
        _merge(best[0], total[0], mixed[0], best[1], total[1], mixed[1])
    _finish(total[0], mixed[0], out)
    return sound


# ---- all of it, over the threads ---------------------------------------------------------------


@njit(parallel=True, cache=True, **LOOSE)
def _one_tile(
    q: Array, k: Array, v: Array, kv: Array, layer: int, block_ids: Array, offsets: Array, ends: Array,
    written: Array, touched: Array, scale: float, part: int, out: Array,
) -> bool:  # fmt: skip
    """Few new tokens, as in a decode step: threads share the parts. False if something is not to be read."""
    if not in_pool(kv, block_ids, offsets, ends):
        return False
    for i in range(len(k)):
        store(k[i], v[i], kv, layer, block_ids[i], offsets[i], ends[i], written, touched)
    batch, rows, heads, head_dim = q.shape
    block_size = kv.shape[4]
    parts = 1
    for i in range(batch):
        parts = max(parts, -(-_num_entries(offsets[i], ends[i], block_size) // part))
    best = np.empty((batch, parts, rows, heads), np.float32)
    total = np.zeros((batch, parts, rows, heads), np.float32)
    mixed = np.empty((batch, parts, rows, heads, head_dim), np.float32)
    sound = np.ones((batch, parts), np.bool_)
    for item in prange(batch * parts):
        i, p = item // parts, item % parts
        last = min((p + 1) * part, _num_entries(offsets[i], ends[i], block_size))
        if p * part < last:
            sees = ends[i] - rows + 1
            scores = np.empty((rows, heads, min(block_size, ends[i])), np.float32)
            sound[i, p] = _part(
                q[i], kv, layer, block_ids[i], offsets[i], p * part, last, sees, written, scale, scores,
                best[i, p], total[i, p], mixed[i, p],
            )  # fmt: skip
    for i in prange(batch):
        for p in range(1, parts):
            _merge(best[i, 0], total[i, 0], mixed[i, 0], best[i, p], total[i, p], mixed[i, p])
        if ends[i]:
            _finish(total[i, 0], mixed[i, 0], out[i])
    return bool(sound.all())


@njit(parallel=True, cache=True, **LOOSE)
def _many_tiles(
    q: Array, k: Array, v: Array, kv: Array, layer: int, block_ids: Array, offsets: Array, ends: Array,
    written: Array, touched: Array, scale: float, part: int, out: Array,
) -> bool:  # fmt: skip
    """Many new tokens, as in a prefill: threads share the tiles, each goes through its parts by itself."""
    if not in_pool(kv, block_ids, offsets, ends):
        return False
    for i in range(len(k)):
        store(k[i], v[i], kv, layer, block_ids[i], offsets[i], ends[i], written, touched)
    batch, num_new = q.shape[:2]
    tiles = -(-num_new // TILE)
    sound = np.ones((batch, tiles), np.bool_)
    for item in prange(batch * tiles):
        i, j = item // tiles, item % tiles * TILE
        rows = min(TILE, num_new - j)
        if ends[i]:
            sound[i, j // TILE] = read_tile(
                q[i, j : j + rows], kv, layer, block_ids[i], offsets[i], ends[i] - num_new + j + 1, written,
                scale, part, out[i, j : j + rows],
            )  # fmt: skip
    return bool(sound.all())


def _alone(kernel: Any) -> Any:
    """The same code, compiled to run in the thread that calls it: the same sums, so the same bits."""
    body = kernel.py_func
    name = body.__name__ + "_alone"  # a name of its own, by which Numba's cache tells the two apart
    copy = FunctionType(body.__code__, body.__globals__, name)
    copy.__qualname__ = name
    return njit(cache=True, **LOOSE)(copy)


_one_tile_alone = _alone(_one_tile)
_many_tiles_alone = _alone(_many_tiles)
