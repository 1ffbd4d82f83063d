"""Fingerprint KV: sharing tested without a model.

Each token's "K" is the hash of all tokens up to and including it. Whoever reads a sequence through
its block table must find exactly that sequence's hashes: a wrong share, a stale block or a missed
copy is another hash.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikv.block_table import BlockTable
from minikv.errors import KVCacheError, OutOfBlocksError
from minikv.manager import KVCacheManager


class FingerprintPool:
    """A list with one hash per slot; None was never written since its block was taken."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.slots: list[str | None] = [None] * (num_blocks * block_size)

    def _slots_of(self, block_id: int) -> slice:
        return slice(block_id * self.block_size, (block_id + 1) * self.block_size)

    def copy_block(self, src: int, dst: int) -> None:
        self.slots[self._slots_of(dst)] = self.slots[self._slots_of(src)]

    def release(self, block_id: int) -> None:
        self.slots[self._slots_of(block_id)] = [None] * self.block_size

    def read(self, table: BlockTable, length: int) -> list[str | None]:
        return [self.slots[table.slot(position)] for position in range(length)]


@dataclass
class Sequence:
    """A request: its table, and the hashes that the table should show."""

    table: BlockTable
    last: str = ""  # hash of all its tokens
    expected: list[str] = field(default_factory=list)  # of the tokens that were not dropped


class Writers:
    """Some requests that write, fork, slide and end. No two tokens ever written are equal."""

    def __init__(self, num_blocks: int, block_size: int, kind: type[KVCacheManager] = KVCacheManager) -> None:
        self.pool = FingerprintPool(num_blocks, block_size)
        self.manager = kind(num_blocks, block_size, self.pool)
        self.running: list[Sequence] = []
        self.written = 0

    def step(self, op: str, which: int, amount: int) -> None:
        if op == "start" or not self.running:
            self.running.append(
                Sequence(BlockTable(self.manager.block_size, amount % self.manager.block_size))
            )
        sequence = self.running[which % len(self.running)]
        if op != "start":
            getattr(self, op)(sequence, amount)
        self.compare()

    def write(self, sequence: Sequence, amount: int) -> None:
        """Up to `amount` tokens, as far as there is room."""
        for _ in range(amount):
            position = len(sequence.expected)
            if not self.manager.allocate(sequence.table, position + 1):
                return
            try:
                self.manager.copy_on_write(sequence.table, position)
            except OutOfBlocksError:
                return
            self.manager.note_write(sequence.table, position, position + 1)
            self.written += 1
            sequence.last = sha256(f"{sequence.last} {self.written}".encode()).hexdigest()
            sequence.expected.append(sequence.last)
            self.pool.slots[sequence.table.slot(position)] = sequence.last

    def fork(self, sequence: Sequence, amount: int) -> None:
        child = self.manager.fork(sequence.table)
        self.running.append(Sequence(child, sequence.last, list(sequence.expected)))

    def slide(self, sequence: Sequence, amount: int) -> None:
        amount = min(amount, len(sequence.expected))
        self.manager.drop_front(sequence.table, amount)
        del sequence.expected[:amount]

    def end(self, sequence: Sequence, amount: int) -> None:
        self.manager.free(sequence.table)
        self.running.remove(sequence)

    def compare(self) -> None:
        self.manager.check()
        for sequence in self.running:
            assert self.pool.read(sequence.table, len(sequence.expected)) == sequence.expected


OPS = ("start", "write", "write", "write", "fork", "slide", "end")
POOLS = st.sampled_from([(6, 3), (10, 1), (5, 4)])
STEPS = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 7), st.integers(0, 7)), max_size=40)


@given(POOLS, STEPS)
def test_every_sequence_reads_its_own_hashes(
    pool: tuple[int, int], steps: list[tuple[str, int, int]]
) -> None:
    writers = Writers(*pool)
    for step in steps:
        writers.step(*step)


def long_run(kind: type[KVCacheManager]) -> Writers:
    chance, writers = random.Random(7), Writers(12, 3, kind)
    for _ in range(4000):
        op = chance.choice(OPS) if len(writers.running) < 6 else "end"
        writers.step(op, chance.randrange(8), chance.randrange(8))
    return writers


def test_a_long_run() -> None:
    assert long_run(KVCacheManager).written > 3000


class ForgetsCopyOnWrite(KVCacheManager):
    def copy_on_write(self, table, position):  # type: ignore[no-untyped-def]
        return None

    def note_write(self, table, start, stop, words=()):  # type: ignore[no-untyped-def]
        pass


class CopiesNothing(KVCacheManager):
    def copy_on_write(self, table, position):  # type: ignore[no-untyped-def]
        pool, self.pool = self.pool, None
        try:
            return super().copy_on_write(table, position)
        finally:
            self.pool = pool


class ForgetsTheOffsetOfAFork(KVCacheManager):
    def fork(self, table, name=None):  # type: ignore[no-untyped-def]
        child = super().fork(table, name)
        child.offset = 0
        return child


class SlidesWithoutTheOffset(KVCacheManager):
    def drop_front(self, table, num_tokens):  # type: ignore[no-untyped-def]
        super().drop_front(table, num_tokens)
        table.offset = 0


@pytest.mark.parametrize(
    "wrong", [ForgetsCopyOnWrite, CopiesNothing, ForgetsTheOffsetOfAFork, SlidesWithoutTheOffset]
)
def test_the_hashes_betray_a_wrong_manager(wrong: type[KVCacheManager]) -> None:
    with pytest.raises((AssertionError, IndexError, KVCacheError)):
        long_run(wrong)
