"""Every notebook runs from top to bottom in JupyterLab, and its maps are alive."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.jupyter import Lab
from tests.notebooks import rules

SERIES = [path for path in rules.notebook_paths() if path.parent.name == "notebooks"]


def shows_a_map(cell: dict[str, Any]) -> bool:
    """Its stored output is a widget whose text is a frame of a map."""
    shown = [output["data"] for output in cell["outputs"] if "data" in output]
    texts = [
        "".join(data["text/plain"]) for data in shown if "application/vnd.jupyter.widget-view+json" in data
    ]
    return any("Free queue:" in text or text.startswith("No events yet") for text in texts)


@pytest.mark.parametrize("path", SERIES, ids=rules.name)
def test_a_notebook_runs_and_its_maps_are_drawn(lab: Lab, path: Path) -> None:
    expected = sum(map(shows_a_map, rules.code_cells(rules.load(path))))
    page = lab.open(path)
    lab.run_all()
    maps = page.locator(".minikv-block-map")
    if expected:
        maps.nth(expected - 1).wait_for(state="attached")
    assert maps.count() == expected


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
