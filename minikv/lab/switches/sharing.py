"""Sharing gone wrong: a cache that cuts inside a block, and a shared block that nobody copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from minikv.block_table import BlockTable
from minikv.engine.prefix_cache import Match
from minikv.lab.prefix_bench import PrefixBench
from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.manager import KVCacheManager
from minikv.protocols import Table

# ---- a cache that cuts at any token -----------------------------------------------------------


class Run:
    """Some tokens in a row, the blocks they lie in, and where in the first block they begin."""

    def __init__(self, tokens: list[int], block_ids: list[int], offset: int = 0) -> None:
        self.tokens, self.block_ids, self.offset = tokens, block_ids, offset
        self.children: list[Run] = []


class SplitAnywhere:
    """A tree of runs that is cut at whatever token two prompts part, and not at a block boundary.

    The front of a run that is cut keeps its whole blocks. The rest gets an offset. The tokens between the
    last boundary and the cut are nobody's: no look-up passes them, and what was computed after them is
    found without them.
    """

    hit_rate = 0.0  # not kept

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.roots: list[Run] = []
        self._held: set[int] = set()

    @property
    def num_blocks(self) -> int:
        """Blocks cached now."""
        return len(self._held)

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        """A table over what is found; its offset is that of the first run."""
        path = self._walk(list(token_ids[:-1]))
        table = BlockTable(self.manager.block_size, path[0].offset if path else 0, name=name)
        self.manager.share(table, [block_id for run in path for block_id in run.block_ids])
        return Match(table, sum(len(run.tokens) for run in path))

    def insert(self, token_ids: Sequence[int], table: Table, salt: str | None = None) -> int:
        """Keep the table's whole blocks, as far as they are new."""
        size = self.manager.block_size
        tokens = list(token_ids[: len(token_ids) // size * size])
        path = self._walk(tokens)
        known = sum(len(run.tokens) for run in path)
        if known == len(tokens) or known % size:
            return 0
        new = list(table.block_ids[known // size : len(tokens) // size])
        (path[-1].children if path else self.roots).append(Run(tokens[known:], new))
        for block_id in new:
            self.manager.inc_ref(block_id)
        self._held.update(new)
        return len(new)

    def evict(self, num_blocks: int) -> int:
        """It lets nothing go."""
        return 0

    def clear(self) -> None:
        """Let everything go."""
        self.roots = []
        while self._held:
            self.manager.dec_ref(self._held.pop())

    def nobodys(self) -> list[tuple[int, int]]:
        """(block, slots at its front that no look-up can reach), for each run that begins inside a block."""
        runs, found = list(self.roots), []
        while runs:
            run = runs.pop(0)
            runs += run.children
            if run.offset:
                found.append((run.block_ids[0], run.offset))
        return found

    def _walk(self, tokens: list[int]) -> list[Run]:
        """The runs along these tokens; the last one is cut where the tokens part from it.

        A table has one offset, at its start. So a run that begins inside a block can only come first.
        """
        path: list[Run] = []
        siblings = self.roots
        while tokens:
            run = next((r for r in siblings if r.tokens[0] == tokens[0] and not (path and r.offset)), None)
            if run is None:
                break
            same = _same(run.tokens, tokens)
            whole = same == len(run.tokens)
            if whole or self._cut(siblings, run, same):
                path.append(run)
            if not whole:
                break
            tokens, siblings = tokens[same:], run.children
        return path

    def _cut(self, siblings: list[Run], run: Run, count: int) -> bool:
        """Cut a run behind `count` tokens. True if a front with whole blocks is left; it is `run` itself."""
        blocks, offset = divmod(run.offset + count, self.manager.block_size)
        rest = Run(run.tokens[count:], run.block_ids[blocks:], offset)
        rest.children = run.children
        if not blocks:
            siblings[siblings.index(run)] = rest
            return False
        run.tokens = run.tokens[: blocks * self.manager.block_size - run.offset]
        run.block_ids, run.children = run.block_ids[:blocks], [rest]
        return True


def _same(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def _split_anywhere(bench: Workbench) -> Undo:
    """Let `bench` look into a cache that cuts at any token. What the honest one holds stays there."""
    if not isinstance(bench, PrefixBench):
        raise ValueError(f"{bench!r} has no prefix cache; make a PrefixBench")
    honest, careless = bench.cache, SplitAnywhere(bench.manager)
    bench.cache = careless

    def undo() -> None:
        bench.cache = honest
        careless.clear()

    return undo


# ---- a shared block that nobody copies --------------------------------------------------------


class _NeverCopying(KVCacheManager):
    """The same manager, books and all, but whoever writes to a shared block writes where it lies."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.__dict__ = manager.__dict__

    def copy_on_write(self, table: Table, position: int) -> tuple[int, int] | None:
        """Look away."""
        return None

    def note_write(self, table: Table, start: int, stop: int, words: Sequence[str] = ()) -> None:
        """As it was, without asking whether the blocks are the table's own."""
        slots = [int(slot) for slot in table.slots(start, stop)]
        self._adopt(table)
        self._stored[id(table)] = max(stop, self._stored[id(table)])
        self._news.add("write", table, start=start, slots=slots, words=list(words))
        self._news.send()


def _never_copy(bench: Workbench) -> Undo:
    honest = bench.manager
    bench.manager = bench.loop.manager = _NeverCopying(honest)

    def undo() -> None:
        bench.manager = bench.loop.manager = honest

    return undo


SWITCHES: dict[str, Switch] = {
    "split-anywhere": Switch(
        "the cache's promise, the KV of exactly these words",
        "the prefix cache cuts inside a block and hands out what lies behind the cut, with an offset",
        _split_anywhere,
    ),
    "no-copy": Switch(
        "I4 no-shared-write",
        "a shared block is written to where it lies, without a copy",
        _never_copy,
    ),
}
