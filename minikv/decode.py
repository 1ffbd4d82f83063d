"""The chapter's decode loop: prefill a prompt, then one token a step, through the paged cache. (chapter §4)

    manager   hands out blocks          table   says which slot a position has
    pool      keeps keys and values     model   turns tokens into the next token

One thing to know before reading on: a token that was just chosen has no K and V yet. They are
computed when it is fed to the model, in the next step. So the KV of the last token is never
stored: a prompt of 3 and 2 new tokens fill 4 slots, not 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from minikv.attention import Read, paged_attention
from minikv.block_table import BlockTable
from minikv.errors import OutOfBlocksError
from minikv.gpt2 import GPT2
from minikv.manager import KVCacheManager, Observer, letters
from minikv.pool import BlockPool


class Manager(Protocol):
    """What the loop needs of a manager, so that a learner's own can stand in."""

    block_size: int

    def allocate(self, table: Any, num_tokens: int) -> bool: ...
    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None: ...
    def note_write(self, table: Any, start: int, stop: int, words: Sequence[str] = ()) -> None: ...
    def free(self, table: Any) -> None: ...


@dataclass
class Request:
    """One request on its way: its tokens, its block table, and how far its KV is stored."""

    token_ids: list[int]  # the prompt, then what was generated
    table: Any
    name: str = "A"  # what pictures call it
    num_stored: int = 0  # K and V of tokens 0 … num_stored-1 are in the pool
    num_dropped: int = 0  # of these, the oldest that were let go; the table begins after them
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.token_ids)  # its own: a fork must not write into its parent's
        self.prompt_length = len(self.token_ids)

    @property
    def generated(self) -> list[int]:
        """The token ids chosen so far."""
        return self.token_ids[self.prompt_length :]


