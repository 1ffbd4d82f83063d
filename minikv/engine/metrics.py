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
        prompt_tokens, cached_tokens: of the requests that began; cached: found in a prefix cache.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.output_tokens = self.prompt_tokens = self.cached_tokens = 0
        self.seconds = 0.0  # spent in steps
        self._ttft: list[float] = []
        self._tpot: list[float] = []

    def ended(self, request: Request, completions: list[Completion]) -> None:
        """Note how a request ended, and when its tokens came."""
        self.counts[request.status] += 1
        generated = max((len(completion.token_ids) for completion in completions), default=0)
        if request.status is Status.SUCCESS:
            self.output_tokens += sum(len(completion.token_ids) for completion in completions)
        if request.first_token_at is not None or request.num_cached_tokens:  # it has begun
            self.prompt_tokens += len(request.prompt)
            self.cached_tokens += request.num_cached_tokens
        if request.first_token_at is None or request.ended_at is None:
            return
        self._ttft.append(request.first_token_at - request.arrived)
        if generated > 1:
            self._tpot.append((request.ended_at - request.first_token_at) / (generated - 1))

    def report(self) -> dict[str, Any]:
        """The figures; a mean of nothing is None."""
        names = ("submitted", "success", "timeout", "oom", "cancelled", "failed", "preempted")
        return {
            **{name: self.counts[name] for name in names},
            "ttft": _mean(self._ttft),
            "tpot": _mean(self._tpot),
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.output_tokens / self.seconds if self.seconds else None,
            "hit_rate": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
        }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
