"""The experiment at the scale of a service: a trace, or drawn lengths, through the simulator. (chapter §5)

    compare(lognormal(SHAREGPT, rate=3, count=1000), num_blocks=1024)
    compare(read_azure(path), num_blocks=4096, max_length=8192)

No model runs; the paged rows are those of the real manager, see `minikv.sim`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from minikv.sim.arena import Arena
from minikv.sim.policy import Books, Holding
from minikv.sim.reservation import GrowAndMove, OrcaMax, Paged
from minikv.sim.results import Cell, SimResult, Table
from minikv.sim.simulate import simulate
from minikv.sim.workload import Request


class PromptAndLimit(Books):
    """Reserves the prompt and max_new_tokens, in the first hole; what the engine calls reserve="max".

    Args:
        num_slots: of the memory.
        limit: max_new_tokens of every request; no answer is longer.
        max_length: input and output together, of the longest request; at most num_slots.
    """

    def __init__(self, num_slots: int, limit: int, max_length: int) -> None:
        self.arena, self.limit = Arena(num_slots), limit
        super().__init__(f"contiguous, prompt + {limit:,}", num_slots, max_length)

    def _place(self, holding: Holding, request: Request, tokens: int) -> bool:
        size = min(request.input_tokens + self.limit - 1, self.longest)
        if self.arena.allocate(holding.key, size) is None:
            return False
        self._book(holding, size, size)
        return True

    def grow(self, key: int) -> bool:
        """Never: an answer ends at its limit."""
        return False

    def _release(self, holding: Holding) -> None:
        self.arena.free(holding.key)


class Compared(Table):
    """What became of the same requests, in a row for each way to hand memory out.

    Attributes:
        results: one for each row.
        left_out: requests that were longer than max_length, and came to nobody.
    """

    def __init__(self, title: str, results: Sequence[SimResult], left_out: int, notes: Sequence[str]) -> None:
        self.results, self.left_out = tuple(results), left_out
        head = (
            "memory", "success", "preempted", "held, mean %", "tokens, mean %", "tokens, peak %",
            "mean batch", "peak batch", "latency, s", "tokens copied",
        )  # fmt: skip
        super().__init__(title, head, [_row(result) for result in results], notes)

    def ratio(self, one: int, other: int) -> float:
        """How many times the mean batch of row `other` that of row `one` is."""
        return self.results[one].mean_batch / self.results[other].mean_batch


def _row(result: SimResult) -> tuple[Cell, ...]:
    split = result.mean.percent
    peak = 100 * result.peak_tokens / result.num_slots
    held = split.tokens + split.reserved + split.internal
    return (
        result.policy, result.finished, result.preemptions, held, split.tokens, peak, result.mean_batch,
        result.peak_batch, result.mean_latency, result.tokens_copied,
    )  # fmt: skip


def compare(
    requests: Iterable[Request],
    num_blocks: int,
    block_size: int = 16,
    max_length: int = 2048,
    limit: int | None = None,
    title: str = "The same requests in the same memory",
    notes: Sequence[str] = (),
) -> Compared:
    """Run them through contiguous memory in three ways, and through paged memory.

    Args:
        requests: in order of arrival.
        num_blocks, block_size: of the pool; contiguous memory has as many slots.
        max_length: input and output together, of the longest request that the service takes.
        limit: max_new_tokens: answers end there, and one of the reservations is the prompt and this. None is
            the longest output there is.
        notes: what else was assumed.

    Raises:
        ValueError: no request of at most max_length tokens, a limit below 1, or what a policy refuses.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; an answer has at least 1 token")
    everybody = [
        request if limit is None else request._replace(output_tokens=min(limit, request.output_tokens))
        for request in requests
    ]
    taken = [request for request in everybody if request.input_tokens + request.output_tokens <= max_length]
    if not taken:
        raise ValueError(
            f"none of {len(everybody)} requests has at most {max_length} tokens; raise max_length"
        )
    slots = num_blocks * block_size
    longest = limit or max(request.output_tokens for request in taken)
    policies = (
        OrcaMax(slots, max_length),
        PromptAndLimit(slots, longest, max_length),
        GrowAndMove(slots),
        Paged(num_blocks, block_size),
    )
    results = [simulate(taken, policy) for policy in policies]
    assumed = [
        *notes,
        f"{slots:,} slots; requests of more than {max_length:,} tokens are not taken: "
        f"{len(everybody) - len(taken)} of {len(everybody):,}",
        *results[0].assumptions,
    ]
    return Compared(title, results, len(everybody) - len(taken), assumed)


class Lengths(NamedTuple):
    """Mean tokens of some requests."""

    input: float
    output: float


def mean_lengths(requests: Sequence[Request]) -> Lengths:
    """Mean tokens in and out. ValueError: there is no request."""
    if not requests:
        raise ValueError("there is no request in it")
    count = len(requests)
    return Lengths(
        sum(request.input_tokens for request in requests) / count,
        sum(request.output_tokens for request in requests) / count,
    )


def scaled(requests: Iterable[Request], scale: float) -> Iterator[Request]:
    """The same requests with lengths times `scale`, at least 1 token each way. ValueError: not above 0."""
    if not 0 < scale < float("inf"):
        raise ValueError(f"scale is {scale}; it must be above 0")
    for request in requests:
        inputs, outputs = (
            max(1, round(tokens * scale)) for tokens in (request.input_tokens, request.output_tokens)
        )
        yield request._replace(input_tokens=inputs, output_tokens=outputs)
