"""What came out, as a table and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from minikv.sim.averages import Sample
from minikv.sim.split import Split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | int | float | None


class Table:
    """Rows under a heading, and below them what was assumed.

    It prints itself: aligned columns in a terminal, a Markdown table in a notebook.

    Args:
        title: what it shows.
        head: names of the columns.
        rows: as long as the head each; None is a cell without a value. Numbers are rounded when printed only.
        assumptions: what one must know to believe it.

    Raises:
        ValueError: a row with more or fewer cells than the head.
    """

    def __init__(
        self,
        title: str,
        head: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        assumptions: Sequence[str] = (),
    ) -> None:
        self.title, self.head, self.rows = title, tuple(head), [tuple(row) for row in rows]
        self.assumptions = tuple(dict.fromkeys(assumptions))  # each once
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"the row {row} has {len(row)} cells, the head has {len(self.head)}")

    def column(self, name: str) -> list[Cell]:
        """The values under one heading, unrounded. ValueError: there is no such heading."""
        if name not in self.head:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(self.head)}")
        return [row[self.head.index(name)] for row in self.rows]

    def __repr__(self) -> str:
        texts = self._texts()
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        rule = tuple("-" * width for width in widths)
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in (self.head, rule, *texts[1:])]
        notes = [textwrap.fill(f"- {note}", 110, subsequent_indent="  ") for note in self.assumptions]
        return "\n".join([self.title, "", *lines, *(["", "Assumed:", *notes] if notes else [])])

    def _repr_markdown_(self) -> str:
        head, *rows = self._texts()
        rule = ("---", *["---:"] * (len(head) - 1))
        lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]
        notes = [f"- {note}" for note in self.assumptions]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", "Assumed:", "", *notes] if notes else [])])

    def _texts(self) -> list[tuple[str, ...]]:
        """The head and the rows as printed. The numbers of a column have the same number of digits."""
        digits = [_digits([row[i] for row in self.rows]) for i in range(len(self.head))]
        rows = [tuple(cell_text(cell, n) for cell, n in zip(row, digits, strict=True)) for row in self.rows]
        return [self.head, *rows]


def cell_text(value: Cell, digits: int) -> str:
    """A cell as printed: whole numbers with separators, others with so many digits behind the point."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.{digits}f}" if isinstance(value, float) else f"{value:,}"


def _digits(column: Sequence[Cell]) -> int:
    """Digits behind the point, as many as one reads: none from 1,000 on, one from 10 on, else two."""
    largest = max((abs(cell) for cell in column if isinstance(cell, float)), default=0.0)
    return 0 if largest >= 1000 else 1 if largest >= 10 else 2


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names to the left, numbers to the right."""
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]


class SimResult(NamedTuple):
    """One simulation. Averages are over the time in which at least one request ran."""

    policy: str
    num_slots: int
    finished: int  # requests
    too_large: int  # requests that no memory of this size could have served
    preemptions: int
    output_tokens: int
    tokens_recomputed: int  # KV of so many tokens was thrown away by preemption, and computed again
    tokens_copied: int  # KV of so many tokens was moved, for its request had no room to grow
    seconds: float  # simulated, from the first arrival to the last end
    busy_seconds: float  # of these, with a request running
    steps: int
    mean_latency: float  # seconds from arrival to the last token
    mean_batch: float  # requests running together
    peak_batch: int
    peak_tokens: float  # slots that hold a token
    mean: Split  # slots
    samples: list[Sample]
    assumptions: tuple[str, ...]

    @property
    def table(self) -> Table:
        """All of it but the samples."""
        values: dict[str, Cell] = {
            name.replace("mean_latency", "mean latency, s").replace("_", " "): value
            for name, value in self._asdict().items()
            if name not in ("policy", "mean", "samples", "assumptions")
        }
        values |= {f"{state}, % of slots": share for state, share in self.mean.percent._asdict().items()}
        rows = [(name, cell_text(value, _digits([value]))) for name, value in values.items()]
        return Table(self.policy, ("", "value"), rows, self.assumptions)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_markdown_(self) -> str:
        return self.table._repr_markdown_()

    def plot(self) -> Figure:
        """Memory over time if there are samples (`sample_every`), else its average, as a bar."""
        from minikv.sim import plots

        if self.samples:
            return plots.over_time(self.policy, self.samples)
        return plots.bars({self.policy: self.mean.percent._asdict()})


class Comparison(Table):
    """Some simulations side by side.

    Args:
        results: one a row.
        notes: what else was assumed, above all of the lengths of the requests.
    """

    def __init__(self, results: Sequence[SimResult], notes: Sequence[str] = ()) -> None:
        self.results = tuple(results)
        rows = [
            (result.policy, *result.mean.percent, result.mean_batch, result.preemptions, result.tokens_copied)
            for result in results
        ]
        head = ("policy", *Split._fields, "mean batch", "preempted", "tokens copied")
        step_times = [note for result in results for note in result.assumptions]
        super().__init__("KV memory, % of all slots", head, rows, [*notes, *step_times])

    def plot(self) -> Figure:
        """A stacked bar for each."""
        from minikv.sim import plots

        return plots.bars({result.policy: result.mean.percent._asdict() for result in self.results})


class Finding(NamedTuple):
    """One published figure, and what came out here."""

    what: str
    published: float
    ours: float


class Reproduction(Table):
    """Published, ours and the difference.

    Args:
        unit: of both figures. In "%" the difference is in points, else in % of what was published.
        notes: what was assumed, and what it cannot show.
    """

    def __init__(self, title: str, unit: str, findings: Sequence[Finding], notes: Sequence[str]) -> None:
        self.findings, self.unit = tuple(findings), unit
        rows = [
            (f.what, float(f.published), f.ours, f"{round(self.difference(f), 1) + 0.0:+.1f} {self._of}")
            for f in findings  # + 0.0: no "-0.0"
        ]
        super().__init__(title, ("", f"published, {unit}", f"ours, {unit}", "difference"), rows, notes)

    @property
    def _of(self) -> str:
        return "points" if self.unit == "%" else "%"

    def difference(self, finding: Finding) -> float:
        """Ours less the published: in points for percentages, else in % of the published."""
        less = finding.ours - finding.published
        return less if self.unit == "%" else 100 * less / finding.published

    def plot(self) -> Figure:
        """Two bars for each figure."""
        from minikv.sim import plots

        columns = zip(*self.findings, strict=True)
        labels, published, ours = (list(column) for column in columns)
        return plots.pairs(labels, published, ours, self.unit)


class SplitReproduction(Reproduction):
    """Published splits of memory, and ours. The picture has stacked bars.

    Args:
        ours: % of all slots, by system and by state.
        published: the same, as far as it is known.
    """

    def __init__(
        self,
        title: str,
        ours: Mapping[str, Mapping[str, float]],
        published: Mapping[str, Mapping[str, float]],
        notes: Sequence[str],
    ) -> None:
        self.ours, self.published = ours, published
        findings = [
            Finding(f"{system}: {state}", value, ours[system][state])
            for system, split in published.items()
            for state, value in split.items()
        ]
        super().__init__(title, "%", findings, notes)

    def plot(self) -> Figure:
        """A stacked bar for each system, the published one under ours."""
        from minikv.sim import plots

        splits = {}
        for system, split in self.ours.items():
            splits[f"{system}, ours"] = split
            splits[f"{system}, published"] = self.published[system]
        return plots.bars(splits)
