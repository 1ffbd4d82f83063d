"""The block map in real JupyterLab: keys, focus, themes, growth, and how long a seek takes."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.jupyter import Lab

STORY = """
from minikv.lab.block_map import BlockMap
from tests.lab.logs import story_log
shown = BlockMap(story_log())
shown
"""
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
    page.keyboard.press("ArrowLeft")
    expect(title(block_map)).to_have_text("Step 1 of 23")


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
    page, block_map = shown_map(lab, "narrow", STORY)
    page.set_viewport_size({"width": 820, "height": 1000})
    page.wait_for_timeout(300)
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
