"""The packing game as a board that is played with the mouse or the keys.

The browser draws the state and shows where a reservation would go; every move is a message to the kernel
(the trait `_action`), where the game's own rules judge it, and the answer is the next state (`_state`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from minikv.lab.packing import PackingError, PackingGame, Run
from minikv.lab.packing_paged import Paged, play_paged
from minikv.lab.packing_requests import Hole, PackingRequest, first_fit
from minikv.lab.packing_svg import board_svg
from minikv.lab.packing_text import COLUMNS, board_text

_STATIC = Path(__file__).parent / "static"
_PAGED_BLOCK = 4
_QUEUE_SHOWN = 12


class PackingBoard(anywidget.AnyWidget):
    """The board of a game. Several boards may show one game; each follows it.

    Args:
        game: what is played.
        start, size: the slots that are aimed at first; None lets the board choose.
    """

    # Plain strings: a path would keep every instance alive to watch the file.
    _esm = (_STATIC / "packing.js").read_text(encoding="utf-8")
    _css = "".join((_STATIC / name).read_text(encoding="utf-8") for name in ("palette.css", "packing.css"))

    _state = traitlets.Unicode(help="All that is drawn, as JSON.").tag(sync=True)
    _action = traitlets.Dict(help="The player's last move: {serial, do, name, start, size}.").tag(sync=True)

    def __init__(self, game: PackingGame, start: int | None = None, size: int | None = None) -> None:
        self.game = game
        self.aim = None if start is None or size is None else (start, size)
        self._answered, self._refusal = 0, ""
        super().__init__(_state=self._state_now())
        self._unfollow: Callable[[], None] = game.follow(self._refresh)

    @property
    def paged(self) -> Paged | None:
        """The same requests, paged; None before the game is over, or if its slots make no whole blocks."""
        if not self.game.is_over or not self.game.steps or self.game.num_slots % _PAGED_BLOCK:
            return None
        return play_paged(self.game, _PAGED_BLOCK)

    def to_text(self) -> str:
        """The board as plain text."""
        return board_text(self.game, self.paged)

    def to_svg(self) -> str:
        """The board as a static SVG, for light and dark pages."""
        return board_svg(self.game, self.paged, self.aim)

    def close(self) -> None:
        """Stop following the game and take the widget off the page."""
        self._unfollow()
        super().close()

    # ---- moves --------------------------------------------------------------------------------

    @traitlets.observe("_action")
    def _on_action(self, change: dict[str, Any]) -> None:
        """Carry out a move, or say why not; either way the browser gets an answer."""
        action = change["new"]
        if not action:
            return
        self._answered, self._refusal = action.get("serial", 0), ""
        try:
            self._carry_out(action)
        except (PackingError, TypeError, KeyError) as error:
            self._refusal = str(error)
        self._refresh()

    def _carry_out(self, action: dict[str, Any]) -> None:
        game, do = self.game, action.get("do")
        if do == "place":
            game.place(action["name"], action["start"], action["size"])
        elif do == "move":
            game.move(action["name"], action["start"], action["size"])
        elif do == "drop":
            game.drop(action["name"])
        elif do == "step":
            game.step(action["size"])
        elif do in ("undo", "restart"):
            getattr(game, do)()
        else:
            raise PackingError(f"there is no move {do!r}")

    def _refresh(self) -> None:
        self._state = self._state_now()

    # ---- what the browser draws -----------------------------------------------------------------

    def _state_now(self) -> str:
        state = {
            **game_state(self.game),
            "aim": self.aim,
            "answered": self._answered,
            "refusal": self._refusal,
            "paged": paged_state(self.game, self.paged),
        }
        return json.dumps(state, ensure_ascii=False, separators=(",", ":"))

    # ---- what is shown where no widget can be ----------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle or ({}, {})
        return {**data, "text/html": self._to_html(), "text/plain": self.to_text()}, metadata

    def _to_html(self) -> str:
        """Picture and text; an image, since inline SVG is taken apart where a notebook is not trusted."""
        picture = base64.b64encode(self.to_svg().encode()).decode()
        text = self.to_text()
        image = f'<img alt="{escape(text.partition(chr(10))[0])}" src="data:image/svg+xml;base64,{picture}">'
        return f"{image}<details><summary>The same as text</summary><pre>{escape(text)}</pre></details>"

    def __repr__(self) -> str:
        return f"PackingBoard({self.game!r})"


def game_state(game: PackingGame) -> dict[str, Any]:
    """The game as plain JSON; `hand` is whom the player has to decide about."""
    return {
        "step": game.steps,
        "steps": game.num_steps,
        "over": game.is_over,
        "undo": game.can_undo,
        "slots": game.num_slots,
        "columns": COLUMNS,
        "sentence": game.sentence,
        "runs": [_run(game, run) for run in game.runs],
        "waiting": [_waiting(game, each) for each in game.waiting[:_QUEUE_SHOWN]],
        "more": max(0, len(game.waiting) - _QUEUE_SHOWN),
        "hand": _hand(game),
        "holes": game.holes,
        "history": game.splits,
        "score": _score(game),
        "player": game.player,
        "served": game.served,
    }


def _waiting(game: PackingGame, request: PackingRequest) -> dict[str, Any]:
    return {
        "name": request.name,
        "prompt": request.prompt,
        "ink": game.requests.index(request),
        "seen": game.seen(request.name),
    }


def _run(game: PackingGame, run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "start": run.start,
        "size": run.size,
        "tokens": run.tokens,
        "prompt": run.request.prompt,
        "ink": game.requests.index(run.request),
        "outgrown": run.is_outgrown,
        "least": game.least(run.name),
        "most": game.most(run.name),
    }


def _hand(game: PackingGame) -> dict[str, Any] | None:
    """The first request that has outgrown its reservation, else the head of the queue, and a first aim."""
    if game.is_over:
        return None
    if game.outgrown:
        run = game.outgrown[0]
        return _hand_outgrown(game, run)
    if game.waiting:
        head = game.waiting[0]
        return {
            "name": head.name,
            "start": _best_start(game.holes, game.wanted),
            "size": game.wanted,
            "least": game.least(head.name),
            "most": game.most(head.name),
        }
    return None


def _hand_outgrown(game: PackingGame, run: Run) -> dict[str, Any]:
    """Twice its size, where it is if it can grow there, else in the first hole that is large enough."""
    size = min(2 * run.tokens, game.most(run.name))
    behind = dict(game.holes).get(run.stop, 0)
    elsewhere = None if run.size + behind >= size else first_fit(game.holes, size)
    return {"name": run.name, "start": run.start if elsewhere is None else elsewhere, "size": size}


def _best_start(holes: list[Hole], size: int) -> int:
    """Where to aim first: at the first hole that is large enough, else at the largest one."""
    found = first_fit(holes, size)
    return max(holes, key=lambda hole: hole[1], default=(0, 0))[0] if found is None else found


def _score(game: PackingGame) -> dict[str, Any]:
    found = game.score
    return {**found._asdict(), "split": list(found.split)}


def paged_state(game: PackingGame, paged: Paged | None) -> dict[str, Any] | None:
    """The paged run as plain JSON."""
    if paged is None:
        return None
    inks = {request.name: number for number, request in enumerate(game.requests)}
    return {
        "block_size": paged.block_size,
        "score": {**paged.score._asdict(), "split": list(paged.score.split)},
        "slots": [slot and (*slot, inks[slot[0]]) for slot in paged.slots],
    }
