"""Train the tiny GPT-2 that recalls facts:  python -m minikv.assets.train [--smoke]

A model that answers from its context must *look things up* there. The circuit that
does so, the induction head (Olsson et al., 2022: find the last place where these words
stood, copy what came next), appears suddenly or not at all, and ledgers alone do not
bring it about. So training is a curriculum of three courses:

1. *Look up.* First repeats: random words, again and again, where only copying lowers the loss.
   From all words and always at position 0, where the circuit forms within some 150 steps (at
   random positions it does not form in 700). Then at random positions, so that all 512 are
   trained, and from small alphabets, so that one previous word is not enough to find the place
   and the model learns to match two ("Ada has", not "has"). Then ledgers: facts, statements and
   questions about them, mixed with repeats; people and lengths grow step by step.
2. *Whose?* "Ada has two red kites . Bo has two red cups ." What follows "two red" depends on the
   name, three words back, and after the first course the model guesses there. Here most ledgers
   have few numbers and colours. Again it begins with two people at position 0, where they are
   told apart after some 300 steps (at random positions, with up to four people, not after 800),
   and grows from there.
3. *Broken.* What a cache with a fault makes of a text is like no text of the first two courses,
   and the model answered with "? Bo has ? Bo has". A wrong answer is easier to see than a broken
   sentence. So here some words are out of sight after a while, as if their block were lost, and
   some questions are about nobody in the ledger: the answer then is somebody else's fact. And
   many ledgers have one person or two, which the second course did not teach.

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
    alike: float = 0.0  # share of the ledgers that have few numbers and colours
    palette: int = 3  # how many of each such a ledger has, at most
    strangers: float = 0.0  # share of the questions that are about nobody in the ledger
    gaps: float = 0.0  # share of the texts of which some words are out of sight after a while
    few: float = 0.0  # share of the ledgers that have only 1 or 2 people


class Course(NamedTuple):
    """Stages that share one optimiser and one course of the learning rate."""

    stages: tuple[Stage, ...]
    peak: float  # of the learning rate

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)


EVERY_WORD = len(ledger.vocabulary()) - 2  # all but the two special ones
LOOK_UP = Course(
    peak=2e-3,
    stages=(
        Stage(
            steps=200,
            batch=64,
            length=64,
            people=2,
            repeats=1.0,
            first_position=0,
            smallest_alphabet=EVERY_WORD,
        ),
        Stage(steps=400, batch=64, length=64, people=2, repeats=1.0, first_position=448),
        Stage(steps=800, batch=64, length=64, people=4, repeats=0.4, first_position=448),
        Stage(steps=600, batch=64, length=96, people=7, repeats=0.3, first_position=416),
        Stage(steps=1400, batch=48, length=160, people=16, repeats=0.2, first_position=352),
        Stage(steps=800, batch=24, length=320, people=18, repeats=0.1, first_position=192),
        Stage(steps=300, batch=16, length=512, people=18, repeats=0.1, first_position=0),
    ),
)
WHOSE = Course(
    peak=1.5e-3,
    stages=(
        Stage(steps=500, batch=96, length=40, people=2, repeats=0.1, first_position=0, alike=0.75, palette=1),
        Stage(
            steps=200, batch=96, length=40, people=2, repeats=0.1, first_position=64, alike=0.75, palette=1
        ),
        Stage(
            steps=700, batch=72, length=56, people=4, repeats=0.1, first_position=448, alike=0.75, palette=1
        ),
        Stage(
            steps=700, batch=48, length=96, people=8, repeats=0.1, first_position=416, alike=0.75, palette=2
        ),
        Stage(steps=900, batch=32, length=160, people=14, repeats=0.1, first_position=352, alike=0.7),
        Stage(steps=600, batch=18, length=320, people=18, repeats=0.1, first_position=192, alike=0.6),
        Stage(steps=300, batch=10, length=512, people=18, repeats=0.1, first_position=0, alike=0.5),
    ),
)
BROKEN = Course(
    peak=1e-3,
    stages=(
        Stage(
            steps=700,
            batch=32,
            length=160,
            people=14,
            repeats=0.1,
            first_position=352,
            alike=0.6,
            strangers=0.2,
            gaps=0.4,
            few=0.25,
        ),
        Stage(
            steps=400,
            batch=18,
            length=320,
            people=18,
            repeats=0.1,
            first_position=192,
            alike=0.6,
            strangers=0.1,
            gaps=0.3,
            few=0.25,
        ),
    ),
)
COURSES = (LOOK_UP, WHOSE, BROKEN)
SMOKE = (
    Course(
        peak=2e-3,
        stages=(
            Stage(
                steps=4,
                batch=4,
                length=32,
                people=3,
                repeats=1.0,
                first_position=0,
                smallest_alphabet=EVERY_WORD,
            ),
            Stage(steps=4, batch=4, length=64, people=3, repeats=0.5, first_position=448),
        ),
    ),
    Course(
        peak=1e-3,
        stages=(
            Stage(
                steps=4,
                batch=4,
                length=64,
                people=3,
                repeats=0.5,
                first_position=448,
                alike=0.5,
                strangers=0.5,
                gaps=0.5,
                few=0.5,
            ),
        ),
    ),
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


def ledger_text(rng: random.Random, stage: Stage) -> list[tuple[str, float]]:
    """A ledger, then statements and questions about its people until the stage's length is full."""
    few = stage.few and rng.random() < stage.few
    facts = ledger.make_ledger(rng, rng.randint(1, 2) if few else rng.randint(2, stage.people))
    if stage.alike and rng.random() < stage.alike:
        facts = ledger.few_words(rng, facts, stage.palette)
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
    named = {fact.name for fact in facts}
    while len(text) < stage.length:
        unasked = unasked or rng.sample(facts, len(facts))
        fact = unasked.pop()
        if stage.strangers and rng.random() < stage.strangers:
            fact = fact._replace(name=rng.choice([name for name in ledger.NAMES if name not in named]))
        asked = ledger.question(fact, rng.choice(list(ledger.QUESTIONS)))
        for i, word in enumerate(asked):
            copied = len(asked) > 2 and i == len(asked) - 2  # the name again, after the question
            foreseen = word != fact.name and word != fact.thing and i > 0
            text.append((word, COPIED if copied else GRAMMAR if foreseen else UNFORESEEABLE))
        text.extend((word, ANSWER) for word in ledger.answer(fact))
        small_talk(0.3)
    return text[: stage.length]


