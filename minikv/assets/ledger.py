"""The little language the tiny GPT-2 speaks: ledgers of facts, statements and questions.

A *ledger* is a list of facts about people, one each: "Ada has three red kites ."
After it come statements and questions about the same people. Every answer is a
fact of the ledger, so the only way to answer is to look back, and what a model
looks back at is its KV cache.

    Ada has three red kites . Bo has two gold cups . What does Bo have ? Bo has two gold cups .

Everything is drawn from a `random.Random`, so a seed fixes the text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

NAMES = tuple(
    """Ada Alan Amir Anna Arun Bela Ben Bo Carl Chen Clara Dana Dev Ebo Edda Eli Emma Eva Femi Finn
    Gita Grace Hana Hugo Ida Igor Ines Ivan Jan Jin Jonas Jude Kai Karl Kemi Kim Lars Lea Leo Lin
    Lola Luca Mara Max Mei Mila Milo Mona Nadia Nico Nils Nina Noor Olga Omar Oscar Otto Pablo Paul Pia
    Qi Rana Raul Rita Rosa Rui Ruth Sara Sami Sofia Sven Tara Theo Tom Uma Una Vera Victor Wanda Wei
    Xena Yara Yuki Yusuf Zara Zoe""".split()
)
NUMBERS = tuple("two three four five six seven eight nine ten eleven twelve twenty".split())
COLOURS = tuple("red blue green gold silver white black brown pink purple orange yellow grey".split())
THINGS = tuple(
    """apples bags balls bells birds boats books boots bowls boxes candles chairs clocks coins combs cups
    dolls drums eggs fans flags flutes forks hats horses jars keys kites knives lamps leaves maps masks
    pears pens plates ropes rings rugs scarves shells shoes spoons stamps stones tents tiles toys trees
    vases""".split()
)
FILLERS = tuple(
    sentence.split()
    for sentence in (
        "The sun is out .",
        "It is late .",
        "Rain fell all night .",
        "The shop opens at noon .",
        "A bell rang twice .",
        "Tea is ready .",
        "The road is long .",
        "Snow lies on the hill .",
        "The train was on time .",
        "Nobody was at home .",
        "The river is high today .",
        "We sat by the window today .",
    )
)
END = "<|endoftext|>"
UNKNOWN = "<unk>"


class Fact(NamedTuple):
    """One line of a ledger: `name` has `number` `colour` `thing`."""

    name: str
    number: str
    colour: str
    thing: str

    @property
    def words(self) -> list[str]:
        """The six words of the statement, the full stop included."""
        return [self.name, "has", self.number, self.colour, self.thing, "."]

    @property
    def text(self) -> str:
        return " ".join(self.words)


#: Ways to ask for a fact. Each is followed by the fact itself, as a statement.
QUESTIONS = {
    "statement": (),
    "what": ("What", "does", "{name}", "have", "?"),
    "how many": ("How", "many", "{thing}", "does", "{name}", "have", "?"),
    "tell": ("Tell", "me", "what", "{name}", "has", "."),
    "do you know": ("Do", "you", "know", "what", "{name}", "has", "?"),
}


def vocabulary() -> list[str]:
    """Every word the model knows, in the order of its token id."""
    words = [END, UNKNOWN, ".", "?", "has"]
    words += [word for form in QUESTIONS.values() for word in form if not word.startswith("{")]
    words += [*NAMES, *NUMBERS, *COLOURS, *THINGS]
    words += [word for sentence in FILLERS for word in sentence]
    return list(dict.fromkeys(words))


def make_ledger(rng: random.Random, people: int) -> list[Fact]:
    """One fact each about `people` different people, in random order."""
    if not 1 <= people <= len(NAMES):
        raise ValueError(f"people is {people}; a ledger has 1 to {len(NAMES)} of them")
    names = rng.sample(NAMES, people)
    return [Fact(n, rng.choice(NUMBERS), rng.choice(COLOURS), rng.choice(THINGS)) for n in names]


def few_words(rng: random.Random, facts: Sequence[Fact], palette: int) -> list[Fact]:
    """The same people and things, with 1 to `palette` different numbers in all, and as many colours.

    Nothing but the name tells such facts apart: "Ada has two red kites . Bo has two red cups ."
    """
    numbers = rng.sample(NUMBERS, rng.randint(1, palette))
    colours = rng.sample(COLOURS, rng.randint(1, palette))
    return [fact._replace(number=rng.choice(numbers), colour=rng.choice(colours)) for fact in facts]


def question(fact: Fact, form: str = "what") -> list[str]:
    """The words that ask for `fact`, up to and including "<name> has": what follows is the answer."""
    asked = [word.format(**fact._asdict()) for word in QUESTIONS[form]]
    return [*asked, fact.name, "has"]


def answer(fact: Fact) -> list[str]:
    """The words a model must say after `question`."""
    return fact.words[2:]


def filler(rng: random.Random, tokens: int) -> list[str]:
    """Whole sentences of small talk, exactly `tokens` words of them; 1 to 3 words cannot be made."""
    shortest = min(map(len, FILLERS))
    words: list[str] = []
    while left := tokens - len(words):
        fitting = [s for s in FILLERS if len(s) == left or len(s) + shortest <= left]
        if not fitting:
            raise ValueError(f"no small talk is {tokens} words long; ask for 0 or at least {shortest}")
        words += rng.choice(fitting)
    return words


def is_statement(words: Sequence[str]) -> bool:
    """True if `words` is one well-formed sentence of the language: a fact, a question or small talk."""
    words = list(words)
    if words in FILLERS:
        return True
    if len(words) == 6 and (words[1], words[5]) == ("has", "."):
        return words[0] in NAMES and words[2] in NUMBERS and words[3] in COLOURS and words[4] in THINGS
    kinds = {"{name}": NAMES, "{thing}": THINGS}
    return any(
        len(form) == len(words) > 0
        and all(word in kinds.get(slot, (slot,)) for slot, word in zip(form, words, strict=True))
        for form in QUESTIONS.values()
    )


def sentences(words: Sequence[str]) -> Iterator[list[str]]:
    """Split a text at ".", "?" and the end-of-text word; an unfinished last sentence is left out."""
    sentence: list[str] = []
    for word in words:
        if word == END:
            sentence = []
            continue
        sentence.append(word)
        if word in (".", "?"):
            yield sentence
            sentence = []
