"""Preemption by swapping: KV goes to the CPU's memory and comes back to other blocks. (Kwon et al. 2023)"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, stack

from minikv.pool import BlockPool


class Copy(NamedTuple):
    """The KV of positions start, start + 1, … of a sequence; kv: [layers, 2, tokens, heads, head_dim]."""

    start: int
    kv: Tensor


class CPUSwap:
    """Copies KV out of a pool and back.

    Attributes:
        nbytes: bytes that were copied out so far, and as many at most that came back.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.nbytes = 0

    def save(self, table: Any, start: int, stop: int) -> Copy:
        """A copy of what `table` has stored at positions start … stop-1. Errors as `read_layer`."""
        layers = []
        for layer in range(self.pool.num_layers):
            k, v = self.pool.read_layer(layer, [table], [stop])  # [1, heads, stop, head_dim]
            layers.append(stack((k[0, :, start:], v[0, :, start:])).transpose(1, 2))
        copy = Copy(start, stack(layers).to("cpu"))
        self.nbytes += copy.kv.nbytes
        return copy

    def load(self, saved: Copy, table: Any, start: int, stop: int) -> None:
        """Store positions start … stop-1 of the copy through `table`."""
        if start == stop:
            return
        slots = table.slots(start, stop)
        for layer in range(self.pool.num_layers):
            k, v = saved.kv[layer, :, start - saved.start : stop - saved.start]
            self.pool.write(layer, slots, k, v)
