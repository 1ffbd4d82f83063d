"""Exercises of notebook 00."""

from __future__ import annotations

import random

from minikv.lab.exercises.exercise import Exercise, number


def _blocks(rng: random.Random) -> Exercise:
    block_size = rng.choice((4, 8, 16))
    prompt, new = rng.randint(9, 30), rng.randint(3, 12)
    if (prompt + new - 1) % block_size == 0 or prompt + new <= block_size:
        prompt += 2  # keep the three usual mistakes apart from the answer
    stored = prompt + new - 1
    blocks = -(-stored // block_size)
    wrong = {
        stored // block_size: "the last block counts although it is not full",
        blocks + 1: "no block is taken before a token needs it",
        stored: "that is tokens; a block holds several",
        blocks * block_size: "that is slots; the question asks for blocks",
    }
    wrong.pop(blocks, None)
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
            f"Divide {stored} by {block_size} and round up: a block is taken whole.",
        ),
        solution=f"({prompt} + {new} - 1) / {block_size} = {stored / block_size:g}, "
        f"rounded up: {blocks} blocks.",
        right=blocks,
        wrong=tuple((why, value) for value, why in wrong.items()),
    )


EXERCISES = {"00.blocks": _blocks}
WITH_VARIANTS = ("00.blocks",)
