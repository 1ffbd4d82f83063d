"""Where the time of a decode step goes: the gather, the attention behind it, and the rest of the model.

scene = StepScene(tokens=4096)
scene.split("gather", "lean gather", "cpu")     # one Split each, measured in turns

The model has random weights and a sixth of GPT-2 small: 2 of its 12 layers, and a sixth of its vocabulary, so
that layers and logits keep their proportion. Only its context is longer. What is stored are random keys
and values, in blocks that lie shuffled: of what a step costs, only their number matters.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minikv.attention import BACKENDS
from minikv.attention.cpu import warm_up
from minikv.block_table import BlockTable
from minikv.decode import DecodeLoop, Request
from minikv.gpt2 import GPT2, expected_shapes
from minikv.lab.fitted import fitted
from minikv.lab.lean_gather import LeanGather
from minikv.lab.read_costs import one_thread
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool

BLOCK_SIZE = 16
LEAN = "lean gather"
LAYERS, OF_LAYERS = 2, 12
SHAPE = {"n_embd": 768, "n_head": 12, "n_layer": LAYERS, "vocab_size": 50_257 * LAYERS // OF_LAYERS}


class Split(NamedTuple):
    """One decode step, in milliseconds."""

    gather: float  # copying the stored keys and values side by side
    attention: float  # scores, softmax, weighted sum; of a fused kernel the whole read
    rest: float  # everything else: projections, MLP, logits, the loop

    @property
    def total(self) -> float:
        """The whole step."""
        return self.gather + self.attention + self.rest

    @property
    def share(self) -> float:
        """The gather's share of the step, in [0, 1]."""
        return self.gather / self.total

    @property
    def percent(self) -> dict[str, float]:
        """All three as per cent of the step."""
        return {name: 100 * value / self.total for name, value in self._asdict().items()}


def a_sixth_of_gpt2(context: int) -> GPT2:
    """Random weights, 2 layers in GPT-2 small's shape, on the CPU."""
    config = {**SHAPE, "n_positions": context}
    made = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in expected_shapes(config).items():
        turned = shape[::-1] if name.startswith("h.") else shape  # as the model keeps its matrices: [out, in]
        weights[name] = torch.randn(turned, generator=made) * 0.02
    return GPT2(config, weights, None)


