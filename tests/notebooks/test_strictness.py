"""`pytest --nbval` is as strict as we say: one stored output changed, and it fails."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import rules
from tests.notebooks.samples import sample


def nbval(notebook: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one notebook through nbval, in a process and a folder of its own."""
    path = folder / "notebook.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider"]
    return subprocess.run([*command, "--rootdir", str(folder), str(path)], capture_output=True, text=True)


def first_printed(notebook: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """Place of the first cell with a compared printed output, and that output."""
    for place, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code" or rules.tags(cell) & rules.VARIES:
            continue
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                return place, output
    return None


def up_to_first_print(notebook: dict[str, Any]) -> dict[str, Any] | None:
    """The notebook cut after its first compared print, or None if it prints nothing that is compared."""
    if (found := first_printed(notebook)) is None:
        return None
    return {**notebook, "cells": notebook["cells"][: found[0] + 1]}


def assert_a_changed_output_fails(notebook: dict[str, Any], folder: Path) -> None:
    """As stored it passes; with one character more in one stored output, exactly that cell fails."""
    as_stored = nbval(notebook, folder)
    assert as_stored.returncode == 0, as_stored.stdout
    changed = copy.deepcopy(notebook)
    found = first_printed(changed)
    assert found is not None
    found[1]["text"] = "".join(found[1]["text"]).rstrip("\n") + "!\n"
    run = nbval(changed, folder)
    assert run.returncode == 1, run.stdout
    assert re.search(r"\b1 failed\b", run.stdout), run.stdout


def test_a_changed_output_fails_in_a_sample(tmp_path: Path) -> None:
    assert_a_changed_output_fails(sample(("print('block', 3)", "block 3\n"), ("x = 1", "")), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("path", rules.notebook_paths(), ids=rules.name)
def test_a_changed_output_fails_in_every_notebook(path: Path, tmp_path: Path) -> None:
    """Cut after the changed cell: nothing that follows can make it fail or pass."""
    if (short := up_to_first_print(rules.load(path))) is None:
        pytest.fail(f"{rules.name(path)} prints nothing that is compared")
    assert_a_changed_output_fails(short, tmp_path)


def test_a_changed_output_fails_in_a_real_notebook(tmp_path: Path) -> None:
    shortened = [short for p in rules.notebook_paths() if (short := up_to_first_print(rules.load(p)))]
    assert shortened, "no notebook prints anything that is compared"
    assert_a_changed_output_fails(min(shortened, key=lambda short: len(short["cells"])), tmp_path)


def test_nbval_alone_would_miss_a_cell_that_was_never_run(tmp_path: Path) -> None:
    """Why execution counts have a guard: nbval takes a cell never run for one with nothing to compare."""
    notebook = sample(("print('block', 3)", "block 3\n"))
    notebook["cells"][0] |= {"execution_count": None, "outputs": []}
    assert nbval(notebook, tmp_path).returncode == 0
    assert rules.execution_faults(notebook)


def test_a_null_count_in_a_real_notebook_is_found() -> None:
    for path in rules.notebook_paths():
        notebook = rules.load(path)
        for cell in rules.code_cells(notebook)[-1:]:
            cell["execution_count"] = None
            assert rules.execution_faults(notebook), rules.name(path)
