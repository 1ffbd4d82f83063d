"""The packing game in real JupyterLab: by mouse, by keys alone, in both themes, without a kernel."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.access import expect_cell_focused, select_cell
from tests.browser.jupyter import Lab
from tests.browser.test_block_map import CONTRAST

GAME = "from minikv.lab import PackingGame\ngame = PackingGame(seed=8)\ngame.board()"
# What must be legible. Where a pattern lies behind words, they have a ground of their own.
TEXTS = [
    *(".mk-step", ".mk-sentence", ".mk-aim", ".mk-facts", ".mk-chip", ".mk-chip b", ".mk-more", ".mk-size"),
    *(".mk-slot.is-written", ".mk-first", ".mk-legend span", ".mk-label", ".mk-foot .mk-hint", ".mk-tile"),
    *(".mk-card em", ".mk-button.is-first", ".mk-part span"),
]


def shown_board(lab: Lab, name: str, *cells: str) -> tuple[Page, Locator]:
    page = lab.open_cells(name, *(cells or [GAME]))
    lab.run_all()
    board = page.locator(".minikv-packing").first
    board.wait_for()
    return page, board


def played(steps: int, rule: str) -> str:
    return GAME.replace("game.board()", f"game.play('{rule}', steps={steps})\ngame.board()")


def strip(board: Locator) -> Locator:
    return board.get_by_test_id("strip")


def slot(board: Locator, number: int) -> Locator:
    return strip(board).locator(f'[data-slot="{number}"]')


def written(board: Locator, name: str) -> Locator:
    return strip(board).locator(".is-written").get_by_text(name, exact=True)


def drag(page: Page, start: Locator, end: Locator) -> None:
    """With the mouse, from the middle of one to the middle of the other."""
    start.scroll_into_view_if_needed()
    boxes = [each.bounding_box() for each in (start, end)]
    points = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes if box]
    page.mouse.move(*points[0])
    page.mouse.down()
    page.mouse.move(*points[1], steps=8)
    page.mouse.up()


def press(page: Page, board: Locator, keys: str) -> None:
    """Keys one by one; after one that is a move, wait until the kernel has answered."""
    for key in keys.split():
        before = board.locator(".mk-sentence").inner_text() + board.locator(".mk-step").inner_text()
        page.keyboard.press(key)
        if key in ("Enter", "n", "d", "u", "r"):
            page.wait_for_function(
                """([node, before]) => node.querySelector('.mk-sentence').innerText
                    + node.querySelector('.mk-step').innerText !== before
                    || /Refused/.test(node.querySelector('.mk-aim').innerText)""",
                arg=[board.element_handle(), before],
            )


# ---- by mouse ---------------------------------------------------------------------------------------


def test_the_card_is_dragged_into_the_memory(lab: Lab) -> None:
    page, board = shown_board(lab, "card")
    drag(page, board.locator(".mk-card"), slot(board, 24))
    expect(board.locator(".mk-sentence")).to_have_text(
        "A gets slots 24 to 51: 4 hold its prompt, 24 are reserved for its answer."
    )
    expect(written(board, "A")).to_have_count(4)
    expect(strip(board).locator(".is-held")).to_have_count(28)
    expect(board.get_by_role("region", name="In hand")).to_contain_text("Next: B")


def test_a_reservation_is_drawn_over_free_slots_and_a_run_is_dragged_away(lab: Lab) -> None:
    page, board = shown_board(lab, "draw")
    drag(page, slot(board, 30), slot(board, 41))
    expect(board.locator(".mk-sentence")).to_contain_text("A gets slots 30 to 41")
    drag(page, slot(board, 31), slot(board, 61))  # by its second slot
    expect(board.locator(".mk-sentence")).to_have_text(
        "A moves to slots 60 to 71; 4 tokens had to be copied there."
    )
    drag(page, slot(board, 60), slot(board, 63))  # onto itself
    expect(board.locator(".mk-aim")).to_contain_text("Refused: slot 63 is A's own")
    expect(slot(board, 60)).to_have_text("A")
    page.keyboard.press("Escape")
    slot(board, 3).click()
    expect(board.locator(".mk-aim")).to_contain_text("✓ B would get slots 3 to 14")
    board.get_by_role("button", name="Reserve a slot less").click()
    board.get_by_role("button", name="Place").click()
    expect(board.locator(".mk-sentence")).to_contain_text("B gets slots 3 to 13")
    board.get_by_role("button", name="Undo").click()
    expect(written(board, "B")).to_have_count(0)


def test_a_drag_that_ends_outside_places_nothing(lab: Lab) -> None:
    page, board = shown_board(lab, "outside")
    drag(page, board.locator(".mk-card"), board.locator(".mk-tiles"))
    expect(written(board, "A")).to_have_count(0)
    drag(page, board.locator(".mk-card"), slot(board, 90))
    expect(board.locator(".mk-aim")).to_contain_text("Refused: slots 90 to 117 reach outside the memory")
    expect(written(board, "A")).to_have_count(0)


def test_buttons_let_time_pass_until_there_is_something_to_decide(lab: Lab) -> None:
    page, board = shown_board(lab, "time")
    drag(page, slot(board, 0), slot(board, 15))
    expect(board.get_by_role("region", name="In hand")).to_contain_text("Next: B")
    board.get_by_role("button", name="Let time run").click()
    expect(board.locator(".mk-sentence")).to_contain_text("A has ended after 4 tokens", timeout=20_000)
    expect(board.locator(".mk-step")).to_have_text("Step 4 of 24")
    page.wait_for_timeout(1200)
    expect(board.locator(".mk-step")).to_have_text("Step 4 of 24")
    expect(board.locator(".mk-tiles")).to_contain_text("1served")


# ---- by keys alone ----------------------------------------------------------------------------------


def test_a_game_is_played_with_keys_only(lab: Lab) -> None:
    page, board = shown_board(lab, "keys", GAME, "print(game.board().to_text())")
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    strip(board).focus()
    press(page, board, "ArrowDown ArrowRight ArrowRight " + "- " * 20)
    expect(board.locator(".mk-aim")).to_have_text(
        "✓ A would get slots 26 to 33: 4 for its prompt, 4 for its answer."
    )
    press(page, board, "Enter")  # A, 8 slots, exactly enough
    press(page, board, "h Enter")  # B, 8 slots, in the hole behind
    expect(board.locator(".mk-sentence")).to_contain_text("B gets slots 34 to 41")
    press(page, board, "n n n n")
    expect(board.locator(".mk-sentence")).to_contain_text("B has filled the last reserved slot.")
    expect(board.get_by_role("region", name="In hand")).to_contain_text("B has outgrown its slots")
    press(page, board, "n")
    expect(board.locator(".mk-aim")).to_contain_text("Refused: B has filled its 8 slots and goes on")
    press(page, board, "Enter")
    expect(board.locator(".mk-sentence")).to_have_text("B grows where it is, to 16 slots; nothing is copied.")
    press(page, board, "u u")
    expect(board.locator(".mk-step")).to_have_text("Step 3 of 24")
    press(page, board, "n d")
    expect(board.locator(".mk-sentence")).to_contain_text("B is dropped: it goes back to the head")
    press(page, board, "r")
    expect(board.locator(".mk-step")).to_have_text("Step 0 of 24")
    press(page, board, "u")
    expect(board.locator(".mk-step")).to_have_text("Step 4 of 24")
    assert page.locator(".jp-Cell").count() == 2, "no key reached the notebook: d d would delete a cell"


def test_another_running_request_is_taken_in_hand_and_moved(lab: Lab) -> None:
    page, board = shown_board(lab, "hand", played(3, "max"))
    strip(board).focus()
    hand = board.get_by_role("region", name="In hand")
    for keys, says in (
        ("m", "In hand: A"),
        ("m", "In hand: B"),
        ("Escape", "Next: D"),
        ("m m m m", "Next: D"),
    ):
        press(page, board, keys)
        expect(hand).to_contain_text(says)
    press(page, board, "m " + "- " * 22 + "End Enter")
    expect(board.locator(".mk-sentence")).to_have_text(
        "A moves to slots 88 to 95; 7 tokens had to be copied there."
    )


def test_the_last_request_can_be_taken_in_hand_when_nobody_waits(lab: Lab) -> None:
    game = GAME.replace(
        "PackingGame(seed=8)",
        "PackingGame(requests=[PackingRequest('A', 4, 9)])",
    )
    page, board = shown_board(lab, "last", f"from minikv.lab.packing_requests import PackingRequest\n{game}")
    strip(board).focus()
    press(page, board, "Enter")
    expect(board.get_by_role("region", name="In hand")).to_be_hidden()
    expect(board.locator(".mk-aim")).to_have_text("Let time run.")
    press(page, board, "m Home ArrowDown ArrowDown Enter")
    expect(board.locator(".mk-sentence")).to_contain_text(
        "A moves to slots 48 to 75; 4 tokens had to be copied"
    )
    press(page, board, "n")
    expect(board.locator(".mk-step")).to_have_text("Step 1 of 24")


def test_a_board_that_gets_no_answer_says_so(lab: Lab) -> None:
    page, board = shown_board(lab, "busy", GAME, "import time\ntime.sleep(8)")
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    lab.command("notebook:run-cell")
    strip(board).focus()
    page.keyboard.press("Enter")
    expect(board.locator(".mk-aim")).to_contain_text("The kernel does not answer", timeout=7000)
    expect(written(board, "A")).to_have_count(0)
    expect(board.locator(".mk-sentence")).to_contain_text("A gets slots 0 to 27", timeout=15_000)
    expect(board.locator(".mk-aim")).to_contain_text("B would get")


def test_no_key_of_the_board_edits_the_notebook(lab: Lab) -> None:
    page, board = shown_board(lab, "letters", GAME, "print('after')")
    select_cell(page, 0)
    strip(board).focus()
    for key in ("x", "a", "b", "c", "v", "y", "z", "Shift+x"):
        page.keyboard.press(key)
    expect(page.locator(".jp-Cell")).to_have_count(2)
    expect(strip(board)).to_be_focused()
    page.keyboard.press("Escape")
    expect_cell_focused(page, 0)
    strip(board).focus()
    page.keyboard.press("Shift+Enter")
    expect_cell_focused(page, 1)


def test_focus_can_be_seen_and_the_help_lists_the_keys(lab: Lab) -> None:
    page, board = shown_board(lab, "help")
    strip(board).focus()
    page.keyboard.press("?")
    help_box = board.get_by_role("region", name="Keys")
    expect(help_box).to_be_visible()
    for word in ("Enter", "Space", "undo", "place, move or grow"):
        expect(help_box).to_contain_text(word)
    page.keyboard.press("Escape")
    expect(help_box).to_be_hidden()
    page.keyboard.press("ArrowRight")
    outline = strip(board).evaluate("(node) => getComputedStyle(node).outlineStyle")
    assert outline == "solid"
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
    focused = page.evaluate("() => document.activeElement.className")
    assert "mk-button" in focused


def test_screen_readers_hear_the_state_and_every_move(lab: Lab) -> None:
    page, board = shown_board(lab, "readers")
    strip(board).focus()
    press(page, board, "Enter n")
    expect(strip(board)).to_have_attribute(
        "aria-label", re.compile("Memory of 96 slots. A holds slots 0 to 27, 5 written; slots 28 to 95 free")
    )
    for part in (".mk-sentence", ".mk-aim"):
        expect(board.locator(part)).to_have_attribute("aria-live", "polite")
    expect(board.locator(".mk-bar").last).to_have_attribute(
        "aria-label", "5 tokens, 23 not yet known, 68 free"
    )


# ---- the aha, and the end ---------------------------------------------------------------------------


def test_enough_is_free_and_yet_it_fits_nowhere(lab: Lab) -> None:
    page, board = shown_board(lab, "aha", played(8, "max"))
    expect(board.locator(".mk-aim")).to_have_text(
        "With 30 slots, D fits nowhere: 40 are free, but the largest hole has 28. "
        "This is external fragmentation."
    )
    expect(strip(board).locator(".is-external")).to_have_count(40)
    strip(board).focus()
    press(page, board, "- -")
    expect(board.locator(".mk-aim")).to_contain_text("✓ D would get slots 0 to 27")
    expect(strip(board).locator(".is-external")).to_have_count(0)


CROWD = """from minikv.lab import PackingGame
from minikv.lab.packing_requests import PackingRequest
crowd = [PackingRequest(name, prompt, 8) for name, prompt in zip("ABC", (4, 4, 2))]
game = PackingGame(num_slots=24, max_new_tokens=8, requests=crowd)
for name, start, size in (("A", 0, 6), ("B", 6, 10), ("C", 16, 5)):
    game.place(name, start, size)
