"""A model whose KV are fingerprints: what it says next depends on every number that attention read.

Two layers, one head of two numbers. Layer 0 stores token and position; its attention is a checksum of all
that was stored up to a token, and that is what layer 1 stores. The checksum of layer 1 decides what comes
next. So a slot of another sequence, a stale one, a missing copy, a token at a wrong position, or KV computed
after other tokens: each changes the text. All numbers are whole, so the order of sums does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minikv.attention.tables import TableArray, as_tables
from minikv.gpt2 import GPT2, Attend, expected_shapes
from minikv.pool import BlockPool, ReadTable

PRIME = 1_000_003
LETTERS = "·abcdefghijklmnopqrstuvwxyz"  # of token 0, 1, 2, …; token 0 ends a text
CONTEXT = 256

_WEIGHTS = np.random.default_rng(0).integers(1, 2**18, (CONTEXT, 4))  # of each position and number
_SPREAD = np.random.default_rng(1).integers(1, PRIME, (2, len(LETTERS)))


def checksums(kv: np.ndarray) -> np.ndarray:
    """One for each token, of all up to it. kv: whole numbers [tokens, 2, 2], of key and value each."""
    weighted = kv.reshape(len(kv), 4).astype(np.int64) * _WEIGHTS[: len(kv)]
    return weighted.sum(1).cumsum() % PRIME


def read(
    q: Tensor,
    pool: BlockPool,
    layer: int,
    tables: Sequence[ReadTable] | TableArray,
    lengths: Sequence[int],
    scale: float,
) -> Tensor:
    """The "attention" of this model; give it to the engine as its backend."""
    out = torch.zeros_like(q)
    for i, slots in enumerate(pool.row_slots(as_tables(tables, pool), lengths)):
        pool.require_written(layer, slots)
        blocks, places = slots // pool.block_size, slots % pool.block_size
        sums = checksums(pool.kv[layer, blocks, :, 0, places].numpy())
        out[i, :, 0, 0] = torch.from_numpy(sums[-q.shape[1] :].copy())
    return out


def spread(checksum: np.ndarray) -> np.ndarray:
    """Logits […, vocab_size] of checksums […]; between 0 and 6, hardly ever two alike."""
    return (checksum[..., None] * _SPREAD[0] + _SPREAD[1]) % PRIME / PRIME * 6


def keys_and_values(first: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """What is stored: […, 2, 2], key and value. first: a token, or a checksum, each."""
    key = np.stack([first, positions], axis=-1)
    return np.stack([key, (key * 7 + 3) % PRIME], axis=-2)


def logits_after(tokens: Sequence[int]) -> np.ndarray:
    """What the model says after these tokens, computed without any cache: [vocab_size]."""
    positions = np.arange(len(tokens))
    lower = checksums(keys_and_values(np.array(tokens) + 1, positions))
    upper = checksums(keys_and_values(lower, positions))
    return spread(upper[-1:])[0]


def greedy(prompt: Sequence[int], max_new_tokens: int, ignore_eos: bool = False) -> list[int]:
    """The greedy continuation, without any cache."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_new_tokens:
        tokens.append(int(logits_after(tokens).argmax()))
        if tokens[-1] == 0 and not ignore_eos:
            break
    return tokens[len(prompt) :]


class Letters:
    """Its tokenizer: every token is a letter, so that strings are split over tokens wherever you like."""

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(LETTERS[token_id] for token_id in token_ids)

    def word(self, token_id: int) -> str:
        return LETTERS[token_id]


class FingerprintModel(GPT2):
    """As far as the engine can see, a GPT-2."""

    def __init__(self) -> None:
        config = {"n_layer": 2, "n_head": 1, "n_embd": 2, "n_positions": CONTEXT, "vocab_size": len(LETTERS)}
        shapes = expected_shapes(config)
        weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        super().__init__({**config, "eos_token_id": 0}, weights, Letters())  # type: ignore[arg-type]

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        now, places = token_ids.numpy() + 1, positions.numpy()  # [batch, num_new]
        for layer in range(self.num_layers):
            kv = torch.from_numpy(keys_and_values(now, places)).double()
            k, v = kv[:, :, :1], kv[:, :, 1:]  # [batch, num_new, 1 head, 2]
            now = attend(layer, k, k, v)[:, :, 0, 0].numpy().astype(np.int64)
        if wanted is not None:
            now = now[:, wanted.numpy()]
        return torch.from_numpy(spread(now))
