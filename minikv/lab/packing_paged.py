"""The same requests as in a packing game, served from a paged cache: the real manager, blocks, tables.

The rules are the game's. Requests are served in order; a running one that finds no block makes the youngest
one go back to the head of the queue, to start again. Only the memory is another: nobody reserves anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minikv.block_table import BlockTable
from minikv.lab.packing import PackingGame, Score
from minikv.lab.packing_requests import PackingRequest
from minikv.lab.packing_split import Held, Moment, Split, mean, split
from minikv.manager import KVCacheManager


class Paged(NamedTuple):
    """What came of it."""

    block_size: int
    score: Score
    splits: list[Split]  # at the end of each step
    slots: list[tuple[str, bool] | None]  # at the end of the last one: who holds each slot, and is it written


@dataclass
class _Running:
    request: PackingRequest
    table: BlockTable
    tokens: int
    stay: int


@dataclass
class _Day:
    manager: KVCacheManager
    waiting: list[PackingRequest]
    running: list[_Running] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    finals: dict[int, int] = field(default_factory=dict)
    slots: list[tuple[str, bool] | None] = field(default_factory=list)
    stays: int = 0
    served: int = 0
    dropped: int = 0
    lost: int = 0


def play_paged(game: PackingGame, block_size: int = 4) -> Paged:
    """Serve the game's requests, from the first step on, for as many steps as it has had.

    Raises:
        ValueError: the memory is not a whole number of blocks, or no step has passed yet.
    """
    if game.num_slots % block_size:
        raise ValueError(f"{game.num_slots} slots cannot be cut into blocks of {block_size}")
    if not game.steps:
        raise ValueError("no step has passed yet, so there is nothing to compare; play first")
    manager = KVCacheManager(game.num_slots // block_size, block_size)
    day = _Day(manager, list(game.requests))
    for _ in range(game.steps):
        _step(day)
    day.finals.update((each.stay, each.request.total) for each in day.running)
    splits = [split(moment, day.finals) for moment in day.moments]
    written = sum(len(moment.held) for moment in day.moments)
    score = Score(game.steps, day.served, 0, day.dropped, day.lost, written, mean(splits).shares)
    return Paged(block_size, score, splits, day.slots)


def _step(day: _Day) -> None:
    _make_room(day)
    _admit(day)
    for each in day.running:
        each.tokens += 1
    held = [Held(each.stay, each.table.capacity, each.tokens) for each in day.running]
    day.moments.append(Moment(tuple(held), 0, day.manager.num_free_blocks * day.manager.block_size))
    day.slots = _picture(day.manager, day.running)
    for each in [each for each in day.running if each.tokens == each.request.total]:
        day.served += 1
        _leave(day, each)


def _make_room(day: _Day) -> None:
    """A block for everybody whose blocks are full. Is none free, the youngest one goes."""
    for each in tuple(day.running):
        while each in day.running and not day.manager.allocate(each.table, each.tokens + 1):
            youngest = day.running[-1]
            _leave(day, youngest)
            day.waiting.insert(0, youngest.request)
            day.dropped += 1
            day.lost += youngest.tokens - youngest.request.prompt


def _admit(day: _Day) -> None:
    while day.waiting:
        request = day.waiting[0]
        table = BlockTable(day.manager.block_size, name=request.name)
        if not day.manager.allocate(table, request.prompt + 1):
            return
        day.running.append(_Running(request, table, request.prompt, day.stays))
        day.waiting.pop(0)
        day.stays += 1


def _leave(day: _Day, running: _Running) -> None:
    day.finals[running.stay] = running.tokens
    day.running.remove(running)
    day.manager.free(running.table)


def _picture(manager: KVCacheManager, running: Sequence[_Running]) -> list[tuple[str, bool] | None]:
    slots: list[tuple[str, bool] | None] = [None] * (manager.num_blocks * manager.block_size)
    for each in running:
        for position in range(each.table.capacity):
            slots[each.table.slot(position)] = (each.request.name, position < each.tokens)
    return slots
