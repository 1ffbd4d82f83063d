"""Ways to attend to the same tokens, checked against each other and timed in turns.

ways = Ways(tokens=8192)
ways.steps()                # the four kernels of kernel_steps, each against the one before
ways.walk_alone()           # what the third kernel's walk through memory costs, without its look-ups
ways.layouts()              # side by side, through a gather, and fused
order_matters()             # a table in order against a shuffled one, for some block sizes

All on one thread, in GPT-2 small's shape, one layer, one request. What is shown are ratios: times are a
machine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minikv.attention.cpu import warm_up
from minikv.block_table import BlockTable
from minikv.lab.kernel_steps import one_pass, through_table, two_passes, whole_blocks
from minikv.lab.lean_gather import LeanGather
from minikv.lab.read_costs import HEAD_DIM, HEADS, ReadScene, fastest_in_turns
from minikv.pool import BlockPool
from minikv.sim.results import Table

SCALE = np.float32(HEAD_DIM**-0.5)
TOLERANCE = 1e-5
CLEAR = 1.15  # from this ratio on a difference is called one


class Timed(NamedTuple):
    """What one way took, in milliseconds, and how far its result is from torch's attention."""

    name: str
    milliseconds: float
    difference: float


def verdict(ratio: float, what: str = "") -> str:
    """In words: how a time compares with another, as a ratio of the two."""
    if 1 / CLEAR < ratio < CLEAR:
        return f"as fast as {what}".strip() if what else "no clear difference"
    number, word = (ratio, "longer") if ratio > 1 else (1 / ratio, "shorter")
    return f"{number:.1f} times as {'long' if word == 'longer' else 'fast'}{f' as {what}' if what else ''}"


