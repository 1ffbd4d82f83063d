"""The block map in real JupyterLab: keys, focus, themes, growth, and how long a seek takes."""

import json
import re
from pathlib import Path

import nbformat
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

STORY = """
from minikv.lab.block_map import BlockMap
from tests.lab.logs import story_log
shown = BlockMap(story_log())
shown
"""
MIDWAY = STORY.replace("story_log()", "story_log(), step=14")
MARKED = STORY.replace("story_log()", "story_log(), highlight=[1, 5]")
PARTS = [".mk-timeline", ".mk-button >> nth=2", ".mk-box", ".mk-cell", ".mk-foot"]
BROKEN = """
from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from tests.lab.logs import story, write
oops = write("A", 3, [3], "oops")
shown = BlockMap(EventLog([*story()[:9], oops, *story()[11:15], {**oops, "words": ["again"]}]))
shown
"""  # I4 from step 9 on, I5 at step 14
LONG = """
from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from tests.lab.logs import allocate, pool, read, write
log = EventLog([pool(BLOCKS, 16)])
for block in range(BLOCKS):
    name, index = f"R{block // 40}", block % 40
    log(allocate(name, index, block))
    log(write(name, index * 16, list(range(block * 16, block * 16 + 16)), "a b c d e f g h i j k l m n o p"))
    for _ in range(10000 // BLOCKS - 2):
        log(read(name, index * 16 + 16))
shown = BlockMap(log)
shown
"""
CONTRAST = """(node) => {
    const channels = (colour) => {
        const canvas = new OffscreenCanvas(1, 1).getContext('2d');
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    let behind = node;
    while (channels(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const pair = [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor]
        .map((colour) => light(channels(colour))).sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
}"""


TEXTS = [
    *(".mk-step", ".mk-sentence", ".mk-hint"),
    *(".mk-name", ".mk-facts", ".mk-box-head", ".mk-shared", ".mk-slot.is-written", ".mk-slot.is-chosen"),
    *(".mk-tag > span", ".mk-place", ".mk-free", ".mk-chip", ".mk-part.is-tokens", ".mk-part.is-free"),
    *(".mk-pill", ".mk-caption", ".mk-label", ".mk-blocks"),
]


def shown_map(lab: Lab, name: str, *cells: str) -> tuple[Page, Locator]:
    page = lab.open_cells(name, *cells)
    lab.run_all()
    block_map = page.locator(".minikv-block-map").first
    block_map.wait_for()
    return page, block_map


def timeline(block_map: Locator) -> Locator:
    return block_map.get_by_role("slider")


def title(block_map: Locator) -> Locator:
    return block_map.locator(".mk-step")


def go_to(page: Page, block_map: Locator, step: int) -> None:
    """To this step, from the first one, with the focus on the timeline."""
    timeline(block_map).focus()
    page.keyboard.press("Home")
    expect(title(block_map)).to_have_text(re.compile("^Step 0 of"))
    for _ in range(step):
        page.keyboard.press("ArrowRight")
    expect(title(block_map)).to_have_text(re.compile(f"^Step {step} of"))


def shift_tab_to(page: Page, target: Locator) -> None:
    for _ in range(15):
        page.keyboard.press("Shift+Tab")
        if target.evaluate("(node) => node === document.activeElement"):
            return
    raise AssertionError(f"Shift+Tab did not lead to {target}")


def expect_label(node: Locator, text: str) -> None:
    expect(node).to_have_attribute("aria-label", text)


