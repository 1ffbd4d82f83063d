"""What the two prefix caches have in common: references, order of eviction, figures.

Cached blocks form trees, one root a salt. A block's place says which tokens it holds and, by the way
up to the root, which ones come before it. How a place is found is each cache's own affair; it gives
this class five small functions. Who holds a block is told to the manager, for every reference:

    insert    inc_ref: the cache is one holder more
    acquire   share:   the new table is
    evict     dec_ref, least recently used first and tail first, and only where the cache is the last holder
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from minikv import admission
from minikv.block_table import BlockTable
from minikv.checks import whole_number
from minikv.engine.lru import Leaf, Leaves
from minikv.engine.prefix_cache import Match, Page, cut_pages, plain_salt, plain_tokens, stored_tokens
from minikv.errors import CacheValueError
from minikv.manager import KVCacheManager


class Node(Leaf, Protocol):
    """One or several blocks in a row, with what comes before and after them."""

    @property
    def last_block(self) -> int: ...


N = TypeVar("N", bound=Node)


class Path(NamedTuple, Generic[N]):
    """The way from a root along the tokens asked for, as far as it is cached."""

    nodes: list[N]  # the last one may be matched in part
    block_ids: list[int]


class TreeCache(ABC, Generic[N]):
    """A prefix cache over one manager's blocks.

    Two caches on one manager work, but a block that both hold is in use for either and cannot be evicted
    before one of them is cleared. Serve one manager by one cache.

    `manager.release_all` takes the cache's references, too; the cache notices and is empty.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self._cached: dict[int, None] = {}  # the blocks it holds: a set that remembers the order
        self._leaves = Leaves[N]()
        self._clock = 0  # one tick for each use
        self._num_resets = manager.num_resets
        self._asked = self._hit = 0  # tokens, over all acquires

    # ---- what there is -------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Blocks cached now, whether tables hold them as well or not."""
        self._follow_resets()
        return len(self._cached)

    @property
    def hit_rate(self) -> float:
        """Cached tokens by tokens asked for, over all calls of acquire; 0.0 before the first."""
        self._follow_resets()
        return self._hit / self._asked if self._asked else 0.0

    # ---- find and keep -------------------------------------------------------------------

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        """A new table over the longest cached prefix, with a reference to each block, so none can be evicted.

        Never the whole prompt, at most (len - 1) // block_size blocks: the model must compute at least the
        last token, for its answer chooses the next one. O(tokens).

        Args:
            salt: keeps tenants apart: what was inserted under another salt is not found.
            name: what pictures and event logs call the table.

        Raises:
            TypeError: a token that is no integer, or a salt that is neither a string nor None.
        """
        tokens, salt = plain_tokens(token_ids), plain_salt(salt)
        self._follow_resets()
        size = self.manager.block_size
        path = self._find(cut_pages(tokens, size, max(0, len(tokens) - 1) // size), salt)
        table = BlockTable(size, name=name)
        self.manager.share(table, path.block_ids)
        self._use(path)
        found = table.num_blocks * size
        self._asked += len(tokens)
        self._hit += found
        return Match(table, found)

    def insert(self, token_ids: Sequence[int], table: BlockTable, salt: str | None = None) -> int:
        """Keep the whole blocks of `table`; returns how many were not cached before. O(tokens).

        Call it when the KV of these tokens has been computed, not when it will be: whoever acquires them
        reads them at once. What lies beyond the last whole block is left out, and a place that is cached
        keeps its block: of twins, computed side by side, the second stays only in its table.

        Args:
            token_ids: those whose KV is stored through `table`, from the very first one on. A table
                that has let its front go does not hold that one any more: never insert it.

        Raises:
            CacheValueError: more tokens than the table holds; an offset; another block size; a block that is
                cached under other tokens or another salt.
            RefCountError, StaleTableError, InvariantError: the table's blocks are not the manager's to keep.
            TypeError: as in `acquire`.
        """
        tokens, salt = plain_tokens(token_ids), plain_salt(salt)
        admission.known_table(self.manager, table)
        stored_tokens(tokens, table)
        block_ids = table.block_ids[: len(tokens) // self.manager.block_size]
        admission.own_entries(self.manager, block_ids)
        self._follow_resets()
        pages = cut_pages(tokens, self.manager.block_size, len(block_ids))
        path = self._find(pages, salt)
        self._refuse_moved(block_ids, path.block_ids)
        self._use(path)
        found = len(path.block_ids)
        return self._grow(path.nodes[-1] if found else None, salt, pages[found:], block_ids[found:])

    # ---- let go ----------------------------------------------------------------------------

    def evict(self, num_blocks: int) -> int:
        """Let go of up to `num_blocks` blocks that only the cache holds; returns how many were freed.

        Least recently used first; of one sequence the tail first, for a block is found only by way of
        those before it. A leaf that some table holds is being used: it counts as used now, and is not
        looked at again in this call. A block with children stays, even if nobody else holds it.

        O(log leaves) for each block freed and each leaf found in use, amortised (minikv/engine/lru.py).
        Of those there are at most as many as tables.

        Raises:
            CacheValueError: num_blocks < 0. TypeError: it is no integer.
        """
        num_blocks = whole_number("num_blocks", num_blocks)
        if num_blocks < 0:
            raise CacheValueError(f"num_blocks is {num_blocks}; it counts blocks, so it is 0 or more")
        self._follow_resets()
        freed, begun = 0, self._clock
        while freed < num_blocks and (leaf := self._leaves.take_oldest(begun)) is not None:
            if self.manager.blocks[leaf.last_block].ref_count > 1:
                self._stamp([leaf])
                self._leaves.add(leaf)
            else:
                self._let_go(leaf)
                freed += 1
        return freed

    def clear(self) -> None:
        """Be as new: drop every reference, forget every place and the figures. O(cached blocks).

        Blocks that tables hold stay with these tables. Last cached, first let go, so tails go first.
        """
        self._follow_resets()
        self._forget()
        while self._cached:
            block_id, _ = self._cached.popitem()
            self.manager.dec_ref(block_id)

    # ---- how a cache finds places: these five --------------------------------------------

    @abstractmethod
    def _find(self, pages: list[Page], salt: str | None) -> Path[N]:
        """The longest cached prefix of these pages. Changes nothing."""

    @abstractmethod
    def _part(self, path: Path[N]) -> None:
        """See to it that the path's last node holds no block beyond the path."""

    @abstractmethod
    def _append(self, before: N | None, salt: str | None, page: Page, block_id: int) -> N | None:
        """Put a block after `before` (None: first under this salt). Its node, or None if it has no place."""

    @abstractmethod
    def _remove_last(self, leaf: N) -> N | None:
        """Take the last block out of a leaf. Returns what is a leaf now: itself, its parent, or None."""

    @abstractmethod
    def _forget_places(self) -> None:
        """Forget every place."""

    # ---- plumbing --------------------------------------------------------------------------

    def _use(self, path: Path[N]) -> None:
        """Everything on this path was used now."""
        if path.nodes:
            self._part(path)
        self._stamp(path.nodes)

    def _stamp(self, nodes: list[N]) -> None:
        self._clock += 1
        for node in nodes:
            node.stamp = self._clock

    def _grow(self, leaf: N | None, salt: str | None, pages: list[Page], block_ids: Sequence[int]) -> int:
        """Put blocks after `leaf`, one by one, each with its reference: so far as it came, all is well."""
        before = len(self._cached)
        try:
            for page, block_id in zip(pages, block_ids, strict=True):
                grown = self._append(leaf, salt, page, block_id)
                if grown is None:
                    break
                leaf = grown
                leaf.stamp = self._clock
                self._cached[block_id] = None
                self.manager.inc_ref(block_id)
        finally:
            if leaf is not None:
                self._leaves.add(leaf)
        return len(self._cached) - before

    def _let_go(self, leaf: N) -> None:
        """The last block of a leaf goes; first its place, then the reference."""
        block_id = leaf.last_block
        left = self._remove_last(leaf)
        if left is not None:
            self._leaves.add(left)
        del self._cached[block_id]
        self.manager.dec_ref(block_id)

    def _refuse_moved(self, block_ids: Sequence[int], cached: Sequence[int]) -> None:
        """CacheValueError if one of these blocks is cached, but not at its place on this path."""
        for index, block_id in enumerate(block_ids):
            if block_id in self._cached and block_id not in cached[index : index + 1]:
                raise CacheValueError(
                    f"block {block_id}, entry {index} of the table, is cached under other tokens or another "
                    "salt; one block holds the KV of one prefix: give the tokens stored through this table"
                )

    def _follow_resets(self) -> None:
        """After `manager.release_all` no reference is left, and blocks may be anybody's: forget them."""
        if self._num_resets != self.manager.num_resets:
            self._num_resets = self.manager.num_resets
            self._cached.clear()
            self._forget()

    def _forget(self) -> None:
        self._forget_places()
        self._leaves.clear()
        self._asked = self._hit = 0
