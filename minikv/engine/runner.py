"""Runs the model for one step of the engine: some requests decode, others are in the middle of their prompt.

All new tokens go through the model's layers in one row. Only attention looks at requests one by one: those
with as many new tokens as each other are read together. Where the model is small, those that decode take
another way, through a step that is compiled as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from minikv.attention import BACKENDS, Read, chosen
from minikv.attention.step import Step, store_and_attend
from minikv.attention.tables import TableArray
from minikv.engine.request import Chunk, Sequence
from minikv.gpt2 import GPT2
from minikv.pool import BlockPool

if TYPE_CHECKING:
    from minikv.compiled_step import CompiledStep


class Runner:
    """A model, a pool, and how it is read.

    Args:
        backend: as in `paged_attention`.
    """

    def __init__(self, model: GPT2, pool: BlockPool, backend: str | Read) -> None:
        self.model, self.pool, self.backend = model, pool, backend
        self._rows = _Rows()

    def run(self, chunks: Many[Chunk]) -> Tensor:
        """Store the chunks' tokens; logits [chunks, vocab_size] after each one's last token."""
        if self._compiled is None:
            return self._run_by_torch(chunks)
        decoding = [i for i, chunk in enumerate(chunks) if chunk.num_new == 1]
        if len(decoding) == len(chunks):
            return self._decode(self._compiled, [chunk.sequence for chunk in chunks])
        others = [i for i, chunk in enumerate(chunks) if chunk.num_new > 1]
        logits = torch.empty(len(chunks), self.model.vocab_size, dtype=torch.float32)
        logits[others] = self._run_by_torch([chunks[i] for i in others])
        if decoding:
            logits[decoding] = self._decode(self._compiled, [chunks[i].sequence for i in decoding])
        return logits

    @cached_property
    def _compiled(self) -> CompiledStep | None:
        """The decode step compiled as a whole, if there is one for this model and this way of reading."""
        model, pool = self.model, self.pool
        own = type(model) is not GPT2  # somebody's, that may compute otherwise
        if own or chosen(self.backend, pool, ()) is not BACKENDS["cpu"]:
            return None
        from minikv.compiled_step import CompiledStep, obstacle  # whose compiler takes a while to load

        return None if obstacle(model, pool) else CompiledStep(model, pool)

    def _decode(self, compiled: CompiledStep, sequences: list[Sequence]) -> Tensor:
        """One token of each."""
        tokens = [sequence.token_ids[sequence.num_stored] for sequence in sequences]
        lengths = [sequence.num_stored + 1 for sequence in sequences]
        return compiled(tokens, self._rows.of(sequences), lengths)

    def _run_by_torch(self, chunks: Many[Chunk]) -> Tensor:
        groups: dict[int, list[int]] = {}  # chunks by their number of tokens
        for i, chunk in enumerate(chunks):
            groups.setdefault(chunk.num_new, []).append(i)
        if len(groups) == 1:
            return self._run_alike([chunk.sequence for chunk in chunks], chunks[0].num_new)
        return self._run_mixed(chunks, groups)

    def _run_alike(self, sequences: list[Sequence], num_new: int) -> Tensor:
        """All have as many new tokens as each other, as when all decode."""
        tokens, positions = self._inputs(sequences, num_new)
        shape = (len(sequences), num_new)
        last = None if num_new == 1 else torch.tensor([num_new - 1], device=self.model.device)
        step = self._step(sequences, num_new)
        return self.model(tokens.view(shape), positions.view(shape), step, last)[:, -1]

    def _run_mixed(self, chunks: Many[Chunk], groups: dict[int, list[int]]) -> Tensor:
        """All tokens in one row, group by group."""
        inputs: list[Tensor] = []
        steps: list[tuple[int, int, Step]] = []  # tokens of the group, tokens of each chunk in it
        for num_new, members in groups.items():
            sequences = [chunks[i].sequence for i in members]
            inputs.append(self._inputs(sequences, num_new))
            steps.append((num_new * len(members), num_new, self._step(sequences, num_new)))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [1, tokens, heads, head_dim]
            parts, start = [], 0
            for count, num_new, step in steps:
                q_, k_, v_ = (x[0, start : start + count].unflatten(0, (-1, num_new)) for x in (q, k, v))
                parts.append(step(layer, q_, k_, v_).flatten(0, 1))
                start += count
            return torch.cat(parts)[None]

        order = [i for members in groups.values() for i in members]
        ends = np.cumsum([chunks[i].num_new for i in order]) - 1
        last = torch.from_numpy(ends[np.argsort(order)]).to(self.model.device)
        tokens, positions = torch.cat(inputs, dim=1)[:, None]
        return self.model(tokens, positions, attend, last)[0]

    def _inputs(self, sequences: list[Sequence], num_new: int) -> Tensor:
        """The next tokens of each sequence, and their positions: [2, sequences * num_new]."""
        if num_new == 1:
            return torch.tensor(
                [[s.token_ids[s.num_stored] for s in sequences], [s.num_stored for s in sequences]],
                device=self.model.device,
            )
        tokens = [t for s in sequences for t in s.token_ids[s.num_stored : s.num_stored + num_new]]
        positions = [p for s in sequences for p in range(s.num_stored, s.num_stored + num_new)]
        return torch.tensor([tokens, positions], device=self.model.device)

    def _step(self, sequences: list[Sequence], num_new: int) -> Step:
        """Storing and reading for sequences that all have num_new new tokens."""
        lengths = [sequence.num_stored + num_new for sequence in sequences]
        tables = self._rows.of(sequences)
        return store_and_attend(self.pool, tables, lengths, num_new, backend=self.backend)


class _Rows:
    """The tables of a decoding batch as one array, kept from step to step: most tables don't change."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._versions: list[int] = []
        self._block_ids = np.zeros((0, 0), dtype=np.int32)
        self._offsets = np.zeros(0, dtype=np.int64)

    def of(self, sequences: list[Sequence]) -> TableArray:
        versions = [sequence.version for sequence in sequences]
        if sequences != self._sequences:
            self._sequences, self._versions = sequences, [-1] * len(sequences)
            self._block_ids = np.zeros((len(sequences), 0), dtype=np.int32)
            self._offsets = np.zeros(len(sequences), dtype=np.int64)
        if versions != self._versions:
            for row, (sequence, old) in enumerate(zip(sequences, self._versions, strict=True)):
                if sequence.version != old:
                    self._write(row, sequence.table.block_ids, sequence.table.offset)
            self._versions = versions
        return TableArray(self._block_ids, self._offsets)

    def _write(self, row: int, block_ids: tuple[int, ...], offset: int) -> None:
        missing = len(block_ids) - self._block_ids.shape[1]
        if missing > 0:
            self._block_ids = np.pad(self._block_ids, ((0, 0), (0, missing)))
        self._block_ids[row, : len(block_ids)] = block_ids
        self._offsets[row] = offset
