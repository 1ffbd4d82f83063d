"""Say first what will happen, then look: predictions, marked cell by cell.

    guess = predict(block_table="B's block table afterwards", free_blocks="free blocks left")
    guess                                   # shows a box for each
    ...                                     # run the step
    guess.mark(block_table=table.block_ids, free_blocks=manager.num_free_blocks)

A box left empty is no mistake: the answer is shown and the notebook runs on. A number may be typed as
3, 3., 3rd, #3, P3, 3x or three, a large one as 262,144, and where numbers were asked for, other words beside
them do no harm. Quotes are left away; no is False, yes is True; [] and none are empty, or 0 where a number
was asked for; "only B" is B; 3 and 3rd are "third"; behind yes, no, third or more the answer may go on; and a
question such as "Bo has …", "reader broken: Bo has …" or "Bo has …, when it is broken" may be answered by the
whole sentence. I5 is 5; 25 %, ~25 and 25kb are 25; 1x96 is two numbers. A number that one can only estimate
is marked with `within`, and is near if it differs by no more:

    guess.mark(share=25, within={"share": 10})

An answer with fewer cells than the truth is laid beside it where most of them fit. If the truth is a set, the
order of an answer does not matter; if it is a Fraction, 1/6, 1 : 6 and (with `within`) 0.17 are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AnySet
from difflib import SequenceMatcher
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Any

import anywidget
import traitlets

Cell = int | float | str
Value = Cell | Fraction | Sequence[Cell] | AnySet[Cell]

_STATIC = Path(__file__).parent / "static"
_SEPARATORS = re.compile(r"(?:[\s,;\[\](){}→›>]|->)+")
_WORD_WITH_STOP = re.compile(r"\b([^\W\d]+)\.(?=\s|$)")  # as in "gold cups."
_ABOUT = re.compile(r"(?<!\w)[~≈<≤]+\s*(?=\d)")
_FRACTION = re.compile(r"(\d+)\s*[/:÷]\s*(\d+)")
_TIMES = re.compile(r"(?<=\d)\s*[x×*]\s*(?=\d)")
_NUMBER = re.compile(r"[#p]?([+-]?\d+)(?:st|nd|rd|th|%|[kmg]i?b|ms|[x×])?\.?", re.IGNORECASE)
_DECIMAL = re.compile(r"([+-]?\d+\.\d+)(?:%|[kmg]i?b|ms|[x×])?", re.IGNORECASE)
_INVARIANT = re.compile(r"i([1-6])", re.IGNORECASE)
_QUOTES = re.compile(r"(?<!\w)['‘]|['’](?!\w)|[\"`“”]")  # an apostrophe within a word is none
_THOUSANDS = re.compile(r"(?<![\w,.])\d{1,3}(?:[,_'’]\d{3})+(?![\w,])")
_EMPTY = "empty"
_SAME_WORDS = ({"no", "n", "false", "wrong"}, {"yes", "y", "true"}, {_EMPTY, "none", "nothing"})
_FILLERS = {"only", "just", "an", "the"}  # not "a": that is a request's name
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()


_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
#: Behind one of these, more may be said: "no, it waits", "third request", "more than 16".
_OPENERS = {
    "yes",
    "no",
    "true",
    "false",
    *_ORDINALS,
    *"more less fewer longer shorter larger smaller higher lower".split(),
}
_VERBS = {"rise", "fall", "stay", "grow", "shrink", "wait", "end", "run"}


class PredictionBoxes(anywidget.AnyWidget):
    """A text box for each question; all views show the same answers.

    Args:
        questions: a name for each thing to predict, and how to ask for it.
    """

    # Plain strings: a path would keep every instance alive to watch the file.
    _esm = (_STATIC / "predict.js").read_text(encoding="utf-8")
    _css = "".join((_STATIC / name).read_text(encoding="utf-8") for name in ("palette.css", "predict.css"))

    _questions = traitlets.Dict(help="Name → question, in order.").tag(sync=True)
    _answers = traitlets.Dict(traitlets.Unicode(), help="Name → what was typed.").tag(sync=True)

    def __init__(self, questions: dict[str, str]) -> None:
        super().__init__(_questions=questions, _answers=dict.fromkeys(questions, ""))

    @property
    def answers(self) -> dict[str, str]:
        """What stands in each box."""
        return {name: self._answers.get(name, "") for name in self._questions}

    def fill(self, answers: dict[str, str]) -> None:
        """Write into boxes."""
        self._answers = {**self._answers, **answers}

    def __repr__(self) -> str:
        return f"PredictionBoxes({self.answers})"


class Prediction:
    """Some questions and what the reader said to each.

    Args:
        questions: a name for each thing to predict, and how to ask for it.
    """

    def __init__(self, **questions: str) -> None:
        if "within" in questions:
            raise ValueError("no question can be called 'within': mark(within=…) says what is near")
        if not questions:
            raise ValueError(
                "a prediction needs at least one question, such as free_blocks='free blocks left'"
            )
        self.questions = questions
        self._boxes = PredictionBoxes(questions)

    def answer(self, **answers: Value) -> Prediction:
        """Fill boxes in from code. Raises ValueError for a name that was not asked."""
        self._check_names(answers)
        self._boxes.fill({name: _text(value) for name, value in answers.items()})
        return self

    @property
    def answers(self) -> dict[str, list[str]]:
        """The cells of each answer; empty lists where nothing was said."""
        return {name: _cells(text.lower()) for name, text in self._boxes.answers.items()}

    def mark(self, *, within: Mapping[str, float] | None = None, **truth: Value) -> Marks:
        """Compare with what really happened.

        Args:
            within: of some names, by how much a number may differ and still be near, at least 0.

        Raises:
            ValueError: a name that was not asked, or a negative number in `within`.
        """
        near = dict(within or {})
        self._check_names({**truth, **near})
        if wrong := [name for name, limit in near.items() if limit < 0]:
            raise ValueError(f"within={{{wrong[0]!r}: {near[wrong[0]]}}}: a number differs by at least 0")
        cells = {name: _cells(_text(value)) or [_EMPTY] for name, value in truth.items()}
        said = {
            name: _said(self.questions[name], self._boxes.answers[name], true) for name, true in cells.items()
        }
        for name, value in truth.items():
            if isinstance(value, AnySet):
                said[name] = _in_any_order(said[name], cells[name])
        return Marks(
            [(self.questions[name], _in_terms_of(true, said[name]), true) for name, true in cells.items()],
            [near.get(name, 0) for name in cells],
        )

    def _check_names(self, names: Mapping[str, object]) -> None:
        for name in names:
            if name not in self.questions:
                raise ValueError(f"{name!r} was not asked; asked were {', '.join(self.questions)}")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = self._boxes._repr_mimebundle_(**kwargs)
        data, metadata = bundle or ({}, {})
        data = {**data, "text/plain": repr(self)}
        return (data, metadata) if metadata else data  # Colab gets metadata, to find its widget manager

    def __repr__(self) -> str:
        return "Predict first:\n" + "\n".join(f"  - {question}: ?" for question in self.questions.values())


class Marks:
    """A marked prediction: what was said, what is, and ✓ or ✗ below each cell.

    Attributes:
        rows: (question, cells said, true cells) of each thing that was predicted.
        within: for each row, by how much a number may differ and still be near.
    """

    def __init__(self, rows: list[tuple[str, list[str], list[str]]], within: Sequence[float] = ()) -> None:
        self.rows = rows
        self.within = list(within) or [0.0] * len(rows)

    @property
    def right(self) -> int:
        """Answers that are right, or near, in every cell."""
        return sum(
            len(said) == len(true) and all(_mark(a, b, near) != "✗" for a, b in zip(said, true, strict=True))
            for (_, said, true), near in zip(self.rows, self.within, strict=True)
        )

    def __repr__(self) -> str:
        rows = zip(self.rows, self.within, strict=True)
        return "\n".join(line for row, near in rows for line in _row(*row, near))


#: By question, what was asked last: a cell that is run again must not lose what was typed below it.
_asked: dict[tuple[tuple[str, str], ...], Prediction] = {}


def predict(**questions: str) -> Prediction:
    """Ask the reader to commit to something before it happens; see `Prediction`.

    Asked again in these very words, as when a cell is run twice, the boxes hold what was said before.
    """
    asked = Prediction(**questions)
    before = _asked.get(tuple(questions.items()))
    if before is not None:
        asked._boxes.fill(before._boxes.answers)
    _asked[tuple(questions.items())] = asked
    return asked


def _row(question: str, said: list[str], true: list[str], within: float) -> list[str]:
    if not said:
        return [f"{question}: {' '.join(true)}"]
    count = max(len(said), len(true))
    said, true = (cells + ["–"] * (count - len(cells)) for cells in (said, true))
    widths = [max(len(a), len(b)) for a, b in zip(said, true, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    marks = [_mark(a, b, within) for a, b in zip(said, true, strict=True)]
    return [question, f"  you said  {line(said)}", f"  it is     {line(true)}", f"            {line(marks)}"]


def _mark(said: str, true: str, within: float) -> str:
    """✓ if it is right, ✓ near if it is a number that differs by at most `within`, else ✗."""
    if said == true:
        return "✓"
    number, right = _value(said.removesuffix("%")), _value(true)
    if number is None or right is None:
        return "✗"
    if "/" in true and number == right:
        return "✓"
    return "✓ near" if within and abs(number - right) <= within else "✗"


def _value(cell: str) -> Fraction | None:
    """The number that a cell is, as a fraction; None for other words."""
    try:
        return Fraction(cell)
    except (ValueError, ZeroDivisionError):
        return None


def _said(question: str, text: str, true: list[str]) -> list[str]:
    """The cells of an answer; what the question begins with, such as "Bo has …", may be said again."""
    if any(len(number) > 3 for number in filter(None, map(_number, true))):
        text = _THOUSANDS.sub(lambda hit: re.sub(r"\D", "", hit[0]), text)
    if is_fraction := len(true) == 1 and "/" in true[0]:
        text = _FRACTION.sub(r"\1/\2", text)
    cells = _cells(text)
    if is_fraction:
        return [cell for cell in cells if _value(cell) is not None] or cells
    if text.strip() and not cells:  # as in []
        return [_EMPTY]
    start = _cells(question.partition("…")[0].rpartition(":")[2]) if "…" in question else []
    if start and [cell.lower() for cell in cells[: len(start)]] == [cell.lower() for cell in start]:
        return cells[len(start) :]
    if len(cells) > len(true) == 1 and true[0].lower() in _OPENERS and _means(cells[0]) == _means(true[0]):
        return cells[:1]
    if len(cells) > len(true):
        return [cell for cell in cells if cell.lower() not in _FILLERS]
    return cells


def _cells(text: str) -> list[str]:
    """Split at commas, spaces, brackets and arrows; quotes go, and a number loses what is around it."""
    text = _QUOTES.sub("", text)
    text = _TIMES.sub(" ", _ABOUT.sub("", text.replace("−", "-").replace("!", "")))
    plain = _WORD_WITH_STOP.sub(r"\1 .", text)
    return [_bare(cell) for cell in _SEPARATORS.split(plain) if cell]


def _bare(cell: str) -> str:
    """A number without what is around it; other words as they are."""
    if hit := _NUMBER.fullmatch(cell):
        return str(int(hit[1]))
    return hit[1] if (hit := _DECIMAL.fullmatch(cell)) else cell


def _in_terms_of(true: list[str], said: list[str]) -> list[str]:
    """What was said, in the form the truth has: numbers only, figures or words, capitals, a full stop."""
    if all(map(_number, true)):
        numbers = [number for cell in said if (number := _number(cell) or _of_invariant(cell))]
        if not numbers and true == ["0"] and len(said) == 1 and _means(said[0]) == _EMPTY:
            numbers = ["0"]
        if numbers:
            return numbers
    if said and len(said) == len(true) - 1 and true[-1] == "." != said[-1]:
        said = [*said, "."]
    elif len(said) == len(true) + 1 and said[-1] == ".":
        said = said[:-1]
    if 0 < len(said) < len(true):
        said = _beside(said, true)
    pairs = zip_longest(said, true[: len(said)], fillvalue="")
    return [b if _means(a) == _means(b) or _is_form_of(b, a) else a for a, b in pairs]


def _is_form_of(verb: str, said: str) -> bool:
    """Such as rises for rise."""
    return verb.lower() in _VERBS and said.lower() == f"{verb.lower()}s"


def _in_any_order(said: list[str], true: list[str]) -> list[str]:
    """What was said, in the order of the truth; what is not true fills the gaps, and stands behind."""
    rest = [cell for cell in said if cell.lower() != "and"]
    if not rest:
        return said
    found = []
    for cell in true:
        hit = next((each for each in rest if _means(each) == _means(cell)), None)
        if hit is not None:
            rest.remove(hit)
        found.append(hit)
    return [hit or (rest.pop(0) if rest else "–") for hit in found] + rest


def _beside(said: list[str], true: list[str]) -> list[str]:
    """What was said, with a gap wherever the truth has a cell more."""
    matcher = SequenceMatcher(None, [_means(cell) for cell in said], [_means(cell) for cell in true], False)
    found: list[str] = []
    for _, start, stop, true_start, true_stop in matcher.get_opcodes():
        found += said[start:stop] + ["–"] * (true_stop - true_start - (stop - start))
    return found if len(found) == len(true) else said


def _means(cell: str) -> str:
    """What a cell says, whichever of several ways it is said in."""
    word = _number(cell) or _of_invariant(cell) or cell.lower()
    if word in _ORDINALS:
        return str(_ORDINALS.index(word) + 1)
    return next((min(words) for words in _SAME_WORDS if word in words), word)


def _of_invariant(cell: str) -> str | None:
    """5 for I5; None for other words."""
    return hit[1] if (hit := _INVARIANT.fullmatch(cell)) else None


def _number(cell: str) -> str | None:
    """The figures for "three" or "3"; None for other words."""
    if cell.lower() in _NUMBER_WORDS:
        return str(_NUMBER_WORDS.index(cell.lower()))
    return cell if re.fullmatch(r"-?\d+(\.\d+)?", cell) else None


def _text(value: Value) -> str:
    if isinstance(value, AnySet):
        value = sorted(value, key=str)
    return (
        " ".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )
