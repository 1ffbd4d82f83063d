"""What somebody asked for, and how far it has come. No torch: these are books, not tensors."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from minikv.engine.params import Params


class Status(StrEnum):
    """Where a request is. The first two change; the others are where it ended."""

    WAITING = "waiting"  # it holds no block: new, or preempted
    RUNNING = "running"
    SUCCESS = "success"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OOM = "oom"  # it cannot fit, however long it waits
    FAILED = "failed"  # the model, or an observer, raised


class Completion(NamedTuple):
    """One continuation of a prompt.

    Attributes:
        token_ids: what was generated, the token that ended it included.
        text: the same as text, cut before a stop string and before the end-of-text token.
        finish_reason: "length", "stop" (a stop string), "eos", or the status the request ended with.
        score: the mean log probability of its tokens (beam search only).
        num_cached_tokens: tokens of the prompt that a prefix cache had.
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    score: float | None = None
    num_cached_tokens: int = 0


class Hypothesis(NamedTuple):
    """A text that beam search has set aside; score: the mean log probability of its tokens."""

    score: float
    token_ids: list[int]
    reason: str


class Sequence:
    """One continuation on its way.

    Attributes:
        token_ids: the prompt, then what was generated. K and V of the first num_stored are in the pool.
        table: where; None while it holds nothing.
        writable: tokens that it may store without asking the manager again.
        version: counts the changes of its table, for whoever keeps a copy of it.
        finish_reason: None while it goes on.
        random: its own source of chance, so that its tokens depend on nobody else's.
        score: the sum of log probabilities so far (beam search).
    """

    __slots__ = (
        "finish_reason", "name", "num_stored", "prompt_length", "random", "score", "table", "token_ids",
        "version", "writable",
    )  # fmt: skip

    def __init__(self, name: str, token_ids: Many[int], prompt_length: int, seed: str) -> None:
        self.name = name
        self.token_ids = list(token_ids)
        self.prompt_length = prompt_length
        self.num_stored = 0
        self.table: Any = None
        self.writable = 0
        self.version = 0
        self.finish_reason: str | None = None
        self.random = random.Random(seed)
        self.score = 0.0

    @property
    def pending(self) -> int:
        """Tokens whose K and V are not stored yet. The last one's logits choose the next token."""
        return len(self.token_ids) - self.num_stored

    @property
    def generated(self) -> list[int]:
        return self.token_ids[self.prompt_length :]


@dataclass(eq=False)
class Request:
    """A prompt and its continuations.

    Attributes:
        name: what pictures and reports call it.
        sequences: one, until the prompt is stored; then `params.width` of them.
        future: resolves to the list of Completions, or to what ended the request otherwise.
        arrived, deadline, first_token_at, ended_at: by the engine's clock, in seconds.
        num_cached_tokens: of the prompt, found in a prefix cache when it first started.
        saved: what was swapped out, while it waits.
        hypotheses: texts that beam search has set aside, the best first.
    """

    name: str
    prompt: list[int]
    params: Params
    arrived: float
    deadline: float | None = None
    status: Status = Status.WAITING
    sequences: list[Sequence] = field(default_factory=list)
    future: Future[list[Completion]] = field(default_factory=Future)
    first_token_at: float | None = None
    ended_at: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    saved: Any = None
    hypotheses: list[Hypothesis] = field(default_factory=list)
    _born: int = 0

    def __post_init__(self) -> None:
        self.add_sequence(self.prompt)

    def add_sequence(self, token_ids: Many[int]) -> Sequence:
        """One sequence more, with a source of chance of its own."""
        name = self.name if self.params.width == 1 else f"{self.name}.{self._born + 1}"
        sequence = Sequence(name, token_ids, len(self.prompt), f"{self.params.seed}/{self._born}")
        self._born += 1
        self.sequences.append(sequence)
        return sequence

    @property
    def done(self) -> bool:
        return self.status not in (Status.WAITING, Status.RUNNING)

    @property
    def running(self) -> list[Sequence]:
        """The sequences that go on."""
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    @property
    def seats(self) -> int:
        """Sequences that it may have side by side from now on."""
        parted = self.params.beam_width is None and len(self.sequences) == self.params.n
        return len(self.running) if parted else self.params.width

    def result(self) -> list[Completion]:
        """The completions; raises what ended the request otherwise. RuntimeError while it goes on."""
        if not self.done:
            raise RuntimeError(f"request {self.name} is {self.status}; call engine.step() until it is done")
        return self.future.result()


class Chunk(NamedTuple):
    """Work of one step: the next num_new tokens of a sequence are to be stored."""

    request: Request
    sequence: Sequence
    num_new: int


def common_prefix(sequences: Many[Sequence]) -> int:
    """Tokens that all of them begin with, each one's last left out: that one it must compute by itself."""
    shortest = min(len(sequence.token_ids) for sequence in sequences) - 1
    first = sequences[0].token_ids
    for position in range(shortest):
        if any(sequence.token_ids[position] != first[position] for sequence in sequences):
            return position
    return shortest


def most_slots(prompt: int, params: Params, block_size: int) -> int:
    """Slots that a request takes at the worst: full blocks of its prompt are shared, all others are not.

    The last token's KV is never stored; so of a single new token nothing is.
    """
    width = params.width if params.max_new_tokens > 1 else 1
    stored = -(-(prompt + params.max_new_tokens - 1) // block_size) * block_size
    shared = prompt // block_size * block_size if width > 1 else 0
    return shared + width * (stored - shared)
