"""PREFIX CACHE as a tree of tokens (SGLang's RadixAttention), cut at block boundaries.

Three prompts are cached, "Ada has three red kites .", "Ada has three red hats . Bo has" and "Bo has"; a
block holds two tokens, and these are blocks 0 to 5:

    salt None ─┬─ [Ada has] [three red] ─┬─ [kites .]           blocks 0, 1; 2
               │                         └─ [hats .] [Bo has]           3, 4
               └─ [Bo has]                                              5

The last one is not block 4: the same words after others have another KV.

A node holds a run of whole blocks with their tokens; its children begin with different blocks. To look a
prompt up is to walk down and compare tokens, so a hit cannot be wrong. Where a prompt leaves a run in the
middle, the run is cut in two after the last whole block that they share, so that each part knows when it
was last used. It is never cut inside a block: behind the first token that differs, the rest of the block
was computed after other words.

    acquire, insert   O(tokens), and O(run) more where a run is cut
    evict             O(log leaves) a block, amortised

Why not simply a dict from each whole prefix to its block? To look up n blocks it would read 1 + 2 + … + n
blocks of tokens. The other way out is to chain hashes: minikv/engine/hash_cache.py.
"""

from __future__ import annotations

from minikv.engine.prefix_cache import Page
from minikv.engine.tree_cache import Path, TreeCache
from minikv.manager import KVCacheManager


class RadixNode:
    """A run of blocks. Only a root has no parent and no blocks; under it come the nodes of one salt."""

    __slots__ = ("block_ids", "children", "pages", "parent", "queued", "salt", "stamp")

    def __init__(self, parent: RadixNode | None, salt: str | None = None) -> None:
        self.parent = parent
        self.salt = salt  # of a root
        self.pages: list[Page] = []  # the tokens of each block
        self.block_ids: list[int] = []
        self.children: dict[Page, RadixNode] = {}  # by the first page of each
        self.stamp = 0
        self.queued = False

    @property
    def is_leaf(self) -> bool:
        return not self.children

    @property
    def last_block(self) -> int:
        return self.block_ids[-1]

    def __repr__(self) -> str:
        return f"RadixNode(block_ids={self.block_ids}, children={len(self.children)})"


class RadixCache(TreeCache[RadixNode]):
    """Finds cached blocks by walking a tree of tokens. See `TreeCache` for what it can do.

    Attributes:
        roots: the tree, a root for each salt; to look at, not to change.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self.roots: dict[str | None, RadixNode] = {}  # by salt

    def _find(self, pages: list[Page], salt: str | None) -> Path[RadixNode]:
        path: Path[RadixNode] = Path([], [])
        node = self.roots.get(salt)
        while node is not None and len(path.block_ids) < len(pages):
            node = node.children.get(pages[len(path.block_ids)])
            if node is None:
                break
            same = _same_pages(node.pages, pages, len(path.block_ids))
            path.nodes.append(node)
            path.block_ids.extend(node.block_ids[:same])
            if same < len(node.pages):
                break  # what follows the node does not follow the prompt
        return path

    def _part(self, path: Path[RadixNode]) -> None:
        last = path.nodes[-1]
        beyond = sum(len(node.block_ids) for node in path.nodes) - len(path.block_ids)
        if beyond:
            path.nodes[-1] = self._split(last, len(last.block_ids) - beyond)

    def _split(self, lower: RadixNode, count: int) -> RadixNode:
        """Cut a run after `count` blocks. A new node gets the front; the tail keeps children and stamp."""
        assert lower.parent is not None, "a root has no run"
        upper = lower.parent.children[lower.pages[0]] = RadixNode(lower.parent)
        upper.pages, upper.block_ids = lower.pages[:count], lower.block_ids[:count]
        del lower.pages[:count], lower.block_ids[:count]
        upper.children[lower.pages[0]] = lower
        lower.parent = upper
        return upper

    def _append(
        self, before: RadixNode | None, salt: str | None, page: Page, block_id: int
    ) -> RadixNode | None:
        """A leaf grows where it is, so that a request inserted block by block stays one run."""
        node = before
        if node is None or node.children:
            parent = node or self.roots.setdefault(salt, RadixNode(None, salt))
            node = parent.children[page] = RadixNode(parent)
        node.pages.append(page)
        node.block_ids.append(block_id)
        return node

    def _remove_last(self, leaf: RadixNode) -> RadixNode | None:
        page, parent = leaf.pages.pop(), leaf.parent
        leaf.block_ids.pop()
        if leaf.pages:
            return leaf
        assert parent is not None, "a root has no run"
        del parent.children[page]
        if parent.children:
            return None
        if parent.parent is None:  # the salt's last block
            del self.roots[parent.salt]
            return None
        return parent

    def _forget_places(self) -> None:
        self.roots.clear()


def _same_pages(run: list[Page], pages: list[Page], start: int) -> int:
    """How many pages of a run are those of `pages` from `start` on. Only whole pages count."""
    same = 0
    for ours, theirs in zip(run, pages[start : start + len(run)], strict=False):
        if ours != theirs:
            break
        same += 1
    return same
