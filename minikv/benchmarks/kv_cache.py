"""The chapter's observable experiment (§5.2):  python -m minikv.benchmarks kv_cache

Requests of different lengths come to a small pool; the real engine runs them with the tiny GPT-2. Time is
counted, 0.1 s a step, so every number is the same on every machine.

    scenes        peak, utilisation, free blocks, and how requests ended, in the chapter's four scenes
    demand        the same requests, paged and contiguous: what is held against what is stored
    side by side  how many requests run at once in the same memory, for some limits of the answer
    trace         with --trace FILE: a real trace, through the simulator

Utilisation is given twice, for it has two meanings: the share of memory that somebody *holds* (what a
manager can tell), and the share that has a *token* in it (what it was bought for).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minikv.benchmarks._table import format_table
from minikv.lab.experiment_limit import CACHES, side_by_side
from minikv.lab.experiment_run import Outcome, Scene, run
from minikv.lab.experiment_scenes import SCENES, questions
from minikv.lab.experiment_timeline import timeline
from minikv.lab.experiment_trace import Compared, compare, mean_lengths, scaled
from minikv.sim.workload import read_azure

LOADS = (1, 2, 4, 8, 16)  # requests that come at once
ROOMY = 256  # blocks of 4: room for all of them
LIMITS = (6, 12, 24, 48, 96)  # max_new_tokens; the answers have 6 tokens
MEMORY = 128  # blocks of 4, for the limits


# ---- the four scenes -----------------------------------------------------------------------------

SCENE_HEAD = (
    "scene", "blocks", "success", "oom", "timeout", "preempted", "peak", "held, mean %", "held, peak %",
    "tokens, mean %", "free at the end", "ttft, s",
)  # fmt: skip


def scene_row(outcome: Outcome) -> tuple[object, ...]:
    """A line of the scenes' table. Means are over the steps in which the model ran."""
    counts = outcome.counts
    return (
        outcome.scene.name, outcome.total, counts["success"], counts["oom"], counts["timeout"],
        counts["preempted"], outcome.max_allocated, _percent(outcome.mean_held),
        _percent(outcome.held_at_peak), _percent(outcome.mean_tokens), outcome.free,
        "–" if outcome.ttft is None else f"{outcome.ttft:.2f}",
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


# ---- demand: the same requests, paged and contiguous ---------------------------------------------


class Unequal(AssertionError):
    """Two kinds of memory whose requests did not say the same."""


def same_requests(scene: Scene, caches: Sequence[str] = tuple(CACHES)) -> dict[str, Outcome]:
    """The scene in each kind of memory. Raises Unequal if the answers are not the same, token for token."""
    outcomes = {cache: run(scene, **CACHES[cache]) for cache in caches}
    first = next(iter(outcomes.values()))
    for cache, outcome in outcomes.items():
        if outcome.texts != first.texts:
            raise Unequal(f"in {cache} memory the answers are not those in {first.label} memory")
    return outcomes


DEMAND_HEAD = ("requests", "memory", "tokens, peak", "held, peak", "tokens in what is held, %", "tokens out")


def demand_rows(loads: Sequence[int] = LOADS) -> list[tuple[object, ...]]:
    """More and more requests in a memory that has room for all: what is stored at the peak, and what held."""
    rows: list[tuple[object, ...]] = []
    for load in loads:
        scene = Scene(f"{load} questions", questions(load, limit=32), ROOMY)
        for cache, outcome in same_requests(scene).items():
            held = outcome.max_allocated * outcome.unit
            share = f"{100 * outcome.peak_tokens / held:.1f}"
            rows.append((load, cache, outcome.peak_tokens, held, share, outcome.num_tokens))
    return rows


# ---- side by side --------------------------------------------------------------------------------

LIMIT_HEAD = ("max_new_tokens", *CACHES, "paged / max")


def limit_rows(limits: Sequence[int] = LIMITS) -> list[tuple[object, ...]]:
    """Requests that run at once, undisturbed, in the same memory; their answers have 6 tokens."""
    rows: list[tuple[object, ...]] = []
    for limit in limits:
        asks = questions(48, limit)
        found = {cache: side_by_side(asks, MEMORY, **options) for cache, options in CACHES.items()}
        ratio = f"{found['paged'] / found['contiguous, max']:.2f}"
        rows.append((limit, *found.values(), ratio))
    return rows


# ---- a trace -------------------------------------------------------------------------------------


def trace_table(path: Path, num_blocks: int, max_length: int, scale: float) -> Compared:
    """A trace in Azure's format, through contiguous and paged memory."""
    requests = list(scaled(read_azure(path), scale))
    means = mean_lengths(requests)
    note = f"lengths times {scale:g}: {means.input:.0f} tokens in and {means.output:.0f} out, on average"
    title = f"{path.name}: {len(requests):,} requests"
    return compare(requests, num_blocks, max_length=max_length, title=title, notes=(note,))


def existing(path: str) -> Path:
    """A file named on the command line, looked for before anything runs."""
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return Path(path)


def above_zero(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def whole(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def arguments(argv: list[str]) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks kv_cache")
    parser.add_argument("--trace", type=existing, metavar="FILE", help="an Azure LLM inference trace, CSV")
    parser.add_argument(
        "--blocks", type=whole, default=4096, help="of 16 slots, for the trace (default: %(default)s)"
    )
    parser.add_argument(
        "--max-length", type=whole, default=8192, help="tokens of the longest request (default: %(default)s)"
    )
    parser.add_argument(
        "--scale", type=above_zero, default=1.0, help="of the trace's lengths (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write the scenes' time lines there, SVG")
    return parser.parse_args(argv)


def write_plots(folder: Path, outcomes: dict[str, Outcome]) -> None:
    """A time line for each scene."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, outcome in outcomes.items():
        svg = timeline(outcome).to_svg()
        (folder / f"kv_cache_{name.replace(' ', '_')}.svg").write_text(svg, encoding="utf-8")


def main(argv: list[str]) -> None:
    """Print the tables; write JSON and plots if asked to."""
    asked = arguments(argv)
    outcomes = {name: run(scene) for name, scene in SCENES.items()}
    tables: dict[str, tuple[Sequence[str], Sequence[Sequence[object]]]] = {
        "scenes": (SCENE_HEAD, [scene_row(outcome) for outcome in outcomes.values()]),
        "demand": (DEMAND_HEAD, demand_rows()),
        "side by side": (LIMIT_HEAD, limit_rows()),
    }
    for title, (head, rows) in tables.items():
        print(f"{title}\n\n{format_table(head, rows)}\n")
    facts: dict[str, Any] = {
        title: [dict(zip(head, row, strict=True)) for row in rows] for title, (head, rows) in tables.items()
    }
    if asked.trace:
        traced = trace_table(asked.trace, asked.blocks, asked.max_length, asked.scale)
        print(traced)
        facts["trace"] = [dict(zip(traced.head, row, strict=True)) for row in traced.rows]
    if asked.json:
        asked.json.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if asked.plot:
        write_plots(asked.plot, outcomes)
