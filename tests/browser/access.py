"""What a reader without a mouse needs to be true: asked of the page in the tests of the widgets."""

from typing import Any

from playwright.sync_api import Locator, Page, expect

# Everything that can have the focus, or that a screen reader announces by its role.
ANNOUNCED = "button, input, select, textarea, a[href], [tabindex], [role]"
NAMELESS = """(root, announced) => {
    const name = (node) => (node.getAttribute('aria-label') || node.labels?.[0]?.textContent
        || (node.matches('input, select, textarea') ? '' : node.textContent) || '').trim();
    const shown = [root, ...root.querySelectorAll(announced)]
        .filter((node) => node.checkVisibility() && !node.closest('[aria-hidden=true]'));
    return shown.filter((node) => !name(node)).map((node) => node.outerHTML.slice(0, 120));
}"""
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets.map(
    ({ model }) => [model.id, model.type, model.sharedModel.getSource()])"""
RING = """(node) => {
    const { outlineStyle, outlineWidth, outlineColor, boxShadow } = getComputedStyle(node);
    return { outline: [outlineStyle, outlineWidth, outlineColor].join(' '), shadow: boxShadow };
}"""


def nameless(root: Locator) -> list[str]:
    """The parts of a widget that have no name for a screen reader."""
    found: list[str] = root.evaluate(NAMELESS, ANNOUNCED)
    return found


def notebook_cells(page: Page) -> list[list[str]]:
    """Id, type and source of every cell."""
    found: list[list[str]] = page.evaluate(CELLS)
    return found


def select_cell(page: Page, number: int) -> None:
    """Select this cell as the arrow keys do: command mode, the focus on the cell."""
    page.evaluate(
        """(number) => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.activeCellIndex = number;
            notebook.mode = 'command';
            notebook.activate();
        }""",
        number,
    )
    expect_cell_focused(page, number)


def expect_cell_focused(page: Page, number: int) -> None:
    """The focus is on the cell itself, which is the selected one, in command mode."""
    expect(page.locator(".jp-Cell").nth(number)).to_be_focused()
    notebook: dict[str, Any] = page.evaluate(
        """() => {
            const { activeCellIndex, mode } = window.jupyterapp.shell.currentWidget.content;
            return { activeCellIndex, mode };
        }"""
    )
    assert notebook == {"activeCellIndex": number, "mode": "command"}


def tab_to(page: Page, target: Locator, limit: int = 15) -> None:
    """Press Tab until `target` has the focus. AssertionError after `limit` times."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        if target.evaluate("(node) => node === document.activeElement"):
            return
    raise AssertionError(f"{limit} times Tab did not lead to {target}")


def focus_ring(node: Locator) -> dict[str, str]:
    """How the outline and the shadow around a part are drawn."""
    found: dict[str, str] = node.evaluate(RING)
    return found


def expect_in_sight(node: Locator, in_sight: bool = True) -> None:
    """Wait until all of it is within the part of the notebook that is scrolled to, or until it is not."""
    node.page.wait_for_function(
        """([node, inSight]) => {
            const view = node.closest('.jp-WindowedPanel-outer').getBoundingClientRect();
            const { top, bottom } = node.getBoundingClientRect();
            return inSight === (top >= view.top - 1 && bottom <= view.bottom + 1);
        }""",
        arg=[node.element_handle(), in_sight],
    )
