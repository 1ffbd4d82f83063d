"""The decode step compiled as a whole, against transformers, and against the model layer by layer."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import random
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2LMHeadModel

from minikv.attention import cpu, reference
from minikv.attention.step import store_and_attend
from minikv.attention.tables import TableArray
from minikv.block_table import BlockTable
from minikv.compiled_step import CompiledStep, _gelu, _tiles
from minikv.engine.engine import Engine
from minikv.engine.request import Chunk, Sequence
from minikv.engine.runner import Runner
from minikv.errors import UnwrittenSlotError
from minikv.gpt2 import GPT2, TINY
from minikv.pool import BlockPool
from tests.test_gpt2 import save_random

# Matrices whose sides are no multiples of four, a head of its own, an MLP that is not four times as wide.
ODD = {"n_embd": 9, "n_head": 3, "n_inner": 10, "n_layer": 3, "vocab_size": 13, "n_positions": 40}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny() -> GPT2:
    return GPT2.from_pretrained(device="cpu")


class Scene:
    """Requests whose tokens but the last are stored, in shuffled blocks of a pool of poison."""

    def __init__(self, model: GPT2, lengths: list[int], block_size: int = 16, offset: int = 0) -> None:
        chance = random.Random(len(lengths) * 1000 + block_size)
        self.model, self.lengths = model, lengths
        self.texts = [[chance.randrange(model.vocab_size) for _ in range(length)] for length in lengths]
        needed = [-(-(length + offset) // block_size) for length in lengths]
        ids = chance.sample(range(sum(needed) + 2), sum(needed))
        self.pool = BlockPool(
            sum(needed) + 2, block_size, model.num_layers, model.num_heads, model.head_dim, dtype=model.dtype
        )
        self.pool.kv.fill_(math.nan)
        self.tables = []
        for length, count, text in zip(lengths, needed, self.texts, strict=True):
            table = BlockTable(block_size, offset)
            for _ in range(count):
                table.append_block(ids.pop())
            if length > 1:
                step = store_and_attend(self.pool, [table], [length - 1], length - 1, backend="reference")
                model(torch.tensor([text[:-1]]), torch.arange(length - 1)[None], step)
            self.tables.append(table)

    @property
    def last(self) -> list[int]:
        return [text[-1] for text in self.texts]

    def step(self) -> Tensor:
        return CompiledStep(self.model, self.pool)(self.last, self.tables, self.lengths)

    def layer_by_layer(self) -> Tensor:
        step = store_and_attend(self.pool, self.tables, self.lengths, 1, backend=reference.attend)
        positions = torch.tensor(self.lengths)[:, None] - 1
        return self.model(torch.tensor(self.last)[:, None], positions, step)[:, 0]

    def only(self, i: int) -> Scene:
        one = Scene.__new__(Scene)
        one.model, one.pool = self.model, self.pool
        one.texts, one.tables, one.lengths = [self.texts[i]], [self.tables[i]], [self.lengths[i]]
        return one


# ---- the right numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 64])
def test_what_transformers_says(tiny: GPT2, block_size: int) -> None:
    """On both sides of every kind of block boundary."""
    lengths = [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200, 512]
    scene = Scene(tiny, lengths, block_size)
    found = scene.step()
    theirs = GPT2LMHeadModel.from_pretrained(TINY).eval()
    with torch.inference_mode():
        expected = torch.stack([theirs(torch.tensor([text])).logits[0, -1] for text in scene.texts])
    assert (found - expected).abs().max() < 1e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("settings", [{}, ODD, {**ODD, "tie_word_embeddings": False}, {"n_layer": 1}])
@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 17])
def test_models_of_any_shape(tmp_path: Path, settings: dict[str, Any], batch: int) -> None:
    model = GPT2.from_pretrained(save_random(tmp_path / "random", **settings), device="cpu")
    scene = Scene(model, [1 + i * 5 % 16 for i in range(batch)], 4)
    found = scene.step()
    torch.testing.assert_close(found, scene.layer_by_layer(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("eps", [1e-1, 1e-12])
def test_the_norms_use_the_checkpoints_epsilon(tmp_path: Path, eps: float) -> None:
    model = GPT2.from_pretrained(save_random(tmp_path / "random", layer_norm_epsilon=eps), device="cpu")
    scene = Scene(model, [3, 9, 16], 4)
    torch.testing.assert_close(scene.step(), scene.layer_by_layer(), atol=1e-5, rtol=1e-5)


def test_a_mean_far_from_zero_costs_no_precision(tmp_path: Path) -> None:
    model = GPT2.from_pretrained(save_random(tmp_path / "random"), device="cpu")
    assert model.weights is not None
    model.weights["wpe.weight"] += 1000
    scene = Scene(model, [3, 9, 16], 4)
    torch.testing.assert_close(scene.step(), scene.layer_by_layer(), atol=1e-3, rtol=1e-3)


def test_what_is_read_in_several_parts(tmp_path: Path) -> None:
    """More tokens than one part of the kernel."""
    model = GPT2.from_pretrained(save_random(tmp_path / "random", n_positions=1100), device="cpu")
    scene = Scene(model, [513, 1024, 1025, 1100])
    torch.testing.assert_close(scene.step(), scene.layer_by_layer(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("offset", [1, 15])
def test_offsets(tiny: GPT2, offset: int) -> None:
    scene = Scene(tiny, [1, 2, 17, 40, 512], 16, offset)
    torch.testing.assert_close(scene.step(), scene.layer_by_layer(), atol=1e-4, rtol=1e-4)


def test_far_from_zero_gelu_is_what_torch_says(tmp_path: Path) -> None:
    """Where e ** 2u is no float32 any more."""
    model = GPT2.from_pretrained(save_random(tmp_path / "random"), device="cpu")
    assert model.weights is not None
    for name, weight in model.weights.items():
        if name.endswith("mlp.c_fc.bias"):
            weight.copy_(torch.linspace(-60, 60, len(weight)))
    scene = Scene(model, [5, 9])
    torch.testing.assert_close(scene.step(), scene.layer_by_layer(), atol=1e-4, rtol=1e-5)


def test_what_is_stored_and_marked(tiny: GPT2) -> None:
    """The new token's K and V in every layer, as the model layer by layer stores them; nothing else."""
    ours, theirs = Scene(tiny, [1, 16, 17, 40], 4), Scene(tiny, [1, 16, 17, 40], 4)
    before = ours.pool.kv.clone()
    ours.step()
    theirs.layer_by_layer()
    torch.testing.assert_close(ours.pool.kv, theirs.pool.kv, atol=1e-4, rtol=1e-4, equal_nan=True)
    slots = [int(table.slots(n - 1, n)[0]) for table, n in zip(ours.tables, ours.lengths, strict=True)]
    changed = ~((ours.pool.kv == before) | (ours.pool.kv.isnan() & before.isnan()))
    places = changed.any(-1).any(3).any(2)  # [layers, blocks, places]
    assert places.flatten(1).nonzero()[:, 1].tolist() == sorted(slots) * tiny.num_layers
    for layer in range(tiny.num_layers):
        for ours_marked, theirs_marked in zip(ours.pool.marks(layer), theirs.pool.marks(layer), strict=True):
            assert np.array_equal(ours_marked, theirs_marked)


