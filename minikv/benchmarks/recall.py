"""Recall: what does the tiny GPT-2 know of a ledger it has just read?  python -m minikv.benchmarks recall

Measurements, all on ledgers made from a seed of their own, never seen in training:

    recall      by people in the ledger and distance between the fact and the question about it; and once more
                with one number and one colour for everybody, where nothing but the name tells facts apart
    grammar     share of well-formed sentences in text the model writes freely after a ledger
    swap        two requests trade one block, one fact, after both ledgers are stored: do the answers trade?
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minikv.assets import ledger
from minikv.benchmarks._table import format_table
from minikv.decode import DecodeLoop, Request
from minikv.gpt2 import GPT2
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool

PEOPLE = (2, 4, 6, 8, 10, 12)
DISTANCES = (50, 100, 150, 200, 250)  # each stands for the 50 up to it, the first for 0 to 50
FACT = len(ledger.Fact("", "", "", "").words)  # words, and so tokens, in a fact
LONGEST = 8  # no sentence of the language has more words
BATCH = 50


# ---- recall by people and distance -----------------------------------------------------------


class Trial(NamedTuple):
    """One question about one fact of one ledger."""

    people: int
    distance: int  # tokens between the end of the fact and the start of the question
    column: int  # of DISTANCES
    form: str  # of ledger.QUESTIONS
    prompt: list[str]  # ledger, small talk, question
    answer: list[str]
    alike: bool  # somebody else in the ledger has the same number of the same colour


class Outcome(NamedTuple):
    """How a trial ended."""

    trial: Trial
    recalled: bool  # every word of the answer


def make_trial(rng: random.Random, people: int, column: int, form: str, one_palette: bool = False) -> Trial:
    """A ledger and a question whose distance falls into the column, evenly within it.

    With `one_palette` everybody has the same number of the same colour.
    """
    facts = ledger.make_ledger(rng, people)
    if one_palette:
        facts = ledger.few_words(rng, facts, 1)
    while True:
        place = rng.randrange(people)
        distance = rng.randint(0 if column == DISTANCES[0] else column - 49, column)
        talk = distance - FACT * (people - 1 - place)  # what the later facts do not fill
        if talk == 0 or talk >= min(map(len, ledger.FILLERS)):
            break
    words = [word for fact in facts for word in fact.words] + ledger.filler(rng, talk)
    prompt = words + ledger.question(facts[place], form)
    asked = facts[place]
    alike = sum((fact.number, fact.colour) == (asked.number, asked.colour) for fact in facts) > 1
    return Trial(people, distance, column, form, prompt, ledger.answer(asked), alike)


def make_trials(rng: random.Random, per_cell: int, one_palette: bool = False) -> list[Trial]:
    """`per_cell` trials for every number of people and every distance, the question forms in turn."""
    forms = list(ledger.QUESTIONS)
    cells = [(people, column) for people in PEOPLE for column in DISTANCES]
    return [
        make_trial(rng, people, column, forms[(i + number) % len(forms)], one_palette)
        for number, (people, column) in enumerate(cells)
        for i in range(per_cell)
    ]


def recall(model: GPT2, trials: Sequence[Trial]) -> list[Outcome]:
    """Ask every question. Trials of like length share a batch, so the order is not that of `trials`."""
    ordered = sorted(trials, key=lambda trial: len(trial.prompt))
    batches = [ordered[i : i + BATCH] for i in range(0, len(ordered), BATCH)]
    return [outcome for batch in batches for outcome in _ask(model, batch)]


def _ask(model: GPT2, trials: Sequence[Trial]) -> Iterator[Outcome]:
    """One forward pass for all. A greedy decode says `answer` exactly if each of its words is the likeliest
    after the words before it, so the answers can stand in the input and be judged at once."""
    encode = model.tokenizer.encode
    texts = [encode(" ".join(trial.prompt + trial.answer)) for trial in trials]
    tokens = torch.zeros(
        len(texts), max(map(len, texts)), dtype=torch.long
    )  # what pads is at the end, unseen
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    likeliest = model(tokens.to(model.device), positions.to(model.device), causal).argmax(-1).cpu()
    for trial, text, said in zip(trials, texts, likeliest, strict=True):
        start, stop = len(text) - len(trial.answer), len(text)
        yield Outcome(trial, said[start - 1 : stop - 1].tolist() == text[start:stop])


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention within the texts themselves: no cache."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def share(outcomes: Sequence[Outcome], belongs: Callable[[Trial], bool] = lambda trial: True) -> float:
    """Share recalled among the trials that belong, in [0, 1]."""
    chosen = [outcome.recalled for outcome in outcomes if belongs(outcome.trial)]
    return sum(chosen) / len(chosen)


def by_distance(outcomes: Sequence[Outcome]) -> str:
    """Recall in per cent by people and distance, as a table."""

    def row(people: int) -> list[str]:
        cells = [
            share(outcomes, lambda t, column=column: (t.people, t.column) == (people, column))  # type: ignore[misc]
            for column in DISTANCES
        ]
        return [f"{100 * cell:.1f}" for cell in cells]

    first = [f"{max(0, column - 49) if column > DISTANCES[0] else 0}-{column}" for column in DISTANCES]
    return format_table(["people", *first], [[people, *row(people)] for people in PEOPLE])


def by_form(outcomes: Sequence[Outcome]) -> str:
    """Recall in per cent by form of the question, as a table."""
    forms = list(ledger.QUESTIONS)
    shares = [f"{100 * share(outcomes, lambda t, form=form: t.form == form):.1f}" for form in forms]  # type: ignore[misc]
    return format_table(["form", *forms], [["recalled", *shares]])


def alike_line(outcomes: Sequence[Outcome]) -> str:
    """Does somebody else's like fact confuse? "Ada has two red kites . Bo has two red cups ." """
    alike = [outcome for outcome in outcomes if outcome.trial.alike]
    others = [outcome for outcome in outcomes if not outcome.trial.alike]
    lines = [f"nobody else has as many of that colour: {100 * share(others):.2f} % of {len(others)}"]
    if alike:
        lines.append(f"somebody else has, too:                 {100 * share(alike):.2f} % of {len(alike)}")
    return "\n".join(lines)


