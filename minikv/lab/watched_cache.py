"""A learner's prefix cache at work: references are taken for it, and every hit is compared with the truth.

For KV a slot has a fingerprint: all tokens up to the one that was stored there. So a block that was computed
for other words, or after other words, gives itself away, and no model is needed to see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minikv.block_table import BlockTable
from minikv.engine.prefix_cache import Match
from minikv.manager import KVCacheManager

Words = Callable[[int], str]


class WrongCall(NamedTuple):
    """A call whose answer is wrong.

    Attributes:
        invariant: the one that it breaks; None where the slots are in order and only the words are not.
    """

    sentence: str
    block_id: int | None
    invariant: str | None


class WatchedCache:
    """Stands in for a `PrefixCache`, and asks a learner's one.

    Args:
        theirs: their cache, fresh: match(tokens), insert(tokens, block_ids) and drop(block_id).
        word: what a token is called.
        report: told of the first wrong call.
        may_miss: only a wrong block is wrong, and not that a block is not kept, or not found.

    Attributes:
        wrong: that call, None while there is none. What comes after it is not compared.
        calls: of match and insert, the wrong one included.
    """

    hit_rate = 0.0  # not kept

    def __init__(
        self,
        theirs: Any,
        manager: KVCacheManager,
        word: Words = str,
        report: Callable[[WrongCall], None] = lambda wrong: None,
        may_miss: bool = False,
    ) -> None:
        self.theirs, self.manager, self.may_miss = theirs, manager, may_miss
        self.wrong: WrongCall | None = None
        self.calls = 0
        self._word, self._report = word, report
        self._kv: dict[int, list[tuple[int, ...] | None]] = {}  # the fingerprints in each block
        self._held: dict[int, tuple[int, ...]] = {}  # cached blocks: all tokens up to their end
        self._used: dict[int, int] = {}
        self._clock = 0

    @property
    def num_blocks(self) -> int:
        """Blocks cached now."""
        return len(self._held)

    # ---- what a prefix cache does ------------------------------------------------------------

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        """A table over what their `match` gives, as far as it can be handed out at all."""
        tokens = list(token_ids)
        said = self._ask("match", tokens)
        found = [] if said is None else self._usable(tokens, said)
        table = BlockTable(self.manager.block_size, name=name)
        self.manager.share(table, found)
        if said is not None and self.wrong is None:
            self._judge_match(tokens, said)
        self._clock += 1
        self._used.update(dict.fromkeys(found, self._clock))
        return Match(table, len(found) * self.manager.block_size)

    def insert(self, token_ids: Sequence[int], table: Any, salt: str | None = None) -> int:
        """What is stored through `table` is known from now on; their `insert` says which blocks to keep."""
        tokens, block_ids = list(token_ids), list(table.block_ids)
        self._store(tokens, block_ids)
        said = self._ask("insert", tokens, block_ids)
        new = [] if said is None else self._keepable(tokens, block_ids, said)
        self._clock += 1
        for block_id in new:
            end = (block_ids.index(block_id) + 1) * self.manager.block_size
            self._held[block_id] = tuple(tokens[:end])
            self.manager.inc_ref(block_id)
        self._used.update(dict.fromkeys(block_ids, self._clock))
        return len(new)

    def evict(self, num_blocks: int) -> int:
        """Least recently used first, and of one sequence the tail first; their `drop` is told of each."""
        freed = 0
        while freed < num_blocks and (ends := self._ends()):
            self.let_go(min(ends, key=lambda block_id: self._used.get(block_id, 0)))
            freed += 1
        return freed

    def clear(self) -> None:
        """Let everything go."""
        while self._held:
            self.let_go(max(self._held, key=lambda block_id: len(self._held[block_id])))

    # ---- what is compared --------------------------------------------------------------------

    def _ask(self, name: str, tokens: list[int], *more: list[int]) -> list[int] | None:
        """Their answer to a call: a list of block ids, or None if it is none."""
        self.calls += self.wrong is None
        said = getattr(self.theirs, name)(list(tokens), *map(list, more))
        if isinstance(said, list | tuple) and all(type(each) is int for each in said):
            return list(said)
        self._blame(f"{self._call(name, tokens)} gives {said!r:.60}; it should be a list of block ids")
        return None

    def _usable(self, tokens: list[int], said: list[int]) -> list[int]:
        """The blocks that can be handed out: held by somebody, each once, and not all of the prompt."""
        most = max(0, len(tokens) - 1) // self.manager.block_size
        usable: list[int] = []
        for block_id in said[:most]:
            there = 0 <= block_id < len(self.manager.blocks)
            if not there or block_id in usable or self.manager.blocks[block_id].is_free:
                break
            usable.append(block_id)
        return usable

    def _judge_match(self, tokens: list[int], said: list[int]) -> None:
        size, call = self.manager.block_size, self._call("match", tokens)
        for index, block_id in enumerate(said):
            if not 0 <= block_id < len(self.manager.blocks):
                return self._blame(f"{call} gives block {block_id}; there is none such")
            wrong = self._wrong_block(tokens, index, block_id)
            if wrong is not None:
                return self._blame(f"{call} gives block {block_id}; {wrong[0]}", block_id, wrong[1])
        most = max(0, len(tokens) - 1) // size
        if len(said) > most:
            return self._blame(
                f"{call} gives blocks for the whole prompt; its last word must be computed, to choose "
                "the next",
                said[most],
            )
        known = set(self._held.values())
        best = 0
        while best < most and tuple(tokens[: (best + 1) * size]) in known:
            best += 1
        if len(said) < best and not self.may_miss:
            self._blame(f"{call} finds {len(said)} of its blocks; the first {best} are cached")

    def _wrong_block(self, tokens: list[int], index: int, block_id: int) -> tuple[str, str | None] | None:
        """What is wrong with this block as entry `index` of the prompt, and which invariant it breaks."""
        size = self.manager.block_size
        if self.manager.blocks[block_id].is_free:
            return "it was let go, and nobody holds it", "I6"
        for place, seen in enumerate(self._kv.get(block_id, [None] * size)):
            true = tuple(tokens[: index * size + place + 1])
            if seen is None:
                return f"its place {place} was never written", "I6"
            if seen != true:
                kept = "" if block_id in self._held else "it was let go and is another request's by now: "
                return (
                    f"{kept}its place {place} was computed for “{self._text(seen)}”, and should be for "
                    f"“{self._text(true)}”",
                    None if block_id in self._held else "I2",
                )
        return None

    def _keepable(self, tokens: list[int], block_ids: list[int], said: list[int]) -> list[int]:
        """The blocks that they want to keep, as far as they are the table's; each once."""
        size, call = self.manager.block_size, self._call("insert", tokens)
        full = block_ids[: len(tokens) // size]
        known = {prefix: block for block, prefix in self._held.items()}
        right = [b for i, b in enumerate(full) if tuple(tokens[: (i + 1) * size]) not in known]
        if said != right and self.wrong is None:
            self._judge_insert(call, tokens, block_ids, said, right, known)
        fresh = [b for b in dict.fromkeys(said) if b in block_ids and b not in self._held]
        return [b for b in fresh if block_ids.index(b) * size < len(tokens)]

    def _judge_insert(
        self,
        call: str,
        tokens: list[int],
        block_ids: list[int],
        said: list[int],
        right: list[int],
        known: dict[tuple[int, ...], int],
    ) -> None:
        size = self.manager.block_size
        for block_id in said:
            if block_id not in block_ids:
                return self._blame(f"{call} keeps block {block_id}, which is not in the table")
            if block_id in right and said.count(block_id) == 1:
                continue
            end = (block_ids.index(block_id) + 1) * size
            if end > len(tokens):
                return self._blame(f"{call} keeps block {block_id}, which is not full", block_id, "I6")
            if said.count(block_id) > 1 or block_id in self._held:
                return self._blame(
                    f"{call} keeps block {block_id} twice; it needs one reference", block_id, "I2"
                )
            twin = known[tuple(tokens[:end])]
            return self._blame(
                f"{call} keeps block {block_id}, but block {twin} is cached for these words already; "
                "keep the first",
                block_id,
            )
        left = next(iter(b for b in right if b not in said), None)
        if left is None:
            return self._blame(f"{call} gives {said}; the blocks that it keeps are {right}, in this order")
        if self.may_miss:
            return None
        prefix = tokens[: (block_ids.index(left) + 1) * size]
        self._blame(f"{call} does not keep block {left}; none is cached for “{self._text(prefix)}”", left)

    # ---- plumbing --------------------------------------------------------------------------

    def _store(self, tokens: list[int], block_ids: list[int]) -> None:
        size = self.manager.block_size
        for index, block_id in enumerate(block_ids):
            ends = range(index * size + 1, (index + 1) * size + 1)
            self._kv[block_id] = [tuple(tokens[:end]) if end <= len(tokens) else None for end in ends]

    def _ends(self) -> list[int]:
        """Cached blocks that nobody else holds and that no cached block follows."""
        before = {prefix[: -self.manager.block_size] for prefix in self._held.values()}
        return [
            block_id
            for block_id, prefix in self._held.items()
            if prefix not in before and self.manager.blocks[block_id].ref_count == 1
        ]

    def let_go(self, block_id: int) -> None:
        """Let a cached block go, whatever comes after it; their `drop` is told."""
        self.theirs.drop(block_id)
        del self._held[block_id]
        self.manager.dec_ref(block_id)

    def _blame(self, sentence: str, block_id: int | None = None, invariant: str | None = None) -> None:
        if self.wrong is None:
            self.wrong = WrongCall(sentence, block_id, invariant)
            self._report(self.wrong)

    def _call(self, name: str, tokens: Sequence[int]) -> str:
        return f"{name}({self._text(tokens)})"

    def _text(self, tokens: Sequence[int]) -> str:
        return " ".join(map(self._word, tokens))
