"""Store, then read: the attention of one step, in all layers, for a loop that runs many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minikv.attention import BACKENDS, Read, chosen, paged_attention
from minikv.attention.tables import TableArray, as_tables, whole_lengths
from minikv.checks import whole_number
from minikv.pool import BlockPool, ReadTable

#: (layer, q, k, v) -> attention output; all [batch, num_new, heads, head_dim], of k and v the kv heads
Step = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def store_and_attend(
    pool: BlockPool,
    tables: Sequence[ReadTable] | TableArray,
    lengths: Sequence[int],
    num_new: int,
    scale: float | None = None,
    backend: str | Read = "auto",
) -> Step:
    """A function that stores one layer's new keys and values, and then attends over all that is stored.

    Args:
        tables: a block table per request, or all of them as a TableArray.
        lengths: tokens per request, its num_new new ones included; at least num_new.
        scale, backend: as in `paged_attention`.

    Raises:
        ValueError: a request with fewer tokens than new ones, or no such backend. TypeError: num_new, a
            length, a block id or an offset is no integer. IndexError: tables that do not hold so many tokens,
            or name a block outside the pool (the compiled read says so in the function that is returned).
            All before anything is stored. The function that is returned raises what `write` and
            `paged_attention` raise.
    """
    num_new, lengths = whole_number("num_new", num_new), whole_lengths(lengths)
    for length in lengths:
        if length < num_new:
            raise ValueError(f"a request of {length} tokens cannot have {num_new} new ones among them")
    read = chosen(backend, pool, tables)
    if read is BACKENDS["cpu"]:
        from minikv.attention import cpu  # compiled: it writes by itself, and looks at its tables once

        return cpu.store_and_attend(
            pool, tables, lengths, pool.kv.shape[5] ** -0.5 if scale is None else scale
        )
    read_too = pool.row_slots(as_tables(tables, pool), lengths)  # whatever is wrong with them is said here
    slots = torch.cat([row[len(row) - num_new :] for row in read_too])

    def step(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, slots, k.flatten(0, 1), v.flatten(0, 1))
        return paged_attention(q, pool, layer, tables, lengths, scale, read)

    return step