# ---- the same bits -------------------------------------------------------------------------------------


def test_the_number_of_threads_changes_no_bit(tiny: GPT2) -> None:
    scene = Scene(tiny, [40, 3, 100, 17, 64, 1, 30, 5, 80, 12, 9])
    outs = []
    for count in (1, 2, 3, 5, 16):
        torch.set_num_threads(count)
        outs.append(scene.step())
        assert torch.get_num_threads() == count
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("settings", [None, ODD])
def test_the_rest_of_the_batch_changes_no_bit(
    tiny: GPT2, tmp_path: Path, settings: dict[str, Any] | None
) -> None:
    model = (
        tiny
        if settings is None
        else GPT2.from_pretrained(save_random(tmp_path / "random", **settings), device="cpu")
    )
    scene = Scene(model, [40, 3, 33, 17, 24, 1, 30, 5, 38, 12, 9])
    together = scene.step()
    for i in range(len(scene.lengths)):
        assert torch.equal(scene.only(i).step()[0], together[i])


# ---- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"tokens": [1, 216]}, IndexError, "token id 216 is outside the vocabulary of 216"),
        ({"tokens": [-1, 1]}, IndexError, "token id -1"),
        ({"tokens": [1]}, ValueError, "1 tokens for 2 requests"),
        ({"tokens": [1.5, 2]}, TypeError, "1.5"),
        ({"lengths": [5, 513]}, IndexError, "513 tokens exceed the model's context of 512"),
        ({"lengths": [5, 0]}, ValueError, "0 tokens"),
        ({"lengths": [5, 2000]}, IndexError, "outside"),
        ({"lengths": [5]}, ValueError, "2 tables but 1 lengths"),
        ({"block": 99}, IndexError, "outside"),
        ({"block": -1}, IndexError, "outside"),
        ({"block": 99, "entry": 0}, IndexError, "outside"),  # only earlier tokens lie there
    ],
)
def test_bad_input_changes_nothing(
    tiny: GPT2, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    scene = Scene(tiny, [20, 20], 16)
    ids = np.array([[*table.block_ids, *[0] * 38] for table in scene.tables])
    if "block" in change:
        ids[1, change.get("entry", 1)] = change["block"]
    before, marks = scene.pool.kv.clone(), [mark.copy() for mark in scene.pool.marks()]
    with pytest.raises(error, match=said):
        CompiledStep(tiny, scene.pool)(
            change.get("tokens", [1, 2]), TableArray(ids, [0, 0]), change.get("lengths", [20, 20])
        )
    assert torch.equal(scene.pool.kv.nan_to_num(7.0), before.nan_to_num(7.0))
    assert all(np.array_equal(*pair) for pair in zip(scene.pool.marks(), marks, strict=True))


def test_no_requests(tiny: GPT2) -> None:
    with pytest.raises(ValueError, match="no requests"):
        CompiledStep(tiny, Scene(tiny, [3]).pool)([], [], [])


@pytest.mark.parametrize("layer", [0, 3])
def test_a_slot_never_written_is_an_error_in_any_layer(tiny: GPT2, layer: int) -> None:
    scene = Scene(tiny, [20, 40], 4)
    slot = int(scene.tables[1].slots(7, 8)[0])
    scene.pool.written(layer)[slot] = False
    with pytest.raises(UnwrittenSlotError, match=f"layer {layer} reads slot {slot % 4} of block {slot // 4}"):
        scene.step()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("i", [0, 3, 10, 19])
def test_it_is_noticed_whosesoever_it_is(tiny: GPT2, i: int, threads: int) -> None:
    torch.set_num_threads(threads)
    scene = Scene(tiny, [20] * 20, 4)
    slot = int(scene.tables[i].slots(7, 8)[0])
    scene.pool.written(2)[slot] = False
    with pytest.raises(UnwrittenSlotError, match=f"layer 2 reads slot {slot % 4} of block {slot // 4},"):
        scene.step()


@pytest.mark.parametrize("token", [2**31, 2**63, 2**70, -(2**70)])
def test_a_token_of_any_size_outside_the_vocabulary(tiny: GPT2, token: int) -> None:
    scene = Scene(tiny, [3])
    with pytest.raises(IndexError, match="outside the vocabulary of 216"):
        CompiledStep(tiny, scene.pool)([token], scene.tables, [3])


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((3, 4, 32), "3 layers"),
        ((5, 4, 32), "5 layers"),
        ((4, 3, 32), "3 heads"),
        ((4, 8, 16), "8 heads"),
        ((4, 4, 64), "head_dim of 64"),
    ],
)
def test_a_pool_of_another_shape_is_refused(tiny: GPT2, shape: tuple[int, int, int], said: str) -> None:
    """Compiled code looks at no bounds."""
    with pytest.raises(ValueError, match=said):
        CompiledStep(tiny, BlockPool(4, 16, *shape))