# ---- grammar of what it writes freely ---------------------------------------------------------


class Grammar(NamedTuple):
    """The sentences of freely written text, counted."""

    sentences: int
    well_formed: int
    malformed: list[str]  # the others, as text


def grammar(model: GPT2, rng: random.Random, texts: int, new_tokens: int = 60) -> Grammar:
    """Let the model write on after `texts` ledgers, and judge every sentence it completes."""
    ledgers = [ledger.make_ledger(rng, PEOPLE[i % len(PEOPLE)]) for i in range(texts)]
    prompts = [model.tokenizer.encode(" ".join(fact.text for fact in facts)) for facts in ledgers]
    written = []
    for start in range(0, texts, BATCH):
        group = prompts[start : start + BATCH]
        loop, _ = _loop(model, 16, group, new_tokens)
        written += loop.generate(group, new_tokens)
    found = [sentence for ids in written for sentence in _sentences(model, ids)]
    malformed = [" ".join(sentence) for sentence in found if not ledger.is_statement(sentence)]
    return Grammar(len(found), len(found) - len(malformed), malformed)


def _sentences(model: GPT2, ids: Sequence[int]) -> Iterator[list[str]]:
    """The complete sentences; and the rest after them, if it is longer than any sentence can be."""
    words = [model.tokenizer.word(token) for token in ids]
    complete = list(ledger.sentences(words))
    yield from complete
    rest = words[sum(map(len, complete)) :]
    if len(rest) > LONGEST:
        yield rest


# ---- two requests trade a block ------------------------------------------------------------------


class Swap(NamedTuple):
    """Answers after a trade of blocks, counted."""

    asked_swapped: int  # questions about the person whose block was traded
    traded: int  # of these, answered with the other request's fact
    asked_others: int
    stayed: int  # of these, answered with the request's own fact


def swap(model: GPT2, rng: random.Random, pairs: int, people: int = 6) -> Swap:
    """Store two ledgers about the same people, trade one block, ask both requests about everybody."""
    traded: list[bool] = []
    stayed: list[bool] = []
    for _ in range(pairs):
        mine, other = make_pair(rng, people)
        swapped = rng.randrange(people)
        for place, answers in enumerate(ask_after_swap(model, mine, other, swapped)):
            facts = (other, mine) if place == swapped else (mine, other)
            right = [said == ledger.answer(f[place]) for said, f in zip(answers, facts, strict=True)]
            (traded if place == swapped else stayed).extend(right)
    return Swap(len(traded), sum(traded), len(stayed), sum(stayed))


