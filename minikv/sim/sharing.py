"""How many blocks does sharing save, when one prompt has several continuations? (chapter §3.1)

The continuations share the blocks of the prompt, and whatever else they have in common; `fork` makes them,
and `copy_on_write` gives each a block of its own when it writes. All of it on the real manager.

Saved are the blocks that all tables list together, less the blocks that are held, summed over the steps;
the share of the first sum is what the PagedAttention paper's Fig. 15 shows (Kwon et al., SOSP 2023).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from minikv.block_table import BlockTable
from minikv.checks import whole_number
from minikv.manager import KVCacheManager
from minikv.sim.workload import Request

Beams = list[BlockTable]
Select = Callable[[KVCacheManager, Beams], Beams]  # who goes on in the next step
Stretches = Callable[[Request, int], Iterator[tuple[int, int]]]


def parallel_sampling(requests: Iterable[Request], samples: int, block_size: int = 16) -> float:
    """Share of the blocks that sharing saves when each prompt is answered `samples` times, in [0, 1].

    All answers to a prompt are equally long.

    Raises:
        ValueError: samples or block_size below 1. TypeError: one of them is not an integer.
    """
    return _saved(requests, samples, block_size, _block_by_block, select=lambda manager, tables: tables)


def beam_search(
    requests: Iterable[Request], width: int, turnover: float, block_size: int = 16, seed: int = 0
) -> float:
    """Share of the blocks that sharing saves when each prompt is answered by beam search, in [0, 1].

    After each step the `width` best continuations stay. A beam with two among them forks, one with none dies.

    Args:
        turnover: chance, per step and beam, that its place is taken by a continuation of any of the beams
            (each with the same chance) and not by its own. An assumption: it depends on model and text.

    Raises:
        ValueError: turnover outside [0, 1], width or block_size below 1. TypeError: no integer.
    """
    if not 0 <= turnover <= 1:
        raise ValueError(f"turnover is {turnover!r}; a chance is between 0 and 1")
    rng = random.Random(whole_number("seed", seed))

    def select(manager: KVCacheManager, beams: Beams) -> Beams:
        parents = [rng.randrange(len(beams)) if rng.random() < turnover else i for i in range(len(beams))]
        return reselect(manager, beams, parents)

    return _saved(requests, width, block_size, _step_by_step, select)


def reselect(manager: KVCacheManager, beams: Beams, parents: list[int]) -> Beams:
    """The next beams: number i continues beam parents[i]. The first to continue a beam takes its table over,
    others fork it, and a beam that nobody continues is freed."""
    heirs: set[int] = set()
    chosen = []
    for parent in parents:
        chosen.append(manager.fork(beams[parent]) if parent in heirs else beams[parent])
        heirs.add(parent)
    for number, beam in enumerate(beams):
        if number not in heirs:
            manager.free(beam)
    return chosen


def _saved(
    requests: Iterable[Request], width: int, block_size: int, stretches: Stretches, select: Select
) -> float:
    """One request after the other: requests share nothing with each other, so their order does not matter."""
    if whole_number("width", width) < 1:
        raise ValueError(f"there are {width} continuations; a prompt has at least 1")
    if whole_number("block_size", block_size) < 1:
        raise ValueError(f"block_size is {block_size}; a block has at least 1 slot")
    listed = held = 0
    for request in requests:
        # One block more for each continuation: a copy is made before the original is let go.
        manager = KVCacheManager(width * (request.slots // block_size + 2), block_size)
        prompt = BlockTable(block_size)
        manager.allocate(prompt, request.input_tokens)
        beams = [prompt, *(manager.fork(prompt) for _ in range(width - 1))]
        for stored, steps in stretches(request, block_size):
            if stored > request.input_tokens:
                beams = select(manager, beams)
                for beam in beams:
                    _write(manager, beam, stored - 1)
            listed += steps * sum(beam.num_blocks for beam in beams)
            held += steps * manager.allocated_blocks
    return 1 - held / listed if listed else 0.0


def _step_by_step(request: Request, block_size: int) -> Iterator[tuple[int, int]]:
    """(tokens stored, 1 step) for every step of a request."""
    return ((stored, 1) for stored in range(request.input_tokens, request.slots + 1))


def _block_by_block(request: Request, block_size: int) -> Iterator[tuple[int, int]]:
    """(tokens stored at first, steps) of the stretches in which no table changes: the step that stores the
    prompt; then the first write, which may copy; then each write that needs a block."""
    first, end = request.input_tokens, request.slots + 1
    next_block = -(-(first + 1) // block_size) * block_size + 1
    starts = [first, *([first + 1] if first + 1 < end else []), *range(next_block, end, block_size), end]
    return ((start, stop - start) for start, stop in pairwise(starts))


def _write(manager: KVCacheManager, table: BlockTable, position: int) -> None:
    """Make the slot of this position the table's own, to store a token there."""
    if position == table.capacity:
        manager.allocate(table, position + 1)
    else:
        manager.copy_on_write(table, position)
