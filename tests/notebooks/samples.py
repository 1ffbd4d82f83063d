"""Small notebooks made for the tests of the tests."""

from typing import Any

from nbformat.v4 import new_code_cell, new_notebook, new_output


def sample(*cells: tuple[str, str]) -> dict[str, Any]:
    """A notebook as if it had been run: (code, what it printed) for each cell."""
    notebook = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for count, (code, printed) in enumerate(cells, start=1):
        outputs = [new_output("stream", name="stdout", text=printed)] if printed else []
        cell = new_code_cell(code, id=f"cell-{count}", execution_count=count, outputs=outputs)
        notebook.cells.append(cell)
    return dict(notebook)
