"""Sliders and menus for the experiment: pool and time-out of a scene, the lengths of a concurrency limit.

What has few values is a menu: there a screen reader says the value, on a slider its place among the values.
"""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets

from minikv.lab.experiment_limit import Fitting, fitting
from minikv.lab.experiment_run import Ask, Outcome, Scene, run
from minikv.lab.experiment_timeline import timeline
from minikv.lab.svg_page import SvgPage

_SECONDS = (0.5, 1.0, 1.5, 2.0, 3.0, 3.5, 3.8, 3.9, 4.0)
TIMEOUTS: dict[str, float | None] = {"none": None, **{f"{seconds:g} s": seconds for seconds in _SECONDS}}
_WIDE: dict[str, Any] = {"width": "28em"}
_NARROW: dict[str, Any] = {"width": "14em"}
_LABEL: dict[str, Any] = {"description_width": "9.5em"}
_LEFT, _FULL, _ROW = 190, 700, 30  # of the bars


class SliderNames(anywidget.AnyWidget):
    """Unseen; put into a VBox, it gives the sliders there names for screen readers: their descriptions."""

    _esm = (Path(__file__).parent / "static" / "slider_names.js").read_text(encoding="utf-8")

    def __init__(self) -> None:
        super().__init__(layout={"height": "0"})


class SceneExplorer:
    """A slider for the pool, a menu for the time-out; the scene runs again on the engine at every change.

    Args:
        asks: who comes.
        num_blocks: where the slider begins.

    Attributes:
        blocks, timeout, picture: the widgets; setting the first two redraws the third.
        outcome: of the run that is shown.
    """

    def __init__(self, asks: tuple[Ask, ...], num_blocks: int = 16) -> None:
        self._asks = asks
        self.blocks = ipywidgets.IntSlider(
            num_blocks, 4, 48, description="blocks", continuous_update=False, layout=_WIDE
        )
        self.timeout = ipywidgets.Dropdown(
            options=list(TIMEOUTS), value="none", description="time-out", layout=_NARROW
        )
        # The height is fixed, so that nothing below the picture moves.
        self.picture = ipywidgets.HTML(layout={"height": "470px", "overflow": "hidden"})
        for control in (self.blocks, self.timeout):
            control.observe(self._redraw, names="value")
        self._redraw()

    def _redraw(self, change: object = None) -> None:
        scene = Scene("your scene", self._asks, self.blocks.value, timeout=TIMEOUTS[str(self.timeout.value)])
        self.outcome: Outcome = run(scene)
        svg = timeline(self.outcome, f"{self.blocks.value} blocks, time-out {self.timeout.value}").to_svg()
        self.picture.value = f"<p>{escape(repr(self))}</p>{svg}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        controls = ipywidgets.HBox([self.blocks, self.timeout])
        data = ipywidgets.VBox([controls, self.picture, SliderNames()])._repr_mimebundle_(**kwargs) or {}
        return {**data, "text/html": f"<p>{escape(repr(self))}</p>", "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"time-out {self.timeout.value}; {self.outcome!r}"


class FittingExplorer:
    """How many equal requests fit at once, paged and contiguous? Sliders for the lengths, a menu for blocks.

    Args:
        slots: of the memory, a multiple of 256.

    Attributes:
        prompt, answer, limit, block_size, picture: the widgets. The answer is in % of the limit.
    """

    def __init__(self, slots: int = 16_384, prompt: int = 200, limit: int = 400, answer: int = 50) -> None:
        self._slots = slots
        slider: dict[str, Any] = {"layout": _WIDE, "style": _LABEL, "continuous_update": False}
        self.prompt = ipywidgets.IntSlider(prompt, 1, 2000, description="prompt", **slider)
        self.limit = ipywidgets.IntSlider(limit, 1, 2000, description="limit", **slider)
        self.answer = ipywidgets.IntSlider(answer, 1, 100, description="answer, % of limit", **slider)
        self.block_size = ipywidgets.Dropdown(
            options=(1, 4, 16, 64, 256),
            value=16,
            description="block size",
            layout={"width": "18em"},
            style=_LABEL,
        )
        self.picture = ipywidgets.HTML(layout={"height": "190px", "overflow": "hidden"})
        for control in self._controls:
            control.observe(self._redraw, names="value")
        self._redraw()

    @property
    def _controls(self) -> tuple[Any, ...]:
        return self.prompt, self.limit, self.answer, self.block_size

    @property
    def tokens(self) -> int:
        """Of the answer."""
        return max(1, round(self.limit.value * self.answer.value / 100))

    @property
    def fits(self) -> Fitting:
        """Where the sliders stand."""
        return fitting(
            self.prompt.value, self.tokens, self.limit.value, self._slots, int(self.block_size.value)
        )

    def _redraw(self, change: object = None) -> None:
        self.picture.value = self.to_svg()

    def to_svg(self) -> str:
        """Two bars, and where twice the contiguous one would end."""
        fits, page = self.fits, SvgPage("Requests side by side", repr(self))
        page.text(24, 34, f"{self._question}: {fits.ratio:.2f} times as many", size=13.5)
        scale = _FULL / max(fits.paged, 2 * fits.contiguous, 1)
        for row, (label, count, ink, kind) in enumerate(
            (("paged", fits.paged, "0", "1"), ("contiguous", fits.contiguous, "3", "0"))
        ):
            y = 54 + row * (_ROW + 12)
            page.text(_LEFT - 14, y + 20, label, size=13, text_anchor="end")
            if count:
                page.pattern(_LEFT, y, (count * scale, _ROW), ink, kind)
            page.text(_LEFT + count * scale + 10, y + 20, str(count), size=14, font_weight=700)
        twice = _LEFT + 2 * fits.contiguous * scale
        page.box(twice - 1, 46, (2, 2 * _ROW + 24), "ink-1", "none", rx=0)
        page.text(twice, 152, "twice the contiguous", "ink-1", 12, text_anchor="middle")
        return page.finish(170)

    @property
    def _question(self) -> str:
        return (
            f"{self._slots:,} slots, blocks of {self.block_size.value}: prompts of {self.prompt.value}, "
            f"answers of {self.tokens} tokens, limit {self.limit.value}"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        controls = ipywidgets.VBox(
            [ipywidgets.HBox(list(self._controls[:2])), ipywidgets.HBox(list(self._controls[2:]))]
        )
        data = ipywidgets.VBox([controls, self.picture, SliderNames()])._repr_mimebundle_(**kwargs) or {}
        picture = base64.b64encode(self.to_svg().encode()).decode()
        image = f'<img alt="{escape(repr(self))}" src="data:image/svg+xml;base64,{picture}">'
        return {**data, "text/html": image, "text/plain": repr(self)}

    def __repr__(self) -> str:
        fits = self.fits
        return f"{self._question}: paged {fits.paged}, contiguous {fits.contiguous}, {fits.ratio:.2f} times"
