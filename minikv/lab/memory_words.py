"""Read the words out of the memory itself: which word's key lies in which slot.

words = words_in_memory(bench.pool, bench.model)
print(words)

The map shows what the log was told. This asks the pool's tensor. A key of layer 0 is computed from a word and
its position, and from nothing else; so it is a fingerprint, and trying every word at every position finds its
word.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from minikv.gpt2 import GPT2
from minikv.pool import BlockPool

NOTHING = "·"  # no word's key lies here
_NEAR = 0.5  # a key recomputed in another batch differs by some 1e-6, two words' keys by several units


class MemoryWords(NamedTuple):
    """What lies in each slot of a pool.

    It prints itself, a line for each block.
    """

    block_size: int
    words: tuple[str, ...]  # per flat slot; NOTHING where no word's key lies
    written: tuple[bool, ...]  # per flat slot: written since its block was handed out

    def in_block(self, block_id: int) -> tuple[str, ...]:
        """The words in one block. IndexError: there is no such block."""
        num_blocks = len(self.words) // self.block_size
        if not 0 <= block_id < num_blocks:
            raise IndexError(f"block {block_id} is outside [0, {num_blocks})")
        return self.words[block_id * self.block_size : (block_id + 1) * self.block_size]

    @property
    def left_over(self) -> tuple[str, ...]:
        """Words that lie where nothing was written since the block was handed out, in order of slots."""
        pairs = zip(self.words, self.written, strict=True)
        return tuple(word for word, written in pairs if word != NOTHING and not written)

    def __repr__(self) -> str:
        cells = [
            word if written or word == NOTHING else f"[{word}]"
            for word, written in zip(self.words, self.written, strict=True)
        ]
        width = max(map(len, cells))
        lines = [
            f"block {first // self.block_size}  "
            + " ".join(cell.ljust(width) for cell in cells[first : first + self.block_size]).rstrip()
            for first in range(0, len(cells), self.block_size)
        ]
        if self.left_over:
            lines.append("[word]: left over from before, not marked as written")
        if NOTHING in self.words:
            lines.append(f"{NOTHING}: no word's key")
        return "\n".join(lines)


def words_in_memory(pool: BlockPool, model: GPT2) -> MemoryWords:
    """The words whose keys lie in layer 0 of a pool; some tenths of a second for a small one.

    Raises:
        ValueError: the pool has not the shape of the model's keys.
    """
    shape = (pool.kv.shape[3], pool.kv.shape[5])
    if shape != (model.num_heads, model.head_dim):
        raise ValueError(
            f"the pool keeps {shape[0]} heads × {shape[1]}, the model makes {model.num_heads} × "
            f"{model.head_dim}; give the model that filled this pool"
        )
    keys = pool.kv[0, :, 0].transpose(1, 2).flatten(0, 1)  # [slots, heads, head_dim]
    words = words_of_keys(keys, model)
    return MemoryWords(pool.block_size, words, tuple(map(bool, pool.written(0))))


def words_of_keys(keys: Tensor, model: GPT2) -> tuple[str, ...]:
    """The word of each key of layer 0, [num_keys, heads, head_dim]; NOTHING for what is no word's key."""
    known, squares = _fingerprints(model)
    flat = keys.detach().float().cpu().flatten(1)  # [num_keys, heads * head_dim]
    # |key - known|², less what is the same for all of a key's candidates
    nearest = (squares - 2 * flat @ known.T).argmin(1)
    far = ~((flat - known[nearest]).abs().amax(1) <= _NEAR)  # NaN is not near to anything
    return tuple(
        NOTHING if missed else model.text([place // model.context])
        for place, missed in zip(nearest.tolist(), far.tolist(), strict=True)
    )


class _Enough(Exception):
    """Only layer 0 is wanted."""


@cache
def _fingerprints(model: GPT2) -> tuple[Tensor, Tensor]:
    """The key of layer 0 of every word at every position, [words * positions, width], and |key|² of each."""
    caught: list[Tensor] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        caught.append(k)
        raise _Enough

    shape = (model.vocab_size, model.context)
    words = torch.arange(shape[0], device=model.device)[:, None].expand(shape)
    positions = torch.arange(shape[1], device=model.device).expand(shape)
    with suppress(_Enough):
        model(words, positions, attend)
    keys = caught[0].flatten(0, 1).flatten(1).float().cpu()
    return keys, keys.square().sum(1)
