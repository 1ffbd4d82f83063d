"""STORAGE layer: the keys and values themselves. (chapter §4.2)

One tensor holds the KV of every layer and every block:

    kv[num_layers, num_blocks, 2, num_kv_heads, block_size, head_dim]      2 = key, value

Block-major: all that one layer keeps in one block is one run of memory, so whoever reads
block by block reads straight ahead. A *flat slot* numbers the places for one token:
slot = block_id * block_size + place in the block.

The tensor is reserved, not filled: on a CPU the operating system supplies a page of memory when
it is first written (it pages, too), so a large pool costs nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from minikv.checks import whole_number
from minikv.errors import UnwrittenSlotError

Slots = Tensor | np.ndarray | Sequence[int]


class ReadTable(Protocol):
    """What a reader needs of a block table."""

    def slots(self, start: int, stop: int) -> np.ndarray: ...


class BlockPool:
    """Keys and values in blocks.

    Args:
        num_blocks, block_size: as in the manager that hands out these blocks.
        num_layers, num_kv_heads, head_dim: the model's shape.
        device: "cpu", "cuda", "mps", "auto" (a GPU if there is one) or a torch.device.
        dtype: of the keys and values.

    Raises:
        ValueError: a size below 1, or a device this machine does not have. TypeError: a size is no integer.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        sizes = (num_layers, num_blocks, 2, num_kv_heads, block_size, head_dim)
        names = ("num_layers", "num_blocks", "", "num_kv_heads", "block_size", "head_dim")
        for name, size in zip(names, sizes, strict=True):
            if as_int(size) < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        self.num_blocks, self.block_size, self.num_layers = num_blocks, block_size, num_layers
        self.kv = torch.empty(sizes, device=usable_device(device), dtype=dtype)
        self._written, self._forgotten = torch.zeros(2, num_layers, num_blocks * block_size, dtype=torch.bool)
        self._touched = torch.zeros(num_layers, num_blocks, dtype=torch.bool)

    @property
    def device(self) -> torch.device:
        return self.kv.device

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values."""
        return self.kv.nbytes

    @property
    def bytes_committed(self) -> int:
        """Bytes of all blocks ever written, layer by layer: what a CPU pool really takes of the memory.

        In a pool of one block, which is contiguous memory, the bytes of all slots ever written.
        """
        touched = self._touched if self.num_blocks > 1 else self._written | self._forgotten
        return int(touched.sum()) * (self.nbytes // touched.numel())

    # ---- write ---------------------------------------------------------------------------

    def write(self, layer: int, slots: Slots, k: Tensor, v: Tensor) -> None:
        """Store one key and one value per slot.

        Args:
            slots: flat slots, one a token.
            k, v: [num_tokens, num_kv_heads, head_dim].

        Raises:
            IndexError: no such layer or slot. ValueError: shapes that do not fit. TypeError: slots that are
            no integers.
        """
        slots = self._flat(slots)
        heads, head_dim = self.kv.shape[3], self.kv.shape[5]
        for name, x in (("k", k), ("v", v)):
            if x.shape != (len(slots), heads, head_dim):
                raise ValueError(
                    f"{name} has shape {list(x.shape)}; "
                    f"{len(slots)} slots take [{len(slots)}, {heads}, {head_dim}]"
                )
        self._check_layer(layer)
        blocks, places = slots // self.block_size, slots % self.block_size
        self._touched[layer, blocks] = True
        blocks, places = blocks.to(self.device), places.to(self.device)
        self.kv[layer, blocks, 0, :, places] = k.to(self.kv)
        self.kv[layer, blocks, 1, :, places] = v.to(self.kv)
        self._written[layer, slots] = True

    def copy_block(self, src: int, dst: int) -> None:
        """Copy one block of every layer: the "copy" of copy-on-write."""
        for block_id in (src, dst):
            self._check_block(block_id)
        self.kv[:, dst] = self.kv[:, src]
        written = self._written.view(self.num_layers, self.num_blocks, self.block_size)
        written[:, dst] = written[:, src]
        self._touched[:, dst] |= self._touched[:, src]

    def release(self, block_id: int) -> None:
        """Forget what a block holds: nobody may read it before it is written again. The bytes stay."""
        self._check_block(block_id)
        self.release_slots(block_id * self.block_size, (block_id + 1) * self.block_size)

    def copy_slots(self, src: int, dst: int, count: int) -> int:
        """Copy `count` flat slots of every layer, from `src` on to `dst` on, written marks included.

        The two ranges may overlap. What lies behind the last written slot is not copied, only marked.

        Returns:
            how many of the slots are written, in some layer at least.

        Raises:
            IndexError: a slot outside the pool. ValueError: count < 0. TypeError: a number is no integer.
        """
        self._check_range(src, src + count)
        self._check_range(dst, dst + count)
        marks = self._written[:, src : src + count].clone()
        used = marks.any(0).nonzero()[:, 0].tolist()
        if used:
            self._copy_numbers(src, dst, used[-1] + 1)
        self.release_slots(dst, dst + count)
        self._written[:, dst : dst + count] = marks
        return len(used)

    def _copy_numbers(self, src: int, dst: int, count: int) -> None:
        if self.num_blocks == 1:  # a range of slots is a slice: ten times as fast
            source = self.kv[..., src : src + count, :]
            self.kv[..., dst : dst + count, :] = source.clone() if abs(src - dst) < count else source
        else:
            (from_, places), (to, targets) = self._places(src, count), self._places(dst, count)
            self.kv[:, to, :, :, targets] = self.kv[:, from_, :, :, places]  # [count, layers, 2, heads, dim]
        self._touched[:, dst // self.block_size : (dst + count - 1) // self.block_size + 1] = True

    def release_slots(self, start: int, stop: int) -> None:
        """Forget what the flat slots start … stop-1 hold, as `release` does. Errors as `copy_slots`."""
        self._check_range(start, stop)
        if self.num_blocks == 1:  # where it is slots that `bytes_committed` counts
            self._forgotten[:, start:stop] |= self._written[:, start:stop]
        self._written[:, start:stop] = False

    # ---- read ----------------------------------------------------------------------------

    def read_layer(
        self, layer: int, tables: Sequence[ReadTable], lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """The gather: collect each request's keys and values in one contiguous tensor. (chapter §2.5)

        Returns:
            k, v: [batch, num_kv_heads, max_length, head_dim], zeros beyond each request's length.

        Raises:
            ValueError: a negative length, or not one length a table. TypeError: a length is no integer.
            IndexError: a length beyond a table's capacity.
            UnwrittenSlotError: a slot in reach was never written (I6).
        """
        self._check_layer(layer)
        rows = self.row_slots(tables, lengths)
        heads, head_dim = self.kv.shape[3], self.kv.shape[5]
        out = self.kv.new_zeros(2, len(rows), heads, max((len(row) for row in rows), default=0), head_dim)
        for i, row in enumerate(rows):
            self.require_written(layer, row)
            blocks, places = (row // self.block_size).to(self.device), (row % self.block_size).to(self.device)
            picked = self.kv[layer, blocks, :, :, places]  # [length, 2, heads, head_dim]
            out[:, i, :, : len(row)] = picked.permute(1, 2, 0, 3)
        return out[0], out[1]

    def row_slots(self, tables: Sequence[ReadTable], lengths: Sequence[int]) -> list[Tensor]:
        """Per request, the flat slots of positions 0 … length-1. Errors as in `read_layer`."""
        if len(tables) != len(lengths):
            raise ValueError(f"{len(tables)} tables but {len(lengths)} lengths; give one length a table")
        whole = [whole_number("length", length) for length in lengths]
        for length in whole:
            if length < 0:
                raise ValueError(f"length is {length}; it counts stored tokens, so it is 0 or more")
        return [self._flat(table.slots(0, length)) for table, length in zip(tables, whole, strict=True)]

    def written(self, layer: int) -> np.ndarray:
        """Of each flat slot, whether this layer's K and V were written: bool [num_blocks * block_size]."""
        return self.marks(layer)[0]

    def marks(self, layer: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """What `write` notes beside the numbers, for a kernel that writes by itself: bool arrays, of each
        flat slot whether it was written, and of each block whether it ever was; [layers, …] without one."""
        written, touched = self._written.numpy(), self._touched.numpy()
        if layer is None:
            return written, touched
        self._check_layer(layer)
        return written[layer], touched[layer]

    def require_written(self, layer: int, slots: Tensor) -> None:
        """Raise UnwrittenSlotError (I6) unless all these flat slots of this layer were written."""
        unwritten = slots[~self._written[layer, slots]]
        if len(unwritten):
            block_id, place = divmod(int(unwritten[0]), self.block_size)
            raise UnwrittenSlotError(
                f"I6 written-first: layer {layer} reads slot {place} of block {block_id}, never written; "
                "write every position of a request before reading it"
            )

    # ---- checks --------------------------------------------------------------------------

    def _flat(self, slots: Slots) -> Tensor:
        given = torch.as_tensor(slots, device="cpu").reshape(-1)
        if len(given) and (given.is_floating_point() or given.dtype == torch.bool):
            raise TypeError(f"slots are {given.dtype}; they number places, so they are integers")
        flat = given.long()
        outside = flat[(flat < 0) | (flat >= self.num_blocks * self.block_size)]
        if len(outside):
            raise IndexError(f"slot {int(outside[0])} is outside [0, {self.num_blocks * self.block_size})")
        return flat

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise IndexError(f"layer {layer} is outside [0, {self.num_layers})")

    def _check_block(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} is outside [0, {self.num_blocks})")

    def _places(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """Of the flat slots from `start` on: their blocks, and their places in these."""
        slots = torch.arange(start, start + count, device=self.device)
        return slots // self.block_size, slots % self.block_size

    def _check_range(self, start: int, stop: int) -> None:
        if as_int(start) > as_int(stop):
            raise ValueError(f"slots [{start}, {stop}) are no range: they end before they begin")
        if start < 0 or stop > self.num_blocks * self.block_size:
            raise IndexError(
                f"slots [{start}, {stop}) reach outside [0, {self.num_blocks * self.block_size})"
            )

    def __repr__(self) -> str:
        return (
            f"BlockPool(num_blocks={self.num_blocks}, block_size={self.block_size}, "
            f"shape={list(self.kv.shape)}, device={self.device.type})"
        )


def usable_device(device: str | torch.device) -> torch.device:
    """The torch.device of this name, "auto" the best; ValueError if there is none such on this machine."""
    try:
        found = best_device() if device == "auto" else torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises all three
        raise ValueError(f'device {str(device)!r} cannot be used here ({error}); "cpu" always can') from error
    return found


def best_device() -> torch.device:
    """A CUDA GPU if there is one, else an Apple GPU, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