game.step(), game.step()
game.board()"""


def test_advice_is_something_that_can_be_done(lab: Lab) -> None:
    page, board = shown_board(lab, "advice", CROWD)
    expect(board.locator(".mk-aim")).to_have_text(
        "With 12 slots, A fits nowhere: of the other slots 3 are free, side by side at most 3. "
        "Nothing above 6 fits: move or shrink a neighbour (M), or drop it."
    )
    strip(board).focus()
    press(page, board, "m m Home ArrowRight")  # B, which may shrink, aimed where it cannot go
    expect(board.locator(".mk-aim")).to_contain_text("✗ B cannot go there: slot 1 is A's")
    press(page, board, "Escape d")
    expect(board.get_by_role("region", name="In hand")).to_contain_text("answer: more than 2, 8 at most")
    expect(board.locator(".mk-size")).to_have_text("12 slots = 4 for the prompt + 8")
    expect(board.locator(".mk-aim")).to_have_text(
        "With 12 slots, A fits nowhere: only 9 are free. Reserve 6 or fewer, or let time run."
    )


def test_an_aim_that_cannot_be_goes_to_a_hole_as_soon_as_there_is_one(lab: Lab) -> None:
    page, board = shown_board(lab, "jump", played(8, "max"))
    strip(board).focus()
    press(page, board, "End n")
    expect(board.locator(".mk-sentence")).to_contain_text("B has ended")
    expect(board.locator(".mk-aim")).to_contain_text("✓ D would get slots 0 to 29")
    press(page, board, "u End - -")
    expect(board.locator(".mk-aim")).to_contain_text("✓ D would get slots 0 to 27")


def test_an_aim_over_a_taken_slot_leaves_its_letter_legible(lab: Lab) -> None:
    _, board = shown_board(lab, "over", CROWD)
    mark = slot(board, 7).locator(".mk-aim-mark.is-clash")
    sizes = mark.evaluate("(node) => getComputedStyle(node).backgroundSize")
    assert sizes == "100% 6px, 100% 6px", "above and below the letter only"


def test_the_end_shows_the_same_requests_paged(lab: Lab) -> None:
    page, board = shown_board(lab, "end", played(23, "double"))
    expect(board.locator(".mk-result")).to_be_hidden()
    strip(board).focus()
    while "outgrown" in board.get_by_role("region", name="In hand").inner_text():
        press(page, board, "d")
    press(page, board, "n")
    result = board.locator(".mk-result")
    expect(result).to_be_visible()
    expect(result).to_contain_text("The same requests, paged")
    expect(result.locator(".mk-who")).to_have_text(["You", "Paged"])
    expect(result.locator(".mk-strip .mk-slot")).to_have_count(96)
    expect(result.locator(".mk-number")).to_have_count(10)
    expect(board.locator(".mk-column i.is-kind-unknown")).to_have_count(0)


# ---- how it looks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_text_is_legible_in_both_themes(lab: Lab, theme: str) -> None:
    page, board = shown_board(lab, f"look_{theme[-4:].strip()}", played(8, "max"))
    lab.theme(theme)
    page.wait_for_timeout(300)
    for part in TEXTS:
        node = board.locator(part).first
        assert node.evaluate(CONTRAST) >= 4.5, part


def test_a_narrow_cell_needs_no_scrolling(lab: Lab) -> None:
    _, board = shown_board(lab, "narrow", played(24, "max"))
    lab.resize(700, 1000)
    assert board.evaluate("(node) => node.scrollWidth <= node.clientWidth")


def test_motion_is_left_out_where_it_is_not_wanted(lab: Lab) -> None:
    page, board = shown_board(lab, "motion")
    page.emulate_media(reduced_motion="reduce")
    strip(board).focus()
    press(page, board, "Enter n")
    assert strip(board).locator(".is-fresh").evaluate("(n) => getComputedStyle(n).animationName") == "none"


def test_without_a_kernel_the_stored_board_is_a_picture(lab: Lab, tmp_path: Path) -> None:
    from minikv.lab import PackingGame

    game = PackingGame(seed=8)
    game.play("max")
    data, _ = game.board()._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell("game.board()", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("display_data", data=json.loads(json.dumps(data)))]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "stored_game.ipynb")
    page = lab.open(tmp_path / "stored_game.ipynb")
    picture = page.get_by_role("img", name="Step 24 of 24")
    expect(picture).to_be_visible()
    assert picture.evaluate("(image) => image.naturalWidth") == 1040
    page.get_by_text("The same as text").click()
    expect(page.locator(".jp-OutputArea-output pre")).to_contain_text("The same requests, paged")
