"""The roofline: how fast this machine can read and compute, and how near to that some ways of attention come.

    roof = measure_machine()            # one thread
    points = measure_attention()        # decode and prefill, through a gather and fused
    Roofline(roof, points)

For a way that does few sums for each byte the roof is what memory delivers, for one that does many what the
arithmetic units can do. How near it comes to its roof is another matter.
(Williams, Waterman and Patterson 2009)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

from minikv.attention import paged_attention
from minikv.attention.cpu import warm_up
from minikv.lab.kernel_steps import whole_blocks
from minikv.lab.plots import _SETTINGS, INKS, LIGHT, MARKERS, Plot
from minikv.lab.read_costs import HEAD_DIM, HEADS, ReadScene, fastest_in_turns

NUMBER = 4  # bytes of a float32


class Machine(NamedTuple):
    """What one thread of a machine can do."""

    bytes_per_second: float  # reading
    flops: float  # additions and multiplications a second, in a large matrix product

    @property
    def ridge(self) -> float:
        """FLOP per byte from which on arithmetic, not memory, is the limit."""
        return self.flops / self.bytes_per_second

    def roof(self, intensity: float) -> float:
        """The most FLOP a second that code with so many FLOP per byte can reach."""
        return min(self.flops, intensity * self.bytes_per_second)

    def __repr__(self) -> str:
        return (
            f"reads {self.bytes_per_second / 1e9:.0f} GB/s, computes {self.flops / 1e9:.0f} GFLOP/s: "
            f"they meet at {self.ridge:.1f} FLOP per byte"
        )


class Work(NamedTuple):
    """What attention must do at the least: numbers of operations, and bytes to and from memory."""

    flop: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.bytes


class Point(NamedTuple):
    """One way of attention, as it was measured."""

    name: str
    work: Work
    seconds: float

    @property
    def flops(self) -> float:
        """Of useful operations, those a second."""
        return self.work.flop / self.seconds


def decode_work(tokens: int, heads: int = HEADS, head_dim: int = HEAD_DIM, copies: int = 0) -> Work:
    """One query over so many tokens: a score and a weighted sum take 2 * head_dim operations each.

    Args:
        copies: times that all keys and values are written and read once more, as a gather does once.
    """
    numbers = 2 * heads * head_dim * tokens  # K and V
    return Work(2 * numbers, NUMBER * numbers * (1 + 2 * copies))


def prefill_work(tokens: int, heads: int = HEADS, head_dim: int = HEAD_DIM) -> Work:
    """A whole prompt at once: each query sees itself and all before; q, k, v are read, the output written."""
    return Work(4 * heads * head_dim * tokens * (tokens + 1) // 2, NUMBER * 4 * heads * head_dim * tokens)


def measure_machine(read: Tensor | None = None, size: int = 512) -> Machine:
    """Read bandwidth by adding up a large tensor, and the float peak by a matrix product, on one thread.

    Args:
        read: what is read; None makes 50 MB.
        size: rows and columns of the matrices.
    """
    row = torch.ones(12_582_912) if read is None else read
    a, b = torch.ones(2, size, size)
    reading, computing = fastest_in_turns(lambda: row.sum(), lambda: a @ b, rounds=25)
    return Machine(1000 * row.nbytes / reading, 1000 * 2 * size**3 / computing)


def measure_attention(tokens: int = 8192, prompt: int = 512) -> list[Point]:
    """A decode step over `tokens` tokens: through a gather, and fused by the backend "cpu" and by step 4 of
    kernel_steps. And a prefill of `prompt`: fused, and by torch over what lies side by side."""
    warm_up()  # what compiles is not to be timed
    scene, short = ReadScene(tokens), ReadScene(prompt)
    q = torch.randn(1, prompt, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(0))

    def prefill(backend: str) -> Tensor:
        return paged_attention(q, short.pool, 0, [short.table], [prompt], backend=backend)

    k, v = short.gather()
    one, kv, table = scene.q[0].numpy(), scene.pool.kv[0].numpy(), np.array(scene.table.block_ids)
    times = fastest_in_turns(
        lambda: scene.attend("gather"),
        lambda: scene.attend("cpu"),
        lambda: whole_blocks(one, kv, table, tokens, np.float32(HEAD_DIM**-0.5)),
        lambda: prefill("cpu"),
        lambda: F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True),
        rounds=11,
    )
    names = ("decode, gather", "decode, cpu", "decode, step 4", "prefill, cpu", "prefill, torch")
    decode, prefilled = decode_work(tokens), prefill_work(prompt)
    works = (decode_work(tokens, copies=1), decode, decode, prefilled, prefilled)
    return [Point(*each[:2], each[2] / 1000) for each in zip(names, works, times, strict=True)]


class Roofline:
    """The picture, and the numbers in it as text.

    Args:
        machine: the roof.
        points: what stands under it.
    """

    def __init__(self, machine: Machine, points: Sequence[Point]) -> None:
        self.machine, self.points = machine, list(points)

    @property
    def plot(self) -> Plot:
        """The plot; both axes are logarithmic."""
        with matplotlib.rc_context(_SETTINGS):
            room = ConstrainedLayoutEngine(h_pad=0.11)  # above the title, too
            figure = Figure(figsize=(7.2, 3.8), layout=room)
            _draw(figure.add_subplot(), self.machine, self.points)
            figure.suptitle(self.title, fontsize=12, fontweight="bold")
        return Plot(figure, self.title, self.table)

    title = "Roofline of this machine, one thread"

    @property
    def table(self) -> str:
        """A line for each point: its intensity, its speed, and the share of what the roof allows."""
        lines = [repr(self.machine), f"{'':16}FLOP per byte  GFLOP/s  % of the roof  limit of the roof"]
        for point in self.points:
            limit = "memory" if point.work.intensity < self.machine.ridge else "arithmetic"
            lines.append(
                f"{point.name:16}{point.work.intensity:13.2f}  {point.flops / 1e9:7.1f}  "
                f"{100 * _reached(self.machine, point):13.0f}  {limit}"
            )
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return self.plot._repr_mimebundle_(**kwargs)

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table}"


def _reached(machine: Machine, point: Point) -> float:
    return point.flops / machine.roof(point.work.intensity)


def _draw(axes: Axes, machine: Machine, points: Sequence[Point]) -> None:
    left = min(0.06, *(point.work.intensity / 2 for point in points))
    right = max(2000.0, *(point.work.intensity * 10 for point in points))
    xs = [left, machine.ridge, right]
    axes.plot(xs, [machine.roof(x) / 1e9 for x in xs], color=LIGHT["ink"], linewidth=2.2)
    _name_the_roof(axes, machine, left)
    twins = [point.work.intensity for point in points]
    for point, ink, marker in zip(points, INKS, MARKERS, strict=False):
        x, y = point.work.intensity, point.flops / 1e9
        axes.plot([x], [y], marker=marker, markersize=9, linestyle="none", color=LIGHT[ink])
        higher = any(other.work.intensity == x and other.flops / 1e9 < y for other in points)
        up = -4 if twins.count(x) == 1 else 2 if higher else -11  # two may lie on each other, their names not
        place: dict[str, Any] = {"xytext": (10, up), "textcoords": "offset points"}
        told = f"{point.name}: {100 * _reached(machine, point):.0f} %"
        axes.annotate(told, (x, y), color=LIGHT[ink], fontweight="bold", **place)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte moved", ylabel="GFLOP/s", xlim=(left, right))
    lowest = min(point.flops / 1e9 for point in points)
    axes.set_ylim(min(lowest, machine.roof(left) / 1e9) / 2, machine.flops / 1e9 * 3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.grid(linewidth=0.8)


def _name_the_roof(axes: Axes, machine: Machine, left: float) -> None:
    """What limits, above each half of the roof."""
    words: dict[str, Any] = {"color": LIGHT["soft"], "fontsize": 10, "textcoords": "offset points"}
    middle = (left * machine.ridge) ** 0.5
    memory = f"memory:\n{machine.bytes_per_second / 1e9:.0f} GB/s"
    axes.annotate(memory, (middle, machine.roof(middle) / 1e9), xytext=(-10, 2), ha="right", **words)
    arithmetic = f"arithmetic: {machine.flops / 1e9:.0f} GFLOP/s"
    axes.annotate(arithmetic, (machine.ridge, machine.flops / 1e9), xytext=(4, 7), **words)
