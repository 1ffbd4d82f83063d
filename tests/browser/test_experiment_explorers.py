"""The experiment's sliders in real JupyterLab: keys turn them, the scene runs again, nothing below moves."""

from playwright.sync_api import expect

from tests.browser.jupyter import Lab

CELL = """
from minikv.lab.experiment_explorers import FittingExplorer, SceneExplorer
from minikv.lab.experiment_scenes import SIX
shown = SceneExplorer(SIX)
shown
"""


def test_keys_turn_the_pool_and_the_scene_runs_again(lab: Lab) -> None:
    page = lab.open_cells("scene", CELL, "print(shown.outcome)")
    lab.run_all()
    picture = page.locator("svg.minikv-plot")
    picture.wait_for()
    expect(picture).to_contain_text("16 blocks, time-out none")
    frame = page.locator(".jp-OutputArea-output .widget-html").first
    before = frame.bounding_box()
    page.get_by_role("slider", name="blocks").focus()
    page.keyboard.press("ArrowRight")
    expect(picture).to_contain_text("17 blocks, time-out none")
    page.get_by_label("time-out").select_option("0.5 s")
    expect(picture).to_contain_text("17 blocks, time-out 0.5 s")
    after = frame.bounding_box()
    assert before is not None and after is not None
    assert before["height"] == after["height"]
    page.locator(".jp-CodeCell .cm-content").nth(1).click()
    lab.command("notebook:run-cell")
    expect(page.locator(".jp-OutputArea-output pre").last).to_contain_text("paged, 17 blocks")


def test_keys_turn_the_lengths_and_the_bars_follow(lab: Lab) -> None:
    page = lab.open_cells("fitting", CELL + "FittingExplorer()", "print(1)")
    lab.run_all()
    picture = page.locator("svg.minikv-frame")
    picture.wait_for()
    expect(picture).to_contain_text("answers of 200 tokens")
    page.get_by_role("slider", name="answer, % of limit").focus()
    page.keyboard.press("End")
    expect(picture).to_contain_text("answers of 400 tokens")
    expect(picture).to_contain_text("limit 400: 0.96 times as many")
    page.get_by_label("block size").select_option("256")
    expect(picture).to_contain_text("blocks of 256")