def test_keys_step_through_the_log_and_stay_inside(lab: Lab) -> None:
    page, block_map = shown_map(lab, "keys", STORY, "shown.step")
    expect(title(block_map)).to_have_text("Step 23 of 23")
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    timeline(block_map).focus()
    before = page.evaluate(active)  # the focus took the notebook to the map's own cell
    for key, step in [("Home", 0), ("ArrowRight", 1), (".", 2), ("ArrowUp", 3), ("ArrowLeft", 2), (",", 1)]:
        page.keyboard.press(key)
        expect(title(block_map)).to_have_text(f"Step {step} of 23")
    page.keyboard.press("PageDown")
    expect(title(block_map)).to_have_text("Step 7 of 23")
    expect(block_map.locator(".mk-sentence")).to_contain_text("Request B takes block 0 that request A holds")
    page.keyboard.press("End")
    page.keyboard.press("?")
    expect(block_map.locator(".mk-help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(block_map.locator(".mk-help")).to_be_hidden()
    assert page.evaluate(active) == before
    assert page.locator(".jp-Cell").count() == 2, "no key reached the notebook"
    expect(timeline(block_map)).to_be_focused()


def test_the_kernel_hears_where_the_map_stands(lab: Lab) -> None:
    page, block_map = shown_map(lab, "kernel", STORY, "print('at', shown.step)")
    timeline(block_map).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(500)
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    lab.command("notebook:run-cell")
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text("at 1")


def test_play_and_pause(lab: Lab) -> None:
    page, block_map = shown_map(lab, "play", STORY)
    timeline(block_map).focus()
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    expect(block_map.get_by_role("button", name="Pause")).to_be_visible()
    expect(title(block_map)).to_have_text("Step 2 of 23", timeout=20_000)
    page.keyboard.press("Space")
    expect(block_map.get_by_role("button", name="Play", exact=True)).to_be_visible()
    held = title(block_map).inner_text()
    page.wait_for_timeout(1200)
    assert title(block_map).inner_text() == held


def test_focus_moves_over_blocks_and_follows_the_arrow(lab: Lab) -> None:
    page, block_map = shown_map(lab, "focus", STORY)
    timeline(block_map).focus()
    page.keyboard.press("Home")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    expect(title(block_map)).to_have_text("Step 12 of 23")
    page.keyboard.press("Tab")  # keys button
    page.keyboard.press("Tab")
    focused = block_map.locator(".mk-option:focus")
    expect(focused).to_have_attribute("aria-label", re.compile("^L0, block 0, ref count 3: Ada has"))
    page.keyboard.press("ArrowRight")
    expect(focused).to_have_attribute("aria-label", re.compile("^L1, block 1"))
    page.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("aria-label", re.compile("^L1, block 2"))
    page.keyboard.press("Enter")
    expect(focused).to_have_class(re.compile("mk-cell"))
    expect(focused).to_have_attribute(
        "aria-label", re.compile("^Block 2: ref count 1 · held by request B as L1")
    )
    assert block_map.locator(".mk-link").count() == 1
    page.keyboard.press("Home")
    assert block_map.locator(".mk-link").count() == 2, "block 0 is in two tables"
    expect(block_map.locator(".mk-box.is-linked")).to_have_count(2)
    page.keyboard.press(".")
    expect(title(block_map)).to_have_text("Step 13 of 23")
    expect(focused).to_have_attribute("aria-label", re.compile("^Block 0"))
    stops = block_map.locator('.mk-option[tabindex="0"]')
    expect(stops).to_have_count(2)


def test_letters_in_the_map_are_no_commands_to_the_notebook(lab: Lab) -> None:
    page, block_map = shown_map(lab, "letters", "'before'", MIDWAY, "'after'")
    cells = notebook_cells(page)
    for part in PARTS:
        node = block_map.locator(part).first
        node.focus()
        for key in [*"xabdd00iimyr1234zcvokjsfhLMS", "Shift+M", "Shift+X", "#", "-", "Backspace", "Delete"]:
            page.keyboard.press(key)
        if part in (".mk-timeline", ".mk-foot"):
            page.keyboard.press("Enter")  # would open the editor
        page.wait_for_timeout(200)
        assert notebook_cells(page) == cells, part
        expect(node).to_be_focused()
        expect(title(block_map)).to_have_text("Step 14 of 23")
        page.keyboard.press("Escape")
        expect_cell_focused(page, 1)


def test_escape_closes_the_keys_and_then_leads_back_to_the_cell(lab: Lab) -> None:
    page, block_map = shown_map(lab, "escape", "'before'", STORY)
    select_cell(page, 1)
    tab_to(page, block_map.locator(".mk-button").first)
    page.keyboard.press("?")
    expect(block_map.locator(".mk-help")).to_contain_text("back to the cell")
    page.keyboard.press("Escape")
    expect(block_map.locator(".mk-help")).to_be_hidden()
    expect(block_map.locator(".mk-button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect_cell_focused(page, 1)
    page.keyboard.press("ArrowUp")
    expect_cell_focused(page, 0)


def test_shift_enter_runs_the_cell_and_goes_on(lab: Lab) -> None:
    page, block_map = shown_map(lab, "run", MIDWAY, "'after'")
    prompt = page.locator(".jp-CodeCell .jp-InputPrompt").first
    for count, part in enumerate(PARTS, start=3):
        block_map.locator(part).first.focus()
        page.keyboard.press("Shift+Enter")
        expect(prompt).to_have_text(f"[{count}]:")
        expect_cell_focused(page, 1)
        block_map.locator(".mk-foot").wait_for()


def test_tab_leads_through_the_map_in_the_order_that_the_help_names(lab: Lab) -> None:
    page, block_map = shown_map(lab, "order", BROKEN)
    select_cell(page, 0)
    tab_to(page, block_map.locator(".mk-button").first)
    order = [
        *[block_map.locator(".mk-button").nth(number) for number in range(1, 6)],
        timeline(block_map),
        block_map.get_by_role("button", name="Keys"),
        *[block_map.locator(f'{kind}[tabindex="0"]') for kind in (".mk-box", ".mk-cell")],
        block_map.locator(".mk-foot"),
        *block_map.locator(".mk-pill.is-bad").all(),
        *block_map.locator(".mk-go").all(),
    ]
    assert len(order) == 14
    for part in order:
        page.keyboard.press("Tab")
        expect(part).to_be_focused()
    for part in order[-2::-1]:
        page.keyboard.press("Shift+Tab")
        expect(part).to_be_focused()


def test_tab_enters_at_the_block_of_the_event_until_the_reader_was_elsewhere(lab: Lab) -> None:
    page, block_map = shown_map(lab, "enter", STORY)
    timeline(block_map).focus()
    page.keyboard.press("Home")
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    expect(title(block_map)).to_have_text("Step 9 of 23")  # B copies block 1 to block 2
    focused = block_map.locator(".mk-option:focus")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-label", re.compile("^L1, block 2"))
    page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-label", re.compile("^Block 2"))
    page.keyboard.press("ArrowRight")
    expect(focused).to_have_attribute("aria-label", re.compile("^Block 3"))
    page.keyboard.press(".")
    page.keyboard.press(".")
    expect(title(block_map)).to_have_text("Step 11 of 23")  # A writes into block 1
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-label", re.compile("^Block 3"))


def test_focus_is_not_lost_with_its_block(lab: Lab) -> None:
    page, block_map = shown_map(lab, "lost", STORY)
    timeline(block_map).focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(title(block_map)).to_have_text("Step 3 of 23")
    block_map.locator(".mk-box").last.focus()
    page.keyboard.press(",")
    expect(title(block_map)).to_have_text("Step 2 of 23")
    expect(timeline(block_map)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(title(block_map)).to_have_text("Step 1 of 23")


def test_focus_stays_on_a_broken_invariant_and_is_not_lost_when_it_holds_again(lab: Lab) -> None:
    page, block_map = shown_map(lab, "pill", BROKEN)
    pill = block_map.get_by_role("button", name="I4 no-shared-write is broken since step 9")
    for button in (pill, block_map.get_by_role("button", name="Step 9: I4")):
        timeline(block_map).press("End")
        expect(title(block_map)).to_have_text("Step 14 of 14")
        button.focus()
        page.keyboard.press(",")  # one violation less: everything in this line is drawn anew
        expect(title(block_map)).to_have_text("Step 13 of 14")
        expect(button).to_be_focused()
        page.keyboard.press("Home")
        expect(title(block_map)).to_have_text("Step 0 of 14")
        expect(pill).to_have_count(0)
        expect(timeline(block_map)).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(title(block_map)).to_have_text("Step 1 of 14")


@pytest.mark.parametrize("height", [420, 900])
def test_in_a_low_window_the_footer_and_the_broken_block_come_into_sight(lab: Lab, height: int) -> None:
    page, block_map = shown_map(lab, f"low{height}", "'before'", BROKEN, "'after'")
    lab.resize(1280, height)
    select_cell(page, 1)
    tab_to(page, block_map.locator('.mk-cell[tabindex="0"]'))
    page.keyboard.press("Tab")
    footer = block_map.locator(".mk-foot")
    expect(footer).to_be_focused()
    expect_in_sight(footer)
    page.keyboard.press("ArrowLeft")
    expect(title(block_map)).to_have_text("Step 13 of 14")
    expect(footer).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(title(block_map)).to_have_text("Step 9 of 14")
    broken = block_map.locator(".mk-cell").nth(1)
    expect(broken).to_be_focused()
    expect_in_sight(broken)
    if height == 900:
        expect_in_sight(block_map)  # the sentence as well, where there is room


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_the_focus_is_a_ring_unlike_every_other_mark(lab: Lab, theme: str) -> None:
    page, block_map = shown_map(lab, f"ring_{theme[-4:].strip()}", BROKEN)
    lab.theme(theme)
    timeline(block_map).press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(title(block_map)).to_have_text("Step 2 of 14")
    main = block_map.locator(".mk-cell.is-main")
    assert focus_ring(main)["outline"].startswith("none") and "inset" in focus_ring(main)["shadow"]
    timeline(block_map).press("End")
    for part in (".mk-button", ".mk-button[aria-disabled=true]", ".mk-pill.is-bad", ".mk-go", ".mk-foot"):
        node = block_map.locator(part).first
        before = focus_ring(node)["outline"]
        node.focus()
        page.keyboard.press("Shift")  # the keyboard was used last: the focus is to be seen
        assert focus_ring(node)["outline"].startswith("solid 2px"), part
        assert node.evaluate("(node) => getComputedStyle(node).opacity") == "1", part
        assert focus_ring(node)["outline"] != before


def test_in_a_big_pool_the_focus_is_seen_whole(lab: Lab) -> None:
    page, block_map = shown_map(lab, "bigring", LONG.replace("BLOCKS", "200").replace("10000", "400"))
    timeline(block_map).focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    box = block_map.locator(".mk-box:focus")
    expect(box).to_have_text("L39 → P199")
    page.keyboard.press("Home")
    expect(box).to_have_text("L0 → P0")
    linked = block_map.locator(".mk-cell.is-linked")
    assert focus_ring(box)["outline"] != focus_ring(linked)["outline"]
    room = """(node) => {
        const [row, own] = [node.closest('.mk-request'), node].map((each) => each.getBoundingClientRect());
        return Math.min(own.left - row.left, own.top - row.top);
    }"""
    assert box.evaluate(room) >= 4, "content-visibility cuts off what is outside the request's row"
    page.keyboard.press("Enter")
    cell = block_map.locator(".mk-cell:focus")
    expect(cell).to_have_class(re.compile("is-linked"))
    ring = focus_ring(cell)["outline"]
    page.keyboard.press("Enter")
    assert focus_ring(linked)["outline"] != ring, "the other half has a ring, too, but another one"


@pytest.mark.parametrize("log", ["small", "big"])
def test_everything_in_the_map_has_a_name(lab: Lab, log: str) -> None:
    source = BROKEN if log == "small" else LONG.replace("BLOCKS", "200").replace("10000", "400")
    page, block_map = shown_map(lab, f"names_{log}", source)
    page.locator(".mk-step").first.wait_for()
    timeline(block_map).press("?")
    assert nameless(block_map) == []
    buttons = block_map.get_by_role("button").evaluate_all(
        "(nodes) => nodes.map((node) => node.getAttribute('aria-label'))"
    )
    assert len(set(buttons)) == len(buttons)
    if log == "small":
        assert [name for name in buttons if name.startswith("Step ") and ":" in name] == [
            "Step 9: I4 no-shared-write, block 1",
            "Step 14: I5 capacity, block 1",
        ]


def test_names_of_pool_cells_follow_what_is_written(lab: Lab) -> None:
    page, block_map = shown_map(lab, "written", STORY)
    cell = block_map.locator(".mk-cell").nth(1)
    for step, written in [(3, "0 of 2"), (4, "1 of 2"), (11, "2 of 2"), (3, "0 of 2")]:
        go_to(page, block_map, step)
        holders = "request A as L1"
        expect_label(cell, f"Block 1: ref count 1 · held by {holders} · {written} slots written")
        cell.focus()
        expect(block_map.locator(".mk-detail")).to_have_text(str(cell.get_attribute("aria-label")))


def test_names_of_request_blocks_say_what_the_picture_shows(lab: Lab) -> None:
    page, block_map = shown_map(lab, "kinds", MARKED)
    first, second = (block_map.locator(".mk-box").nth(number) for number in (0, 1))
    go_to(page, block_map, 3)
    expect_label(first, "L0, block 0, ref count 1: nothing written; 2 slots empty")
    go_to(page, block_map, 6)
    expect_label(second, "L1, block 1, ref count 1: kites; chosen, not stored: ., marked")
    go_to(page, block_map, 14)
    expect_label(first, "L0, block 0, ref count 3: 1 slot before the offset; has")
    expect_label(second, "L1, block 1, ref count 1: kites .; chosen, no slot yet: Bo, marked")
    expect_label(
        block_map.locator(".mk-cell").nth(1),
        "Block 1: ref count 1 · held by request A as L1 · 2 of 2 slots written, marked",
    )
    free = block_map.locator(".mk-cell").nth(5)
    expect_label(free, "Block 5: free, number 3 in the free queue, marked")


def test_names_say_that_a_block_is_broken(lab: Lab) -> None:
    page, block_map = shown_map(lab, "namebroken", BROKEN)
    go_to(page, block_map, 8)
    cell, box = block_map.locator(".mk-cell").nth(1), block_map.locator(".mk-box").nth(1)
    for node in (cell, box):
        expect(node).not_to_have_attribute("aria-label", re.compile("broken"))
    page.keyboard.press("ArrowRight")
    for node in (cell, box):
        expect(node).to_have_attribute("aria-label", re.compile(", broken$"))


def test_a_step_that_breaks_an_invariant_says_so_once(lab: Lab) -> None:
    page, block_map = shown_map(lab, "heard", BROKEN)
    slider, sentence, spoken = timeline(block_map), *block_map.locator("[aria-live]").all()
    said = re.compile(r"Broken: I4 no-shared-write\. Request A writes into block 1 while its ref count is 2")
    go_to(page, block_map, 8)
    expect(slider).not_to_have_attribute("aria-valuetext", re.compile("Broken"))
    page.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", said)
    expect(sentence).to_have_attribute("aria-live", "off")
    expect(spoken).to_have_text("")
    page.keyboard.press("ArrowRight")
    expect(slider).not_to_have_attribute("aria-valuetext", re.compile("Broken"))
    block_map.get_by_role("button", name="Step back").focus()
    page.keyboard.press("Enter")
    expect(title(block_map)).to_have_text("Step 9 of 14")
    expect(sentence).to_have_attribute("aria-live", "polite")
    expect(spoken).to_have_attribute("aria-live", "polite")
    expect(spoken).to_have_text(said)
    go_to(page, block_map, 0)
    page.keyboard.press("End")  # past both of them
    expect(slider).to_have_attribute("aria-valuetext", re.compile("Broken: I4 .*Broken: I5 "))


def test_tab_on_the_last_stop_leads_to_the_next_cell(lab: Lab) -> None:
    page, _ = shown_map(lab, "leave", BROKEN + "\ndisplay(shown)\nshown", "'one'", "'two'", "'three'")
    second = page.locator(".minikv-block-map").nth(1)
    for number, follower in [(0, second.locator(".mk-button").first), (1, page.locator(".jp-Cell").nth(1))]:
        last = page.locator(".minikv-block-map").nth(number).locator(".mk-go").last
        last.focus()
        page.keyboard.press("Tab")
        expect(follower).to_be_focused()
    expect_cell_focused(page, 1)
    last.focus()
    page.keyboard.press("Shift+Tab")
    expect(second.locator(".mk-go").first).to_be_focused()
    go_to(page, second, 5)  # nothing is broken: the footer is the last stop
    second.locator(".mk-foot").focus()
    page.keyboard.press("Tab")
    expect_cell_focused(page, 1)


def test_the_focus_counts_where_a_mouse_pointer_is_parked(lab: Lab) -> None:
    page, block_map = shown_map(lab, "parked", STORY)
    detail = block_map.locator(".mk-detail")
    block_map.locator(".mk-cell").nth(3).hover()
    expect(detail).to_have_text(re.compile("^Block 3:"))
    block_map.locator(".mk-cell").nth(0).focus()
    expect(detail).to_have_text(re.compile("^Block 0:"))
    block_map.locator(".mk-cell").nth(3).hover(position={"x": 30, "y": 30})
    expect(detail).to_have_text(re.compile("^Block 3:"))
    page.keyboard.press(",")  # the focus stays on block 0
    expect(title(block_map)).to_have_text("Step 22 of 23")
    expect(detail).to_have_text(re.compile("^Block 0:"))


def test_the_prompt_is_shown_without_a_mouse(lab: Lab) -> None:
    _, block_map = shown_map(lab, "prompt", MIDWAY)
    group = block_map.locator(".mk-request").first
    expect(group).to_have_attribute("aria-label", re.compile("^Request A, .*, prompt: Ada has kites$"))
    block_map.locator(".mk-box").first.focus()
    detail = block_map.locator(".mk-detail")
    expect(detail).to_have_text(re.compile("^Block 0:.* · prompt of request A: Ada has kites$"))
    block_map.locator(".mk-cell").first.focus()
    expect(detail).not_to_have_text(re.compile("prompt"))


def test_back_on_the_timeline_the_sentence_is_in_sight(lab: Lab) -> None:
    room_below = "\n" * 40 + "'after'"
    page, block_map = shown_map(lab, "back", "'before'", BROKEN, room_below)
    lab.resize(1280, 420)
    for part in (timeline(block_map), block_map.locator(".mk-button").first):
        block_map.locator(".mk-go").last.focus()
        block_map.locator(".mk-foot").evaluate("(node) => node.scrollIntoView()")
        expect_in_sight(block_map.locator(".mk-sentence"), False)
        shift_tab_to(page, part)
        expect_in_sight(block_map.locator(".mk-sentence"))


def test_the_keys_button_and_the_headings_say_what_they_are(lab: Lab) -> None:
    _, block_map = shown_map(lab, "saidkeys", STORY)
    button, help_text = block_map.get_by_role("button", name="Keys"), block_map.locator(".mk-help")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(button).to_have_attribute("aria-controls", str(help_text.get_attribute("id")))
    button.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    for key in ("↑", "↓", "Shift+Enter"):
        expect(help_text.locator("kbd").get_by_text(key, exact=True)).to_be_visible()
    expect(help_text).to_contain_text("play or pause; on a button, press it")
    assert block_map.locator("h3").all_text_contents() == [
        "Logical what each request sees",
        "Physical the pool",
    ]


def test_page_keys_lead_to_the_ends_where_there_are_no_marks(lab: Lab) -> None:
    page, block_map = shown_map(
        lab,
        "unmarked",
        STORY.replace("story_log()", "EventLog(story()[:7])").replace(
            "story_log", "story\nfrom minikv.lab.event_log import EventLog"
        ),
    )
    timeline(block_map).focus()
    page.keyboard.press("PageUp")
    expect(title(block_map)).to_have_text("Step 0 of 6")
    page.keyboard.press("PageDown")
    expect(title(block_map)).to_have_text("Step 6 of 6")


def test_a_click_focuses_a_block_and_the_timeline_can_be_dragged(lab: Lab) -> None:
    page, block_map = shown_map(lab, "mouse", STORY)
    block_map.locator(".mk-cell").nth(3).click()
    expect(block_map.locator(".mk-cell").nth(3)).to_be_focused()
    box = timeline(block_map).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 15)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 15, steps=4)
    page.mouse.up()
    expect(title(block_map)).to_have_text(re.compile("Step 1[12] of 23"))
    block_map.get_by_role("button", name="Step back").click()
    block_map.get_by_role("button", name="First step").click()
    expect(title(block_map)).to_have_text("Step 0 of 23")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_text_is_legible_in_both_themes(lab: Lab, theme: str) -> None:
    cell = STORY.replace("story_log()", "story_log(), step=14, highlight=[2], caption='copied'")
    page, block_map = shown_map(lab, f"theme_{theme[-4:].strip()}", cell)
    lab.theme(theme)
    page.wait_for_timeout(300)
    for part in TEXTS:
        node = block_map.locator(part).first
        assert node.evaluate(CONTRAST) >= 4.5, part
    go_to(page, block_map, 3)  # at step 14 no slot is unused
    assert block_map.locator(".mk-part.is-unused").evaluate(CONTRAST) >= 4.5


@pytest.mark.parametrize(("marked", "followed"), [([], 2), ([1], 1), ([5], 2)])
def test_of_an_events_blocks_the_marked_one_is_selected(lab: Lab, marked: list[int], followed: int) -> None:
    cell = STORY.replace("story_log()", f"story_log(), step=9, highlight={marked}")  # B copies block 1 to 2
    _, block_map = shown_map(lab, f"marked{len(marked)}{followed}", cell)
    expect(title(block_map)).to_have_text("Step 9 of 23")
    expect(block_map.locator(".mk-detail")).to_have_text(re.compile(f"^Block {followed}:"))
    expect(block_map.locator(".mk-cell.is-main")).to_have_attribute("data-block", str(followed))


def test_a_click_on_a_broken_invariant_goes_to_its_step_and_block(lab: Lab) -> None:
    cell = STORY.replace(
        "story_log()", "EventLog([*story()[:9], write('A', 3, [3], 'oops'), *story()[11:15]])"
    )
    cell = cell.replace("story_log", "story, write\nfrom minikv.lab.event_log import EventLog")
    _, block_map = shown_map(lab, "broken", cell)
    block_map.get_by_role("button", name="I4 no-shared-write is broken since step 9").click()
    expect(title(block_map)).to_have_text("Step 9 of 13")
    expect(block_map.locator(".mk-cell").nth(1)).to_be_focused()
    expect(block_map.locator(".mk-cell").nth(1)).to_have_class(re.compile("is-broken"))
    expect(block_map.locator(".mk-mark.is-bad")).to_have_count(1)


def test_a_growing_log_is_followed_by_every_view(lab: Lab) -> None:
    grow = "for n in range(300):\n    shown.event_log({'op': 'note', 'text': f'note {n}'})"
    page, block_map = shown_map(lab, "growth", STORY, "shown", grow)
    expect(page.locator(".mk-step")).to_have_count(2)
    for view in page.locator(".mk-step").all():
        expect(view).to_have_text("Step 323 of 323")
    timeline(block_map).focus()
    page.keyboard.press("Home")
    for view in page.locator(".mk-step").all():
        expect(view).to_have_text("Step 0 of 323")
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2; }")
    page.wait_for_timeout(400)
    lab.command("notebook:run-cell")
    expect(page.locator(".mk-step").first).to_have_text("Step 0 of 623")


def test_a_narrow_cell_puts_logical_above_physical(lab: Lab) -> None:
    _, block_map = shown_map(lab, "narrow", STORY)
    lab.resize(820, 1000)
    logical = block_map.locator(".mk-logical").bounding_box()
    physical = block_map.locator(".mk-physical").bounding_box()
    assert logical is not None and physical is not None
    assert logical["y"] + logical["height"] <= physical["y"]
    assert block_map.evaluate("(node) => node.scrollWidth <= node.clientWidth")


def test_without_widget_state_an_untrusted_notebook_shows_the_frame(lab: Lab, tmp_path: Path) -> None:
    from minikv.lab.block_map import BlockMap
    from tests.lab.logs import story_log

    data, _ = BlockMap(story_log(), step=14)._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell("shown", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("display_data", data=json.loads(json.dumps(data)))]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "stored.ipynb")
    page = lab.open(tmp_path / "stored.ipynb")
    picture = page.get_by_role("img", name="Step 14 of 23: The model chooses “Bo”")
    expect(picture).to_be_visible()
    assert picture.evaluate("(image) => image.naturalWidth") == 1040
    page.get_by_text("The same as text").click()
    expect(page.locator(".jp-OutputArea-output pre")).to_contain_text("Free queue: P3 › P4 › P5")


def test_a_late_echo_of_the_kernel_does_not_take_the_map_back(lab: Lab) -> None:
    """A busy or far kernel confirms a step when the reader is several steps further on."""
    page, block_map = shown_map(lab, "late", STORY, "import time; time.sleep(2)", "shown.step")
    expect(title(block_map)).to_have_text("Step 23 of 23")
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    lab.command("notebook:run-cell")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=busy]")
    seen = block_map.evaluate(
        """async (map) => {
            const slider = map.querySelector('[role=slider]');
            const seen = [];
            for (let i = 0; i < 20; i++) {  // the first is sent at once, and confirmed while others follow
                slider.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true }));
                await new Promise((resolve) => setTimeout(resolve, i ? 100 : 400));
                seen.push(map.querySelector('.mk-step').textContent);
            }
            return seen;
        }"""
    )
    assert seen == [f"Step {step} of 23" for step in range(22, 2, -1)]
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2; }")
    lab.command("notebook:run-cell")
    expect(page.locator(".jp-OutputArea-output pre").last).to_have_text("3")  # the kernel has heard it, too


