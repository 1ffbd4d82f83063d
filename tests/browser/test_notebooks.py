"""Every notebook runs from top to bottom in JupyterLab, and its maps are alive."""

from pathlib import Path

import pytest

from tests.browser.jupyter import Lab
from tests.notebooks import rules

SERIES = [path for path in rules.notebook_paths() if path.parent.name == "notebooks"]


@pytest.mark.parametrize("path", SERIES, ids=rules.name)
def test_a_notebook_runs_and_its_maps_are_drawn(lab: Lab, path: Path) -> None:
    sources = [rules.source(cell) for cell in rules.code_cells(rules.load(path))]
    makes_a_map = [source for source in sources if ".map(" in source or "BlockMap(" in source]
    expected = sum("to_text" not in source for source in makes_a_map)
    page = lab.open(path)
    lab.run_all()
    maps = page.locator(".minikv-block-map")
    maps.nth(expected - 1).wait_for(state="attached")
    assert maps.count() == expected > 0


def test_a_prediction_typed_into_its_boxes_is_marked(lab: Lab) -> None:
    page = lab.open_cells(
        "predict",
        "from minikv.lab import predict\nguess = predict(table='the table', free='free blocks')\nguess",
        "print(guess.mark(table=(3, 4, 5), free=5))",
    )
    editors = page.locator(".jp-CodeCell .cm-content")
    editors.nth(0).click()
    lab.command("notebook:run-cell")
    boxes = page.locator(".minikv-predict input")
    boxes.nth(1).wait_for()
    boxes.nth(0).fill("3, 4, 6")
    boxes.nth(1).fill("5")
    boxes.nth(1).press("Tab")
    editors.nth(1).click()
    lab.command("notebook:run-cell")
    output = page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output pre")
    output.wait_for()
    assert output.inner_text().strip().split("\n") == [
        "the table",
        "  you said  3  4  6",
        "  it is     3  4  5",
        "            ✓  ✓  ✗",
        "free blocks",
        "  you said  5",
        "  it is     5",
        "            ✓",
    ]