class Ways:
    """One request's keys and values, shuffled blocks in a pool and side by side, too.

    Args:
        tokens: a multiple of 16.

    Raises:
        ValueError: another number of tokens.
    """

    def __init__(self, tokens: int) -> None:
        warm_up()  # what compiles is not to be timed
        self.scene = ReadScene(tokens)
        k, v = self.scene.gather()  # [1, heads, tokens, head_dim]
        self.k, self.v = k.contiguous(), v.contiguous()
        self.kv: np.ndarray = self.scene.pool.kv[0].numpy()  # [blocks, 2, heads, block_size, head_dim]
        self.shuffled = np.array(self.scene.table.block_ids)
        self._ordered = BlockTable(self.scene.pool.block_size)  # names the blocks from the first to the last
        for block_id in range(self.scene.pool.num_blocks):
            self._ordered.append_block(block_id)
        self._kept, self._new = LeanGather(), LeanGather(keep=False)

    def torch_side_by_side(self) -> Tensor:
        """torch's attention over keys and values that already lie side by side."""
        return F.scaled_dot_product_attention(self.scene.q[:, :, None], self.k, self.v)[:, :, 0]

    def lean_gather(self, gather: LeanGather) -> Tensor:
        """Rows made as cheaply as we can, then torch's attention."""
        return self.scene.attend_rows(*gather.rows(self.scene.pool, 0, self.scene.table, self.scene.tokens))

    def step(self, kernel: Callable[..., np.ndarray], table: np.ndarray | None = None) -> Tensor:
        """One of the four kernels: the first two read what lies side by side, the others the pool.

        Args:
            table: the block ids that they follow; None is the request's own.
        """
        q = self.scene.q[0].numpy()
        if kernel in (two_passes, one_pass):
            return torch.from_numpy(kernel(q, self.k[0].numpy(), self.v[0].numpy(), SCALE))[None]
        ids = self.shuffled if table is None else table
        return torch.from_numpy(kernel(q, self.kv, ids, self.scene.tokens, SCALE))[None]

    def time(self, ways: dict[str, Callable[[], Tensor]], rounds: int = 15) -> dict[str, Timed]:
        """All of them in turns, each the fastest of some rounds.

        Raises:
            ArithmeticError: a way whose result differs from torch's attention.
        """
        expected = self.torch_side_by_side()
        apart = {name: float((way() - expected).abs().max()) for name, way in ways.items()}
        for name, difference in apart.items():
            if not difference < TOLERANCE:  # NaN is not
                raise ArithmeticError(f"{name} differs from torch's attention by {difference:.1e}")
        times = fastest_in_turns(*ways.values(), rounds=rounds)
        return {name: Timed(name, took, apart[name]) for name, took in zip(ways, times, strict=True)}

    def steps(self) -> Steps:
        """The four kernels, and three ways to compare them with."""
        kernels = {each.__name__: each for each in (two_passes, one_pass, through_table, whole_blocks)}
        ways: dict[str, Callable[[], Tensor]] = {
            "torch, side by side": self.torch_side_by_side,
            **{name: (lambda each=each: self.step(each)) for name, each in kernels.items()},  # type: ignore[misc]
            "block by block in torch": lambda: self.scene.attend("reference"),
            "gather, then torch": lambda: self.scene.attend("gather"),
        }
        return Steps(self.time(ways, rounds=11))

    def walk_alone(self) -> tuple[float, float]:
        """The kernel `through_table`, as a multiple of the time of `one_pass`: over the request's blocks,
        and over one block named again and again. That one stays in the processor's cache: all divisions and
        look-ups are there, but no walk through memory."""
        again = np.zeros_like(self.shuffled)
        rows, walk, look_up = fastest_in_turns(
            lambda: self.step(one_pass),
            lambda: self.step(through_table),
            lambda: self.step(through_table, again),
            rounds=15,
        )
        return walk / rows, look_up / rows

    def layouts(self) -> Layouts:
        """Side by side, through a gather, and fused, with the blocks shuffled and in order."""
        in_order, pool, tokens = np.arange(len(self.shuffled)), self.scene.pool, self.scene.tokens
        ways: dict[str, Callable[[], Tensor]] = {
            "torch, side by side": self.torch_side_by_side,
            "gather, then torch": lambda: self.scene.attend("gather"),
            "lean gather into new memory, then torch": lambda: self.lean_gather(self._new),
            "lean gather into kept memory, then torch": lambda: self.lean_gather(self._kept),
            "fused: the backend cpu": lambda: self.scene.attend("cpu"),
            "fused: whole_blocks": lambda: self.step(whole_blocks),
        }
        found = self.time(ways)
        times = fastest_in_turns(
            lambda: self.step(whole_blocks),
            lambda: self.step(whole_blocks, in_order),
            lambda: self._kept.rows(pool, 0, self.scene.table, tokens),
            lambda: self._kept.rows(pool, 0, self._ordered, tokens),
            rounds=15,
        )
        return Layouts(found, times[0] / times[1], times[2] / times[3])


class Steps:
    """The four kernels, as multiples of the time of torch's attention over what lies side by side."""

    def __init__(self, timed: dict[str, Timed]) -> None:
        self.timed = timed

    def ratio(self, name: str, to: str = "torch, side by side") -> float:
        """How many times as long as `to` it takes."""
        return self.timed[name].milliseconds / self.timed[to].milliseconds

    @property
    def slower(self) -> list[int]:
        """The steps (2, 3, 4) that took clearly longer than the one before."""
        names = [each.__name__ for each in (two_passes, one_pass, through_table, whole_blocks)]
        return [n for n in (2, 3, 4) if self.ratio(names[n - 1], names[n - 2]) > CLEAR]

    @property
    def table(self) -> Table:
        """A row for each way."""
        rows, before = [], ""
        for name, each in self.timed.items():
            change = verdict(self.ratio(name, before), before) if before in _STEPS and name in _STEPS else ""
            apart = f"{each.difference:.0e}" if each.difference else "0"
            rows.append((name, self.ratio(name), change, apart))
            before = name
        head = ("", "times torch's time", "against the step before", "largest difference")
        return Table("One query over all tokens, on one thread", head, rows)

    def _repr_markdown_(self) -> str:
        return self.table._repr_markdown_()

    def __repr__(self) -> str:
        return repr(self.table)


