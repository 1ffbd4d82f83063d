"""Train the tiny GPT-2 that recalls facts:  python -m minikv.assets.train [--smoke]

A model that answers from its context must *look things up* there. The circuit that
does so, the induction head (Olsson et al., 2022: find the last place where these words
stood, copy what came next), appears suddenly or not at all, and ledgers alone do not
bring it about. So training has a curriculum:

1. *Repeats.* Random words repeated again and again: only copying lowers the loss.
   First from all words and always at position 0, where the circuit forms within some
   150 steps (at random positions it does not form in 700). Then at random positions,
   so that all 512 are trained, and from small alphabets, so that one previous word is
   not enough to find the place and the model learns to match two ("Ada has", not "has").
2. *Ledgers.* Facts, then statements and questions about them, mixed with repeats;
   the number of people and the length of the text grow step by step.

What it does not learn: "Ada has two red kites . Bo has two red cups ." What follows "two red" depends on
the name, three words back, and there the model guesses. A second course on such facts was tried. Two
people, always at position 0, were told apart after some 450 steps; within 1,350 more, longer ledgers at
other positions were not.

The words of the answers weigh most; the words nobody could foresee almost nothing.
The checkpoint that comes out is a standard Hugging Face one.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

from minikv.assets import ledger

CONTEXT = 512
ASSETS = Path(__file__).parent / "tiny_gpt2"

ANSWER, COPIED, GRAMMAR, UNFORESEEABLE = 4.0, 1.0, 0.5, 0.02  # loss weights of a word


class Stage(NamedTuple):
    """Some steps of training on texts of one length."""

    steps: int
    batch: int
    length: int  # tokens in a text
    people: int  # ledgers have 2 to this many
    repeats: float  # share of the texts that are random repeats
    first_position: int  # a text starts at position 0 to this
    smallest_alphabet: int = 3  # different words in a random repeat: this to all


EVERY_WORD = len(ledger.vocabulary()) - 2  # all but the two special ones
CURRICULUM = (
    Stage(
        steps=200, batch=64, length=64, people=2, repeats=1.0, first_position=0, smallest_alphabet=EVERY_WORD
    ),
    Stage(steps=400, batch=64, length=64, people=2, repeats=1.0, first_position=448),
    Stage(steps=800, batch=64, length=64, people=4, repeats=0.4, first_position=448),
    Stage(steps=600, batch=64, length=96, people=7, repeats=0.3, first_position=416),
    Stage(steps=1400, batch=48, length=160, people=16, repeats=0.2, first_position=352),
    Stage(steps=800, batch=24, length=320, people=18, repeats=0.1, first_position=192),
    Stage(steps=300, batch=16, length=512, people=18, repeats=0.1, first_position=0),
)
SMOKE = (
    Stage(steps=4, batch=4, length=32, people=3, repeats=1.0, first_position=0, smallest_alphabet=EVERY_WORD),
    Stage(steps=4, batch=4, length=64, people=3, repeats=0.5, first_position=448),
)


def make_tokenizer() -> Tokenizer:
    """One word, one token; words are parted by spaces, and "." and "?" stand alone."""
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(ledger.vocabulary())}, unk_token=ledger.UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(".", "isolated"),
            pre_tokenizers.Split("?", "isolated"),
        ]
    )
    tokenizer.add_special_tokens([ledger.END, ledger.UNKNOWN])
    return tokenizer


def repeats(rng: random.Random, words: list[str], smallest: int, length: int) -> list[tuple[str, float]]:
    """A random sequence over a small alphabet, repeated; from the second time on it can be foreseen."""
    symbols = round(math.exp(rng.uniform(math.log(smallest), math.log(len(words)))))
    alphabet = rng.sample(words, symbols)
    period = rng.randint(8, max(8, length // 2))
    sequence = [rng.choice(alphabet) for _ in range(period)]
    return [(sequence[i % period], 0.0 if i <= period else 1.0) for i in range(length)]


def ledger_text(rng: random.Random, people: int, length: int) -> list[tuple[str, float]]:
    """A ledger, then statements and questions about its people until `length` words are full."""
    facts = ledger.make_ledger(rng, rng.randint(2, people))
    text: list[tuple[str, float]] = []
    talk = rng.random() < 0.5

    def small_talk(chance: float) -> None:
        while talk and rng.random() < chance:
            first, *rest = rng.choice(ledger.FILLERS)
            text.extend([(first, UNFORESEEABLE), *((word, GRAMMAR) for word in rest)])

    for fact in facts:
        small_talk(0.2)
        weights = (UNFORESEEABLE, GRAMMAR, UNFORESEEABLE, UNFORESEEABLE, UNFORESEEABLE, GRAMMAR)
        text.extend(zip(fact.words, weights, strict=True))
    if talk and rng.random() < 0.5:
        small_talk(0.97)
    unasked: list[ledger.Fact] = []
    while len(text) < length:
        unasked = unasked or rng.sample(facts, len(facts))
        fact = unasked.pop()
        asked = ledger.question(fact, rng.choice(list(ledger.QUESTIONS)))
        for i, word in enumerate(asked):
            copied = len(asked) > 2 and i == len(asked) - 2  # the name again, after the question
            foreseen = word != fact.name and word != fact.thing and i > 0
            text.append((word, COPIED if copied else GRAMMAR if foreseen else UNFORESEEABLE))
        text.extend((word, ANSWER) for word in ledger.answer(fact))
        small_talk(0.3)
    return text[:length]


def batches(stage: Stage, seed: int, ids: dict[str, int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (token ids, loss weights, positions), each [batch, length], for each step of a stage."""
    rng = random.Random(seed)
    words = [word for word in ids if word not in (ledger.END, ledger.UNKNOWN)]
    for _ in range(stage.steps):
        texts = [
            repeats(rng, words, stage.smallest_alphabet, stage.length)
            if rng.random() < stage.repeats
            else ledger_text(rng, stage.people, stage.length)
            for _ in range(stage.batch)
        ]
        starts = torch.tensor([rng.randint(0, stage.first_position) for _ in texts])
        yield (
            torch.tensor([[ids[word] for word, _ in text] for text in texts]),
            torch.tensor([[weight for _, weight in text] for text in texts]),
            starts[:, None] + torch.arange(stage.length),
        )


