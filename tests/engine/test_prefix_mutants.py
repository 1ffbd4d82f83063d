"""Would the tests notice? Caches that are wrong in one point each; a random walk must catch every one.

Those of the hash cache also walk with a hash that has many collisions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from minikv.block_table import BlockTable
from minikv.engine import radix_cache
from minikv.engine.hash_cache import HashCache, HashEntry, digest
from minikv.engine.prefix_cache import Match, Page
from minikv.engine.radix_cache import RadixCache, RadixNode
from minikv.engine.tree_cache import Path, TreeCache
from minikv.errors import KVCacheError
from minikv.manager import KVCacheManager
from tests.engine.prefix_books import lead
from tests.engine.test_prefix_random import weak, weak_key

RADIX: dict[str, Callable[..., Any]] = {}
HASH: dict[str, Callable[..., Any]] = {}
STEPS = 1500
CAUGHT = (AssertionError, KVCacheError, ValueError, LookupError)


def both(fault: type) -> type:
    """A fault of what the two have in common: one wrong cache of each kind."""
    RADIX[fault.__name__] = type(fault.__name__, (fault, RadixCache), {})
    HASH[fault.__name__] = type(fault.__name__, (fault, HashCache), {})
    return fault


def radix(kind: type[RadixCache]) -> type[RadixCache]:
    RADIX[kind.__name__] = kind
    return kind


def hashed(kind: type[HashCache]) -> type[HashCache]:
    HASH[kind.__name__] = kind
    return kind


# ---- what is found ------------------------------------------------------------------------------------


@both
class FindsTheWholePrompt(TreeCache[Any]):
    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        match = super().acquire([*token_ids, 0], salt, name)
        self._asked -= 1
        return match


@both
class TakesNoReferenceForTheTable(TreeCache[Any]):
    """As if nobody could evict between the look-up and the use."""

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        found, cached = super().acquire(token_ids, salt, name)
        table = BlockTable(found.block_size)
        for block_id in found.block_ids:
            table.append_block(block_id)
        self.manager.free(found)
        return Match(table, cached)


@both
class PromisesOneBlockMore(TreeCache[Any]):
    """A count that does not go with the table."""

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        table, cached = super().acquire(token_ids, salt, name)
        return Match(table, min(cached + self.manager.block_size, max(0, len(token_ids) - 1)))


@both
class IgnoresTheSalt(TreeCache[Any]):
    def _find(self, pages: list[Page], salt: str | None) -> Path[Any]:
        return super()._find(pages, None)  # type: ignore[safe-super]

    def _append(self, before: Any, salt: str | None, page: Page, block_id: int) -> Any:
        return super()._append(before, None, page, block_id)  # type: ignore[safe-super]


@both
class TakesNoSaltForTheWordNone(TreeCache[Any]):
    def _find(self, pages: list[Page], salt: str | None) -> Path[Any]:
        return super()._find(pages, str(salt))  # type: ignore[safe-super]

    def _append(self, before: Any, salt: str | None, page: Page, block_id: int) -> Any:
        return super()._append(before, str(salt), page, block_id)  # type: ignore[safe-super]


@both
class TakesNoSaltForAnEmptyOne(TreeCache[Any]):
    def _find(self, pages: list[Page], salt: str | None) -> Path[Any]:
        return super()._find(pages, salt or None)  # type: ignore[safe-super]

    def _append(self, before: Any, salt: str | None, page: Page, block_id: int) -> Any:
        return super()._append(before, salt or None, page, block_id)  # type: ignore[safe-super]


# ---- what is kept -------------------------------------------------------------------------------------


@both
class HoldsNoReference(TreeCache[Any]):
    def _grow(self, leaf: Any, salt: str | None, pages: list[Page], block_ids: Sequence[int]) -> int:
        new = super()._grow(leaf, salt, pages, block_ids)
        for block_id in block_ids[:new]:
            self.manager.dec_ref(block_id)
        return new


@both
class KeepsAPartOfABlock(TreeCache[Any]):
    """A block that is half computed is cached as if the rest were the token -1."""

    def insert(self, token_ids: Sequence[int], table: BlockTable, salt: str | None = None) -> int:
        rest = -len(token_ids) % self.manager.block_size
        return super().insert([*token_ids, *[-1] * rest], table, salt)


@both
class ForgetsTheLastBlock(TreeCache[Any]):
    def insert(self, token_ids: Sequence[int], table: BlockTable, salt: str | None = None) -> int:
        return super().insert(token_ids[: max(0, len(token_ids) - self.manager.block_size)], table, salt)


@both
class CountsWhatWasThere(TreeCache[Any]):
    def insert(self, token_ids: Sequence[int], table: BlockTable, salt: str | None = None) -> int:
        super().insert(token_ids, table, salt)
        return len(token_ids) // self.manager.block_size


@both
class PutsTheTwinInItsPlace(TreeCache[Any]):
    """The second twin's block replaces the first, whose reference nobody gives back."""

    def _use(self, path: Path[Any]) -> None:
        super()._use(path)
        self.last_used = path.nodes

    def insert(self, token_ids: Sequence[int], table: BlockTable, salt: str | None = None) -> int:
        new = super().insert(token_ids, table, salt)
        index = 0
        for node in self.last_used:
            entries = getattr(node, "block_ids", None) or [node.block_id]
            for place in range(len(entries)):
                if index < len(token_ids) // self.manager.block_size:
                    self._replace(node, place, table.block_ids[index])
                index += 1
        return new

    def _replace(self, node: Any, place: int, block_id: int) -> None:
        old = node.block_ids[place] if isinstance(node, RadixNode) else node.block_id
        if old == block_id:
            return
        if isinstance(node, RadixNode):
            node.block_ids[place] = block_id
        else:
            node.block_id = block_id
        self._cached.pop(old)
        self._cached[block_id] = None
        self.manager.inc_ref(block_id)


