"""A small engine on contiguous memory, wired to a log and to pictures, for notebooks.

bench = RunBench(num_slots=64)
a = bench.submit("Ada has three red kites . What does Ada have ?", 12)
bench.step()
bench.picture()
"""

from __future__ import annotations

from typing import Literal

from minikv.engine.contiguous import ContiguousManager
from minikv.engine.engine import Engine
from minikv.engine.request import Request
from minikv.gpt2 import GPT2
from minikv.lab.event_log import EventLog
from minikv.lab.memory_words import words_in_memory
from minikv.lab.modes_picture import MemoryPicture, Span
from minikv.lab.workbench import tiny_gpt2
from minikv.pool import BlockPool


class RunBench:
    """An engine whose memory is contiguous, small enough to be seen whole.

    Args:
        num_slots: of the memory.
        reserve: "max" or "grow", as of `Engine`.
        headroom: slots that reserve="grow" takes beyond the tokens so far; None leaves the engine's 16.
        model: None is the tiny GPT-2 that ships.
        attention: how the memory is read.

    Attributes:
        model, engine, log: the parts.
    """

    def __init__(
        self,
        num_slots: int = 64,
        reserve: Literal["max", "grow"] = "max",
        headroom: int | None = None,
        model: GPT2 | None = None,
        attention: str = "gather",
    ) -> None:
        self.model, self.log = model or tiny_gpt2(), EventLog()
        self.engine = Engine(
            self.model,
            num_slots,
            1,
            cache="contiguous",
            reserve=reserve,
            attention=attention,
            observer=self.log,
        )
        self.pool.kv.zero_()  # what was never written shall look the same each time
        if headroom is not None:
            self.manager.headroom = headroom

    @property
    def pool(self) -> BlockPool:
        """The storage: one block."""
        return self.engine.pool

    @property
    def manager(self) -> ContiguousManager:
        """Who hands out runs."""
        manager: ContiguousManager = self.engine.manager
        return manager

    def submit(self, prompt: str, max_new_tokens: int, stop: str | None = None) -> Request:
        """Queue a request. Errors as of `Engine.submit`."""
        return self.engine.submit(prompt, max_new_tokens, stop=stop, ignore_eos=True)

    def step(self, steps: int = 1) -> None:
        """So many steps; fewer if everybody is done before."""
        for _ in range(steps):
            if self.engine.has_work:
                self.engine.step()

    def run(self) -> None:
        """Step until everybody is done."""
        while self.engine.has_work:
            self.engine.step()

    def said(self, request: Request) -> str:
        """What the model generated so far, as text."""
        return self.model.tokenizer.decode(request.sequences[0].generated)

    def picture(self, title: str = "Contiguous memory", aim: tuple[int, int] | None = None) -> MemoryPicture:
        """The memory as it is: whose run is where by the books, and which words lie there by the tensor.

        Args:
            aim: (start, size) of slots to be marked.
        """
        spans = [span_of(request, self.model) for request in self.engine.scheduler.running]
        return MemoryPicture(self.manager.num_slots, spans, self._words(), title, aim)

    def _words(self) -> tuple[str, ...]:
        return words_in_memory(self.pool, self.model).words

    def __repr__(self) -> str:
        return f"RunBench({self.manager.num_slots} slots, {self.manager.reserve}, {self.engine!r})"


def span_of(request: Request, model: GPT2) -> Span:
    """The run of a request, and the words that the engine believes to lie in it."""
    sequence = request.sequences[0]
    words = tuple(model.text([token]) for token in sequence.token_ids[: sequence.num_stored])
    return Span(request.name, sequence.table.offset, sequence.table.capacity, words)