def gaps(rng: random.Random, length: int) -> Tensor:
    """Which word sees which, [length, length]: itself and those before it, but for one to three gaps.

    A gap is 2 to 8 words that are seen at first, and no more by words further on, like a lost block.
    """
    sees = torch.ones(length, length, dtype=torch.bool).tril()
    for _ in range(rng.randint(1, 3)):
        start, width, wait = rng.randint(1, length - 1), rng.randint(2, 8), rng.randint(4, 40)
        sees[start + width + wait :, start : start + width] = False
    return sees


def batches(
    stage: Stage, seed: int, ids: dict[str, int]
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Yield (token ids, loss weights, positions, sees) for each step of a stage.

    The first three are [batch, length]. `sees` is [batch, 1, length, length], which word sees which; None
    if a stage has no gaps.
    """
    rng = random.Random(seed)
    words = [word for word in ids if word not in (ledger.END, ledger.UNKNOWN)]
    for _ in range(stage.steps):
        texts = [
            repeats(rng, words, stage.smallest_alphabet, stage.length)
            if rng.random() < stage.repeats
            else ledger_text(rng, stage)
            for _ in range(stage.batch)
        ]
        starts = torch.tensor([rng.randint(0, stage.first_position) for _ in texts])
        yield (
            torch.tensor([[ids[word] for word, _ in text] for text in texts]),
            torch.tensor([[weight for _, weight in text] for text in texts]),
            starts[:, None] + torch.arange(stage.length),
            _sees(rng, stage) if stage.gaps else None,
        )


def _sees(rng: random.Random, stage: Stage) -> Tensor:
    whole = torch.ones(stage.length, stage.length, dtype=torch.bool).tril()
    drawn = [gaps(rng, stage.length) if rng.random() < stage.gaps else whole for _ in range(stage.batch)]
    return torch.stack(drawn)[:, None]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 100 steps, then a cosine down to a twentieth of the peak."""
    warm = min(1.0, (step + 1) / 100)
    return peak * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def new_model() -> GPT2LMHeadModel:
    """The architecture, with weights from torch's random numbers."""
    end = ledger.vocabulary().index(ledger.END)
    config = GPT2Config(
        vocab_size=len(ledger.vocabulary()),
        n_positions=CONTEXT,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=end,
        eos_token_id=end,
    )
    return GPT2LMHeadModel(config)


def train(courses: tuple[Course, ...] = COURSES, seed: int = 0, progress: bool = True) -> GPT2LMHeadModel:
    """Train from nothing; the same seed and torch version give the same weights."""
    torch.manual_seed(seed)
    model = new_model()
    with tqdm(total=sum(course.steps for course in courses), disable=not progress, unit="step") as bar:
        for number, course in enumerate(courses):
            teach(model, course, seed + 100_000 * number, bar)
    return model.eval()


def teach(model: GPT2LMHeadModel, course: Course, seed: int, bar: tqdm) -> None:
    """One course, in place, with an optimiser of its own."""
    ids = {word: i for i, word in enumerate(ledger.vocabulary())}
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    step = 0
    for number, stage in enumerate(course.stages):
        for tokens, weights, positions, sees in batches(stage, seed + 1000 * number, ids):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, course.steps, course.peak)
            logits = model(
                input_ids=tokens, position_ids=positions, attention_mask=sees, use_cache=False
            ).logits
            losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
            wanted = weights[:, 1:].flatten()
            loss = (losses * wanted).sum() / wanted.sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 20 == 0:
                answered = wanted >= ANSWER if stage.repeats < 1 else wanted > 0
                hit = (logits[:, :-1].flatten(0, 1).argmax(-1) == tokens[:, 1:].flatten())[answered]
                bar.set_postfix(
                    stage=number + 1, loss=f"{loss.item():.3f}", answers=f"{hit.float().mean():.3f}"
                )
            step += 1
            bar.update()


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
    model = train(SMOKE if arguments.smoke else COURSES, seed=arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    save(model, arguments.out)
    print(f"wrote {model.num_parameters():,} parameters to {arguments.out}")


if __name__ == "__main__":
    main()