# ---- what goes, and in which order --------------------------------------------------------------------


@both
class EvictsWhatIsInUse(TreeCache[Any]):
    def evict(self, num_blocks: int) -> int:
        freed, begun = 0, self._clock
        while freed < num_blocks and (leaf := self._leaves.take_oldest(begun)) is not None:
            self._let_go(leaf)
            freed += 1
        return freed


@both
class StopsAtWhatIsInUse(TreeCache[Any]):
    def evict(self, num_blocks: int) -> int:
        for freed in range(num_blocks):
            leaf = self._leaves.take_oldest(self._clock)
            if leaf is None:
                return freed
            if self.manager.blocks[leaf.last_block].ref_count > 1:
                self._leaves.add(leaf)
                return freed
            self._let_go(leaf)
        return num_blocks


@both
class ForgetsWhatIsInUse(TreeCache[Any]):
    """A leaf that was in use once is never looked at again."""

    def evict(self, num_blocks: int) -> int:
        freed, begun = 0, self._clock
        while freed < num_blocks and (leaf := self._leaves.take_oldest(begun)) is not None:
            if self.manager.blocks[leaf.last_block].ref_count == 1:
                self._let_go(leaf)
                freed += 1
        return freed


@both
class DoesNotRenewWhatIsInUse(TreeCache[Any]):
    def evict(self, num_blocks: int) -> int:
        freed, begun, busy = 0, self._clock, []
        while freed < num_blocks and (leaf := self._leaves.take_oldest(begun)) is not None:
            if self.manager.blocks[leaf.last_block].ref_count > 1:
                busy.append(leaf)
            else:
                self._let_go(leaf)
                freed += 1
        for leaf in busy:
            self._leaves.add(leaf)
        return freed


@both
class CountsWhatIsInUse(TreeCache[Any]):
    """As freed."""

    def evict(self, num_blocks: int) -> int:
        self._follow_resets()
        busy = sum(self.manager.blocks[block_id].ref_count > 1 for block_id in self._cached)
        return min(num_blocks, super().evict(num_blocks) + busy)


@both
class EvictsOneMore(TreeCache[Any]):
    def evict(self, num_blocks: int) -> int:
        return min(num_blocks, super().evict(num_blocks + (num_blocks > 1)))


@both
class DoesNotRenewOnAHit(TreeCache[Any]):
    """First come, first to go."""

    def _use(self, path: Path[Any]) -> None:
        if path.nodes:
            self._part(path)
        self._clock += 1


@both
class RenewsTheFirstOnly(TreeCache[Any]):
    def _stamp(self, nodes: list[Any]) -> None:
        super()._stamp(nodes[:1])


