"""The model: what it loads, what it refuses, and that others load what ships."""

from __future__ import annotations

import copy
import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from minikv.assets import ledger
from minikv.errors import CheckpointError
from minikv.gpt2 import GPT2, TINY


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without a cache."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def logits(model: GPT2, ids: Tensor) -> Tensor:
    return model(ids, torch.arange(ids.shape[1]).expand_as(ids), causal)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small random checkpoint as transformers writes it, to be spoilt. No tokenizer."""
    return save_random(tmp_path / "checkpoint")


def save_random(folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    shape = {"vocab_size": 11, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**{**shape, "bos_token_id": 0, "eos_token_id": 0, **settings}))
    for parameter in model.parameters():  # biases and norms too, so that each of them matters
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def change_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def change_weights(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


def assert_same_logits(folder: Path) -> None:
    ids = torch.tensor([[1, 5, 2, 10, 0], [3, 3, 4, 9, 7]])
    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = theirs(ids).logits
    torch.testing.assert_close(logits(GPT2.from_pretrained(folder), ids), expected, atol=1e-5, rtol=1e-5)


# ---- what ships ------------------------------------------------------------------------------------


def test_the_checkpoint_that_ships_is_small() -> None:
    assert GPT2.from_pretrained().num_parameters <= 1_500_000
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 6_000_000


def test_transformers_loads_what_ships_and_says_the_same() -> None:
    model, theirs = GPT2.from_pretrained(), AutoModelForCausalLM.from_pretrained(TINY).eval()
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    assert model.num_parameters == theirs.num_parameters()
    words = [word for fact in ledger.make_ledger(random.Random(0), 8) for word in fact.words]
    ids = torch.tensor([model.tokenizer.encode(" ".join(words))])
    with torch.inference_mode():
        expected = theirs(ids).logits
    torch.testing.assert_close(logits(model, ids), expected, atol=1e-4, rtol=0)


def test_transformers_tokenises_the_same() -> None:
    ours, theirs = GPT2.from_pretrained().tokenizer, AutoTokenizer.from_pretrained(TINY)
    rng = random.Random(1)
    for _ in range(20):
        facts = ledger.make_ledger(rng, 5)
        text = " ".join([fact.text.replace(" .", ".") for fact in facts] + ledger.question(facts[0]))
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == ours.decode(ids)
    assert theirs.eos_token_id == theirs.bos_token_id == ours.encode(ledger.END)[0]
    assert theirs.unk_token == ledger.UNKNOWN
    assert theirs.model_max_length == GPT2.from_pretrained().context


def test_its_shape_is_what_config_says() -> None:
    model, config = GPT2.from_pretrained(), json.loads((TINY / "config.json").read_text())
    assert (model.num_layers, model.num_heads, model.context) == (
        config["n_layer"],
        config["n_head"],
        config["n_positions"],
    )
    assert model.num_heads * model.head_dim == config["n_embd"]
    assert model.vocab_size == model.tokenizer.vocab_size == len(ledger.vocabulary())
    assert f"{model.num_parameters:,} parameters" in repr(model)


# ---- other checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": False},
        {"n_inner": 20},
        {"activation_function": "relu"},
        {"activation_function": "gelu"},
        {"activation_function": "gelu_new"},
        {"activation_function": "gelu_pytorch_tanh"},
        {"layer_norm_epsilon": 0.1},
        {"n_head": 4},
    ],
    ids=str,
)
def test_settings_give_what_transformers_gives(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert_same_logits(save_random(tmp_path, **settings))


def test_a_head_of_its_own_is_not_the_embedding(tmp_path: Path) -> None:
    weights = load_file(save_random(tmp_path, tie_word_embeddings=False) / "model.safetensors")
    assert not torch.equal(weights["lm_head.weight"], weights["transformer.wte.weight"])


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_with_and_without_their_prefix(folder: Path, prefix: str) -> None:
    before = logits(GPT2.from_pretrained(folder), torch.tensor([[1, 2, 3]]))
    change_weights(folder, lambda w: {prefix + name.removeprefix("transformer."): x for name, x in w.items()})
    names = set(load_file(folder / "model.safetensors"))
    assert {prefix + "wte.weight", prefix + "h.0.ln_1.weight", prefix + "h.1.attn.c_attn.bias"} <= names
    assert torch.equal(logits(GPT2.from_pretrained(folder), torch.tensor([[1, 2, 3]])), before)


def test_a_file_that_changes_later_does_not_change_the_model(folder: Path) -> None:
    """A checkpoint that is fetched or trained anew while a notebook runs."""
    model, path = GPT2.from_pretrained(folder), folder / "model.safetensors"
    before = logits(model, torch.tensor([[1, 2, 3]]))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    assert torch.equal(logits(model, torch.tensor([[1, 2, 3]])), before)
    path.write_bytes(b"")
    assert torch.equal(logits(model, torch.tensor([[1, 2, 3]])), before)


def test_masks_that_old_checkpoints_carry_are_ignored(folder: Path) -> None:
    change_weights(folder, lambda w: {**w, "h.0.attn.bias": torch.ones(1, 1, 16, 16)})
    assert_same_logits(folder)


def test_other_types_of_numbers(folder: Path) -> None:
    model = GPT2.from_pretrained(folder, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert logits(model, torch.tensor([[1, 2]])).dtype == torch.bfloat16


def test_without_a_tokenizer_texts_are_refused_and_ids_are_shown_bare(folder: Path) -> None:
    model = GPT2.from_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json; give prompts as lists of token ids"):
        _ = model.tokenizer
    assert model.text([3]) == "3"
    assert model.text([3, 4]) == "3 4"
    assert GPT2.from_pretrained().text([2, 3]) == ". ?"


# ---- checkpoints that cannot be loaded -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        GPT2.from_pretrained(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_file_cut_short(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors of .* is damaged"):
        GPT2.from_pretrained(folder)


def test_a_pointer_file_in_place_of_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CheckpointError, match="is damaged"):
        GPT2.from_pretrained(folder)


@pytest.mark.parametrize(
    "name",
    [
        "wte.weight",
        "wpe.weight",
        "h.0.ln_1.bias",
        "h.1.attn.c_attn.weight",
        "h.1.mlp.c_proj.bias",
        "ln_f.weight",
    ],
)
def test_a_missing_tensor(folder: Path, name: str) -> None:
    change_weights(folder, lambda w: {key: x for key, x in w.items() if key != "transformer." + name})
    with pytest.raises(CheckpointError, match=f"has no tensor '{name}'"):
        GPT2.from_pretrained(folder)


@pytest.mark.parametrize("settings", [{"n_layer": 3}, {"tie_word_embeddings": False}])
def test_a_config_that_asks_for_more_than_there_is(folder: Path, settings: dict[str, Any]) -> None:
    change_config(folder, **settings)
    with pytest.raises(CheckpointError, match="has no tensor"):
        GPT2.from_pretrained(folder)


@pytest.mark.parametrize(
    "settings", [{"vocab_size": 12}, {"n_positions": 8}, {"n_embd": 16}, {"n_inner": 9}], ids=str
)
def test_a_tensor_of_another_shape(folder: Path, settings: dict[str, Any]) -> None:
    change_config(folder, **settings)
    with pytest.raises(
        CheckpointError, match=r"tensor '.*' has shape \[.*\] but config\.json asks for \[.*\]"
    ):
        GPT2.from_pretrained(folder)


def test_matrices_turned_as_other_programs_store_them(folder: Path) -> None:
    change_weights(folder, lambda w: {k: x.t().contiguous() if x.ndim == 2 else x for k, x in w.items()})
    with pytest.raises(CheckpointError, match="has shape"):
        GPT2.from_pretrained(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "llama"}, "model_type 'llama'; only 'gpt2'"),
        ({"model_type": None}, "model_type None"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"n_layer": "2"}, "n_layer is '2'"),
        ({"n_layer": True}, "n_layer is True"),
        ({"n_embd": None}, "n_embd is None"),
        ({"n_head": 3}, "8 .n_embd. is not a multiple of 3 .n_head."),
        ({"activation_function": "swish"}, "activation_function 'swish' is not one of"),
        ({"activation_function": []}, "activation_function .. is not one of"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
    ],
)
def test_settings_that_do_not_fit(folder: Path, settings: dict[str, Any], said: str) -> None:
    change_config(folder, **settings)
    with pytest.raises(CheckpointError, match=said):
        GPT2.from_pretrained(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"gpt2"', b"null", b"\xff\xfe"])
def test_a_config_that_is_no_object(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json of .* (is not JSON|holds)"):
        GPT2.from_pretrained(folder)


def test_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
        GPT2.from_pretrained(folder)


# ---- where from -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_by_name_or_path(folder: Path, kind: Any) -> None:
    assert GPT2.from_pretrained(kind(folder)).vocab_size == 11


@pytest.mark.parametrize("name", ["./no/such", "/no/such", "~/no/such", "a/b/c", "a\\b", Path("no-such")])
def test_a_folder_that_is_not_there_is_no_hub_id(name: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: object, **more: object) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    with pytest.raises(CheckpointError, match="there is no folder"):
        GPT2.from_pretrained(name)


def test_a_hub_id_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real hub client, told that it is offline, with an empty cache."""
    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, **more: real(name, **more, cache_dir=tmp_path, local_files_only=True),
    )
    with pytest.raises(
        CheckpointError, match=r"could not be fetched as a hub id .*check the name and the network"
    ):
        GPT2.from_pretrained("openai-community/gpt2")


def test_a_hub_id_asks_for_the_three_files_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        return shutil.copytree(folder, folder.parent / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert GPT2.from_pretrained("someone/tiny").vocab_size == 11
    assert asked == {"someone/tiny": ["config.json", "model.safetensors", "tokenizer.json"]}


def test_an_unknown_device() -> None:
    with pytest.raises(ValueError, match="'abacus' cannot be used here"):
        GPT2.from_pretrained(device="abacus")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_says_the_same(copied: Callable[[GPT2], GPT2]) -> None:
    model, ids = GPT2.from_pretrained(device="cpu"), torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(logits(copied(model), ids), logits(model, ids))
