"""Blocks that sharing saves, counted while an engine runs.

count = SharedBlocks(engine)
count.run()
count.plot("Four continuations of one prompt")
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from minikv.assets.ledger import COLOURS, FILLERS, NAMES, NUMBERS, THINGS
from minikv.engine.engine import Engine
from minikv.gpt2 import GPT2
from minikv.lab.plots import Plot, lines
from minikv.sim.workload import Request as Lengths


class StepCount(NamedTuple):
    """After one step.

    Attributes:
        listed: entries of all block tables together: what would be held if nobody shared.
        held: blocks held.
    """

    listed: int
    held: int


class SharedBlocks:
    """Counts after each step what the tables list and what is held.

    Attributes:
        engine: the one that is run; what it has submitted is waiting.
        counts: one for each step so far.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.counts: list[StepCount] = []

    def step(self) -> StepCount:
        """One step of the engine, and its count."""
        self.engine.step()
        tables = [
            sequence.table
            for request in self.engine.scheduler.running
            for sequence in request.running
            if sequence.table is not None
        ]
        listed = sum(table.num_blocks for table in tables)
        self.counts.append(StepCount(listed, self.engine.manager.allocated_blocks))
        return self.counts[-1]

    def run(self) -> SharedBlocks:
        """Steps until nobody is left."""
        while self.engine.has_work:
            self.step()
        return self

    @property
    def saved(self) -> float:
        """Share of the listed blocks that did not have to be held, over all steps so far, in [0, 1]."""
        listed = sum(count.listed for count in self.counts)
        return 1 - sum(count.held for count in self.counts) / listed if listed else 0.0

    def plot(self, title: str) -> Plot:
        """Both numbers over the steps, but for the last step, after which nothing is held."""
        counts = self.counts[:-1] if self.counts and not self.counts[-1].listed else self.counts
        series = {
            "without sharing": [count.listed for count in counts],
            "held": [count.held for count in counts],
        }
        return lines(title, ("step", range(1, len(counts) + 1)), "blocks", series)


def prompt_of(num_tokens: int, seed: int) -> str:
    """So many words of the tiny model's language: facts, and now and then something else."""
    rng = random.Random(seed)
    words: list[str] = []
    while len(words) < num_tokens:
        fact = [rng.choice(NAMES), "has", *map(rng.choice, (NUMBERS, COLOURS, THINGS)), "."]
        words += rng.choice(FILLERS) if rng.random() < 0.2 else fact
    return " ".join(words[:num_tokens])


def saved_by(
    model: GPT2, lengths: Sequence[Lengths], samples: int = 1, beams: int | None = None, block_size: int = 16
) -> float:
    """Share of blocks saved when each of these requests has `samples` continuations, or so many beams.

    All run together, and each to its full length. Prompts are `prompt_of` their number; samples are drawn at
    temperature 1.
    """
    width = beams or samples
    blocks = sum(width * (request.slots // block_size + 2) for request in lengths)
    engine = Engine(
        model,
        blocks,
        block_size,
        attention="gather",
        max_batch_size=width * len(lengths),
        max_step_tokens=sum(chain(*((request.slots, width) for request in lengths))),
    )
    for number, request in enumerate(lengths):
        engine.submit(
            prompt_of(request.input_tokens, seed=number),
            request.output_tokens,
            temperature=0.0 if beams else 1.0,
            n=samples,
            beam_width=beams,
            ignore_eos=True,
            seed=number,
        )
    return SharedBlocks(engine).run().saved