def test_tables_laid_out_otherwise_compile_nothing(tiny: GPT2) -> None:
    scene = Scene(tiny, [20, 20])
    ids = np.array([table.block_ids for table in scene.tables], dtype=np.int32)
    step = CompiledStep(tiny, scene.pool)
    expected = step(scene.last, TableArray(ids, [0, 0]), [20, 20])
    compiled = len(_tiles.signatures)
    fixed = ids.copy()
    fixed.flags.writeable = False
    for other in (np.asfortranarray(ids), np.repeat(ids, 2, axis=1)[:, ::2], fixed, ids.astype(np.int64)):
        assert torch.equal(step(scene.last, TableArray(other, [0, 0]), [20, 20]), expected)
    assert len(_tiles.signatures) == compiled


# ---- when the engine takes it ----------------------------------------------------------------------------


class Observed(GPT2):
    """A model of somebody's own."""

    def __init__(self, model: GPT2) -> None:
        self.__dict__.update(model.__dict__)

    def __call__(self, *args: Any) -> Tensor:
        return super().__call__(*args)


def test_where_it_is_taken(tiny: GPT2, tmp_path: Path) -> None:
    relu = GPT2.from_pretrained(save_random(tmp_path / "relu", activation_function="relu"), device="cpu")
    half = GPT2.from_pretrained(device="cpu", dtype=torch.bfloat16)
    wide = GPT2.from_pretrained(save_random(tmp_path / "wide", n_embd=512, n_layer=1), device="cpu")
    assert wide.weights is None
    coarse = BlockPool(4, 16, tiny.num_layers, tiny.num_heads, tiny.head_dim, dtype=torch.bfloat16)
    assert Runner(tiny, coarse, "cpu")._compiled is None
    for model, backend, taken in (
        (tiny, "auto", True),
        (copy.deepcopy(tiny), "auto", True),
        (pickle.loads(pickle.dumps(tiny)), "auto", True),
        (tiny, "cpu", True),
        (tiny, "gather", False),
        (tiny, reference.attend, False),
        (relu, "auto", False),
        (half, "auto", False),
        (wide, "auto", False),
        (Observed(tiny), "auto", False),
    ):
        own = BlockPool(4, 16, model.num_layers, model.num_heads, model.head_dim, dtype=model.dtype)
        assert (Runner(model, own, backend)._compiled is not None) is taken
    pool = BlockPool(4, 16, wide.num_layers, wide.num_heads, wide.head_dim)
    with pytest.raises(ValueError, match="large matrix"):
        CompiledStep(wide, pool)


