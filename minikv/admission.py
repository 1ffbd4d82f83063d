"""What the management layer refuses, and what it then says.

The manager asks here before it changes anything. Each function raises, naming the value, the limit
and the invariant at stake, or returns and has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from minikv.checks import whole_number
from minikv.errors import CacheValueError, RefCountError, StaleTableError, UnknownBlockError
from minikv.invariants import broken

if TYPE_CHECKING:
    from minikv.manager import KVBlock, KVCacheManager
    from minikv.protocols import Pool, Table


def pool_size(name: str, value: int, pool: Pool | None) -> int:
    """num_blocks or block_size: at least 1, and the pool's own where the pool has one."""
    size = whole_number(name, value)
    if size < 1:
        raise CacheValueError(f"{name} is {size}; it must be at least 1")
    if getattr(pool, name, size) != size:
        raise CacheValueError(f"{name} is {size}, but the pool's is {getattr(pool, name)}; make them equal")
    return size


def token_count(num_tokens: int) -> int:
    """A number of tokens, 0 or more."""
    num_tokens = whole_number("num_tokens", num_tokens)
    if num_tokens < 0:
        raise CacheValueError(f"num_tokens is {num_tokens}; it counts tokens, so it is 0 or more")
    return num_tokens


def held_block(manager: KVCacheManager, block_id: int, otherwise: str) -> KVBlock:
    """The block with this id; RefCountError, ending in `otherwise`, if nobody holds it."""
    block_id, last = whole_number("block_id", block_id), manager.num_blocks - 1
    if not 0 <= block_id <= last:
        raise UnknownBlockError(f"block {block_id} does not exist; the pool has blocks 0 to {last}")
    if manager.blocks[block_id].is_free:
        raise RefCountError(f"I2 ref-count: block {block_id} is free, its count is 0; {otherwise}")
    return manager.blocks[block_id]


def known_table(manager: KVCacheManager, table: Table) -> None:
    """A table that holds blocks of this manager, or none, or such as inc_ref took for it (filled by hand).

    Raises:
        CacheValueError: it has another block size. InvariantError: I3, filled by hand with a repeat.
        StaleTableError: its blocks are not this manager's, or not since `release_all`.
    """
    if id(table) in manager._tables:
        return
    if table.block_size != manager.block_size:
        raise CacheValueError(
            f"the table's block_size is {table.block_size}, the manager's is {manager.block_size}; "
            "make them equal"
        )
    if table.num_blocks and manager._stale.get(id(table)) is table:
        raise StaleTableError(
            "I1 conservation: this table was filled before release_all, its blocks may be somebody else's "
            "now; clear() it and allocate anew"
        )
    for block_id in table.block_ids:
        if not manager._cached[block_id]:
            raise StaleTableError(
                f"I2 ref-count: this table lists block {block_id}, which this manager did not give it; "
                "use the manager that filled it, or take the block with inc_ref first"
            )
    own_entries(manager, table.block_ids)


def own_entries(manager: KVCacheManager, block_ids: Iterable[int]) -> None:
    """These entries of a table are held blocks (RefCountError), each listed once (InvariantError I3)."""
    block_ids = tuple(block_ids)
    distinct = set(block_ids)
    if (
        len(distinct) == len(block_ids)
        and distinct <= manager._used.keys()
        and set(map(type, distinct)) <= {int}
    ):
        return  # nothing is wrong, as nearly always; what follows finds out what is, block by block
    seen: set[int] = set()
    for block_id in block_ids:
        held_block(manager, block_id, "yet a table still lists it: dec_ref gave its reference back")
        if block_id in seen:
            raise broken("I3", block_id, f"a table lists block {block_id} twice")
        seen.add(block_id)


def writable_range(table: Table, start: int, stop: int, num_words: int) -> None:
    """Positions start … stop-1 are a range that the table covers, with a word each or none."""
    if not 0 <= start <= stop:
        raise CacheValueError(f"positions [{start}, {stop}) are no range of positions")
    if num_words not in (0, stop - start):
        raise CacheValueError(f"{num_words} words for the {stop - start} positions [{start}, {stop})")
    if stop > max(0, table.capacity):
        raise broken("I5", None, f"position {stop - 1} is beyond the table's {table.capacity} tokens")


def own_block(manager: KVCacheManager, table: Table, position: int) -> None:
    """InvariantError (I4) if the block at this position is shared."""
    block_id = table.slot(position) // manager.block_size
    count = manager.blocks[block_id].ref_count
    if count > 1:
        where = f"position {position} lies in block {block_id}, held by {count}"
        raise broken("I4", block_id, f"{where}; call copy_on_write first")
