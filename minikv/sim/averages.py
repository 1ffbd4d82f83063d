"""Averages and peaks over time, as running sums: a long simulation needs no more memory than a short one."""

from __future__ import annotations

from typing import NamedTuple

from minikv.sim.split import Split


class Sample(NamedTuple):
    """Memory at one moment, for a plot over time."""

    seconds: float
    batch: int  # requests that run
    split: Split  # slots


class Averages:
    """Sums over the time in which at least one request runs; idle time would only dilute them."""

    def __init__(self) -> None:
        self.busy = 0  # microseconds
        self.steps = 0
        self.peak_batch = 0
        self.peak_tokens: float = 0
        self._batch = 0  # request-microseconds
        self._sums: list[float] = [0] * 5  # slot-microseconds, by state of the slot; whole numbers, so exact

    def add(self, split: Split, batch: int, steps: int, step_time: int) -> None:
        """`steps` steps of `step_time` microseconds; after the first, each stores `batch` tokens more."""
        time = steps * step_time
        later = batch * (steps - 1)  # slots that are reserved at first, and hold a token in the last step
        moved = later * time // 2  # their slot-microseconds: half of the time, for they come one by one
        tokens, reserved, internal, external, free = split
        sums = self._sums
        sums[0] += tokens * time + moved
        sums[1] += reserved * time - moved
        sums[2] += internal * time
        sums[3] += external * time
        sums[4] += free * time
        if tokens + later > self.peak_tokens:
            self.peak_tokens = tokens + later
        if batch > self.peak_batch:
            self.peak_batch = batch
        self._batch += batch * time
        self.busy += time
        self.steps += steps

    @property
    def mean(self) -> Split:
        """Slots in each state, averaged over time."""
        return Split(*(total / self.busy if self.busy else 0.0 for total in self._sums))

    @property
    def mean_batch(self) -> float:
        """Requests that run together, averaged over time."""
        return self._batch / self.busy if self.busy else 0.0


class Timeline:
    """Samples at regular times.

    Args:
        every: seconds between two samples, at least a microsecond.

    Raises:
        ValueError: every is below that.
    """

    def __init__(self, every: float) -> None:
        if not every >= 1e-6:
            raise ValueError(f"sample_every is {every!r}; it must be at least 1e-6 seconds, or None")
        self.samples: list[Sample] = []
        self._every = round(every * 1e6)
        self._next: int | None = None  # microseconds; the first sample is taken when the first step begins

    def add(self, start: int, split: Split, batch: int, steps: int, step_time: int) -> None:
        """Sample what lies within these steps, the first of which began at `start` microseconds."""
        self._next = start if self._next is None else self._next
        while self._next < start + steps * step_time:
            later = batch * ((self._next - start) // step_time)
            now = split._replace(tokens=split.tokens + later, reserved=split.reserved - later)
            self.samples.append(Sample(self._next / 1e6, batch, now))
            self._next += self._every
