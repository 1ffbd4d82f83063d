"""The block-size slider in real JupyterLab: keys turn it, the picture follows, nothing below it moves."""

from playwright.sync_api import expect

from tests.browser.jupyter import Lab

CELL = """
from minikv.lab.explorers import BlockSizeExplorer
shown = BlockSizeExplorer({"short": [3, 9, 30], "long": [100, 333, 512]})
shown
"""


def test_keys_turn_the_slider_and_the_picture_follows(lab: Lab) -> None:
    page = lab.open_cells("explorer", CELL, "print(shown.slider.value, shown.workload.value)")
    lab.run_all()
    picture = page.locator("svg.minikv-frame")
    picture.wait_for()
    expect(picture).to_contain_text("Block size 16")
    frame = page.locator(".jp-OutputArea-output .widget-html").first
    before = frame.bounding_box()
    page.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    expect(picture).to_contain_text("Block size 20")
    page.get_by_role("combobox").last.select_option("long")
    expect(picture).to_contain_text("512 tokens")
    after = frame.bounding_box()
    assert before is not None and after is not None
    assert before["height"] == after["height"]
    page.locator(".jp-CodeCell .cm-content").nth(1).click()
    lab.command("notebook:run-cell")
    expect(page.locator(".jp-OutputArea-output pre").last).to_contain_text("20 long")