GROWING = """
import time
for n in range(15):
    time.sleep(0.1)
    shown.event_log({"op": "note", "text": f"note {n}"})
"""


@pytest.mark.parametrize("keys", ["", "ArrowLeft End", "Home End"])
def test_a_reader_at_the_end_follows_a_busy_kernel(lab: Lab, keys: str) -> None:
    """At the end from the start, or gone there: the kernel confirms the key when the log has long grown."""
    page, block_map = shown_map(lab, "follows", STORY, "pass", "shown.step")
    grow(lab, page)
    page.wait_for_timeout(500)
    for key in keys.split():
        press_slider(block_map, key)
    page.wait_for_timeout(200)
    page.evaluate("() => { const t = performance.now(); while (performance.now() - t < 500); }")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    expect(title(block_map)).to_have_text("Step 38 of 38")
    page.wait_for_timeout(500)  # the last echo is here by now
    expect(title(block_map)).to_have_text("Step 38 of 38")
    assert kernel_step(lab, page) == "38"


def test_a_reader_who_went_back_stays_there_while_the_log_grows(lab: Lab) -> None:
    page, block_map = shown_map(lab, "stays", STORY, "pass", "shown.step")
    grow(lab, page)
    page.wait_for_timeout(500)
    press_slider(block_map, "Home")
    press_slider(block_map, "ArrowRight")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    page.wait_for_timeout(500)
    expect(title(block_map)).to_have_text("Step 1 of 38")
    assert kernel_step(lab, page) == "1"