def make_pair(rng: random.Random, people: int) -> tuple[list[ledger.Fact], list[ledger.Fact]]:
    """Two ledgers about the same people in the same order; no person has the same fact in both."""
    mine = ledger.make_ledger(rng, people)
    other = [
        fact._replace(name=own.name) for fact, own in zip(ledger.make_ledger(rng, people), mine, strict=True)
    ]
    return (mine, other) if all(a != b for a, b in zip(mine, other, strict=True)) else make_pair(rng, people)


def ask_after_swap(
    model: GPT2, mine: Sequence[ledger.Fact], other: Sequence[ledger.Fact], swapped: int
) -> list[list[list[str]]]:
    """For each person, what the two requests answer when block `swapped` of their tables was traded.

    A block holds six tokens and so exactly one fact: entry i of a table is the fact of person i.
    """
    prompts = [model.tokenizer.encode(" ".join(fact.text for fact in facts)) for facts in (mine, other)]
    loop, manager = _loop(model, FACT, prompts, 12)
    pair = [loop.start(prompt) for prompt in prompts]
    for request in pair:
        loop.prefill(request)
    first, second = (request.table.block_ids[swapped] for request in pair)
    pair[0].table.replace_block(swapped, second)
    pair[1].table.replace_block(swapped, first)
    return [[_answer(loop, manager, request, fact) for request in pair] for fact in mine]


def _answer(loop: DecodeLoop, manager: KVCacheManager, request: Request, fact: ledger.Fact) -> list[str]:
    """Ask a fork of the request for this fact; the request itself stays as it is."""
    tokenizer = loop.model.tokenizer
    stored = request.token_ids[: request.num_stored]
    asked = stored + tokenizer.encode(" ".join(ledger.question(fact)))
    fork = Request(asked, manager.fork(request.table), num_stored=len(stored))
    loop.prefill(fork)
    for _ in ledger.answer(fact)[1:]:
        loop.step([fork])
    loop.finish(fork)
    return [tokenizer.word(token) for token in fork.generated]


def _loop(
    model: GPT2, block_size: int, prompts: Sequence[Sequence[int]], new_tokens: int
) -> tuple[DecodeLoop, KVCacheManager]:
    """A decode loop with room for these prompts and `new_tokens` more for each."""
    num_blocks = sum(-(-(len(prompt) + new_tokens) // block_size) for prompt in prompts)
    pool = BlockPool(num_blocks, block_size, model.num_layers, model.num_heads, model.head_dim, model.device)
    manager = KVCacheManager(num_blocks, block_size, pool)
    return DecodeLoop(model, manager, pool), manager


# ---- all three ------------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks recall")
    parser.add_argument("--checkpoint", help="a folder (default: the tiny GPT-2 that ships)")
    parser.add_argument("--per-cell", type=int, default=100, help="ledgers in a cell (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=200, help="written freely (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=50, help="that trade a block (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=2024)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # the model is so small that threads wait for each other longer than they work
    model, rng = GPT2.from_pretrained(arguments.checkpoint), random.Random(arguments.seed)
    outcomes = recall(model, make_trials(rng, arguments.per_cell))
    print("Facts recalled exactly, in per cent, by people and tokens between fact and question\n")
    print(f"{by_distance(outcomes)}\n\n{by_form(outcomes)}\n\n{alike_line(outcomes)}")
    print(f"\nrecalled overall: {100 * share(outcomes):.2f} % of {len(outcomes)}")
    alike = recall(model, make_trials(random.Random(arguments.seed), arguments.per_cell, one_palette=True))
    print("\nThe same, if everybody in the ledger has the same number of the same colour\n")
    print(by_distance(alike))
    print(f"\nrecalled overall: {100 * share(alike):.2f} % of {len(alike)}\n")
    written = grammar(model, rng, arguments.texts)
    print(f"well-formed sentences: {written.well_formed} of {written.sentences}")
    for sentence in written.malformed[:5]:
        print(f"    not well-formed: {sentence}")
    traded = swap(model, rng, arguments.pairs)
    print(f"answers that traded with their block: {traded.traded} of {traded.asked_swapped}")
    print(f"answers about the others that stayed: {traded.stayed} of {traded.asked_others}")
