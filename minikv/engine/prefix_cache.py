"""PREFIX CACHE: has somebody computed the KV of these first words before? (chapter §7)

The KV of a token depends on all tokens up to it and on nothing else. Two prompts that begin alike
have the same KV there, so the second takes over the blocks of the first and computes only the rest.
Two ways to find them, one contract:

    minikv/engine/radix_cache.py   a tree of tokens, as in SGLang
    minikv/engine/hash_cache.py    a dict from hashes, as in vLLM

Both share whole blocks only: a block holds KV of exactly these tokens at exactly these positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from minikv.block_table import BlockTable
from minikv.checks import whole_number
from minikv.errors import CacheValueError

Page = tuple[int, ...]  # the tokens of one block


class Match(NamedTuple):
    """What `acquire` found."""

    table: BlockTable  # holds a reference to each of its blocks
    num_cached_tokens: int  # their KV is there: num_blocks * block_size


class PrefixCache(Protocol):
    """Keeps blocks after their requests have ended, and lends them to prompts that begin alike."""

    def acquire(self, token_ids: Sequence[int], salt: str | None = None, name: str | None = None) -> Match:
        """A new table over the longest cached prefix of these tokens, never all of them."""

    def insert(self, token_ids: Sequence[int], table: BlockTable, salt: str | None = None) -> int:
        """Cache the whole blocks of `table` that hold the KV of these tokens; how many were new."""

    def evict(self, num_blocks: int) -> int:
        """Let go of up to so many blocks that nobody else holds; how many were freed."""

    def clear(self) -> None:
        """Let go of everything."""

    @property
    def num_blocks(self) -> int:
        """Blocks cached now."""

    @property
    def hit_rate(self) -> float:
        """Of all tokens asked for, the share that was cached, in [0, 1]."""


# ---- what both look at before they begin ---------------------------------------------------


def plain_tokens(token_ids: Sequence[int]) -> list[int]:
    """The token ids as plain ints. TypeError for what is no integer. O(tokens)."""
    tokens = list(token_ids)
    if set(map(type, tokens)) <= {int}:  # nearly always
        return tokens
    return [whole_number("a token id", token) for token in tokens]


def plain_salt(salt: object) -> str | None:
    """The salt as it is: a string, or None, which is a salt of its own. TypeError for all else.

    Strings only, because Python takes 1, 1.0 and True for the same key: two tenants would be one.
    """
    if salt is None or isinstance(salt, str):
        return salt
    raise TypeError(f"salt is {salt!r}; it must be a string or None, for example {str(salt)!r}")


def cut_pages(tokens: Sequence[int], block_size: int, count: int) -> list[Page]:
    """The first `count` blocks' tokens, one tuple a block."""
    return [tuple(tokens[i * block_size : (i + 1) * block_size]) for i in range(count)]


def stored_tokens(tokens: Sequence[int], table: BlockTable) -> None:
    """CacheValueError unless `table` begins at position 0 and has room for these tokens."""
    if table.offset:
        raise CacheValueError(
            f"the table's offset is {table.offset}: its blocks do not begin with position 0; "
            "a table that starts inside a block, or has slid, cannot be cached"
        )
    if len(tokens) > table.capacity:
        raise CacheValueError(
            f"{len(tokens)} tokens, but the table holds {table.capacity}; "
            "give only the tokens whose KV is stored through it"
        )