def grow(lab: Lab, page: Page) -> None:
    """Run the second cell, in which the log grows; the map is there already."""
    page.evaluate(
        """(source) => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.model.cells.get(1).sharedModel.setSource(source);
            notebook.activeCellIndex = 1;
        }""",
        GROWING,
    )
    lab.command("notebook:run-cell")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=busy]")


def press_slider(block_map: Locator, key: str) -> None:
    """Without the focus, so that nothing scrolls."""
    block_map.evaluate(
        """(map, key) => map.querySelector('[role=slider]')
            .dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))""",
        key,
    )


def kernel_step(lab: Lab, page: Page) -> str:
    """What the third cell, run now, says of where the map is."""
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2; }")
    lab.command("notebook:run-cell")
    page.wait_for_timeout(300)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    page.wait_for_timeout(500)
    return page.locator(".jp-OutputArea-output pre").last.inner_text().strip()


def test_what_was_put_aside_comes_back_as_it_was(lab: Lab) -> None:
    """Rows of requests that have yet to come are kept with their boxes; each must look like a new one."""
    page, block_map = shown_map(lab, "aside", STORY)
    logical = block_map.locator(".mk-logical")

    def looks() -> object:
        return logical.evaluate(
            """(node) => [...node.querySelectorAll('.mk-request, .mk-option')].map((each) => [
                each.className, each.getAttribute('aria-label'), each.textContent, each.hidden,
                each.getAttribute('tabindex'), each.getAttribute('aria-selected')])"""
        )

    def pressed(key: str, step: int) -> object:
        timeline(block_map).press(key)
        expect(title(block_map)).to_have_text(f"Step {step} of 23")
        return looks()

    first = pressed("End", 23)
    assert pressed("Home", 0) == []
    assert pressed("End", 23) == first
    for step in range(22, -1, -1):
        pressed("ArrowLeft", step)
    for step in range(1, 23):
        pressed("ArrowRight", step)
    assert pressed("ArrowRight", 23) == first
    for step in range(22, 13, -1):
        pressed("ArrowLeft", step)
    block_map.locator(".mk-box").first.focus()  # the tab stop goes with the focus
    page.keyboard.press("ArrowDown")
    pressed("Home", 0)
    for step in range(1, 15):
        pressed("ArrowRight", step)
    expect(logical.locator('.mk-option[tabindex="0"]')).to_have_count(1)