def learning_rate(step: int, steps: int, peak: float = 2e-3) -> float:
    """Linear warm-up over 100 steps, then a cosine down to a twentieth of the peak."""
    warm = min(1.0, (step + 1) / 100)
    return peak * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(stages: tuple[Stage, ...] = CURRICULUM, seed: int = 0, progress: bool = True) -> GPT2LMHeadModel:
    """Train from nothing; the same seed and torch version give the same weights."""
    torch.manual_seed(seed)
    ids = {word: i for i, word in enumerate(ledger.vocabulary())}
    config = GPT2Config(
        vocab_size=len(ids),
        n_positions=CONTEXT,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=ids[ledger.END],
        eos_token_id=ids[ledger.END],
    )
    model = GPT2LMHeadModel(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    total = sum(stage.steps for stage in stages)
    bar = tqdm(total=total, disable=not progress, unit="step")
    for number, stage in enumerate(stages):
        for tokens, weights, positions in batches(stage, seed + 1000 * number, ids):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(bar.n, total)
            logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
            losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
            wanted = weights[:, 1:].flatten()
            loss = (losses * wanted).sum() / wanted.sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if bar.n % 20 == 0:
                answered = wanted >= ANSWER if stage.repeats < 1 else wanted > 0
                hit = (logits[:, :-1].flatten(0, 1).argmax(-1) == tokens[:, 1:].flatten())[answered]
                bar.set_postfix(
                    stage=number + 1, loss=f"{loss.item():.3f}", answers=f"{hit.float().mean():.3f}"
                )
            bar.update()
    bar.close()
    return model.eval()


def save(model: GPT2LMHeadModel, folder: Path) -> None:
    """Write a Hugging Face checkpoint: config.json, model.safetensors, tokenizer.json and its config."""
    model.config.activation_function = "gelu_new"  # GPT-2's own name for the same function
    model.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": ledger.END,
        "eos_token": ledger.END,
        "unk_token": ledger.UNKNOWN,
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    """Train and save; `argv` as on the command line."""
    parser = argparse.ArgumentParser(prog="python -m minikv.assets.train", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=ASSETS, help="folder for the checkpoint (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args(argv)
    model = train(SMOKE if arguments.smoke else CURRICULUM, seed=arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    save(model, arguments.out)
    print(f"wrote {model.num_parameters():,} parameters to {arguments.out}")


if __name__ == "__main__":
    main()
