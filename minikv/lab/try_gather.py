"""Let a learner's own gather read the cache, and see at which word it first goes another way than ours.

tried = try_gather(gather)
print(tried)
tried.map()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minikv.block_table import BlockTable
from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from minikv.lab.exercises import Text, check
from minikv.lab.exercises.exercise import folded
from minikv.lab.exercises.pool import as_pair, kind
from minikv.lab.stand_in import Tryout
from minikv.lab.switches.storage import attend_beyond
from minikv.lab.watched import Divergence
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool

NUM_BLOCKS, BLOCK_SIZE, OFFSET = 8, 4, 2
PROMPT = "Ada has three red kites . Bo has two gold cups . Tell me what Ada has ."
HALVES = ("key", "value")
Gather = Callable[[Tensor, int, list[int], int, int], Any]


def try_gather(gather: Gather) -> Tryout:
    """Decode a request, offset 2, whose keys and values are collected by `gather`, beside ours.

    Raises TypeError for anything but a function.
    """
    if not callable(gather) or isinstance(gather, type):
        raise TypeError(f"try_gather takes a function, not {kind(gather)}; leave off the brackets")
    name = getattr(gather, "__name__", "your function")
    if "not answered yet" in check("05.gather", gather).message:
        return GatherTryout(name, None, EventLog())
    bench = Workbench(NUM_BLOCKS, BLOCK_SIZE)
    leave_old_words(bench)
    bench.loop.new_table = lambda block_size: BlockTable(block_size, OFFSET)
    reader = _Reader(gather, bench)
    bench.loop.backend, bench.loop.observer = reader, _all_but_reads(bench.log)
    try:
        said = f"the model says: {bench.ask(PROMPT, name='mine')}"
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        said = f"the run stops with {type(error).__name__}: {error}"
    return GatherTryout(name, said, bench.log, reader.divergence)


def leave_old_words(bench: Workbench) -> None:
    """Four requests come and go; their words stay behind in memory.

    Meant for 8 blocks of 4 slots: the free queue is then 7, 2, 1, 0, 4, 3, 6, 5, and every slot holds an old
    word, so that whatever is read by mistake is a word.
    """
    prompts = {
        "S": "Gita has ten pink boats . It is late . Rain fell",
        "T": "Tea is ready . Bo has nine black",
        "U": "The road is long . Tea is ready",
        "V": "Rain fell all night",
    }
    requests = {name: bench.start(prompt, name) for name, prompt in prompts.items()}
    for request in requests.values():
        bench.prefill(request)
    for name in "VSTU":
        bench.finish(requests[name])


class GatherTryout(Tryout):
    """What came of it; the first divergence is the one that names the word."""

    def map(self) -> Any:
        """The block map at the first divergence, where it should have been read; a text if nothing was."""
        if self.said is None:
            return Text("There is nothing to be seen yet: the map shows what your gather reads.")
        first = self.first
        if first is None or first.block_id is None:
            return super().map()
        return BlockMap(
            self.log, step=first.step, highlight=[first.block_id], caption="this should have been read"
        )

    @property
    def first(self) -> Divergence | None:
        """The first difference between their rows and ours."""
        return self.other_way or super().first

    def __repr__(self) -> str:
        return folded(super().__repr__(), indent="  ")


class _Reader:
    """Reads with a learner's gather, compares each row with ours, and notes the first difference.

    The log is told which slots were really read, as far as the keys of layer 0 tell.
    """

    def __init__(self, gather: Gather, bench: Workbench) -> None:
        self._gather, self._bench = gather, bench
        self.divergence: Divergence | None = None

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[Any],
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        (table,), (length,) = tables, lengths  # one request runs here
        ours, before = pool.read_layer(layer, tables, lengths), pool.kv.clone()
        said = self._gather(pool.kv, layer, list(table.block_ids), table.offset, length)
        theirs = _pair(said, ours[0][0])
        if layer == 0:
            self._log_read(theirs[0], table, length)
        if self.divergence is None and not pool.kv.equal(before):
            block_id = int((pool.kv != before).any(0).flatten(1).any(1).int().argmax())
            self._blame(f"Layer {layer}: gather has changed block {block_id}.", None, block_id * BLOCK_SIZE)
        if self.divergence is None:
            self._compare(theirs, (ours[0][0], ours[1][0]), layer, table, length)
        k, v = (part[None] for part in theirs)
        return attend_beyond(q, k, v, [length], [k.shape[2]], scale)

    def _log_read(self, keys: Tensor, table: Any, length: int) -> None:
        slots = [self._origin(keys, position, 0, 0) for position in range(keys.shape[1])]
        event: dict[str, Any] = {"op": "read", "request": table.name, "length": length}
        if all(kind == 0 and slot is not None for slot, kind in slots):
            event["slots"] = [slot for slot, _ in slots]
        self._bench.log(event)

    def _compare(
        self, theirs: tuple[Tensor, Tensor], ours: tuple[Tensor, Tensor], layer: int, table: Any, length: int
    ) -> None:
        for half, (their_row, our_row) in enumerate(zip(theirs, ours, strict=True)):
            position = _first_difference(their_row, our_row)
            if position is None:
                continue
            slot = int(table.slot(position)) if position < length else None
            found, kind = self._origin(their_row, position, half, layer)
            if found is not None:
                stands = f"the {HALVES[kind]} of {self._word(found)}"
            elif position < their_row.shape[1]:
                stands = "something that lies nowhere in the pool"
            else:
                stands = "nothing"
            ended = "the row should have ended"
            goal = ended if slot is None else f"it should be the {HALVES[half]} of {self._word(slot)}"
            sentence = f"Layer {layer}, position {position}: there is {stands}; {goal}."
            blamed = next(each for each in (slot, found, int(table.slot(length - 1))) if each is not None)
            self._blame(sentence, _broken(found, slot, table, length), blamed)
            return

    def _origin(self, row: Tensor, position: int, half: int, layer: int) -> tuple[int | None, int]:
        """The slot where a position of their row lies in the pool, None if nowhere; and 0 for K, 1 for V."""
        if position < row.shape[1]:
            kv = self._bench.pool.kv[layer]  # [blocks, 2, heads, block_size, head_dim]
            for kind in (half, 1 - half):
                there = (kv[:, kind] == row[None, :, position, None]).all(-1).all(1)  # [blocks, block_size]
                if there.any():
                    return int(there.flatten().int().argmax()), kind
        return None, half

    def _word(self, slot: int) -> str:
        """The word that was written last to a slot, old ones included, and where that is."""
        written = [
            word
            for event in self._bench.log
            if event["op"] == "write"
            for each, word in zip(event["slots"], event["words"], strict=True)
            if each == slot
        ]
        block_id, place = divmod(slot, BLOCK_SIZE)
        word = f"“{written[-1]}”" if written else "a slot in which nobody has written"
        return f"{word} (block {block_id}, place {place})"

    def _blame(self, sentence: str, invariant: str | None, slot: int | None) -> None:
        block_id = None if slot is None else slot // BLOCK_SIZE
        self.divergence = Divergence(len(self._bench.log) - 1, invariant, block_id, sentence)


def _all_but_reads(log: EventLog) -> Callable[[dict[str, Any]], None]:
    """Pass events on, but not the loop's reads: it tells of those it asked for, the reader of those done."""

    def tell(event: dict[str, Any]) -> None:
        if event["op"] != "read":
            log(event)

    return tell