_STEPS = tuple(each.__name__ for each in (two_passes, one_pass, through_table, whole_blocks))


class Layouts:
    """Contiguous against paged, and what the order of the blocks makes.

    Attributes:
        timed: name -> what it took.
        shuffled: how many times as long the fused kernel takes when its blocks lie shuffled.
        shuffled_gather: the same of a lean gather.
    """

    def __init__(self, timed: dict[str, Timed], shuffled: float, shuffled_gather: float) -> None:
        self.timed, self.shuffled, self.shuffled_gather = timed, shuffled, shuffled_gather

    def ratio(self, name: str, to: str = "torch, side by side") -> float:
        """How many times as long as `to` it takes."""
        return self.timed[name].milliseconds / self.timed[to].milliseconds

    def __repr__(self) -> str:
        wide = max(map(len, self.timed))
        lines = [f"{name.ljust(wide)}  {self.ratio(name):6.2f} times torch's time" for name in self.timed]
        cpu, plain = fused = ("fused: the backend cpu", "fused: whole_blocks")
        lines += [f"{name} over scattered blocks: {_against(self.ratio(name))}" for name in fused]
        for name, ratio in (("whole_blocks", self.shuffled), ("the lean gather", self.shuffled_gather)):
            lines.append(f"{name}, shuffled against in order: {verdict(ratio)}")
        return "\n".join([*lines, f"the backend cpu against whole_blocks: {verdict(self.ratio(cpu, plain))}"])


def _against(ratio: float) -> str:
    """A fused kernel against contiguous attention, in words."""
    if 1 / CLEAR < ratio < CLEAR:
        return "as fast as torch over what lies side by side"
    return f"{ratio:.2f} times torch's time: {'slower' if ratio > 1 else 'faster'} than side by side"


# ---- does the order of the blocks matter? --------------------------------------------------------


class Order(NamedTuple):
    """For one block size: how many times as long as side by side the fused kernel takes."""

    block_size: int
    cached: float  # one block, named again and again
    in_order: float
    shuffled: float


def order_matters(tokens: int = 8192, block_sizes: Sequence[int] = (1, 4, 16, 64)) -> list[Order]:
    """The kernel `whole_blocks` against `one_pass`, the same arithmetic over what lies side by side.

    Args:
        tokens: a multiple of each block size.

    Raises:
        ValueError: a block size below 1, or one that does not divide `tokens`.
    """
    for size in block_sizes:
        if size < 1 or tokens < size or tokens % size:
            raise ValueError(
                f"a block of {size} tokens for {tokens}; the size must be at least 1 and divide the tokens"
            )
    made = torch.Generator().manual_seed(0)
    q = torch.randn(HEADS, HEAD_DIM, generator=made).numpy()
    k, v = torch.randn(2, HEADS, tokens, HEAD_DIM, generator=made).numpy()
    found = []
    for size in block_sizes:
        pool = BlockPool(tokens // size, size, 1, HEADS, HEAD_DIM)
        kv: Any = torch.randn(pool.kv[0].shape, generator=made).numpy()
        shuffled = torch.randperm(pool.num_blocks, generator=made).numpy()
        in_order = np.arange(pool.num_blocks)
        tables = (np.zeros_like(in_order), in_order, shuffled)
        whole_blocks(q, kv, in_order, size, SCALE)
        side_by_side, *times = fastest_in_turns(
            lambda: one_pass(q, k, v, SCALE),
            *(lambda kv=kv, table=table: whole_blocks(q, kv, table, tokens, SCALE) for table in tables),  # type: ignore[misc]
            rounds=15,
        )
        found.append(Order(size, *(time / side_by_side for time in times)))
    return found
