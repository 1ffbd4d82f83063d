"""A workbench: model, manager, pool and event log, wired together, for notebooks.

bench = Workbench(num_blocks=16, block_size=4)
bench.ask("Ada has three red kites . Bo has two gold cups . What does Bo have ?")
bench.map()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any

from minikv import admission
from minikv.attention import Read
from minikv.block_table import BlockTable
from minikv.decode import DecodeLoop, Request
from minikv.gpt2 import GPT2
from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool


@cache
def tiny_gpt2() -> GPT2:
    """The tiny GPT-2 that ships, loaded once; nothing ever changes its weights."""
    return GPT2.from_pretrained()


class Workbench:
    """Everything a notebook needs to run requests and to see what happens to the blocks.

    Args:
        num_blocks, block_size: of the pool; small, so that it can be seen whole.
        model: None is the tiny GPT-2 that ships.
        backend: how attention reads the pool; the gather, as in the chapter, needs nothing compiled.
        new_table: makes an empty block table from a block size; a learner's own class can stand in.

    Attributes:
        model, pool, manager, loop, log: the parts.
    """

    def __init__(
        self,
        num_blocks: int = 16,
        block_size: int = 4,
        model: GPT2 | None = None,
        backend: str | Read = "gather",
        new_table: Callable[[int], Any] = BlockTable,
    ) -> None:
        self.model = model or tiny_gpt2()
        self.log = EventLog()
        self.pool = BlockPool(
            num_blocks,
            block_size,
            self.model.num_layers,
            self.model.num_heads,
            self.model.head_dim,
            self.model.device,
            self.model.dtype,
        )
        self.pool.kv.zero_()  # even a broken reader, which reads unwritten slots, shall be reproducible
        self.manager = KVCacheManager(num_blocks, block_size, self.pool, self.log)
        self.loop = DecodeLoop(self.model, self.manager, self.pool, backend, new_table, self.log)

    @property
    def observer(self) -> EventLog:
        """The event log, under the name that `BlockMap` looks for."""
        return self.log

    def start(self, prompt: str, name: str | None = None) -> Request:
        """A new request; nothing is allocated or computed yet.

        Raises:
            UnknownWordError: a word the model does not know.
            ValueError: the name is taken, or a prompt the loop refuses.
        """
        self._check_name(name)
        return self.loop.start(self.model.tokenizer.encode(prompt), name)

    def fork(self, request: Request, name: str) -> Request:
        """A second request that has read and said what `request` has so far, and goes on by itself.

        It shares every block; no data moves. Before either writes to a shared block, it is copied.

        Raises:
            ValueError: the name is taken, or the request is finished: it holds no block to share.
        """
        self._check_name(name)
        if request.table.num_blocks == 0 and request.num_stored:
            raise ValueError(f"request {request.name} is finished and holds no blocks; fork it before that")
        prompt = self.model.text(request.token_ids[: request.prompt_length])
        self.log({"op": "request", "request": name, "text": prompt})
        child = copy(request)
        child.name, child.token_ids = name, list(request.token_ids)
        child.table = self.manager.fork(request.table, name)
        if request.num_stored:  # then the model has chosen a word already, and the fork has it, too
            place, word = request.num_stored - request.num_dropped, self.model.text(request.token_ids[-1:])
            self.log({"op": "token", "request": name, "position": place, "word": word})
        return child

    def take_prefix(self, request: Request, block_ids: Sequence[int]) -> None:
        """A prefix hit: a request that has stored nothing becomes a holder of the blocks of its first words.

        One reference more for each block, and its id into the table. No data moves, nothing is computed.

        Args:
            block_ids: full blocks that somebody holds, computed for the same first words.

        Raises:
            RefCountError: a block is free. UnknownBlockError: there is no such block.
            ValueError: the request has begun, its prompt begins with other words, or it has no words beyond
                these: the last one must be computed, to choose the next.
        """
        self._check_prefix(request, block_ids)
        log, self.manager.observer = self.manager.observer, None  # told below, as what they are together
        try:
            for block_id in block_ids:
                self.manager.inc_ref(block_id)
                request.table.append_block(block_id)
            self.manager.allocate(request.table, 0)  # takes no block; from here on the table is a holder
        finally:
            self.manager.observer = log
        request.num_stored = len(block_ids) * self.manager.block_size
        for index, block_id in enumerate(block_ids):
            facts = {"block_id": block_id, "ref_count": self.manager.blocks[block_id].ref_count}
            self.log({"op": "share", "request": request.name, "index": index, **facts, "source": None})

    def prefill(self, request: Request) -> str:
        """Store the prompt's KV; returns the first new word."""
        return self.model.tokenizer.word(self.loop.prefill(request))

    def step(self, *requests: Request) -> str:
        """One decode step of all these requests together; returns their new words."""
        return " ".join(self.model.tokenizer.word(t) for t in self.loop.step(requests))

    def finish_sentence(self, request: Request, max_new_tokens: int = 12) -> str:
        """Decode until a full stop, at most `max_new_tokens` tokens in all; returns what was generated."""
        if request.num_stored < request.prompt_length:
            self.loop.prefill(request)
        while not self.said(request).endswith(".") and len(request.generated) < max_new_tokens:
            self.loop.step([request])
        return self.said(request)

    def say(self, request: Request, text: str) -> None:
        """Append words to a request, as if the user went on typing; their KV is stored, one step each.

        The word that the model had chosen but whose KV is not stored yet is replaced.
        """
        tokens = self.model.tokenizer.encode(text)
        request.token_ids[request.num_stored :] = tokens[:1]
        for token in tokens[1:]:
            self.loop.step([request])
            request.token_ids[-1] = token
        self.loop.step([request])
        request.prompt_length = request.num_stored

    def ask(self, prompt: str, name: str | None = None, max_new_tokens: int = 12) -> str:
        """Run a new request to the model's first full stop; it keeps its blocks, so that they can be seen."""
        return self.finish_sentence(self.start(prompt, name), max_new_tokens)

    def said(self, request: Request) -> str:
        """What the model generated so far, as text."""
        return self.model.tokenizer.decode(request.generated)

    def slide(self, request: Request, num_tokens: int) -> None:
        """Let the request's oldest tokens go, as a sliding window does."""
        self.manager.drop_front(request.table, num_tokens)
        request.num_dropped += num_tokens

    def finish(self, request: Request) -> None:
        """Give the request's blocks back."""
        self.loop.finish(request)

    def map(self, step: int | None = None, live: bool = False, **traits: Any) -> BlockMap:
        """The block map of all that happened here so far, at `step` (the last one if not given).

        A live map also shows what happens from now on; any other stays as it is.
        """
        return BlockMap(self.log if live else EventLog(self.log), step=step, **traits)

    def _check_prefix(self, request: Request, block_ids: Sequence[int]) -> None:
        """What `take_prefix` promises to raise, before anything has changed."""
        if request.num_stored or request.table.num_blocks:
            raise ValueError(
                f"request {request.name} has stored {request.num_stored} tokens already; a prefix is taken "
                "before the prefill, so start a request for it"
            )
        for block_id in block_ids:
            admission.held_block(self.manager, block_id, "a prefix is made of held blocks")
        state = self.log.state(len(self.log) - 1)
        there = [word for block_id in block_ids for word in state.words_in(block_id)]
        prompt = [self.model.text([token]) for token in request.token_ids]
        repeated = len(set(block_ids)) < len(block_ids)
        if repeated or there != prompt[: len(there)] or len(there) >= len(prompt):
            raise ValueError(
                f"in blocks {', '.join(map(str, block_ids))} stands {there}, and the prompt of request "
                f"{request.name} is {prompt}; give full blocks with its first words, each once, but not "
                "with all of them"
            )

    def _check_name(self, name: str | None) -> None:
        if name is not None and name in {event.get("request") for event in self.log}:
            raise ValueError(
                f"there is a request {name!r} on this bench already; give another name, "
                "or run the cell that makes the bench again"
            )

    def __repr__(self) -> str:
        return f"Workbench({self.manager.num_blocks} blocks × {self.manager.block_size} slots, {self.log!r})"
