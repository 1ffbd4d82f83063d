"""Is the simulator fast, and does it stay small?  python -m minikv.benchmarks simulator

speed     requests per second through the paged policy, on the real manager
memory    the most that Python held at once, for a run and for one of ten times as many requests
manager   what an operation costs in a pool of a million blocks, compared with one of a thousand
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time

from minikv.benchmarks._table import format_table
from minikv.block_table import BlockTable
from minikv.manager import KVCacheManager
from minikv.sim.progress import watched
from minikv.sim.reservation import Paged
from minikv.sim.simulate import simulate
from minikv.sim.workload import SHAREGPT, Request, lognormal, read_azure, read_mooncake

NUM_BLOCKS, BLOCK_SIZE = 16384, 16  # the chapter's pool
RATE = 5.0  # requests per second
SMALL, LARGE = 1_000, 1_000_000  # blocks
ROUNDS = 2000


# ---- speed and memory ------------------------------------------------------------------------


def speed_row(name: str, requests: Iterable[Request]) -> list[str]:
    """Run them and say how long it took."""
    start, cpu_start = perf_counter(), process_time()
    result = simulate(requests, Paged(NUM_BLOCKS, BLOCK_SIZE))
    seconds, cpu = perf_counter() - start, process_time() - cpu_start
    counts = [f"{n:,}" for n in (result.finished, result.too_large, result.preemptions, result.output_tokens)]
    return [name, *counts, f"{seconds:.2f}", f"{cpu:.2f}", f"{result.finished / seconds:,.0f}"]


def peak_kib(count: int) -> float:
    """The most memory that Python objects of a run held at once, the pool's own left out, in KiB."""
    policy = Paged(NUM_BLOCKS, BLOCK_SIZE)
    tracemalloc.start()
    simulate(lognormal(SHAREGPT, RATE, count), policy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1024


# ---- cost of the manager's operations --------------------------------------------------------


def grow(manager: KVCacheManager, table: BlockTable) -> None:
    """One block more."""
    manager.allocate(table, table.capacity + 1)


def fork_and_copy(manager: KVCacheManager, table: BlockTable) -> None:
    """A second table over ten blocks, a copy of the last one, and everything back."""
    child = manager.fork(table)
    manager.copy_on_write(child, child.capacity - 1)
    manager.free(child)


def allocate_and_free(manager: KVCacheManager, table: BlockTable) -> None:
    """Ten blocks for a new table, and back."""
    fresh = BlockTable(BLOCK_SIZE)
    manager.allocate(fresh, 10 * BLOCK_SIZE)
    manager.free(fresh)


def share_and_return(manager: KVCacheManager, table: BlockTable) -> None:
    """One holder more and one less."""
    manager.inc_ref(table.block_ids[0])
    manager.dec_ref(table.block_ids[0])


OPERATIONS: tuple[Callable[[KVCacheManager, BlockTable], None], ...] = (
    grow,
    allocate_and_free,
    fork_and_copy,
    share_and_return,
)


def costs(
    managers: Sequence[KVCacheManager], operation: Callable[[KVCacheManager, BlockTable], None]
) -> list[float]:
    """Seconds with each manager: the fastest of many rounds, taken in turn."""
    best = [float("inf")] * len(managers)
    for _ in range(ROUNDS):
        for number, manager in enumerate(managers):
            table = BlockTable(BLOCK_SIZE)
            manager.allocate(table, 10 * BLOCK_SIZE)
            start = perf_counter()
            operation(manager, table)
            best[number] = min(best[number], perf_counter() - start)
            manager.free(table)
    return best


def cost_rows() -> Iterator[list[str]]:
    """A line for each operation."""
    managers = [KVCacheManager(size, BLOCK_SIZE) for size in (SMALL, LARGE)]
    for operation in OPERATIONS:
        small, large = costs(managers, operation)
        name = operation.__name__.replace("_", " ")
        yield [name, f"{small * 1e6:.2f}", f"{large * 1e6:.2f}", f"{large / small:.2f}"]


def speed_table(count: int, traces: Iterable[tuple[str, Iterable[Request]]]) -> str:
    """`count` drawn requests, then each trace."""
    drawn = watched(lognormal(SHAREGPT, RATE, count), "requests", total=count)
    rows = [speed_row(f"{SHAREGPT.name}, {RATE:g}/s", drawn)]
    rows += [speed_row(path, watched(requests, path)) for path, requests in traces]
    head = [
        "requests",
        "finished",
        "too large",
        "preempted",
        "output tokens",
        "seconds",
        "CPU s",
        "per second",
    ]
    return format_table(head, rows)


def memory_table(count: int) -> str:
    """The peak for a few of the requests, and for ten times as many: tracing is slow."""
    few = max(1, count // 200)
    return format_table(
        ["requests", "peak memory, KiB"], [[f"{n:,}", f"{peak_kib(n):,.0f}"] for n in (few, 10 * few)]
    )


def trace_file(path: str) -> str:
    """A path given on the command line, looked for before anything runs."""
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return path


def main(argv: list[str]) -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks simulator")
    parser.add_argument("--requests", type=int, default=1_000_000, help="drawn (default: %(default)s)")
    parser.add_argument("--azure", type=trace_file, metavar="PATH", help="an Azure LLM inference trace, CSV")
    parser.add_argument("--mooncake", type=trace_file, metavar="PATH", help="a Mooncake trace, JSON lines")
    arguments = parser.parse_args(argv)
    readers = ((arguments.azure, read_azure), (arguments.mooncake, read_mooncake))
    traces = [(path, read(path)) for path, read in readers if path is not None]
    print(speed_table(arguments.requests, traces), end="\n\n", flush=True)
    print(memory_table(arguments.requests), end="\n\n", flush=True)
    head = ["operation", f"{SMALL:,} blocks, µs", f"{LARGE:,} blocks, µs", "ratio"]
    print(format_table(head, list(cost_rows())))
