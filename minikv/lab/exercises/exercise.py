"""What an exercise is: a question, a judge, three hints, a solution, and wrong answers it must reject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import fill
from typing import Any

WIDTH = 96  # letters in a line


def folded(text: str, indent: str = "") -> str:
    """Lines that a notebook shows whole: longer ones it breaks in the middle of a word."""
    return "\n".join(
        fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


@dataclass(frozen=True)
class Verdict:
    """What `check` says. `ok` is True only for a right answer; an untouched starter is not one."""

    ok: bool
    message: str
    invariant: str | None = None  # "I1" … "I6", if the answer breaks one

    def __repr__(self) -> str:
        broken = f" [breaks {self.invariant}]" if self.invariant else ""
        return folded(f"{'✓' if self.ok else '✗'} {self.message}{broken}", indent="  ")


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes:
        question: in plain words, with all its numbers.
        judge: the learner's answer -> Verdict; never called with an untouched starter.
        hints: three, each saying more than the one before.
        solution: text or code that `solution` shows.
        right: an answer that must be accepted.
        wrong: answers that must be rejected, each with the mistake it makes.
    """

    question: str
    judge: Callable[[Any], Verdict]
    hints: tuple[str, str, str]
    solution: str
    right: Any
    wrong: tuple[tuple[str, Any], ...]


def number(value: float, why: str, slips: dict[Any, str]) -> Callable[[Any], Verdict]:
    """A judge for a number. `slips` says of a wrong number what probably led to it."""

    def judge(answer: Any) -> Verdict:
        if isinstance(answer, bool) or not isinstance(answer, int | float):
            return Verdict(False, f"the answer is a number, not {answer!r}")
        if answer == value:
            return Verdict(True, why)
        return Verdict(False, slips.get(answer, f"{answer} is not right; hint(…) helps"))

    return judge
