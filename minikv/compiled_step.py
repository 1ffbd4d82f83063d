"""A decode step of a small GPT-2, compiled as a whole.

In a small model most of a step is not arithmetic: torch is called fifty times, and for each call that two
threads share, they must be woken and waited for. Here a thread takes some requests through all layers:

    embed → [ norm → q, k, v → store → read → project → norm → widen → gelu → narrow ] … → norm → logits

It can, for requests meet nowhere but in the cache, and there each one writes to slots of its own. What is
computed is what gpt2.py computes; the cache is read by the functions of attention/cpu.py. A request's numbers
come from the same operations in the same order, whatever else is in the batch: the same bits, on any number
of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numba import config, njit, prange
from torch import Tensor

from minikv.attention import cpu
from minikv.attention.cpu import (
    BORROWED,
    LOOSE,
    Array,
    Kernel,
    exp,
    in_pool,
    on_threads,
    read_tile,
    store,
)
from minikv.attention.tables import TableArray
from minikv.checks import whole_number
from minikv.gpt2 import GPT2, gelu_tanh
from minikv.pool import BlockPool, ReadTable

F = TypeVar("F", bound=Callable[..., Any])

ROWS = 8  # requests that go through the layers together: each number of a matrix is fetched once for them

# Sums in the order in which they are written, so that a row's do not depend on the rows beside it. No matter
# then which copy of a function is called: to have one only saves half of the compiler's time.
STRICT = {**BORROWED, "fastmath": {"contract", "nsz"}, "forceinline": False}


class Weights(NamedTuple):
    """A model's numbers, those of all layers together; matrices as [in, out].

    Attributes:
        wte, wpe: [vocab, width], [context, width]. head: [width, vocab].
        norms: [layers, 4, width]: weight and bias of ln_1, then of ln_2. ln_f: [2, width].
        attn, proj, fc, out: [layers, in, out], and their biases [layers, out].
    """

    wte: Array
    wpe: Array
    norms: Array
    attn: Array
    attn_bias: Array
    proj: Array
    proj_bias: Array
    fc: Array
    fc_bias: Array
    out: Array
    out_bias: Array
    ln_f: Array
    head: Array


class CompiledStep:
    """The decode step of one model with one pool. The model's numbers are copied: later changes are not seen.

    Raises:
        ValueError: what `obstacle` says.
    """

    def __init__(self, model: GPT2, pool: BlockPool) -> None:
        against = obstacle(model, pool)
        if against is not None:
            raise ValueError(f"{against}; such a step is run by torch, layer by layer")
        self.model, self.pool = model, pool
        self._weights, self._eps = _stacked(model), np.float32(model.eps)

    def __call__(
        self, token_ids: Sequence[int], tables: Sequence[ReadTable] | TableArray, lengths: Sequence[int]
    ) -> Tensor:
        """Store the last token of each request, and read: logits [batch, vocab_size].

        Args:
            token_ids: one of each request.
            tables: a block table per request; none reads what another one's new token is written to.
            lengths: tokens of each request, that one included.

        Raises:
            ValueError: not one token a request, or a request without tokens. IndexError: a token outside the
                vocabulary, more tokens than the context, or than a table holds. Nothing is stored then.
            TypeError: a token id that is no integer. UnwrittenSlotError: as read_layer.
        """
        kernel = Kernel(self.pool, tables, lengths, self.model.head_dim**-0.5)
        ids = [whole_number("token id", token) for token in token_ids]
        self._check(ids, kernel.lengths)
        tokens = np.array(ids, dtype=np.int64)
        logits = np.empty((len(tokens), self.model.vocab_size), dtype=np.float32)
        threads = min(torch.get_num_threads(), config.NUMBA_NUM_THREADS)
        rows = max(1, min(ROWS, -(-len(tokens) // threads)))
        tiles = -(-len(tokens) // rows)
        sound = on_threads(
            min(threads, tiles), _tiles, tokens, self._weights, self._eps, kernel.kv, *kernel.rows,
            *self.pool.marks(), *kernel.how, rows, logits,
        )  # fmt: skip
        if not sound:
            kernel.refuse(range(self.pool.num_layers))
        return torch.from_numpy(logits)

    def _check(self, ids: list[int], lengths: list[int]) -> None:
        if len(ids) != len(lengths):
            raise ValueError(f"{len(ids)} tokens for {len(lengths)} requests; give one token a request")
        if not ids:
            raise ValueError("no requests; a step needs at least 1")
        if min(lengths) < 1:
            raise ValueError("a request has 0 tokens; the one that is to be stored makes 1")
        if max(lengths) > self.model.context:
            raise IndexError(f"{max(lengths)} tokens exceed the model's context of {self.model.context}")
        for token in ids:
            if not 0 <= token < self.model.vocab_size:
                raise IndexError(f"token id {token} is outside the vocabulary of {self.model.vocab_size}")


def obstacle(model: GPT2, pool: BlockPool) -> str | None:
    """Why there is no compiled step of this model with this pool; None if there is."""
    if model.weights is None:
        return "the model has a large matrix, which is not kept as it came"
    if model.activate is not gelu_tanh:
        return "the model's activation is not gelu_new"
    for name, each in (("model", model), ("pool", pool)):
        dtype = pool.kv.dtype if each is pool else model.dtype
        if each.device.type != "cpu" or dtype != torch.float32:
            return f"the {name} holds {dtype} on {each.device.type}, not torch.float32 on cpu"
    num_layers, _, _, num_kv_heads, _, head_dim = pool.kv.shape
    if (num_layers, num_kv_heads, head_dim) != (model.num_layers, model.num_heads, model.head_dim):
        return (
            f"the pool is for {num_layers} layers, {num_kv_heads} heads and a head_dim of {head_dim}, "
            f"the model has {model.num_layers}, {model.num_heads} and {model.head_dim}"
        )
    return None


def warm_up() -> None:
    """Compile this and the kernel, or load what was compiled before. The first time: a minute."""
    cpu.warm_up()
    model = GPT2.from_pretrained(device="cpu")
    pool = BlockPool(1, 1, model.num_layers, model.num_heads, model.head_dim)
    CompiledStep(model, pool)([0], TableArray(np.zeros((1, 1), dtype=np.int32), [0]), [1])


def _stacked(model: GPT2) -> Weights:
    weights = {name: weight.detach().numpy() for name, weight in (model.weights or {}).items()}

    def stack(*names: str) -> Array:
        """Of all layers; what has several names in one, side by side."""
        layers = range(model.num_layers)
        rows = [[weights[f"h.{layer}.{name}"].T for name in names] for layer in layers]
        return np.ascontiguousarray(rows if len(names) > 1 else [row[0] for row in rows])

    return Weights(
        wte=weights["wte.weight"],
        wpe=weights["wpe.weight"],
        norms=stack("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"),
        attn=stack("attn.c_attn.weight"),
        attn_bias=stack("attn.c_attn.bias"),
        proj=stack("attn.c_proj.weight"),
        proj_bias=stack("attn.c_proj.bias"),
        fc=stack("mlp.c_fc.weight"),
        fc_bias=stack("mlp.c_fc.bias"),
        out=stack("mlp.c_proj.weight"),
        out_bias=stack("mlp.c_proj.bias"),
        ln_f=np.stack([weights["ln_f.weight"], weights["ln_f.bias"]]),
        head=np.ascontiguousarray(weights.get("lm_head.weight", weights["wte.weight"]).T),
    )


# ---- what a layer is made of: x, y, h are [rows, numbers], with an even number of rows -----------------


@njit(**STRICT)
def _set(y: Array, bias: Array) -> None:
    """y = bias, in each row."""
    for r in range(len(y)):
        for j in range(len(bias)):
            y[r, j] = bias[j]


@njit(**STRICT)
def _add(y: Array, bias: Array) -> None:
    """y += bias, in each row."""
    for r in range(len(y)):
        for j in range(len(bias)):
            y[r, j] += bias[j]


@njit(**STRICT)
def _add_product(x: Array, matrix: Array, y: Array) -> None:
    """y += x · matrix; two rows of x and four of the matrix at a time: what is fetched is used again."""
    fan_in, fan_out = matrix.shape
    fours = fan_in // 4 * 4
    for k in range(0, fours, 4):
        m0, m1, m2, m3 = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
        for r in range(0, len(x), 2):
            y0, y1 = y[r], y[r + 1]
            a0, a1, a2, a3 = x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            b0, b1, b2, b3 = x[r + 1, k], x[r + 1, k + 1], x[r + 1, k + 2], x[r + 1, k + 3]
            for j in range(fan_out):
                y0[j] = (((y0[j] + a0 * m0[j]) + a1 * m1[j]) + a2 * m2[j]) + a3 * m3[j]
                y1[j] = (((y1[j] + b0 * m0[j]) + b1 * m1[j]) + b2 * m2[j]) + b3 * m3[j]
    for k in range(fours, fan_in):
        for r in range(len(x)):
            for j in range(fan_out):
                y[r, j] += x[r, k] * matrix[k, j]


@njit(**BORROWED)
def _norm(x: Array, weight: Array, bias: Array, eps: float, h: Array) -> None:
    """h = layer norm of x. (Ba et al. 2016)"""
    width = np.float32(x.shape[1])
    for r in range(len(x)):
        row, out = x[r], h[r]
        total, squares = np.float32(0), np.float32(0)
        for j in range(len(row)):
            total += row[j]
        mean = total / width
        for j in range(len(row)):
            squares += (row[j] - mean) * (row[j] - mean)
        factor = np.float32(1) / np.sqrt(squares / width + eps)
        for j in range(len(row)):
            out[j] = (row[j] - mean) * factor * weight[j] + bias[j]


@njit(**STRICT)
def _gelu(x: Array) -> None:
    """x = gelu_new(x). (Hendrycks and Gimpel 2016)

    (1 + tanh u) / 2 is 1 / (1 + e ** -2u), or e ** 2u / (1 + e ** 2u): the one of them without a large power.
    """
    double = np.float32(2 * (2 / np.pi) ** 0.5)
    for r in range(len(x)):
        row = x[r]
        for j in range(len(row)):
            a = row[j]
            u = double * (a + np.float32(0.044715) * a * a * a)
            power = exp(-abs(u))
            row[j] = a * (np.float32(1) if u >= 0 else power) / (np.float32(1) + power)


# ---- the step ----------------------------------------------------------------------------------------


@njit(inline="always", **LOOSE)
def _tile(
    tokens: Array, model: Weights, eps: float, kv: Array, block_ids: Array, offsets: Array, ends: Array,
    written: Array, touched: Array, scale: float, part: int, logits: Array,
) -> bool:  # fmt: skip
    """Some requests through all layers. False if one of them reads what is not to be read."""
    batch, rows = (
        len(tokens),
        len(tokens) + len(tokens) % 2,
    )  # rows go in twos; what the odd one holds is nothing
    layers, width, inner = model.fc.shape
    heads, head_dim = kv.shape[3], kv.shape[5]
    x, h = np.zeros((rows, width), np.float32), np.empty((rows, width), np.float32)
    qkv, wide = np.empty((rows, 3 * width), np.float32), np.empty((rows, inner), np.float32)
    q = np.empty((rows, heads, head_dim), np.float32)
    seen = np.zeros((rows, heads, head_dim), np.float32)
    sound = True
    for i in range(batch):
        for j in range(width):
            x[i, j] = model.wte[tokens[i], j] + model.wpe[ends[i] - 1, j]
    for layer in range(layers):
        norms = model.norms[layer]
        _norm(x, norms[0], norms[1], eps, h)
        _set(qkv, model.attn_bias[layer])
        _add_product(h, model.attn[layer], qkv)
        new = qkv.reshape(rows, 1, 3, heads, head_dim)
        for i in range(batch):
            store(
                new[i, :, 1], new[i, :, 2], kv, layer, block_ids[i], offsets[i], ends[i], written[layer],
                touched[layer],
            )  # fmt: skip
            q[i] = new[i, 0, 0]
            sound &= read_tile(
                q[i : i + 1], kv, layer, block_ids[i], offsets[i], ends[i], written[layer], scale, part,
                seen[i : i + 1],
            )  # fmt: skip
        _add(x, model.proj_bias[layer])
        _add_product(seen.reshape(rows, width), model.proj[layer], x)
        _norm(x, norms[2], norms[3], eps, h)
        _set(wide, model.fc_bias[layer])
        _add_product(h, model.fc[layer], wide)
        _gelu(wide)
        _add(x, model.out_bias[layer])
        _add_product(wide, model.out[layer], x)
    _norm(x, model.ln_f[0], model.ln_f[1], eps, h)
    out = np.zeros((rows, logits.shape[1]), np.float32)
    _add_product(h, model.head, out)
    logits[:] = out[:batch]
    return sound


def _kept_with(source: str) -> Callable[[F], F]:
    """Numba compiles a function anew when its own file has changed. This one calls functions of another file,
    whose state goes into its name, by which what was compiled is found again."""
    state = sha256(Path(source).read_bytes()).hexdigest()[:12]

    def named(function: F) -> F:
        function.__qualname__ += f"_{state}"
        return function

    return named


@njit(parallel=True, cache=True, **LOOSE)
@_kept_with(cpu.__file__)
def _tiles(
    tokens: Array, model: Weights, eps: float, kv: Array, block_ids: Array, offsets: Array, ends: Array,
    written: Array, touched: Array, scale: float, part: int, rows: int, logits: Array,
) -> bool:  # fmt: skip
    """All requests, `rows` at a time. False, and nothing stored, if a block is not the pool's."""
    if not in_pool(kv, block_ids, offsets, ends):
        return False
    batch = len(tokens)
    sound = np.ones(-(-batch // rows), np.bool_)
    for tile in prange(len(sound)):
        first, last = tile * rows, min(batch, (tile + 1) * rows)
        sound[tile] = _tile(
            tokens[first:last], model, eps, kv, block_ids[first:last], offsets[first:last], ends[first:last],
            written, touched, scale, part, logits[first:last],
        )  # fmt: skip
    return bool(sound.all())
