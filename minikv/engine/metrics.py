"""What an engine counts. TTFT: seconds to the first token. TPOT: seconds for each one after it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from minikv.engine.request import Completion, Request, Status


class Metrics:
    """Counts requests as they come and go.

    Attributes:
        counts: submitted, success, timeout, oom, cancelled, failed, preempted (times, not requests).
        output_tokens: tokens in the completions of requests that ended well.
        prompt_tokens, cached_tokens: of requests that came to a first token; cached: found in a prefix cache.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.output_tokens = self.prompt_tokens = self.cached_tokens = 0
        self.seconds = 0.0  # spent in steps
        self._ttft, self._tpot = _Mean(), _Mean()

    def ended(self, request: Request, completions: list[Completion]) -> None:
        """Note how a request ended, and when its tokens came."""
        self.counts[request.status] += 1
        generated = max((len(completion.token_ids) for completion in completions), default=0)
        if request.status is Status.SUCCESS:
            self.output_tokens += sum(len(completion.token_ids) for completion in completions)
        if request.first_token_at is None or request.ended_at is None:
            return
        self.prompt_tokens += len(request.prompt)
        self.cached_tokens += request.num_cached_tokens
        self._ttft.add(request.first_token_at - request.arrived)
        if generated > 1:
            self._tpot.add((request.ended_at - request.first_token_at) / (generated - 1))

    def report(self) -> dict[str, Any]:
        """The figures; a mean of nothing is None."""
        names = ("submitted", "success", "timeout", "oom", "cancelled", "failed", "preempted")
        return {
            **{name: self.counts[name] for name in names},
            "ttft": self._ttft.value,
            "tpot": self._tpot.value,
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.output_tokens / self.seconds if self.seconds else None,
            "hit_rate": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
        }


class _Mean:
    """Of all values so far, none of which is kept: an engine may run for months."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None