class StepScene:
    """Requests that have `tokens` tokens stored, and the loop that takes their next step, again and again.

    Args:
        tokens: stored for each request.
        requests: in the batch.
        model: None is `a_sixth_of_gpt2`.

    Raises:
        ValueError: tokens or requests below 1, or more tokens than the model's context less one.
    """

    def __init__(self, tokens: int, requests: int = 1, model: GPT2 | None = None) -> None:
        if tokens < 1 or requests < 1:
            raise ValueError(f"tokens is {tokens} and requests is {requests}; both must be at least 1")
        warm_up()  # what compiles is not to be timed
        self.tokens, self.model = tokens, model or a_sixth_of_gpt2(tokens + 1)
        if tokens >= self.model.context:
            raise ValueError(
                f"tokens is {tokens}; with the one that the step stores they must fit into the model's "
                f"context of {self.model.context}"
            )
        blocks = requests * -(-(tokens + 1) // BLOCK_SIZE)
        shape = (self.model.num_layers, self.model.num_heads, self.model.head_dim)
        self.pool = BlockPool(blocks, BLOCK_SIZE, *shape)
        manager = KVCacheManager(blocks, BLOCK_SIZE, self.pool)
        shuffle_free_blocks(manager)
        self.loop = DecodeLoop(self.model, manager, self.pool)
        self.requests = [self._stored(tokens) for _ in range(requests)]
        self._lean = LeanGather()

    def _stored(self, tokens: int) -> Request:
        """A request as it would be after its prefill, without the prefill."""
        made = torch.Generator().manual_seed(tokens)
        ids = torch.randint(self.model.vocab_size, (tokens + 1,), generator=made).tolist()
        request = self.loop.start(ids)
        self.loop.manager.allocate(request.table, tokens + 1)
        slots = request.table.slots(0, tokens)
        for layer in range(self.model.num_layers):
            k, v = torch.randn(2, tokens, self.model.num_heads, self.model.head_dim, generator=made)
            self.pool.write(layer, slots, k, v)
        request.num_stored = tokens
        return request

    def step(self, backend: Any) -> list[int]:
        """The next step of all requests through this backend; afterwards all is as it was before it."""
        self.loop.backend = backend
        chosen = self.loop.step(self.requests)
        for request in self.requests:
            request.token_ids.pop()
            request.num_stored -= 1
        return chosen

    def split(self, *backends: str, rounds: int = 15) -> list[Split]:
        """How a step's time is split, for each backend. They take turns, and of each part the fastest counts:
        whatever else the machine does only makes the others slower.

        Args:
            backends: their names, or "lean gather".

        Raises:
            ValueError: a backend that there is not.
        """
        found: list[list[Split]] = [[] for _ in backends]
        with one_thread():
            for _ in range(rounds):
                for name, of_backend in zip(backends, found, strict=True):
                    of_backend.append(self._timed_step(name))
        return [Split(*map(min, zip(*of_backend, strict=True))) for of_backend in found]

    def _timed_step(self, name: str) -> Split:
        ways: dict[str, Any] = {**BACKENDS, LEAN: self._lean}
        if name not in ways:
            raise ValueError(f"backend {name!r} is unknown; there are {', '.join(map(repr, ways))}")
        read, self._lean.seconds = 0.0, 0.0

        def timed(
            q: Tensor,
            pool: BlockPool,
            layer: int,
            tables: Sequence[Any],
            lengths: Sequence[int],
            scale: float,
        ) -> Tensor:
            nonlocal read
            start = perf_counter()
            out: Tensor = ways[name](q, pool, layer, tables, lengths, scale)
            read += perf_counter() - start
            return out

        with _timed_gather(self.pool) as gathers:
            start = perf_counter()
            self.step(timed)
            total = perf_counter() - start
        gather = sum(gathers) + self._lean.seconds
        return Split(1000 * gather, 1000 * (read - gather), 1000 * (total - read))


def shuffle_free_blocks(manager: KVCacheManager, seed: int = 0) -> None:
    """Let every block be taken and given back in another order, so that what is handed out lies scattered."""
    tables = [BlockTable(manager.block_size) for _ in range(manager.num_free_blocks)]
    for table in tables:
        manager.allocate(table, 1)
    random.Random(seed).shuffle(tables)
    for table in tables:
        manager.free(table)


@contextmanager
def _timed_gather(pool: BlockPool) -> Iterator[list[float]]:
    """The seconds of each `pool.read_layer` while the with block runs."""
    honest, seconds = pool.read_layer, []

    def read_layer(layer: int, tables: Sequence[Any], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        start = perf_counter()
        found = honest(layer, tables, lengths)
        seconds.append(perf_counter() - start)
        return found

    watched: Any = pool
    watched.read_layer = read_layer
    try:
        yield seconds
    finally:
        del watched.read_layer  # the method of its class shows again


# ---- the picture ------------------------------------------------------------------------------------

_LOOKS = {"gather": ("1", "0"), "attention": ("0", "1"), "rest": ("5", "4")}  # colour and pattern


class StepBars:
    """Steps as bars: how long each takes, and what its parts are. As text the same numbers.

    Args:
        title: what is seen.
        splits: label -> a step.
    """

    def __init__(self, title: str, splits: dict[str, Split]) -> None:
        self.title, self.splits = title, splits

    def to_svg(self) -> str:
        """One <svg> element."""
        from minikv.lab.svg_page import SvgPage, haloed

        page, left, width = SvgPage(self.title, repr(self)), 226.0, 600.0
        page.text(24, 34, self.title, size=15, font_weight=700)
        longest, y = max(split.total for split in self.splits.values()), 52.0
        for label, split in self.splits.items():
            page.text(left - 12, y + 20, label, size=12.5, text_anchor="end")
            x, narrow = left, ""
            for part, (ink, pattern) in _LOOKS.items():
                size = width * getattr(split, part) / longest
                if size > 0.5:
                    page.pattern(x, y, (size, 30), ink, pattern)
                if size > 34:
                    page.raw(haloed(x + size / 2, y + 19, f"{split.percent[part]:.0f} %", ink))
                elif size:
                    narrow += f", {part} {split.percent[part]:.0f} %"
                x += size
            page.text(x + 8, y + 20, f"{split.total:.1f} ms{narrow}", "soft", 11.5)
            y += 40
        for place, (part, (ink, pattern)) in enumerate(_LOOKS.items()):
            page.pattern(left + 150 * place, y + 6, (14, 14), ink, pattern)
            page.text(left + 150 * place + 20, y + 17.5, part, "soft", 11.5)
        return page.finish(y + 34)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return fitted(self)

    def __repr__(self) -> str:
        wide = max(map(len, self.splits))
        lines = [self.title, f"{' ' * wide}  gather %  attention %  rest %  step, ms"]
        for label, split in self.splits.items():
            gather, attention, rest = split.percent.values()
            lines.append(
                f"{label.ljust(wide)}  {gather:8.0f}  {attention:11.0f}  {rest:6.0f}  {split.total:8.1f}"
            )
        return "\n".join(lines)
