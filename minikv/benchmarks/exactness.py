"""Exactness: does the paged cache change what the model says?  python -m minikv.benchmarks exactness

The same checkpoint runs in transformers and here. Prompt i has i tokens, so that the lengths lie on
both sides of every block boundary, whatever the block size. Compared are the greedy tokens, one by
one, with transformers' `generate`, and the logits at every position with a transformers forward
pass over the whole text, which has no cache at all.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from minikv.assets import ledger
from minikv.benchmarks._table import format_table
from minikv.decode import DecodeLoop
from minikv.gpt2 import GPT2, TINY, Attend
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool

READS = ("reference", "gather", "cpu")  # without a GPU, Triton's interpreter would take hours
BLOCK_SIZES = (1, 3, 4, 16, 64)
BATCH = 25  # requests decoded together in a mixed batch


class Case(NamedTuple):
    """A prompt, and what transformers says to it."""

    prompt: list[int]
    tokens: list[int]  # the greedy continuation
    logits: Tensor  # [len(prompt) + len(tokens) - 1, vocab_size]


class Row(NamedTuple):
    """A line of the table."""

    backend: str
    block_size: int
    batch: int  # requests decoded together
    prompts: int
    tokens: int
    differing: int
    logit_difference: float  # the largest, over every position and word


class RecordedGPT2(GPT2):
    """A model that remembers the logits of every call."""

    def __init__(self, model: GPT2) -> None:
        self.__dict__.update(model.__dict__)
        self.calls: list[Tensor] = []  # each [batch, num_new, vocab_size]

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        logits = super().__call__(token_ids, positions, attend, wanted)
        self.calls.append(logits)
        return logits


def make_prompts(model: GPT2, count: int, seed: int = 1) -> list[list[int]]:
    """`count` prompts of 1, 2, 3, … tokens: ledgers, then questions about them, cut at that length."""
    rng = random.Random(seed)
    return [_prompt(model, rng, length) for length in range(1, count + 1)]


def _prompt(model: GPT2, rng: random.Random, length: int) -> list[int]:
    facts = ledger.make_ledger(rng, rng.randint(2, 12))
    words = [word for fact in facts for word in fact.words]
    while len(words) < length:
        fact = rng.choice(facts)
        words += ledger.question(fact, rng.choice(list(ledger.QUESTIONS))) + ledger.answer(fact)
    return model.tokenizer.encode(" ".join(words[:length]))


def ask_transformers(folder: Path, prompts: Sequence[list[int]], new_tokens: int) -> list[Case]:
    """What transformers makes of these prompts, one at a time, without padding.

    Raises:
        ModuleNotFoundError: transformers is not installed.
    """
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None  # no early stop: the decode loop has none either
    model.generation_config.pad_token_id = 0
    cases = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            text = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens
            )
            logits = model(text[:, :-1], use_cache=False).logits[0]
            cases.append(Case(prompt, text[0, len(prompt) :].tolist(), logits))
    return cases


def compare(
    model: GPT2, cases: Sequence[Case], block_size: int, backend: str = "gather", batch: int = 1
) -> Row:
    """Run the cases through the paged cache, `batch` of them together, and count what differs."""
    tokens = differing = 0
    largest = 0.0
    for start in range(0, len(cases), batch):
        group = cases[start : start + batch]
        said, logits = _run(model, group, block_size, backend)
        for case, mine, mine_logits in zip(group, said, logits, strict=True):
            tokens += len(case.tokens)
            differing += sum(a != b for a, b in zip(mine, case.tokens, strict=True))
            largest = max(largest, float((mine_logits - case.logits).abs().max()))
    return Row(backend, block_size, batch, len(cases), tokens, differing, largest)


def _run(
    model: GPT2, group: Sequence[Case], block_size: int, backend: str
) -> tuple[list[list[int]], list[Tensor]]:
    """Tokens, and logits at every position, of some requests decoded together in a pool just large enough."""
    num_blocks = sum(-(-len(case.logits) // block_size) for case in group)
    pool = BlockPool(num_blocks, block_size, model.num_layers, model.num_heads, model.head_dim)
    recorded = RecordedGPT2(model)
    loop = DecodeLoop(recorded, KVCacheManager(num_blocks, block_size, pool), pool, backend)
    said = loop.generate([case.prompt for case in group], len(group[0].tokens))
    prefills, steps = recorded.calls[: len(group)], recorded.calls[len(group) :]
    return said, [torch.cat([prefills[i][0], *(step[i] for step in steps)]) for i in range(len(group))]


def run(count: int, new_tokens: int) -> list[Row]:
    """Every way of reading and every block size, alone and in mixed batches. The progress goes to stderr."""
    model = GPT2.from_pretrained()
    cases = ask_transformers(TINY, make_prompts(model, count), new_tokens)
    mixed = random.Random(0).sample(cases, len(cases))
    kinds = [(backend, size) for backend in READS for size in BLOCK_SIZES]
    rows = []
    for backend, size in tqdm(kinds, unit="block size"):
        rows.append(compare(model, cases, size, backend))
        rows.append(compare(model, mixed, size, backend, BATCH))
    return rows


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks exactness")
    parser.add_argument(
        "--prompts", type=int, default=200, help="of 1, 2, 3, … tokens (default: %(default)s)"
    )
    parser.add_argument("--new-tokens", type=int, default=8, help="for each prompt (default: %(default)s)")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # the model is so small that threads wait for each other longer than they work
    rows = run(arguments.prompts, arguments.new_tokens)
    head = ("backend", "block size", "batch", "prompts", "tokens", "differing", "largest logit difference")
    print(format_table(head, [(*row[:-1], f"{row.logit_difference:.1e}") for row in rows]))