@pytest.mark.parametrize("blocks", [50, 1000])
def test_a_seek_over_ten_thousand_events(lab: Lab, blocks: int) -> None:
    _, block_map = shown_map(lab, f"long{blocks}", LONG.replace("BLOCKS", str(blocks)))
    expect(title(block_map)).to_have_text("Step 10000 of 10000")
    expect(block_map.locator(".mk-cell")).to_have_count(blocks)
    timing = """async (map) => {
        const slider = map.querySelector('[role=slider]');
        const title = map.querySelector('.mk-step');
        const press = async (key) => {
            await new Promise(requestAnimationFrame);
            let start;
            requestAnimationFrame(() => { start = performance.now(); });  // the map draws right after this
            slider.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
            await new Promise(requestAnimationFrame);
            map.getBoundingClientRect();  // makes the browser finish its layout
            return performance.now() - start;
        };
        const found = {};
        for (const key of ['Home', 'End', 'ArrowLeft', 'ArrowLeft', 'ArrowRight', 'Home', 'End']) {
            (found[key] ??= []).push(Number((await press(key)).toFixed(1)));
        }
        return [found, title.textContent];
    }"""
    found, where = block_map.evaluate(timing)
    assert where == "Step 10000 of 10000"
    free = block_map.locator(".mk-cell.is-free")
    expect(free).to_have_count(0)  # also those out of sight, which a big pool draws a moment later
    timeline(block_map).press("Home")
    expect(free).to_have_count(blocks)
    print(f"\n{blocks:,} blocks, 10,000 events, ms to seek, draw and lay out: {found}")
