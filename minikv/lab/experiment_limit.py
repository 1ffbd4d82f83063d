"""How many requests run side by side, on the same memory? (chapter §5.1, claims 41 and 50)

side_by_side(questions(64, limit=32), num_blocks=64)                       measured, on the engine
fitting(prompt=40, answer=6, limit=32, slots=256)                          counted, with managers only
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minikv.block_table import BlockTable
from minikv.engine.contiguous import ContiguousManager, Run
from minikv.lab.experiment_run import Ask, Experiment, Scene
from minikv.manager import KVCacheManager

CACHES: dict[str, dict[str, Any]] = {
    "paged": {"cache": "paged"},
    "contiguous, max": {"cache": "contiguous", "reserve": "max"},
    "contiguous, grow": {"cache": "contiguous", "reserve": "grow"},
}


def undisturbed(asks: Sequence[Ask], num_blocks: int, block_size: int = 4, **options: Any) -> bool:
    """Whether all of them, coming at once, run to their ends and nobody ever waits or makes room."""
    scene = Scene("side by side", tuple(asks), num_blocks, block_size)
    experiment = Experiment(scene, **options)
    while not experiment.done:
        moment = experiment.step()
        if moment is None or moment.waiting or None in experiment.requests:
            return False  # somebody waits, perhaps because he made room, or was refused
    return True


def side_by_side(asks: Sequence[Ask], num_blocks: int, block_size: int = 4, **options: Any) -> int:
    """The concurrency limit: how many of these requests, taken in order, run undisturbed.

    Found by trying one more until somebody has to wait or to make room; all of them, if nobody ever does.

    Args:
        options: those of `Experiment`, such as the values of `CACHES`.
    """
    for count in range(1, len(asks) + 1):
        if not undisturbed(asks[:count], num_blocks, block_size, **options):
            return count - 1
    return len(asks)


class Fitting(NamedTuple):
    """Requests that run side by side, of equal ones that come at once."""

    paged: int
    contiguous: int  # each reserves its limit

    @property
    def ratio(self) -> float:
        """Paged to contiguous; inf if not a single one fits a contiguous memory."""
        return self.paged / self.contiguous if self.contiguous else float("inf")


def fitting(prompt: int, answer: int, limit: int, slots: int, block_size: int = 16) -> Fitting:
    """Equal requests: how many can be at their last token together? Counted with the real managers, no model.

    Args:
        prompt, answer: tokens of each request, at least 1.
        limit: max_new_tokens, at least `answer`.
        slots: of the memory, a multiple of block_size.

    Raises:
        ValueError: an answer beyond the limit, or slots that are no whole blocks.
    """
    if not 1 <= answer <= limit or prompt < 1:
        raise ValueError(
            f"prompt is {prompt}, answer {answer}, limit {limit}; a request has at least 1 token in, and its "
            "answer 1 token to its limit"
        )
    if slots < block_size or slots % block_size:
        raise ValueError(f"{slots} slots are no whole number of blocks of {block_size}")
    blocks, memory = KVCacheManager(slots // block_size, block_size), ContiguousManager(slots)
    paged = contiguous = 0
    while blocks.allocate(BlockTable(block_size), prompt + answer - 1):
        paged += 1
    longest = prompt + limit - 1
    while longest <= slots and memory.allocate(Run(slots, max_length=longest), prompt + answer - 1):
        contiguous += 1
    return Fitting(paged, contiguous)
