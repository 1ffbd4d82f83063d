"""The memory figures of the PagedAttention paper, simulated again.  python -m minikv.benchmarks paper

Published numbers are in published.py. Ours come out of the policies, the buddy allocator and the real
manager; what had to be assumed is printed under each table. Four things were fitted, by trying some values:

    shape of the ShareGPT-like lengths   so that Fig. 2's three Orca rows come closest
    shape of the Alpaca-like outputs     so that Fig. 13's Orca (Pow2) and (Oracle) come closest
    time of a step                       so that 2 ShareGPT-like requests a second just fill the paged pool
    turnover of beams                    so that Fig. 15's beam-search savings come closest

The other figures follow from these: how much of a full pool vLLM fills with tokens, the other mean batches,
and what parallel sampling saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from minikv.sim import published
from minikv.sim.policy import Books
from minikv.sim.progress import watched
from minikv.sim.reservation import OrcaMax, OrcaOracle, OrcaPow2, Paged
from minikv.sim.results import Finding, Reproduction, SimResult, SplitReproduction, Table
from minikv.sim.sharing import beam_search, parallel_sampling
from minikv.sim.simulate import STEP_TIME, simulate
from minikv.sim.workload import ALPACA, SHAREGPT, Lengths, lognormal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCK_SIZE = 16
LENGTHS: dict[str, Lengths] = {"ShareGPT": SHAREGPT, "Alpaca": ALPACA}
# Chance per step that a beam is continued from any of the beams. Fitted, see above.
TURNOVER = {"ShareGPT": 0.018, "Alpaca": 0.11}
# Requests per second that keep even the paged pool full, so that memory is what limits the batch.
FULL_RATE: dict[str, float] = {"ShareGPT": 3, "Alpaca": 50}

LENGTH_NOTES = {
    "ShareGPT": f"{SHAREGPT.assumption}; the means are Fig. 11's, the shapes fitted to Fig. 2's rows of Orca",
    "Alpaca": f"{ALPACA.assumption}; the means are Fig. 11's, the shape of the outputs fitted to Fig. 13's "
    "Orca (Pow2) and Orca (Oracle), that of the inputs chosen freely: it changes little",
}
STEP_NOTE = f"{STEP_TIME.assumption}: fitted so that 2 ShareGPT-like requests/s just fill the paged pool"
ORCA_NOTE = (
    "Orca's reservations come from a buddy allocator, as the paper assumes; what that rounds up counts as "
    "external & others"
)


def policy(system: str) -> Books:
    """A fresh policy for OPT-13B's memory, by the paper's name of the system."""
    slots = published.OPT_13B_SLOTS
    policies: dict[str, Callable[[], Books]] = {
        "Orca (Max)": lambda: OrcaMax(slots, published.MAX_LENGTH),
        "Orca (Pow2)": lambda: OrcaPow2(slots, published.MAX_LENGTH),
        "Orca (Oracle)": lambda: OrcaOracle(slots, published.MAX_LENGTH),
        "vLLM": lambda: Paged(slots // BLOCK_SIZE, BLOCK_SIZE),
    }
    return policies[system]()


def run(dataset: str, policy: Books, rate: float, requests: int, seed: int) -> SimResult:
    """One simulation. `dataset` is "ShareGPT" or "Alpaca"."""
    return simulate(lognormal(LENGTHS[dataset], rate, requests, seed, published.MAX_LENGTH), policy)


def fig2(requests: int = 7200, seed: int = 0, progress: bool = False) -> SplitReproduction:
    """Fig. 2: where KV memory goes, % of all slots.

    Args:
        requests: how many to simulate; the paper's traces are an hour long.
        progress: show a bar.
    """
    rate, ours = FULL_RATE["ShareGPT"], {}
    for system in watched(published.FIG_2, "Fig. 2", progress):
        result = run("ShareGPT", policy(system), rate, requests, seed)
        # Free blocks serve whoever comes next; free slots between reservations count as "others".
        mean = result.mean if system == "vLLM" else result.mean.fig2
        ours[system] = mean.percent._asdict()
    notes = (
        LENGTH_NOTES["ShareGPT"],
        STEP_NOTE,
        f"{rate:g} requests/s, so that memory is always wanted; averages over the whole run",
        ORCA_NOTE,
    )
    title = f"KV memory of OPT-13B, {published.OPT_13B_SLOTS:,} slots (Fig. 2)"
    return SplitReproduction(title, ours, published.FIG_2, notes)


def fig13(seconds: int = 3600, seed: int = 0, progress: bool = False) -> Reproduction:
    """Fig. 13: how many requests run together, on average.

    Args:
        seconds: for how long requests arrive.
        progress: show a bar.
    """
    cases = [(dataset, system) for dataset, systems in published.FIG_13.items() for system in systems]
    findings = []
    for dataset, system in watched(cases, "Fig. 13", progress):
        rate = published.FIG_13_RATE[dataset]
        result = run(dataset, policy(system), rate, round(rate * seconds), seed)
        what = f"{dataset} {rate:g} requests/s: {system}"
        findings.append(Finding(what, published.FIG_13[dataset][system], result.mean_batch))
    notes = (
        *LENGTH_NOTES.values(),
        STEP_NOTE,
        ORCA_NOTE,
        "on Alpaca, vLLM's pool is not full: how many run together follows from the time of a step alone",
    )
    return Reproduction("Requests that run together (Fig. 13)", "requests", findings, notes)


def fig15_parallel(requests: int = 4000, seed: int = 0, progress: bool = False) -> Reproduction:
    """Fig. 15: blocks saved when a prompt is answered several times at once."""
    findings = []
    for dataset, samples, value in watched(_cases(published.FIG_15_PARALLEL), "Fig. 15a", progress):
        stream = lognormal(LENGTHS[dataset], 1, requests, seed, published.MAX_LENGTH)
        saved = 100 * parallel_sampling(stream, samples, BLOCK_SIZE)
        findings.append(Finding(f"{dataset}, {samples} samples", value, saved))
    notes = (
        *LENGTH_NOTES.values(),
        "all samples of a prompt are equally long. Then only the prompt is shared, and from 2 to 6 samples "
        "the saving grows by (5/6)/(1/2) = 1.67; the published ShareGPT range grows by 1.88",
    )
    return Reproduction("Blocks that sharing saves, parallel sampling (Fig. 15a)", "%", findings, notes)


def fig15_beam(requests: int = 500, seed: int = 0, progress: bool = False) -> Reproduction:
    """Fig. 15: blocks saved by beam search, where whole outputs are shared, and beams fork and die.

    Args:
        requests: ShareGPT-like ones; of the Alpaca-like, which are shorter, three times as many.
        progress: show a bar.
    """
    findings = []
    for dataset, width, value in watched(_cases(published.FIG_15_BEAM), "Fig. 15b", progress):
        count = requests if dataset == "ShareGPT" else 3 * requests
        stream = lognormal(LENGTHS[dataset], 1, count, seed, published.MAX_LENGTH)
        saved = 100 * beam_search(stream, width, TURNOVER[dataset], BLOCK_SIZE, seed)
        findings.append(Finding(f"{dataset}, width {width}", value, saved))
    turnover = ", ".join(f"{chance:g} ({dataset})" for dataset, chance in TURNOVER.items())
    notes = (
        *LENGTH_NOTES.values(),
        f"fitted: after each step a beam is continued from any of the beams with the chance {turnover}",
    )
    return Reproduction("Blocks that sharing saves, beam search (Fig. 15b)", "%", findings, notes)


def _cases(figures: Mapping[str, Mapping[int, float]]) -> list[tuple[str, int, float]]:
    """(dataset, number, published value) of each figure."""
    return [(dataset, n, value) for dataset, values in figures.items() for n, value in values.items()]


class BlockSizes(Table):
    """What the block size does to memory; the results as they came, in `results`."""

    def __init__(self, dataset: str, block_sizes: Sequence[int], results: Sequence[SimResult]) -> None:
        self.results = tuple(results)
        low, high = published.FIG_18_BEST[dataset]
        rows = []
        for size, result in zip(block_sizes, results, strict=True):
            tokens, reserved, internal, _, free = result.mean.percent
            change = f"{100 * (result.mean_batch / results[0].mean_batch - 1):+.1f} %"
            best = "best" if low <= size <= high else ""
            rows.append((str(size), tokens, reserved + internal, free, result.mean_batch, change, best))
        columns = ("tokens, %", "empty in blocks, %", "free, %", "mean batch", "to the first row", "Fig. 18b")
        notes = (
            LENGTH_NOTES[dataset],
            STEP_NOTE,
            f"{FULL_RATE[dataset]:g} requests/s, so that memory is always wanted",
            "Fig. 18b gives no figures for memory: marked are the block sizes that served best. Here a step "
            "takes the same time whatever the block size; there, small blocks cost the kernel more",
        )
        super().__init__(f"Block sizes, {LENGTHS[dataset].name} requests", ("block", *columns), rows, notes)

    def plot(self) -> Figure:
        """A stacked bar for each block size."""
        from minikv.sim import plots

        return plots.bars({result.policy: result.mean.percent._asdict() for result in self.results})


def block_sizes(
    dataset: str,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    requests: int = 3000,
    seed: int = 0,
    progress: bool = False,
) -> BlockSizes:
    """How much memory the block size wastes, and how many requests it keeps out.

    Args:
        dataset: "ShareGPT" or "Alpaca".
        progress: show a bar.
    """
    results = []
    for size in watched(sizes, f"block sizes, {dataset}", progress):
        paged = Paged(published.OPT_13B_SLOTS // size, size)
        results.append(run(dataset, paged, FULL_RATE[dataset], requests, seed))
    return BlockSizes(dataset, sizes, results)
