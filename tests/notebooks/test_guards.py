"""Every notebook keeps to the rules, and each rule finds the fault that it is there for."""

from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import rules
from tests.notebooks.samples import sample

NOTEBOOKS = rules.notebook_paths()
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=rules.name)


def test_there_are_notebooks() -> None:
    """Without this, a wrong folder would make all the tests below pass by running none of them."""
    assert NOTEBOOKS


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if "labs" not in p.parts], ids=rules.name)
def test_was_run_from_top_to_bottom(path: Path) -> None:
    """Labs are handed out with nothing run."""
    assert rules.execution_faults(rules.load(path)) == []


@every_notebook
def test_outputs_name_no_machine_and_no_moment(path: Path) -> None:
    assert rules.output_faults(rules.load(path)) == []


@every_notebook
def test_cells_leave_the_environment_alone(path: Path) -> None:
    assert rules.source_faults(rules.load(path)) == []


@every_notebook
def test_format(path: Path) -> None:
    assert rules.format_faults(rules.load(path)) == []


@every_notebook
def test_file_is_small(path: Path) -> None:
    assert path.stat().st_size < rules.MAX_BYTES


def test_a_good_sample_has_no_fault() -> None:
    good = sample(("print(1)", "1\n"), ("print(2)", "2\n"))
    checks = [rules.execution_faults, rules.output_faults, rules.source_faults, rules.format_faults]
    assert [check(good) for check in checks] == [[], [], [], []]


@pytest.mark.parametrize("counts", [(None, None), (1, None), (2, 1), (1, 3), (2, 3)])
def test_finds_wrong_execution_counts(counts: tuple[Any, Any]) -> None:
    notebook = sample(("print(1)", "1\n"), ("print(2)", "2\n"))
    for cell, count in zip(notebook["cells"], counts, strict=True):
        cell["execution_count"] = count
    assert rules.execution_faults(notebook)


@pytest.mark.parametrize(
    "printed",
    [
        "<Thing object at 0x" + "7f3a2b1c4d50>",
        "warned in /" + "tmp/x.py",
        "/".join(["", "home", "ada", "minikv"]),
        "C:\\" + "Users\\ada",
        "run at 2026-01-31 12:00",
        "<dc:date>2026-01-31T12:00:00</dc:date>",
        "ipykernel_123/456.py:1: UserWarning",
    ],
)
def test_finds_outputs_of_one_machine_or_moment(printed: str) -> None:
    assert rules.output_faults(sample(("show()", printed)))


@pytest.mark.parametrize("printed", ["0x1f", "blocks/tables", "1/2", "and/or", "2026-01-31"])
def test_lets_ordinary_outputs_pass(printed: str) -> None:
    assert rules.output_faults(sample(("show()", printed))) == []


@pytest.mark.parametrize(
    "code", ["import sys\nsys.path.insert(0, '..')", "%pip install x", "x = 1\n!pip install x"]
)
def test_finds_cells_that_mend_the_environment(code: str) -> None:
    assert rules.source_faults(sample((code, "")))


def test_finds_cells_without_an_id_of_their_own() -> None:
    notebook = sample(("1", ""), ("2", ""))
    notebook["cells"][1]["id"] = notebook["cells"][0]["id"]
    assert rules.format_faults(notebook)
    del notebook["cells"][1]["id"]
    assert rules.format_faults(notebook)
