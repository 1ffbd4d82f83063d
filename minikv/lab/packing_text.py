"""The packing board as plain text: what it shows, where nothing can be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.lab import packing_words as words
from minikv.lab.packing_split import KINDS, Split
from minikv.lab.sentences import counted

if TYPE_CHECKING:
    from minikv.lab.packing import PackingGame
    from minikv.lab.packing_paged import Paged

COLUMNS = 24  # slots in a line, as on the board
QUEUE_SHOWN = 6
Slot = tuple[str, bool] | None  # who holds it, and is it written; None: free


def board_text(game: PackingGame, paged: Paged | None) -> str:
    """The whole board, line by line, without trailing spaces."""
    sections = [
        [f"Step {game.steps} of {game.num_steps}: {game.sentence}"],
        ["Memory (A: a token of A, a: reserved for A, ·: free):", *strip_lines(slots_of(game))],
        [_running(game), waiting_line(game), holes_line(game)],
        [f"Now: {amounts(game.now())}", *_so_far(game)],
        _result(game, paged) if paged else [],
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in lines) for lines in sections if lines)


def slots_of(game: PackingGame) -> list[Slot]:
    """Who holds each slot, and is it written."""
    slots: list[Slot] = [None] * game.num_slots
    for run in game.runs:
        for slot in range(run.start, run.stop):
            slots[slot] = (run.name, slot < run.start + run.tokens)
    return slots


def strip_lines(slots: Sequence[Slot]) -> list[str]:
    """The slots in lines of 24, each with the number of its first slot."""
    signs = ["·" if slot is None else slot[0] if slot[1] else slot[0].lower() for slot in slots]
    width = max(map(len, signs))
    return [
        f"  {first:4}  " + " ".join(sign.ljust(width) for sign in signs[first : first + COLUMNS])
        for first in range(0, len(signs), COLUMNS)
    ]


def waiting_line(game: PackingGame) -> str:
    """The head of the queue and who comes after it."""
    if not game.waiting:
        return "Waiting: nobody"
    shown = ", ".join(f"{each.name} (prompt {each.prompt})" for each in game.waiting[:QUEUE_SHOWN])
    more = len(game.waiting) - QUEUE_SHOWN
    return f"Waiting: {shown}" + (f", and {more} more" if more > 0 else "")


def holes_line(game: PackingGame) -> str:
    """The holes, and whether the head of the queue would fit into one."""
    holes = ", ".join(f"{size} at {start}" for start, size in game.holes) or "none"
    line = f"Holes: {holes}"
    if game.waiting and game.wanted > game.largest_hole:
        line += ". " + words.fits_nowhere(
            game.waiting[0].name, game.wanted, game.free_slots, game.largest_hole
        )
    return line


def amounts(found: Split, unit: str = "") -> str:
    """Each kind with its number, those that are 0 left out."""
    number = ".0f" if unit == "" else ".1f"
    parts = zip(KINDS.values(), found, strict=True)
    return ", ".join(f"{value:{number}}{unit} {kind}" for kind, value in parts if value)


def _running(game: PackingGame) -> str:
    each = [f"{run.name} {run.tokens} of {run.size} at {run.start}" for run in game.runs]
    return f"Running (tokens of slots): {', '.join(each) or 'nobody'}"


def _so_far(game: PackingGame) -> list[str]:
    if not game.steps:
        return []
    score = game.score
    done = f"{score.served} served, {counted(score.tokens_copied, 'token')} copied, dropped {score.dropped}×"
    return [f"So far: {done}; mean: {amounts(score.split, ' %')}"]


def _result(game: PackingGame, paged: Paged) -> list[str]:
    lines = [f"The same requests, paged, block size {paged.block_size}: {paged.score}"]
    return [*lines, *strip_lines(paged.slots)]
