"""Sliders for the experiment: the pool and the patience of a scene, the lengths of a concurrency limit."""

from __future__ import annotations

import base64
from html import escape
from typing import Any

import ipywidgets

from minikv.lab.experiment_limit import Fitting, fitting
from minikv.lab.experiment_run import Ask, Outcome, Scene, run
from minikv.lab.experiment_timeline import timeline
from minikv.lab.svg_page import SvgPage

TIMEOUTS = {"none": None, "0.5 s": 0.5, "1 s": 1.0, "1.5 s": 1.5, "2 s": 2.0, "3 s": 3.0, "4 s": 4.0}
_WIDE: dict[str, Any] = {"width": "26em"}
_LEFT, _FULL, _ROW = 190, 700, 30  # of the bars


class SceneExplorer:
    """A slider for the pool, one for the patience; the scene runs again on the engine at every change.

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
        self.timeout = ipywidgets.SelectionSlider(
            options=list(TIMEOUTS),
            value="none",
            description="time-out",
            continuous_update=False,
            layout=_WIDE,
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
        data = ipywidgets.VBox([controls, self.picture])._repr_mimebundle_(**kwargs) or {}
        return {**data, "text/html": f"<p>{escape(repr(self))}</p>", "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"time-out {self.timeout.value}; {self.outcome!r}"


class FittingExplorer:
    """Sliders for prompt, answer and limit of equal requests: how many fit at once, paged and contiguous.

    Args:
        slots: of the memory, a multiple of 256.

    Attributes:
        prompt, answer, limit, block_size, picture: the widgets. The answer is in % of the limit.
    """

    def __init__(self, slots: int = 16384, prompt: int = 200, limit: int = 400, answer: int = 50) -> None:
        self._slots = slots
        slider: dict[str, Any] = {"layout": _WIDE, "continuous_update": False}
        self.prompt = ipywidgets.IntSlider(prompt, 1, 2000, description="prompt", **slider)
        self.limit = ipywidgets.IntSlider(limit, 1, 2000, description="limit", **slider)
        self.answer = ipywidgets.IntSlider(answer, 1, 100, description="answer, %", **slider)
        self.block_size = ipywidgets.SelectionSlider(
            options=(1, 4, 16, 64, 256), value=16, description="block size", **slider
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
        page.text(24, 34, self._question, size=13.5)
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
        data = ipywidgets.VBox([controls, self.picture])._repr_mimebundle_(**kwargs) or {}
        picture = base64.b64encode(self.to_svg().encode()).decode()
        image = f'<img alt="{escape(repr(self))}" src="data:image/svg+xml;base64,{picture}">'
        return {**data, "text/html": image, "text/plain": repr(self)}

    def __repr__(self) -> str:
        fits = self.fits
        return f"{self._question}: paged {fits.paged}, contiguous {fits.contiguous}, {fits.ratio:.2f} times"