class DecodeLoop:
    """Runs requests through model, manager and pool.

    Args:
        backend: how attention reads the pool (see minikv.attention).
        new_table: makes an empty table from a block size; a learner's own class can stand in.
        observer: told of requests, reads and tokens; the manager has its own for what happens to blocks.
    """

    def __init__(
        self,
        model: GPT2,
        manager: Manager,
        pool: BlockPool,
        backend: str | Read = "auto",
        new_table: Callable[[int], Any] = BlockTable,
        observer: Observer | None = None,
    ) -> None:
        self.model, self.manager, self.pool = model, manager, pool
        self.backend, self.new_table, self.observer = backend, new_table, observer
        self._started = 0

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        """Greedy continuations of some prompts, all decoded together; every block is given back at the end.

        Args:
            prompts: token ids, at least one a prompt.
            max_new_tokens: tokens to generate for each; 0 gives empty lists.

        Raises:
            ValueError: an empty prompt, an unknown token id, or more tokens than the model's context.
            OutOfBlocksError: the pool is too small for these requests at once.
        """
        for prompt in prompts:
            self.check_prompt(prompt, max_new_tokens)
        if max_new_tokens == 0:
            return [[] for _ in prompts]
        requests: list[Request] = []
        reason = "error"
        try:
            for prompt in prompts:
                requests.append(self.start(prompt))
                self.prefill(requests[-1])
            for _ in range(max_new_tokens - 1):
                self.step(requests)
            reason = "length"
            return [request.generated for request in requests]
        finally:
            for request in requests:
                self.finish(request, reason)

    def start(self, prompt: Sequence[int], name: str | None = None) -> Request:
        """A request with an empty table; nothing is allocated yet. `name` is for pictures, else a letter."""
        self.check_prompt(prompt)
        request = Request(list(prompt), self.new_table(self.manager.block_size))
        request.name = request.table.name = name or letters(self._started)
        self._started += 1
        if self.observer is not None:
            self._tell(request, "request", text=self.model.text(prompt))
        return request

    def prefill(self, request: Request) -> int:
        """Store the KV of the whole prompt at once, and choose the first new token."""
        return self._advance([request], len(request.token_ids) - request.num_stored)[0]

    def step(self, requests: Sequence[Request]) -> list[int]:
        """One decode step: store the KV of each request's newest token, and choose its next one.

        Raises:
            OutOfBlocksError: one of them finds no block. None has moved on; finish one and step again.
            ValueError: one of them fills the model's context, or two share one table.
        """
        if len({id(request.table) for request in requests}) < len(requests):
            names = ", ".join(request.name for request in requests)
            raise ValueError(f"{names}: one table is there twice; a step moves each on by one token")
        return self._advance(requests, 1)

    def finish(self, request: Request, reason: str = "length") -> None:
        """Give the request's blocks back."""
        self._tell(request, "finish", reason=reason)
        self.manager.free(request.table)

    def _advance(self, requests: Sequence[Request], num_new: int) -> list[int]:
        """Feed each request's next num_new tokens to the model; append and return the token it chooses."""
        if not requests:
            return []
        for request in requests:  # room for all before anything is written for one
            self._make_room(request, num_new)
        slots = np.concatenate([self._note_write(request, num_new) for request in requests])
        tokens = [r.token_ids[r.num_stored : r.num_stored + num_new] for r in requests]
        positions = [range(r.num_stored, r.num_stored + num_new) for r in requests]
        tables = [r.table for r in requests]
        lengths = [r.num_stored - r.num_dropped + num_new for r in requests]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # all (B, T, H, D)
            self.pool.write(layer, slots, k.flatten(0, 1), v.flatten(0, 1))
            return paged_attention(q, self.pool, layer, tables, lengths, backend=self.backend)

        device = self.model.device
        logits = self.model(
            torch.tensor(tokens, device=device), torch.tensor(positions, device=device), attend
        )
        chosen: list[int] = logits[:, -1].argmax(-1).tolist()
        for request, token, length in zip(requests, chosen, lengths, strict=True):
            request.num_stored += num_new
            request.token_ids.append(token)
            if self.observer is not None:
                self._tell(request, "read", length=length)
                self._tell(request, "token", position=length, word=self.model.text([token]))
        return chosen

    def _make_room(self, request: Request, num_new: int) -> None:
        """See to it that the request has blocks of its own for its next num_new tokens."""
        if request.num_stored + num_new > self.model.context:
            self.model.check_context(request.num_stored + num_new)  # raises
        manager, table = self.manager, request.table
        start = request.num_stored - request.num_dropped
        stop = start + num_new
        if not manager.allocate(table, stop):
            blocks = -(-(table.offset + stop) // manager.block_size)
            raise OutOfBlocksError(
                f"{stop} tokens take {blocks} blocks of {manager.block_size}; the request holds "
                f"{table.num_blocks}, and the manager refuses the rest: too few are free. "
                "Finish a request, or make num_blocks larger"
            )
        for position in (*range(start, stop - 1, manager.block_size), stop - 1):  # each block at least once
            manager.copy_on_write(table, position)

    def _note_write(self, request: Request, num_new: int) -> np.ndarray:
        """Tell the manager what is about to be written; returns the flat slots it goes to."""
        start = request.num_stored - request.num_dropped
        words = self._words(request.token_ids[request.num_stored : request.num_stored + num_new])
        self.manager.note_write(request.table, start, start + num_new, words)
        return np.asarray(request.table.slots(start, start + num_new))

    # ---- input that is refused, and what observers hear ----------------------------------

    def check_prompt(self, prompt: Sequence[int], max_new_tokens: int = 1) -> None:
        """ValueError for an empty prompt, an id outside the vocabulary, or more tokens than the context;
        TypeError for anything but token ids."""
        self.model.check_prompt(prompt, max_new_tokens)

    def _words(self, token_ids: Sequence[int]) -> list[str]:
        return [self.model.text([t]) for t in token_ids] if self.observer is not None else []

    def _tell(self, request: Request, op: str, **facts: Any) -> None:
        if self.observer is not None:
            self.observer({"op": op, "request": request.name, **facts})


def generate(
    model: GPT2,
    prompts: Sequence[str],
    max_new_tokens: int,
    block_size: int = 16,
    num_blocks: int | None = None,
) -> list[str]:
    """Greedy continuations of some texts, with a manager and a pool made for the occasion.

    num_blocks None makes room for exactly these requests. Errors as DecodeLoop.generate.
    """
    token_ids = [model.tokenizer.encode(prompt) for prompt in prompts]
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; a block has at least 1 slot")
    if num_blocks is None:
        stored = [
            len(ids) + max(0, max_new_tokens - 1) for ids in token_ids
        ]  # the last token is never stored
        num_blocks = max(1, sum(-(-tokens // block_size) for tokens in stored))
    pool = BlockPool(
        num_blocks, block_size, model.num_layers, model.num_heads, model.head_dim, model.device, model.dtype
    )
    loop = DecodeLoop(model, KVCacheManager(num_blocks, block_size, pool), pool)
    return [model.tokenizer.decode(ids) for ids in loop.generate(token_ids, max_new_tokens)]
