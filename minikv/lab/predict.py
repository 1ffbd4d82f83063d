"""Say first what will happen, then look: predictions, marked cell by cell.

    guess = predict(block_table="B's block table afterwards", free_blocks="free blocks left")
    guess                                   # shows a box for each
    ...                                     # run the step
    guess.mark(block_table=table.block_ids, free_blocks=manager.num_free_blocks)

A box left empty is no mistake: the answer is shown and the notebook runs on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ipywidgets

Cell = int | float | str
Value = Cell | Sequence[Cell]


class Prediction:
    """Some questions and what the reader said to each.

    Args:
        questions: a name for each thing to predict, and how to ask for it.
    """

    def __init__(self, **questions: str) -> None:
        if not questions:
            raise ValueError(
                "a prediction needs at least one question, such as free_blocks='free blocks left'"
            )
        self.questions = questions
        self._boxes = {name: ipywidgets.Text(placeholder="your prediction") for name in questions}

    def answer(self, **answers: Value) -> Prediction:
        """Fill boxes in from code. Raises ValueError for a name that was not asked."""
        self._check_names(answers)
        for name, value in answers.items():
            self._boxes[name].value = _text(value)
        return self

    @property
    def answers(self) -> dict[str, list[str]]:
        """The cells of each answer; empty lists where nothing was said."""
        return {name: _cells(box.value) for name, box in self._boxes.items()}

    def mark(self, **truth: Value) -> Marks:
        """Compare with what really happened. Raises ValueError for a name that was not asked."""
        self._check_names(truth)
        return Marks(
            [
                (self.questions[name], self.answers[name], _cells(_text(value)))
                for name, value in truth.items()
            ]
        )

    def _check_names(self, names: dict[str, Value]) -> None:
        for name in names:
            if name not in self.questions:
                raise ValueError(f"{name!r} was not asked; asked were {', '.join(self.questions)}")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        rows = [
            ipywidgets.HBox(
                [
                    ipywidgets.Label(question, layout={"width": "max-content", "min_width": "20em"}),
                    self._boxes[name],
                ]
            )
            for name, question in self.questions.items()
        ]
        data = ipywidgets.VBox(rows)._repr_mimebundle_(**kwargs) or {}
        return {**data, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return "Predict first:\n" + "\n".join(f"  - {question}: ?" for question in self.questions.values())


class Marks:
    """A marked prediction: what was said, what is, and ✓ or ✗ below each cell.

    Attributes:
        rows: (question, cells said, true cells) of each thing that was predicted.
    """

    def __init__(self, rows: list[tuple[str, list[str], list[str]]]) -> None:
        self.rows = rows

    @property
    def right(self) -> int:
        """Answers that are right in every cell."""
        return sum(said == true for _, said, true in self.rows)

    def __repr__(self) -> str:
        return "\n".join(line for row in self.rows for line in _row(*row))


def predict(**questions: str) -> Prediction:
    """Ask the reader to commit to something before it happens; see `Prediction`."""
    return Prediction(**questions)


def _row(question: str, said: list[str], true: list[str]) -> list[str]:
    if not said:
        return [f"{question}: {' '.join(true)}"]
    count = max(len(said), len(true))
    said, true = (cells + ["–"] * (count - len(cells)) for cells in (said, true))
    widths = [max(len(a), len(b)) for a, b in zip(said, true, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    marks = ["✓" if a == b else "✗" for a, b in zip(said, true, strict=True)]
    return [question, f"  you said  {line(said)}", f"  it is     {line(true)}", f"            {line(marks)}"]


def _cells(text: str) -> list[str]:
    """Split at commas, spaces and brackets; numbers lose signs of formatting, words their capitals."""
    cells = re.split(r"[\s,;\[\](){}]+", text.strip())
    return [str(int(cell)) if re.fullmatch(r"[+-]?\d+", cell) else cell.lower() for cell in cells if cell]


def _text(value: Value) -> str:
    return (
        value
        if isinstance(value, str)
        else " ".join(map(str, value))
        if isinstance(value, Sequence)
        else str(value)
    )
