"""Latency: what one request's step costs in contiguous and in paged memory, read in several ways.

    read_times(tokens=4096)     one layer's attention
    step_times(tokens=4096)     a whole step of a model

Both on one thread, in GPT-2 small's shape. The ways take turns, and the fastest round of each counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from minikv.attention import paged_attention
from minikv.attention.cpu import warm_up
from minikv.decode import DecodeLoop
from minikv.engine.contiguous import ContiguousManager, Run
from minikv.gpt2 import GPT2
from minikv.lab.experiment_timeline import Drawing
from minikv.lab.plots import lines
from minikv.lab.read_costs import BLOCK_SIZE, HEAD_DIM, HEADS, ReadScene, fastest_in_turns
from minikv.lab.step_share import StepScene, a_sixth_of_gpt2
from minikv.pool import BlockPool

OFFSET = 37  # where the run begins: somewhere, as after other requests
SLICE, SAME_KERNEL = "contiguous, slices", "contiguous, kernel"
GATHER, KERNEL = "paged, gather", "paged, kernel"
WAYS = (SLICE, SAME_KERNEL, GATHER, KERNEL)
TOLERANCE = 1e-4


class ReadBoth:
    """One request's keys and values twice: in shuffled blocks, and in a run.

    Args:
        tokens: a multiple of the block size.

    Raises:
        ValueError: another number of tokens.
    """

    def __init__(self, tokens: int, block_size: int = BLOCK_SIZE) -> None:
        warm_up()  # what compiles is not to be timed
        self.paged = ReadScene(tokens, block_size)
        self.run = Run(OFFSET + tokens + 16)
        self.run.place(OFFSET, tokens)
        self.pool = BlockPool(1, self.run.block_size, 1, HEADS, HEAD_DIM)
        k, v = (rows[0].transpose(0, 1) for rows in self.paged.gather())
        self.pool.write(0, self.run.slots(0, tokens), k, v)

    def attend(self, way: str) -> Tensor:
        """Attention of the newest query over all tokens, in one of WAYS."""
        if way in (GATHER, KERNEL):
            return self.paged.attend("gather" if way == GATHER else "cpu")
        backend = "contiguous" if way == SLICE else "cpu"
        return paged_attention(self.paged.q, self.pool, 0, [self.run], [self.paged.tokens], backend=backend)


def read_times(tokens: int, rounds: int = 15, block_size: int = BLOCK_SIZE) -> dict[str, float]:
    """Milliseconds of one layer's attention, for each of WAYS.

    Raises:
        ArithmeticError: the results differ.
    """
    both = ReadBoth(tokens, block_size)
    expected = both.attend(SLICE)
    for way in WAYS:
        if not (apart := float((both.attend(way) - expected).abs().max())) < TOLERANCE:
            raise ArithmeticError(f"{way} differs from {SLICE} by {apart:.1e}")
    times = fastest_in_turns(*(_call(both.attend, way) for way in WAYS), rounds=rounds)
    return dict(zip(WAYS, times, strict=True))


class RunScene(StepScene):
    """A StepScene whose one request lies in contiguous memory.

    Args:
        tokens: stored.
        model: as of StepScene.
    """

    def __init__(self, tokens: int, model: GPT2) -> None:
        self.tokens, self.model = tokens, model
        slots = OFFSET + tokens + 1
        self.pool = BlockPool(1, slots, model.num_layers, model.num_heads, model.head_dim)
        manager: Any = ContiguousManager(slots, pool=self.pool)
        before = Run(slots, max_length=OFFSET)
        manager.allocate(before, OFFSET)
        self.loop = DecodeLoop(
            model, manager, self.pool, "contiguous", lambda size: Run(size, max_length=tokens + 1)
        )
        self.requests = [self._stored(tokens)]


def step_times(tokens: int, rounds: int = 25) -> dict[str, float]:
    """Milliseconds of the request's next step through a whole model, for each of WAYS.

    Raises:
        ArithmeticError: the steps choose different words.
    """
    model = a_sixth_of_gpt2(tokens + 1)
    paged, run = StepScene(tokens, model=model), RunScene(tokens, model)
    steps = {
        SLICE: _call(run.step, "contiguous"),
        SAME_KERNEL: _call(run.step, "cpu"),
        GATHER: _call(paged.step, "gather"),
        KERNEL: _call(paged.step, "cpu"),
    }
    words = {way: step() for way, step in steps.items()}
    if len({tuple(word) for word in words.values()}) > 1:
        raise ArithmeticError(f"the steps choose different words: {words}")
    return dict(zip(WAYS, fastest_in_turns(*steps.values(), rounds=rounds), strict=True))


def _call(function: Callable[[str], Any], argument: str) -> Callable[[], Any]:
    return lambda: function(argument)


def beside_slices(title: str, sizes: Sequence[int], times: Sequence[Mapping[str, float]]) -> Drawing:
    """Each way's time as a multiple of the slices', over the tokens stored.

    Args:
        sizes: tokens stored.
        times: for each of them, what `read_times` or `step_times` found.
    """
    series = {way: [each[way] / each[SLICE] for each in times] for way in WAYS}
    plot = lines(title, ("tokens stored", sizes), "times the slices' time", series, ("log2", "log2"))
    return Drawing(plot)
