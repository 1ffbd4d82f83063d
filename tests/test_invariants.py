"""`check()` alone: each kind of wrong book is called by its name, and by the block where it shows."""

from collections.abc import Callable

import pytest

from minikv import invariants
from minikv.block_table import BlockTable
from minikv.errors import InvariantError
from minikv.manager import KVCacheManager


def example() -> tuple[KVCacheManager, BlockTable, BlockTable]:
    """6 blocks of 4 slots: a = [0, 1, 2] with 10 tokens stored, b = [0, 1, 3], a cache on 1; 4 and 5 free."""
    manager, a = KVCacheManager(6, 4), BlockTable(4)
    assert manager.allocate(a, 12)
    manager.note_write(a, 0, 10)
    b = manager.fork(a)
    assert manager.copy_on_write(b, 8) == (2, 3)
    manager.inc_ref(1)
    manager.check()
    return manager, a, b


def set_count(block: int, count: int) -> Callable[[KVCacheManager, BlockTable], None]:
    def tamper(manager: KVCacheManager, table: BlockTable) -> None:
        manager.blocks[block].ref_count = count

    return tamper


TAMPERED: dict[str, tuple[Callable[[KVCacheManager, BlockTable], object], str, int | None]] = {
    "queued twice": (lambda m, t: m._free.append(4), "I1", 4),
    "free and held": (lambda m, t: m._free.append(0), "I1", 0),
    "lost from the queue": (lambda m, t: m._free.popleft(), "I1", 4),
    "lost from the held": (lambda m, t: m._used.pop(2), "I1", 2),
    "queued, does not exist": (lambda m, t: m._free.append(6), "I1", 6),
    "listed, does not exist": (lambda m, t: t.append_block(-1), "I1", -1),
    "held, count 0": (set_count(2, 0), "I2", 2),
    "free, count 1": (set_count(5, 1), "I2", 5),
    "count too high": (set_count(0, 3), "I2", 0),
    "count too low": (set_count(1, 2), "I2", 1),
    "count below zero": (set_count(4, -1), "I2", 4),
    "a cache forgot": (lambda m, t: m._cached.clear(), "I2", 1),
    "a table lists a free block": (lambda m, t: t.append_block(4), "I2", 4),
    "a table lists another's block": (lambda m, t: t.replace_block(2, 3), "I2", 2),
    "a table was cleared by hand": (lambda m, t: t.clear(), "I2", 0),
    "a block twice": (lambda m, t: t.replace_block(2, 1), "I3", 1),
    "more stored than there is room": (lambda m, t: m._stored.update({id(t): 13}), "I5", 2),
    "a last block dropped by hand": (lambda m, t: t.drop_blocks(1, 0), "I5", 2),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_wrong_books_are_named(name: str) -> None:
    tamper, invariant, block_id = TAMPERED[name]
    manager, a, _ = example()
    if invariant != "I5":
        manager._stored[id(a)] = 0
    tamper(manager, a)
    with pytest.raises(InvariantError) as caught:
        manager.check()
    assert (caught.value.invariant, caught.value.block_id) == (invariant, block_id)
    assert str(caught.value).startswith(f"{invariant} {invariants.INVARIANTS[invariant]}: ")


def test_the_names_are_those_of_the_contract() -> None:
    assert invariants.INVARIANTS == {
        "I1": "conservation",
        "I2": "ref-count",
        "I3": "no-repeat",
        "I4": "no-shared-write",
        "I5": "capacity",
        "I6": "written-first",
    }


def test_every_named_invariant_of_the_books_can_fail() -> None:
    assert {invariant for _, invariant, _ in TAMPERED.values()} == {"I1", "I2", "I3", "I5"}
