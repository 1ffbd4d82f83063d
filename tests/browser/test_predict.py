"""The boxes of a prediction in real JupyterLab, with the keyboard alone."""

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.access import (
    expect_cell_focused,
    expect_in_sight,
    focus_ring,
    nameless,
    notebook_cells,
    select_cell,
    tab_to,
)
from tests.browser.jupyter import Lab
from tests.browser.test_block_map import CONTRAST

ASK = """
from minikv.lab import predict
guess = predict(table="B's block table, in order", free="free blocks left")
guess
"""
MARK = "print(guess.mark(table=(3, 4), free=5))"
RIGHT = "B's block table, in order\n  you said  3  4\n  it is     3  4\n            ✓  ✓\nfree blocks left\n"


def asked(lab: Lab, name: str, *more: str) -> tuple[Page, Locator]:
    """A notebook whose second cell has asked; that cell is selected."""
    page = lab.open_cells(name, "'before'", ASK, *(more or (MARK, "'after'")))
    select_cell(page, 1)
    page.keyboard.press("Control+Enter")
    boxes = page.locator(".minikv-predict input")
    boxes.nth(1).wait_for()
    expect_cell_focused(page, 1)
    return page, boxes


def output(page: Page, cell: int) -> Locator:
    return page.locator(".jp-Cell").nth(cell).locator(".jp-OutputArea-output pre")


def test_a_prediction_is_typed_and_marked_without_a_mouse(lab: Lab) -> None:
    page, boxes = asked(lab, "typed")
    page.keyboard.press("ArrowDown")
    expect_cell_focused(page, 2)
    page.keyboard.press("ArrowUp")  # as a reader comes back after Shift+Enter
    tab_to(page, boxes.nth(0), limit=3)
    page.keyboard.type("3rd, P4")
    page.keyboard.press("Enter")
    expect(boxes.nth(1)).to_be_focused()
    page.keyboard.type("5 blocks")
    page.keyboard.press("Enter")
    expect_cell_focused(page, 2)
    page.keyboard.press("Shift+Enter")
    expect(output(page, 2)).to_contain_text(RIGHT)
    expect(output(page, 2)).to_contain_text("you said  5")


def test_keys_are_text_in_a_box_and_no_commands(lab: Lab) -> None:
    page, boxes = asked(lab, "text")
    before = notebook_cells(page)
    boxes.nth(0).focus()
    page.keyboard.type("x a b dd m y Z 00 ii 1 ? . ,")
    for key in ("Home", "ArrowRight", "Delete", "End", "Backspace", "ArrowUp", "ArrowDown", "Space"):
        page.keyboard.press(key)
    expect(boxes.nth(0)).to_be_focused()
    expect(boxes.nth(0)).to_have_value("xa b dd m y Z 00 ii 1 ? .  ")
    assert notebook_cells(page) == before
    page.keyboard.press("Control+a")
    page.keyboard.type("7")
    expect(boxes.nth(0)).to_have_value("7")
    assert notebook_cells(page) == before


def test_escape_leads_back_to_the_cell(lab: Lab) -> None:
    page, boxes = asked(lab, "escape")
    boxes.nth(1).focus()
    page.keyboard.type("4")
    page.keyboard.press("Escape")
    expect_cell_focused(page, 1)
    expect(boxes.nth(1)).to_have_value("4")
    page.keyboard.press("ArrowUp")
    expect_cell_focused(page, 0)


@pytest.mark.parametrize("key", ["Shift+Enter", "Control+Enter", "Alt+Enter"])
def test_no_key_throws_the_answers_away(lab: Lab, key: str) -> None:
    page, boxes = asked(lab, f"again{key[:3]}")
    before = notebook_cells(page)
    prompt = page.locator(".jp-Cell").nth(1).locator(".jp-InputPrompt")
    held = prompt.inner_text()
    boxes.nth(0).focus()
    page.keyboard.type("3 4")
    page.keyboard.press(key)
    expect_cell_focused(page, 2)
    page.wait_for_timeout(300)
    assert prompt.inner_text() == held, "the cell was not run again"
    expect(boxes.nth(0)).to_have_value("3 4")
    assert notebook_cells(page) == before
    page.keyboard.press("Shift+Enter")
    expect(output(page, 2)).to_contain_text(RIGHT)


def test_tab_goes_on_from_the_last_box_to_the_next_cell_and_back(lab: Lab) -> None:
    page, boxes = asked(lab, "tab")
    boxes.nth(0).focus()
    page.keyboard.press("Tab")
    expect(boxes.nth(1)).to_be_focused()
    page.keyboard.press("Tab")
    expect_cell_focused(page, 2)
    page.keyboard.press("Shift+Tab")
    expect(boxes.nth(1)).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(boxes.nth(0)).to_be_focused()


def test_after_the_last_cell_there_is_its_own(lab: Lab) -> None:
    page, boxes = asked(lab, "last", "'gone in a moment'")
    select_cell(page, 2)
    page.keyboard.press("d")
    page.keyboard.press("d")
    boxes.nth(1).focus()
    page.keyboard.press("Enter")
    expect_cell_focused(page, 1)


def test_the_notebook_can_be_saved_from_a_box(lab: Lab) -> None:
    page, boxes = asked(lab, "saved")
    dirty = "() => window.jupyterapp.shell.currentWidget.context.model.dirty"
    page.wait_for_function(dirty)
    boxes.nth(0).focus()
    page.keyboard.type("3")
    page.keyboard.press("Control+s")
    page.wait_for_function(f"() => !({dirty})()")
    expect(boxes.nth(0)).to_be_focused()
    expect(boxes.nth(0)).to_have_value("3")


def test_two_views_show_the_same_answers(lab: Lab) -> None:
    page, boxes = asked(lab, "views", "guess", "guess.answer(free=9);", MARK)
    for _ in range(2):
        page.keyboard.press("Shift+Enter")
    expect(boxes).to_have_count(4)
    boxes.nth(2).focus()
    page.keyboard.type("3 4")
    expect(boxes.nth(0)).to_have_value("3 4")
    page.keyboard.press("Home")
    page.keyboard.type("1 ")
    expect(boxes.nth(0)).to_have_value("1 3 4")
    expect(boxes.nth(2)).to_have_value("1 3 4")
    select_cell(page, 3)
    page.keyboard.press("Shift+Enter")
    for box in (boxes.nth(1), boxes.nth(3)):
        expect(box).to_have_value("9")
    expect(boxes.nth(0)).to_have_value("1 3 4")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_boxes_are_named_legible_and_show_the_focus(lab: Lab, theme: str) -> None:
    page, boxes = asked(lab, f"look{theme[-4:].strip()}")
    lab.theme(theme)
    group = page.locator(".minikv-predict")
    assert nameless(group) == []
    expect(page.get_by_label("B's block table, in order")).to_have_count(1)
    expect(page.get_by_label("free blocks left")).to_have_count(1)
    for part in group.locator("span, input").all():
        assert part.evaluate(CONTRAST) >= 4.5
    tab_to(page, boxes.nth(0), limit=3)
    assert focus_ring(boxes.nth(0))["outline"].startswith("solid 2px")
    assert focus_ring(boxes.nth(1))["outline"].startswith("none")


def test_a_narrow_window_puts_the_boxes_below_their_questions(lab: Lab) -> None:
    page, boxes = asked(lab, "narrow")
    lab.resize(520, 900)
    question = page.locator(".minikv-predict span").first
    above, below = question.bounding_box(), boxes.nth(0).bounding_box()
    assert above is not None and below is not None
    assert above["y"] + above["height"] <= below["y"]
    expect_in_sight(boxes.nth(0))
