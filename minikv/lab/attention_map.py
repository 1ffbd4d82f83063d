"""Where the model looks: attention weights, drawn under the words and onto the blocks that hold them.

look = AttentionRecorder()
bench = Workbench(backend=look)
...
look.strongest(position)                # the head that gave this position most weight in the last step
look.picture(bench, request, head)      # its weights, word by word and block by block
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minikv.assets import ledger
from minikv.attention.tables import TableArray, as_tables
from minikv.decode import Request
from minikv.lab.fitted import fitted
from minikv.lab.svg_page import WIDTH, SvgPage
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool, ReadTable

_BLOCK_SIZE = 4  # of the ledgers made here
_LEFT, _TOP, _WORD, _BAR, _ROW = 16, 64, 60.0, 44.0, 128


class Head(NamedTuple):
    """One attention head, and the weight it gave to a position."""

    layer: int
    number: int
    weight: float  # in [0, 1]

    def __str__(self) -> str:
        return f"layer {self.layer}, head {self.number}"


class AttentionRecorder:
    """A backend that reads through the pool, as the gather does, and keeps the weights of the last step.

    Attributes:
        hidden: ids of blocks that it must not look into; what is in them gets no weight.
    """

    def __init__(self) -> None:
        self.hidden: set[int] = set()
        self._layers: dict[int, list[Tensor]] = {}  # layer -> per request [heads, length]

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[ReadTable] | TableArray,
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        """Attention of q [batch, num_new, heads, head_dim]. Errors as read_layer.

        Raises:
            ValueError: every block of a request is hidden.
        """
        rows = as_tables(tables, pool)
        k, v = pool.read_layer(layer, rows, lengths)  # [batch, kv_heads, max_length, head_dim]
        out, kept = torch.zeros_like(q), []
        for i, (slots, length) in enumerate(zip(pool.row_slots(rows, lengths), lengths, strict=True)):
            group = q.shape[2] // k.shape[1]
            keys, values = (x[i, :, :length].repeat_interleave(group, 0).to(q) for x in (k, v))
            scores = torch.einsum("thd,hcd->htc", q[i], keys) * scale
            weights = scores.masked_fill(self._unseen(slots, q.shape[1], pool), float("-inf")).softmax(-1)
            out[i] = torch.einsum("htc,hcd->thd", weights, values)
            kept.append(weights[:, -1].cpu())
        self._layers[layer] = kept
        return out

    def _unseen(self, slots: Tensor, num_new: int, pool: BlockPool) -> Tensor:
        """What each new token does not see: what comes after it, and hidden blocks. bool [num_new, length]"""
        length = len(slots)
        last = length - num_new + torch.arange(num_new)
        hidden = torch.isin(slots // pool.block_size, torch.tensor(sorted(self.hidden), dtype=torch.long))
        unseen = (torch.arange(length) > last[:, None]) | hidden
        if unseen.all(-1).any():
            raise ValueError(f"blocks {sorted(self.hidden)} are hidden, and nothing else is there to look at")
        return unseen.to(pool.device)

    # ---- what was seen ------------------------------------------------------------------------------

    def weights(self, row: int = 0) -> Tensor:
        """Weights of the newest token in the last step, [layers, heads, length], for one row of the batch.

        Raises:
            ValueError: nothing was read yet.
        """
        if not self._layers:
            raise ValueError("no step was taken with this backend yet; run one first")
        return torch.stack([self._layers[layer][row] for layer in sorted(self._layers)])

    def strongest(self, position: int) -> Head:
        """The head that gave `position` the largest weight. IndexError outside the tokens that were read."""
        weights = self.weights()
        if not 0 <= position < weights.shape[2]:
            raise IndexError(f"position {position} is outside [0, {weights.shape[2]}), the tokens read")
        here = weights[:, :, position]
        layer, number = divmod(int(here.argmax()), here.shape[1])
        return Head(layer, number, float(here[layer, number]))

    def by_block(self, request: Request, head: Head) -> dict[int, float]:
        """Of one head, the share of weight on each block of a request, in logical order."""
        weights = self.weights()[head.layer, head.number]
        shares: dict[int, float] = {}
        for slot, weight in zip(request.table.slots(0, len(weights)), weights.tolist(), strict=True):
            block_id = int(slot) // request.table.block_size
            shares[block_id] = shares.get(block_id, 0.0) + weight
        return shares

    def picture(self, bench: Workbench, request: Request, head: Head) -> AttentionPicture:
        """The weights of one head in the last step, under the words that it looked at."""
        words = [bench.model.text([token]) for token in request.token_ids]
        weights = self.weights()[head.layer, head.number].tolist()
        first = request.num_dropped
        said = words[first + len(weights)]
        shares = self.by_block(request, head)
        offset, size = request.table.offset, request.table.block_size
        blocks, start = [], 0
        for number, (block_id, share) in enumerate(shares.items()):
            stop = min((number + 1) * size - offset, len(weights))
            words_here = words[first + start : first + stop]
            blocks.append(Shares(block_id, share, words_here, weights[start:stop]))
            start = stop
        return AttentionPicture(f"{head}, at the step that says {said!r}", blocks)


class Shares(NamedTuple):
    """What one head looks at in one block."""

    block_id: int
    share: float  # of all its weight, in [0, 1]
    words: list[str]
    weights: list[float]


class AttentionPicture:
    """Words in their blocks, a bar and a number under each. As text where SVG is not shown."""

    def __init__(self, title: str, blocks: list[Shares]) -> None:
        self.title, self.blocks = title, blocks

    def to_svg(self) -> str:
        """One <svg> element."""
        page = SvgPage(self.title, repr(self))
        page.text(_LEFT, 30, f"Attention weights of {self.title}", size=15, font_weight=700)
        page.text(_LEFT, 49, "in per cent, below each word; P is the physical block", "soft", 12)
        wide = max(len(block.words) for block in self.blocks) * _WORD
        across = max(1, int((WIDTH - 2 * _LEFT) // (wide + 10)))
        for number, block in enumerate(self.blocks):
            row, column = divmod(number, across)
            self._block(page, block, _LEFT + column * (wide + 10), _TOP + row * _ROW)
        return page.finish(_TOP + _ROW * -(-len(self.blocks) // across))

    def _block(self, page: SvgPage, block: Shares, x: float, y: float) -> None:
        most = block is max(self.blocks, key=lambda each: each.share)
        width = _WORD * len(block.words)
        page.box(
            x, y, (width, _ROW - 14), "panel", "accent" if most else "line", stroke_width=2 if most else 1
        )
        page.text(x + 8, y + 17, f"P{block.block_id}", "ink", 12, font_weight=700)
        share = f"{100 * block.share:.0f} %"
        page.text(x + width - 8, y + 17, share, "accent" if most else "soft", 12, text_anchor="end")
        for place, (word, weight) in enumerate(zip(block.words, block.weights, strict=True)):
            middle = x + _WORD * (place + 0.5)
            page.text(middle, y + 38, word, size=12.5, text_anchor="middle")
            page.box(middle - 22, y + 46, (44, _BAR), "well", "line", rx=2)
            if weight >= 0.005:
                height = _BAR * weight
                page.box(middle - 22, y + 46 + _BAR - height, (44, height), "tint-0", "ink-0", rx=2)
            page.text(middle, y + 106, f"{100 * weight:.0f}", "soft", 11, text_anchor="middle")

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return fitted(self)

    def __repr__(self) -> str:
        lines = [f"Attention weights of {self.title}, in per cent"]
        for block in self.blocks:
            cells = (f"{w} {100 * x:.0f}" for w, x in zip(block.words, block.weights, strict=True))
            lines.append(f"  P{block.block_id:<2} {100 * block.share:3.0f}   {'   '.join(cells)}")
        return "\n".join(lines)


class Hidden(NamedTuple):
    """One block of one ledger, hidden while the model answered."""

    holds: bool  # a word of the right answer: the number, the colour or the thing
    changed: bool  # whether the model said something else than with every block in sight


def on_new_ledgers(count: int = 20, people: int = 3, seed: int = 0) -> Tensor:
    """The weight that each head gives to the word that is about to be said, on ledgers made from a seed.

    Each is a ledger of so many people and a question about one of them; the word is the number in the answer,
    and what is measured is the weight on that word in the ledger. Returns [count, layers, heads].
    """
    rng, found = random.Random(seed), []
    for _ in range(count):
        look = AttentionRecorder()
        bench = Workbench(num_blocks=16, block_size=_BLOCK_SIZE, backend=look)
        facts = ledger.make_ledger(rng, people)
        asked = rng.randrange(people)
        text = " ".join([fact.text for fact in facts] + ledger.question(facts[asked]))
        request = bench.start(text)
        bench.prefill(request)  # chooses the number: the question ends with "Ada has"
        at = [bench.model.text([token]) for token in request.token_ids].index(facts[asked].name) + 2
        found.append(look.weights()[:, :, at])
    return torch.stack(found)


def with_a_block_hidden(bench: Callable[[AttentionRecorder], Workbench], prompt: str, index: int) -> str:
    """What the model answers if no step after the prefill may look into entry `index` of the block table.

    Args:
        bench: makes the bench, with the recorder as its backend.
    """
    look = AttentionRecorder()
    blind = bench(look)
    request = blind.start(prompt)
    blind.prefill(request)
    look.hidden.add(request.table.block_ids[index])
    return blind.finish_sentence(request)


def hidden_on_new_ledgers(count: int = 40, people: int = 3, seed: int = 0) -> list[Hidden]:
    """Of ledgers made from a seed, each with a question, every block hidden in turn while it is answered.

    Only blocks full of the prompt are hidden; the last one holds what is being said.
    """
    rng, threads = random.Random(seed), torch.get_num_threads()
    found: list[Hidden] = []
    torch.set_num_threads(1)  # the model is so small that threads wait longer than they work
    try:
        for _ in range(count):
            found += _one_ledger(rng, people)
    finally:
        torch.set_num_threads(threads)
    return found


def _one_ledger(rng: random.Random, people: int) -> list[Hidden]:
    """A ledger, and what each of its blocks does when it is hidden."""
    facts = ledger.make_ledger(rng, people)
    asked = facts[rng.randrange(people)]
    words = " ".join([fact.text for fact in facts] + ledger.question(asked)[:-2]).split()
    first = words.index(asked.name) + 2  # number, colour and thing follow
    blocks = {position // _BLOCK_SIZE for position in range(first, first + 3)}
    honest, *blind = _answers_with_each_block_hidden(" ".join(words), len(words) // _BLOCK_SIZE)
    return [Hidden(index in blocks, answer != honest) for index, answer in enumerate(blind)]


def _answers_with_each_block_hidden(prompt: str, num_hidden: int) -> list[list[int]]:
    """The answer with nothing hidden, and with each of the first entries of the block table.

    All take their steps in one batch: each request has blocks of its own, so hiding one concerns it alone.
    """
    look = AttentionRecorder()
    bench = Workbench(num_blocks=64, block_size=_BLOCK_SIZE, backend=look)
    requests = [bench.start(prompt) for _ in range(1 + num_hidden)]
    for request in requests:
        bench.prefill(request)
    look.hidden.update(request.table.block_ids[index] for index, request in enumerate(requests[1:]))
    for _ in range(5):  # after the name: has, the number, the colour, the thing, and the full stop
        bench.step(*requests)
    return [request.generated for request in requests]