def test_beside_prompts_in_chunks_every_row_is_its_own(tiny: GPT2) -> None:
    """Decoding and prefilling requests in one step, in any order."""
    lengths = [20, 33, 7, 50, 18]
    new = [1, 6, 1, 9, 1]
    ours, theirs = Scene(tiny, lengths), Scene(tiny, lengths)
    found = []
    for scene, backend in ((ours, "cpu"), (theirs, "gather")):
        chunks = []
        for text, table, length, count in zip(scene.texts, scene.tables, lengths, new, strict=True):
            sequence = Sequence("A", text, length, "0")
            sequence.num_stored, sequence.table = length - count, table
            chunks.append(Chunk(None, sequence, count))  # type: ignore[arg-type]  # no request is looked at
        found.append(Runner(tiny, scene.pool, backend).run(chunks))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cache", ["paged", "contiguous"])
def test_what_rides_along_changes_no_token(tiny: GPT2, cache: Any) -> None:
    """Requests that come one by one, each while the others decode, say what they say alone."""
    chance = random.Random(1)
    prompts = [[chance.randrange(1, 216) for _ in range(5 + 7 * i)] for i in range(6)]
    engine = Engine(tiny, 64, 8, cache=cache, max_step_tokens=12)
    requests = []
    for prompt in prompts:
        requests.append(engine.submit(prompt, 20, ignore_eos=True))
        engine.step()
        engine.step()
    while engine.has_work:
        engine.step()
        engine.check()
    for prompt, request in zip(prompts, requests, strict=True):
        alone = Engine(tiny, 64, 8, attention="gather").generate([prompt], 20, ignore_eos=True)
        assert request.result()[0].token_ids == alone[0].token_ids


def test_gelu_by_itself() -> None:
    """Against float64."""
    x = np.concatenate([np.linspace(-12, 12, 4001), [-1e4, -90, -0.0, 90, 1e4]]).astype(np.float32)
    y = x[None].copy()
    _gelu(y)
    expected = F.gelu(torch.from_numpy(x).double(), approximate="tanh").numpy()
    assert (np.abs(y[0] - expected) <= 3e-7 * np.maximum(1, np.abs(expected))).all()


def test_a_changed_kernel_is_a_changed_step(tiny: GPT2) -> None:
    """Numba looks for changes in the file of the function that it keeps; the step calls another file's."""
    Scene(tiny, [3]).step()
    kernel = sha256(Path(str(cpu.__file__)).read_bytes()).hexdigest()[:12]
    name = _tiles.py_func.__qualname__
    assert name == f"_tiles_{kernel}"
    assert list(Path(_tiles.stats.cache_path).glob(f"compiled_step.{name}-*.nbi"))


def test_prompts_beside_who_decodes_whatever_torchs_usual_type_is(tiny: GPT2) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        engine = Engine(tiny, 64, 16, max_step_tokens=8)
        engine.submit([1, 2, 3], 40, ignore_eos=True)
        engine.step()
        request = engine.submit(list(range(10, 30)), 5, ignore_eos=True)  # three chunks of its prompt
        assert [engine.step().num_tokens for _ in range(4)] == [8, 8, 7, 2]
        while not request.done:
            engine.step()
        assert len(request.result()[0].token_ids) == 5
    finally:
        torch.set_default_dtype(before)


def test_an_idle_engine_can_be_copied_and_lets_its_requests_go(tiny: GPT2) -> None:
    engine = Engine(tiny, 16, 16)
    request = engine.submit([1, 2, 3], 4, ignore_eos=True)
    while engine.has_work:
        engine.step()
    said, gone = request.result()[0].token_ids, weakref.ref(request)
    del request
    gc.collect()
    assert gone() is None
    twin = copy.deepcopy(engine)
    for each in (twin, engine, twin):
        assert each.generate([[1, 2, 3]], 4, ignore_eos=True)[0].token_ids == said
