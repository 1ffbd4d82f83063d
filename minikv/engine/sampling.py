"""From logits to the next tokens: greedy, sampled, or the best of several beams."""

from __future__ import annotations

from collections.abc import Sequence as Many
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def sample(logits: Tensor, temperature: float, random: Random) -> int:
    """One token id, drawn with the probabilities softmax(logits / temperature). logits: [vocab_size].

    One number of `random` is used for each token, whatever it is.
    """
    below = (logits - logits.max()).double()  # 0 at most, so that no temperature makes it infinite
    weights = torch.softmax(below / temperature, dim=-1).cumsum(-1).cpu().numpy()
    drawn = random.random() * weights[-1]  # weights[-1] is 1 but for rounding
    return min(int(np.searchsorted(weights, drawn, side="right")), len(weights) - 1)


class Beam(NamedTuple):
    """A beam one token longer: the beam it continues, the token, and the sum of log probabilities."""

    parent: int
    token: int
    score: float


def best_beams(logits: Tensor, scores: Many[float], count: int) -> list[Beam]:
    """The `count` most probable continuations, best first. logits: [beams, vocab_size]."""
    total = torch.log_softmax(logits.double(), dim=-1) + torch.tensor(scores, dtype=torch.float64)[
        :, None
    ].to(logits.device)
    found = total.flatten().topk(min(count, total.numel()))
    places = (divmod(index, logits.shape[-1]) for index in found.indices.tolist())
    return [
        Beam(parent, token, score)
        for (parent, token), score in zip(places, found.values.tolist(), strict=True)
    ]