@both
class EvictsTheMostRecent(TreeCache[Any]):
    """A stack."""

    def evict(self, num_blocks: int) -> int:
        self._follow_resets()
        for freed in range(num_blocks):
            leaves = list(iter(lambda: self._leaves.take_oldest(self._clock), None))
            idle = [leaf for leaf in leaves if self.manager.blocks[leaf.last_block].ref_count == 1]
            for leaf in leaves:
                if leaf not in idle[-1:]:
                    self._leaves.add(leaf)
            if not idle:
                return freed
            self._let_go(idle[-1])
        return num_blocks


@both
class LeavesParentsBehind(TreeCache[Any]):
    """A block whose last child has gone is never a leaf."""

    def _let_go(self, leaf: Any) -> None:
        block_id = leaf.last_block
        left = self._remove_last(leaf)
        if left is leaf:
            self._leaves.add(leaf)
        del self._cached[block_id]
        self.manager.dec_ref(block_id)


@both
class FindsWhatHasGone(TreeCache[Any]):
    """The reference goes, the place stays."""

    def _let_go(self, leaf: Any) -> None:
        del self._cached[leaf.last_block]
        self.manager.dec_ref(leaf.last_block)


@both
class ForgetsWithoutGivingBack(TreeCache[Any]):
    """The place goes, the reference stays."""

    def _let_go(self, leaf: Any) -> None:
        block_id = leaf.last_block
        left = self._remove_last(leaf)
        if left is not None:
            self._leaves.add(left)
        del self._cached[block_id]


@both
class ClearsWithoutGivingBack(TreeCache[Any]):
    def clear(self) -> None:
        self._follow_resets()
        self._forget()
        self._cached.clear()


@both
class ClearsOnlyWhatIsIdle(TreeCache[Any]):
    def clear(self) -> None:
        self.evict(len(self._cached))
        self._asked = self._hit = 0


@both
class IgnoresResets(TreeCache[Any]):
    def _follow_resets(self) -> None:
        pass


@both
class RatesHitsOnly(TreeCache[Any]):
    """Requests that found nothing are left out of the rate."""

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        match = super().acquire(token_ids, salt, name)
        if not match.num_cached_tokens:
            self._asked -= len(token_ids)
        return match


# ---- the tree alone -----------------------------------------------------------------------------------


@radix
class EvictsTheHeadOfARun(RadixCache):
    def _let_go(self, leaf: RadixNode) -> None:
        leaf.block_ids.append(leaf.block_ids.pop(0))
        leaf.pages.append(leaf.pages.pop(0))
        assert leaf.parent is not None
        leaf.parent.children[leaf.pages[-1]] = leaf
        super()._let_go(leaf)


@radix
class EvictsInnerNodes(RadixCache):
    """From whichever node was used least recently, children or not."""

    def evict(self, num_blocks: int) -> int:
        self._follow_resets()
        for freed in range(num_blocks):
            nodes, rest = [], list(self.roots.values())
            while rest:
                node = rest.pop()
                rest += node.children.values()
                nodes += [node] if node.block_ids else []
            idle = [node for node in nodes if self.manager.blocks[node.last_block].ref_count == 1]
            if not idle:
                return freed
            self._let_go(min(idle, key=lambda node: node.stamp))
        return num_blocks


class _Counts(RadixCache):
    """Something else than equal pages counts as the same."""

    def same(self, ours: Page, theirs: Page) -> bool:
        raise NotImplementedError

    def _find(self, pages: list[Page], salt: str | None) -> Path[RadixNode]:
        theirs = radix_cache._same_pages

        def count(run: list[Page], pages: list[Page], start: int) -> int:
            same = 0
            while same < min(len(run), len(pages) - start) and self.same(run[same], pages[start + same]):
                same += 1
            return same

        radix_cache._same_pages = count
        try:
            return super()._find(pages, salt)
        finally:
            radix_cache._same_pages = theirs


@radix
class ComparesTheFirstTokenOfABlock(_Counts):
    """A split inside a block: what was computed after other words goes along (the chapter's E5)."""

    def same(self, ours: Page, theirs: Page) -> bool:
        return ours[0] == theirs[0]


@radix
class ComparesTheLastTokenOfABlock(_Counts):
    def same(self, ours: Page, theirs: Page) -> bool:
        return ours[-1] == theirs[-1]


@radix
class ComparesNothingWithinARun(_Counts):
    def same(self, ours: Page, theirs: Page) -> bool:
        return True


