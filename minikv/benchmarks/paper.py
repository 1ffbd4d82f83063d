"""The PagedAttention paper's memory figures, simulated again:  python -m minikv.benchmarks paper

Each table has the published figure, ours and the difference, and says below what was assumed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from minikv.sim import paper
from minikv.sim.results import Table


def tables(seed: int = 0, progress: bool = False) -> Iterator[Table]:
    """All tables, one after the other as they are ready."""
    yield paper.fig2(seed=seed, progress=progress)
    yield paper.fig13(seed=seed, progress=progress)
    yield paper.block_sizes("ShareGPT", seed=seed, progress=progress)
    yield paper.block_sizes("Alpaca", requests=12_000, seed=seed, progress=progress)
    yield paper.fig15_parallel(seed=seed, progress=progress)
    yield paper.fig15_beam(seed=seed, progress=progress)


def main(argv: list[str]) -> None:
    """Print the tables, the progress on stderr."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks paper")
    parser.add_argument("--seed", type=int, default=0, help="of the random requests (default: %(default)s)")
    arguments = parser.parse_args(argv)
    for table in tables(arguments.seed, progress=True):
        print(table, end="\n\n", flush=True)
