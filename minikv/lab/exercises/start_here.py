"""Exercises of notebook 00."""

from __future__ import annotations

import random

from minikv.lab.exercises.exercise import Exercise, number


def _blocks(rng: random.Random) -> Exercise:
    block_size, blocks, new = rng.choice((4, 8)), rng.randint(3, 5), rng.randint(3, 7)
    stored = blocks * block_size  # full to the last slot: only then does the newest token matter
    prompt = stored + 1 - new
    wrong = {
        blocks + 1: "the newest token is chosen but not stored, so it takes no slot",
        blocks - 1: "that leaves the last stored tokens without a slot",
        stored: "that is tokens; a block holds several",
        stored + 1: "that is tokens, and the question asks for blocks",
    }
    return Exercise(
        question=f"A prompt has {prompt} tokens and the model generates {new} more. "
        f"The block size is {block_size}. "
        "How many blocks does the request hold at the end?",
        judge=number(
            blocks, f"{stored} tokens are stored, which takes {blocks} blocks of {block_size}", wrong
        ),
        hints=(
            "Count the tokens whose K and V are stored. Is the newest one among them?",
            "The last token is chosen but never fed back, "
            f"so {prompt} + {new} - 1 = {stored} tokens are stored.",
            f"Divide {stored} by {block_size}. With a rest you would round up: a block is taken whole.",
        ),
        solution=f"({prompt} + {new} - 1) / {block_size} = {blocks} blocks, all full.",
        right=blocks,
        wrong=tuple((why, value) for value, why in wrong.items()),
    )


EXERCISES = {"00.blocks": _blocks}
WITH_VARIANTS = ("00.blocks",)