@radix
class ComparesHashes(_Counts):
    """Python's own, which are equal for -1 and -2."""

    def same(self, ours: Page, theirs: Page) -> bool:
        return hash(ours) == hash(theirs)


@radix
class GoesOnAfterAPartialMatch(RadixCache):
    """The prompt left the run in the middle, and is looked for among what comes after the run."""

    def _find(self, pages: list[Page], salt: str | None) -> Path[RadixNode]:
        path = super()._find(pages, salt)
        if path.nodes:
            child = path.nodes[-1].children.get((pages[len(path.block_ids) :] or [()])[0])
            if child is not None and child not in path.nodes:
                path.nodes.append(child)
                path.block_ids.append(child.block_ids[0])
        return path


@radix
class DoesNotSplitOnAHit(RadixCache):
    """Of a run of which a part was used, all counts as used."""

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        self._part = lambda path: None  # type: ignore[method-assign]
        try:
            return super().acquire(token_ids, salt, name)
        finally:
            del self._part  # type: ignore[method-assign]


@radix
class DoesNotSplitAtAll(RadixCache):
    def _part(self, path: Path[RadixNode]) -> None:
        pass


@radix
class SplitsABlockTooLate(RadixCache):
    def _split(self, lower: RadixNode, count: int) -> RadixNode:
        return lower if count + 1 == len(lower.pages) else super()._split(lower, count + 1)


@radix
class SplitsAndLosesTheTail(RadixCache):
    def _split(self, lower: RadixNode, count: int) -> RadixNode:
        upper = super()._split(lower, count)
        upper.children.clear()
        return upper


@radix
class SplitsAndLosesTheFront(RadixCache):
    """The parent still leads to the tail."""

    def _split(self, lower: RadixNode, count: int) -> RadixNode:
        page, parent = lower.pages[0], lower.parent
        upper = super()._split(lower, count)
        assert parent is not None
        parent.children[page] = lower
        return upper


@radix
class RenewsTheTailOfASplit(RadixCache):
    def _split(self, lower: RadixNode, count: int) -> RadixNode:
        upper = super()._split(lower, count)
        self._stamp([lower])
        return upper


@radix
class LengthensInnerRuns(RadixCache):
    """New blocks go to the end of a run that has children."""

    def _append(
        self, before: RadixNode | None, salt: str | None, page: Page, block_id: int
    ) -> RadixNode | None:
        if before is None:
            return super()._append(before, salt, page, block_id)
        before.pages.append(page)
        before.block_ids.append(block_id)
        return before


@radix
class LeavesEmptyNodes(RadixCache):
    """A node without blocks stays in its parent, which is no leaf then."""

    def _remove_last(self, leaf: RadixNode) -> RadixNode | None:
        leaf.pages.pop()
        leaf.block_ids.pop()
        return leaf if leaf.pages else None


# ---- the hashes alone ---------------------------------------------------------------------------------


class _Finds(HashCache):
    """Looks up with another key, or takes another entry for the right one."""

    def key(self, before: HashEntry | str | None, page: Page) -> Any:
        return self._key(before, page)

    def right(self, entry: HashEntry, before: HashEntry | str | None, page: Page) -> bool:
        return entry.tokens == page and entry.before == before

    def _find(self, pages: list[Page], salt: str | None) -> Path[HashEntry]:
        path: Path[HashEntry] = Path([], [])
        before: HashEntry | str | None = salt
        for page in pages:
            entry = self.entries.get(self.key(before, page))
            if entry is None or not self.right(entry, before, page) or entry in path.nodes:
                break
            path.nodes.append(entry)
            path.block_ids.append(entry.block_id)
            before = entry
        return path


@hashed
class TrustsTheHash(_Finds):
    def right(self, entry: HashEntry, before: HashEntry | str | None, page: Page) -> bool:
        return True


@hashed
class TrustsPythonsHash(TrustsTheHash):
    def __init__(self, manager: KVCacheManager, hash_block: Any = None) -> None:
        super().__init__(manager, lambda before, tokens: hash((before, tokens)))


@hashed
class ComparesTokensOnly(_Finds):
    """Not what comes before them."""

    def right(self, entry: HashEntry, before: HashEntry | str | None, page: Page) -> bool:
        return entry.tokens == page


@hashed
class ComparesWhatComesBeforeOnly(_Finds):
    def right(self, entry: HashEntry, before: HashEntry | str | None, page: Page) -> bool:
        return entry.before == before


