"""PREFIX CACHE as a dict from hashes (vLLM's automatic prefix caching).

A block's key is a hash of its own tokens and of the key of the block before it; of the first block, of
its tokens and the salt. So a key stands for all tokens up to the end of its block, and the same words
after others have another key. A prompt is looked up block by block until a key is missing.

A hash can only say "perhaps". Two prefixes may have the same key, by chance or because somebody looked
for such a pair: then one tenant would read the other's KV. So an entry keeps its tokens and the entry
before it, and they are compared. A key that is taken by others is a miss, and is never overwritten.

    acquire, insert   O(tokens)
    evict             O(log leaves) a block, amortised

Why not Python's own hash? `hash((-1,)) == hash((-2,))`, further collisions are easy to construct, and of a
string it is another number in each process. It would cost hits, not truth; the default is a real digest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b

from minikv.engine.prefix_cache import Page
from minikv.engine.tree_cache import Path, TreeCache
from minikv.manager import KVCacheManager

HashBlock = Callable[[Hashable, Page], Hashable]


def digest(before: Hashable, tokens: Page) -> Hashable:
    """16 bytes that stand for a block. `before`: the key of the block before it, or the salt."""
    return blake2b(repr((before, tokens)).encode(), digest_size=16).digest()


class HashEntry:
    """One cached block, and what its key stands for."""

    __slots__ = ("before", "block_id", "key", "num_children", "queued", "stamp", "tokens")

    def __init__(self, key: Hashable, before: HashEntry | str | None, tokens: Page, block_id: int) -> None:
        self.key = key
        self.before = before  # the entry of the block before it; of a first block, the salt
        self.tokens = tokens
        self.block_id = block_id
        self.num_children = 0
        self.stamp = 0
        self.queued = False

    @property
    def is_leaf(self) -> bool:
        return not self.num_children

    @property
    def last_block(self) -> int:
        return self.block_id

    def __repr__(self) -> str:
        return f"HashEntry(block_id={self.block_id}, tokens={self.tokens})"


class HashCache(TreeCache[HashEntry]):
    """Finds cached blocks by chained hashes. See `TreeCache` for what it can do.

    Args:
        hash_block: called with what `digest` is called with; returns any key for a dict. However many
            collisions it has, no hit is wrong.

    Attributes:
        entries: by key, an entry after the one before it; to look at, not to change.
    """

    def __init__(self, manager: KVCacheManager, hash_block: HashBlock = digest) -> None:
        super().__init__(manager)
        self._hash_block = hash_block
        self.entries: dict[Hashable, HashEntry] = {}  # by key

    def _find(self, pages: list[Page], salt: str | None) -> Path[HashEntry]:
        path: Path[HashEntry] = Path([], [])
        before: HashEntry | str | None = salt
        for page in pages:
            entry = self.entries.get(self._key(before, page))
            if entry is None or entry.tokens != page or entry.before != before:
                break
            path.nodes.append(entry)
            path.block_ids.append(entry.block_id)
            before = entry
        return path

    def _key(self, before: HashEntry | str | None, page: Page) -> Hashable:
        return self._hash_block(before.key if isinstance(before, HashEntry) else before, page)

    def _part(self, path: Path[HashEntry]) -> None:
        """An entry is one block: there is nothing to part."""

    def _append(
        self, before: HashEntry | None, salt: str | None, page: Page, block_id: int
    ) -> HashEntry | None:
        """None where the key is taken by other tokens."""
        key = self._key(salt if before is None else before, page)
        if key in self.entries:
            return None
        entry = self.entries[key] = HashEntry(key, salt if before is None else before, page, block_id)
        if before is not None:
            before.num_children += 1
        return entry

    def _remove_last(self, leaf: HashEntry) -> HashEntry | None:
        del self.entries[leaf.key]
        if not isinstance(leaf.before, HashEntry):
            return None
        leaf.before.num_children -= 1
        return leaf.before if leaf.before.is_leaf else None

    def _forget_places(self) -> None:
        self.entries.clear()
