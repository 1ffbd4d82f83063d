"""A GPU is used when there is one, and nothing of a step is left on the CPU by mistake.

No GPU is needed: torch's "meta" device has shapes and no numbers, and refuses to be mixed with the CPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from minikv import gpt2
from minikv.decode import DecodeLoop
from minikv.gpt2 import GPT2
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool, best_device


@pytest.mark.parametrize(
    ("cuda", "mps", "best"),
    [(True, False, "cuda"), (False, True, "mps"), (True, True, "cuda"), (False, False, "cpu")],
)
def test_the_best_device(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, best: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert best_device().type == best


class Watched(GPT2):
    """Remembers on which device the logits were."""

    seen: list[str]

    def __call__(self, *arguments: Any) -> Tensor:
        logits = super().__call__(*arguments)
        self.seen.append(logits.device.type)
        return logits


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The tiny GPT-2 on the best device of a machine that has one other than the CPU."""
    monkeypatch.setattr("minikv.pool.best_device", lambda: torch.device("meta"))
    watched = Watched.from_pretrained()
    watched.seen = []
    return watched


def decode(model: GPT2, backend: str) -> BlockPool:
    """Prefill and a step, each as far as the choice of a token, which needs numbers."""
    pool = BlockPool(8, 4, model.num_layers, model.num_heads, model.head_dim, "auto")
    loop = DecodeLoop(model, KVCacheManager(8, 4, pool), pool, backend)
    request = loop.start([5, 6, 7, 8, 9])
    with pytest.raises(NotImplementedError, match="no data"):
        loop.prefill(request)
    request.num_stored = 5
    request.token_ids.append(10)
    with pytest.raises(NotImplementedError, match="no data"):
        loop.step([request])
    return pool


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_step_on_another_device_stays_there(model: Watched, backend: str) -> None:
    pool = decode(model, backend)
    assert [model.device.type, pool.device.type, *model.seen] == ["meta"] * 4


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", ["wpe.weight", "h.3.mlp.c_fc.bias", "ln_f.weight"])
def test_what_is_left_on_the_cpu_is_noticed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, backend: str, name: str
) -> None:
    """The test above can fail."""
    read = gpt2._read_weights

    def read_all_but_one(*arguments: Any) -> dict[str, Tensor]:
        weights = read(*arguments)
        return {**weights, name: torch.zeros(weights[name].shape)}

    monkeypatch.setattr(gpt2, "_read_weights", read_all_but_one)
    model = request.getfixturevalue("model")
    with pytest.raises(RuntimeError, match="meta"):
        decode(model, backend)
