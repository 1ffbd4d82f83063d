"""Reading the cache: one query against the keys and values that a block table points to.

One way of reading per file. They differ in how they get at the blocks, not in what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from minikv.attention import contiguous, gather, reference
from minikv.attention.tables import TableArray, num_tables, whole_lengths
from minikv.block_table import BlockTable
from minikv.pool import BlockPool, ReadTable


class Read(Protocol):
    """A way of reading: attention of some queries over what is stored for their requests."""

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[ReadTable] | TableArray,
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor: ...


class _OnFirstUse:
    """A way of reading whose compiler takes a while to load, and so is loaded when it is first used."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[ReadTable] | TableArray,
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        attend: Read = import_module(self.module).attend
        return attend(q, pool, layer, tables, lengths, scale)


BACKENDS: dict[str, Read] = {
    "reference": reference.attend,
    "gather": gather.attend,
    "cpu": _OnFirstUse("minikv.attention.cpu"),
    "triton": _OnFirstUse("minikv.attention.gpu"),
    "contiguous": contiguous.attend,
}


def paged_attention(
    q: Tensor,
    pool: BlockPool,
    layer: int,
    tables: Sequence[ReadTable] | TableArray,
    lengths: Sequence[int],
    scale: float | None = None,
    backend: str | Read = "auto",
) -> Tensor:
    """Attention over the cache.

    Args:
        q: [batch, num_heads, head_dim], one new token a request; or [batch, num_new, num_heads,
            head_dim], the last `num_new` tokens of each, where each token sees itself and all before it.
            num_heads is a multiple of the pool's num_kv_heads; query head h reads kv head
            h // (num_heads / num_kv_heads).
        tables: a block table per request, or all of them as a TableArray.
        lengths: tokens stored per request, the new ones included.
        scale: of the scores; None is head_dim ** -0.5.
        backend: "reference", "gather", "cpu", "triton", "contiguous", or a function like theirs. "auto" is
            "cpu" on a CPU and "triton" on a CUDA GPU where pool and tables allow it, else "contiguous" for a
            pool of one block, else "gather", which asks a table for nothing but slots. "cpu" is compiled, so
            where NUMBA_DISABLE_JIT is set, "auto" does without it.

    Returns:
        The shape of q. A request of length 0 gives zeros.

    Raises:
        ValueError: an unknown backend, or shapes that do not fit. TypeError: a length, a block id or an
            offset that is no integer. RuntimeError: "cpu" although NUMBA_DISABLE_JIT is set.
        IndexError, UnwrittenSlotError: as read_layer.
    """
    batch, num_kv_heads, head_dim = num_tables(tables, pool), pool.kv.shape[3], pool.kv.shape[5]
    if q.ndim not in (3, 4) or q.shape[0] != batch or q.shape[-1] != head_dim:
        raise ValueError(
            f"q has shape {list(q.shape)}; {batch} requests and a head_dim of {head_dim} take "
            f"[{batch}, num_heads, {head_dim}] or [{batch}, num_new, num_heads, {head_dim}]"
        )
    if q.shape[-2] % num_kv_heads:
        raise ValueError(f"{q.shape[-2]} query heads cannot share {num_kv_heads} kv heads evenly")
    read, lengths = chosen(backend, pool, tables), whole_lengths(lengths)
    chunk = q if q.ndim == 4 else q[:, None]  # [batch, num_new, heads, head_dim]
    for length in lengths:
        if 0 < length < chunk.shape[1]:
            raise ValueError(
                f"a request of {length} stored tokens cannot have {chunk.shape[1]} new ones among them"
            )
    out = read(chunk, pool, layer, tables, lengths, head_dim**-0.5 if scale is None else scale)
    return out if q.ndim == 4 else out[:, 0]


def chosen(backend: str | Read, pool: BlockPool, tables: Sequence[ReadTable] | TableArray) -> Read:
    """The way of reading that `backend` names; "auto" is the fastest. ValueError for a name there is not."""
    if not isinstance(backend, str):
        return backend
    name = _best(pool, tables) if backend == "auto" else backend
    if name not in BACKENDS:
        raise ValueError(
            f"backend {backend!r} is unknown; there are 'auto' and {', '.join(map(repr, BACKENDS))}"
        )
    return BACKENDS[name]


def _best(pool: BlockPool, tables: Sequence[ReadTable] | TableArray) -> str:
    """The fastest backend that reads this pool through these tables."""
    if not (isinstance(tables, TableArray) or all(isinstance(table, BlockTable) for table in tables)):
        return "gather"
    if pool.device.type == "cpu" and pool.kv.dtype in (torch.float32, torch.bfloat16) and _compiles():
        return "cpu"
    if pool.num_blocks == 1:  # on a GPU a block must be small, or the kernel cannot hold one
        return "contiguous"
    return "triton" if pool.device.type == "cuda" and find_spec("triton") else "gather"


def _compiles() -> bool:
    """Whether Numba may compile. NUMBA_DISABLE_JIT, which is there for debuggers, forbids it."""
    from numba import config  # here, because it takes a while to load

    return not config.DISABLE_JIT
