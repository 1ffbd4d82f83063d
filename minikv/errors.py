"""What can go wrong, by name. An error names the value, the limit and the way out, and changes nothing."""

from typing import Any


class KVCacheError(Exception):
    """Misuse of the cache; every error below is one."""


class CacheValueError(KVCacheError, ValueError):
    """A number that counts or sizes something and cannot: below 0, below 1, or too large."""


class UnknownBlockError(KVCacheError, IndexError):
    """A block id outside the pool."""


class RefCountError(KVCacheError):
    """A reference was taken on a free block, or given back once too often (I2)."""


class OutOfBlocksError(KVCacheError):
    """A block was needed and none was free; free a request or evict, then try again."""


class RequestTooLargeError(OutOfBlocksError):
    """A request that could not run even if it had the whole cache for itself."""


class StaleTableError(KVCacheError):
    """A block table that this manager did not fill, or filled before `release_all` (I1)."""


class UnwrittenSlotError(KVCacheError):
    """A read reached a slot that was never written since its block was taken (I6)."""


class InvariantError(KVCacheError):
    """`check()` found a broken invariant.

    Attributes:
        invariant: its name, "I1" to "I5".
        block_id: the block where it broke, or None.
    """

    def __init__(self, invariant: str, block_id: int | None, message: str) -> None:
        super().__init__(f"{invariant} {message}")
        self.invariant = invariant
        self.block_id = block_id


class RequestError(Exception):
    """A request that did not end well.

    Attributes:
        request: its name. status: "timeout", "cancelled", "oom" or "failed"; then __cause__ says why.
        completions: what there was of its texts.
    """

    def __init__(self, request: str, status: str, completions: list[Any]) -> None:
        super().__init__(f"request {request} ended as {status}")
        self.request, self.status, self.completions = request, status, completions


class CheckpointError(Exception):
    """A checkpoint that cannot be loaded: a file, tensor or setting is missing or does not fit."""


class UnknownWordError(ValueError):
    """A prompt holds a word the tokenizer does not know."""