def _broken(found: int | None, slot: int | None, table: Any, length: int) -> str | None:
    """The invariant that a read of slot `found` in place of `slot` breaks; None if no other slot was read."""
    if found is None or found == slot:
        return None
    return "I5" if found in map(int, table.slots(0, length)) else "I6"  # its own word, or not


def _pair(said: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """k, v as they were given back. TypeError if attention cannot read them.

    Args:
        like: what they should look like, [heads, any length, head_dim].
    """
    parts = as_pair(said)
    if parts is not None and all(isinstance(part, Tensor) and _alike(part, like) for part in parts):
        return parts
    given = kind(said) if parts is None else " and ".join(map(kind, parts))
    raise TypeError(f"gather gives back {given}; it should be k and v, each like {kind(like)}")


def _alike(part: Tensor, like: Tensor) -> bool:
    heads, _, head_dim = like.shape
    return part.dtype == like.dtype and part.ndim == 3 and (part.shape[0], part.shape[2]) == (heads, head_dim)


def _first_difference(theirs: Tensor, ours: Tensor) -> int | None:
    """The first position of two rows [heads, tokens, head_dim] that is not the same; None if none is."""
    both = min(theirs.shape[1], ours.shape[1])
    same = (theirs[:, :both] == ours[:, :both]).all(-1).all(0)
    if not same.all():
        return int(torch.argmin(same.int()))
    return None if theirs.shape[1] == ours.shape[1] else both