@hashed
class ForgetsThePosition(_Finds):
    """A key of the block's tokens alone: the same words in another place are the same."""

    def __init__(self, manager: KVCacheManager, hash_block: Any = None) -> None:
        super().__init__(manager, lambda before, tokens: digest(None, tokens))

    def right(self, entry: HashEntry, before: HashEntry | str | None, page: Page) -> bool:
        return entry.tokens == page


@hashed
class ForgetsTheOrderOfTokens(_Finds):
    def __init__(self, manager: KVCacheManager, hash_block: Any = None) -> None:
        super().__init__(manager, lambda before, tokens: digest(before, tuple(sorted(tokens))))

    def right(self, entry: HashEntry, before: HashEntry | str | None, page: Page) -> bool:
        return sorted(entry.tokens) == sorted(page) and entry.before == before


@hashed
class HashesSaltsAsText(TrustsTheHash):
    def __init__(self, manager: KVCacheManager, hash_block: Any = None) -> None:
        super().__init__(manager, lambda before, tokens: digest(str(before), tokens))


@hashed
class OverwritesOnACollision(HashCache):
    def _append(
        self, before: HashEntry | None, salt: str | None, page: Page, block_id: int
    ) -> HashEntry | None:
        self.entries.pop(self._key(salt if before is None else before, page), None)
        return super()._append(before, salt, page, block_id)


@hashed
class GoesOnAfterACollision(HashCache):
    """The block whose key is taken is left out, and the next one put in its place."""

    def _grow(self, leaf: Any, salt: str | None, pages: list[Page], block_ids: Sequence[int]) -> int:
        pairs = zip(pages, block_ids, strict=True)
        free = [pair for pair in pairs if self._key(leaf or salt, pair[0]) not in self.entries]
        return super()._grow(leaf, salt, [page for page, _ in free], [block_id for _, block_id in free])


@hashed
class EvictsTheHeadOfAChain(HashCache):
    def _let_go(self, leaf: HashEntry) -> None:
        self._leaves.add(leaf)
        while isinstance(leaf.before, HashEntry):
            leaf = leaf.before
        super()._let_go(leaf)


@hashed
class EvictsInnerBlocks(HashCache):
    """Whichever was used least recently, children or not."""

    def evict(self, num_blocks: int) -> int:
        self._follow_resets()
        for freed in range(num_blocks):
            idle = [e for e in self.entries.values() if self.manager.blocks[e.block_id].ref_count == 1]
            if not idle:
                return freed
            self._let_go(min(idle, key=lambda entry: entry.stamp))
        return num_blocks


@hashed
class DoesNotCountChildren(HashCache):
    def _append(
        self, before: HashEntry | None, salt: str | None, page: Page, block_id: int
    ) -> HashEntry | None:
        entry = super()._append(before, salt, page, block_id)
        if before is not None and entry is not None:
            before.num_children -= 1
        return entry

    def _remove_last(self, leaf: HashEntry) -> HashEntry | None:
        del self.entries[leaf.key]
        return None


@hashed
class DoesNotDiscountChildren(HashCache):
    def _remove_last(self, leaf: HashEntry) -> HashEntry | None:
        del self.entries[leaf.key]
        return None


# ---- are they caught? ---------------------------------------------------------------------------------


def caught(kind: Callable[..., Any], with_collisions: bool) -> str | None:
    """What the walks say of this cache; None if they find nothing."""
    try:
        lead(kind, [(10, 3), (12, 1), (10, 4)], STEPS)
        if with_collisions:
            lead(lambda m: kind(m, weak), [(10, 3)], STEPS, lambda place: weak_key(place, 3))
    except CAUGHT as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


@pytest.mark.parametrize("name", RADIX)
def test_every_wrong_tree_is_caught(name: str) -> None:
    said = caught(RADIX[name], with_collisions=False)
    print(f"{name}: {said}")
    assert said is not None, f"{name} went through all random operations unnoticed"


@pytest.mark.parametrize("name", HASH)
def test_every_wrong_dict_is_caught(name: str) -> None:
    said = caught(HASH[name], with_collisions=True)
    print(f"{name}: {said}")
    assert said is not None, f"{name} went through all random operations unnoticed"


def test_the_right_ones_are_not_caught() -> None:
    assert caught(RadixCache, with_collisions=False) is None
    assert caught(HashCache, with_collisions=True) is None
