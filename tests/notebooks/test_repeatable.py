"""Two runs from a clean kernel give the same outputs; `pytest --nbval` runs each notebook only once."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.notebooks import rules


def outputs_of_a_run(path: Path) -> dict[str, list[str]]:
    """Cell id to the text of its outputs after one run; cells that may vary are left out."""
    notebook: Any = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    compared = [cell for cell in rules.code_cells(notebook) if not rules.tags(cell) & rules.VARIES]
    return {cell["id"]: list(rules.output_texts(cell)) for cell in compared}


@pytest.mark.nightly
@pytest.mark.parametrize("path", [p for p in rules.notebook_paths() if "labs" not in p.parts], ids=rules.name)
def test_two_runs_give_the_same_outputs(path: Path) -> None:
    assert outputs_of_a_run(path) == outputs_of_a_run(path)
