"""Are the books right? The invariants by name, and their verification from scratch.

    I1 conservation     every block is free or held, never both, never neither
    I2 ref-count        ref_count == number of holders (tables + caches); free exactly when 0
    I3 no-repeat        a table never lists a block twice
    I4 no-shared-write  nobody writes a slot of a block whose ref_count > 1
    I5 capacity         a table's capacity covers every token stored through it
    I6 written-first    no slot that was never written reaches an attention output

I4 and I6 are broken at one moment and leave no trace: `KVCacheManager.note_write` looks after I4,
the pool after I6. The others can be counted again at any time, which is what happens here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from minikv.errors import InvariantError

if TYPE_CHECKING:
    from minikv.manager import KVBlock, KVCacheManager
    from minikv.protocols import Table

INVARIANTS = {
    "I1": "conservation",
    "I2": "ref-count",
    "I3": "no-repeat",
    "I4": "no-shared-write",
    "I5": "capacity",
    "I6": "written-first",
}


def broken(invariant: str, block_id: int | None, what: str) -> InvariantError:
    """The error that says which invariant does not hold, where, and what was found."""
    return InvariantError(invariant, block_id, f"{INVARIANTS[invariant]}: {what}")


def check_invariants(manager: KVCacheManager) -> None:
    """Verify I1, I2, I3 and I5. O(num_blocks + table entries): for tests and for looking.

    Nobody but this module reads the manager's private books.

    Raises:
        InvariantError: the first thing found wrong.
    """
    queued, held = Counter(manager._free), manager._used
    holders = Counter(manager._cached)
    for table in manager._tables.values():
        _check_table(table, manager._stored[id(table)])
        holders.update(table.block_ids)
    for block_id in (queued.keys() | held.keys() | holders.keys()) - set(range(manager.num_blocks)):
        raise broken("I1", block_id, f"block {block_id} is in the books but does not exist")
    for block in manager.blocks:
        _check_conservation(block, queued[block.block_id], block.block_id in held)
        _check_ref_count(block, holders[block.block_id])


def _check_conservation(block: KVBlock, times_queued: int, held: bool) -> None:
    """I1, and the half of I2 that says: free exactly when the count is 0."""
    block_id, times = block.block_id, times_queued + held
    if times == 0:
        raise broken("I1", block_id, f"block {block_id} is neither free nor held")
    if times_queued > 1:
        raise broken("I1", block_id, f"block {block_id} is {times_queued} times in the free queue")
    if times > 1:
        raise broken("I1", block_id, f"block {block_id} is both free and held")
    if block.is_free and held:
        raise broken("I2", block_id, f"block {block_id} has count 0 but is not in the free queue")
    if not block.is_free and not held:
        raise broken("I2", block_id, f"block {block_id} has count {block.ref_count} but is in the free queue")


def _check_ref_count(block: KVBlock, holders: int) -> None:
    if block.ref_count != holders:
        found = f"count {block.ref_count} and {holders} {'holder' if holders == 1 else 'holders'}"
        raise broken("I2", block.block_id, f"block {block.block_id} has {found}")


def _check_table(table: Table, stored: int) -> None:
    """I3 and I5."""
    block_ids = table.block_ids
    if len(set(block_ids)) < len(block_ids):
        twice, times = Counter(block_ids).most_common(1)[0]
        raise broken("I3", twice, f"a table lists block {twice} {times} times")
    if stored > max(0, table.capacity):
        last = block_ids[-1] if block_ids else None
        raise broken("I5", last, f"{stored} tokens were stored through a table of {table.capacity}")
