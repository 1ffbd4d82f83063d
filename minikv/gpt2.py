"""The model: GPT-2 (Radford et al. 2019), Hugging Face weights in, logits out.

It knows nothing of a cache. In every layer it hands its queries, keys and values to the caller's
`attend`, which stores and reads them as it likes and gives the attention output back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from operator import index as as_int
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from minikv.errors import CheckpointError
from minikv.linear import LARGE, Linear, linear
from minikv.pool import usable_device
from minikv.tokenizer import Tokenizer

TINY = Path(__file__).parent / "assets" / "tiny_gpt2"

#: (layer, q, k, v) -> output, all [batch, num_new, num_heads, head_dim]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """gelu_new, as Hugging Face calls it."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
}

#: What a layer does, by the checkpoint's names.
OPERATIONS = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")

#: Settings that change the arithmetic, and the only value each may have here.
SUPPORTED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


class GPT2:
    """GPT-2 of any size.

    Attributes:
        num_layers, num_heads, head_dim, context, vocab_size: its shape. context is in tokens.
        num_parameters: numbers that were trained.
        eos_token_ids: the tokens that end a text.
        tokenizer: encode and decode; None if the checkpoint has no tokenizer.json.
        activate, eps: between the two matrices of a layer's MLP, and of the norms.
        weights: by the checkpoint's names, the layers' matrices as [out, in]; None for a model with a large
            matrix, which is kept in another layout. (minikv/linear.py) Not to be changed once an engine ran.
    """

    def __init__(
        self, config: dict[str, Any], weights: dict[str, Tensor], tokenizer: Tokenizer | None
    ) -> None:
        self.num_layers: int = config["n_layer"]
        self.num_heads: int = config["n_head"]
        self.width: int = config["n_embd"]
        self.head_dim = self.width // self.num_heads
        self.context: int = config["n_positions"]
        self.vocab_size: int = config["vocab_size"]
        eos = config.get("eos_token_id")
        self.eos_token_ids = frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)
        self.eps: float = config.get("layer_norm_epsilon", 1e-5)
        self.activate = ACTIVATIONS[config.get("activation_function", "gelu_new")]
        self._wte, self._wpe = weights["wte.weight"], weights["wpe.weight"]
        self._layers = [
            {name: self._operation(weights, f"h.{layer}.{name}") for name in OPERATIONS}
            for layer in range(self.num_layers)
        ]
        self._ln_f = self._operation(weights, "ln_f")
        self._lm_head = linear(weights.get("lm_head.weight", self._wte))
        small = all(weight.numel() < LARGE for weight in weights.values())
        self.weights = weights if small else None
        self.num_parameters = sum(w.numel() for name, w in weights.items() if name != "lm_head.weight")
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise CheckpointError("this checkpoint has no tokenizer.json; give prompts as lists of token ids")
        return self._tokenizer

    def text(self, token_ids: Sequence[int]) -> str:
        """Token ids as pictures show them: the words, or the bare ids if there is no tokenizer."""
        if self._tokenizer is None:
            return " ".join(str(int(token_id)) for token_id in token_ids)
        if len(token_ids) == 1:
            return self._tokenizer.word(token_ids[0])
        return self._tokenizer.decode(token_ids)

    def check_prompt(self, token_ids: Sequence[int], max_new_tokens: int = 1) -> list[int]:
        """The prompt as a list of ints, if this model can continue it by so many tokens.

        Raises:
            ValueError: it is empty, an id is outside the vocabulary, or it is too long for the context.
            TypeError: it holds anything but token ids.
        """
        if as_int(max_new_tokens) < 0:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be 0 or more")
        if len(token_ids) == 0:
            raise ValueError("the prompt is empty; it needs at least 1 token")
        try:
            prompt = [as_int(token) for token in token_ids]
        except TypeError as error:
            raise TypeError(
                f"a prompt is a list of token ids; model.tokenizer.encode makes it ({error})"
            ) from None
        for token in prompt:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        self.check_context(len(prompt) + max(0, max_new_tokens - 1))
        return prompt

    def check_context(self, num_tokens: int) -> None:
        """ValueError for more tokens than the model can see."""
        if num_tokens > self.context:
            raise ValueError(
                f"{num_tokens} tokens exceed the model's context of {self.context}; "
                "shorten the prompt or ask for fewer new tokens"
            )

    @property
    def device(self) -> torch.device:
        return self._wte.device

    @property
    def dtype(self) -> torch.dtype:
        return self._wte.dtype

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | None = None,
        device: str | torch.device = "auto",
        dtype: torch.dtype = torch.float32,
    ) -> GPT2:
        """Load a Hugging Face checkpoint.

        Args:
            source: a folder, a hub id such as "openai-community/gpt2", or None for the tiny GPT-2 that ships.
            device: "auto" is a CUDA or Apple GPU if there is one, else the CPU.

        Raises:
            CheckpointError: a file is missing or unreadable, it is no GPT-2, or a tensor is missing or has
                the wrong shape. ValueError: no such device.
        """
        device = usable_device(device)
        folder = TINY if source is None else _folder(source)
        config = _read_config(folder)
        weights = _read_weights(folder, config, device, dtype)
        path = folder / "tokenizer.json"
        return cls(config, weights, Tokenizer(path) if path.exists() else None)

    @torch.inference_mode()
    def __call__(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        """Logits [batch, num_new, vocab_size] of token_ids [batch, num_new] at positions [batch, num_new].

        wanted: indices among the new tokens; only their logits are computed: [batch, wanted, vocab_size].
        """
        x = self._wte[token_ids] + self._wpe[positions]  # (B, T, C)
        heads = (*x.shape[:2], 3, self.num_heads, self.head_dim)  # (B, T, 3, H, D)
        for layer, op in enumerate(self._layers):
            q, k, v = op["attn.c_attn"](op["ln_1"](x)).view(heads).unbind(2)
            x = x + op["attn.c_proj"](attend(layer, q, k, v).flatten(2))
            x = x + op["mlp.c_proj"](self.activate(op["mlp.c_fc"](op["ln_2"](x))))
        if wanted is not None:
            x = x[:, wanted]
        return self._lm_head(self._ln_f(x))

    def _operation(self, weights: dict[str, Tensor], name: str) -> Linear:
        """The linear map or the layer norm that the checkpoint calls so."""
        weight, bias = weights[name + ".weight"], weights[name + ".bias"]
        if weight.ndim == 2:
            return linear(weight, bias)
        return partial(
            torch.layer_norm, normalized_shape=(self.width,), weight=weight, bias=bias, eps=self.eps
        )

    def __repr__(self) -> str:
        return (
            f"GPT2({self.num_layers} layers × {self.width} wide × {self.num_heads} heads, "
            f"context {self.context}, "
            f"{self.num_parameters:,} parameters, {self.device.type})"
        )


def expected_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a checkpoint of this config must hold, as Hugging Face stores them."""
    c, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], c),
        "wpe.weight": (config["n_positions"], c),
    }
    norms = ["ln_f"]
    for layer in range(config["n_layer"]):
        h = f"h.{layer}."
        norms += [h + "ln_1", h + "ln_2"]
        matrices = {
            "attn.c_attn": (c, 3 * c),
            "attn.c_proj": (c, c),
            "mlp.c_fc": (c, inner),
            "mlp.c_proj": (inner, c),
        }
        for name, (fan_in, fan_out) in matrices.items():
            shapes[h + name + ".weight"] = (fan_in, fan_out)
            shapes[h + name + ".bias"] = (fan_out,)
    for name in norms:
        shapes[name + ".weight"] = shapes[name + ".bias"] = (c,)
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (config["vocab_size"], c)
    return shapes


def _folder(source: str | Path) -> Path:
    if Path(source).is_dir():
        return Path(source)
    name = str(source)
    if isinstance(source, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise CheckpointError(
            f"there is no folder {name!r}; give a folder with config.json, a hub id, or None"
        )
    from huggingface_hub import snapshot_download

    files = ["config.json", "model.safetensors", "tokenizer.json"]
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # the hub client raises many kinds, some from its HTTP library
        raise CheckpointError(
            f"{name!r} is no folder here and could not be fetched as a hub id ({type(error).__name__}); "
            "check the name and the network, or give a folder"
        ) from error


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} has no config.json; a checkpoint needs one") from error
    except ValueError as error:
        raise CheckpointError(f"config.json of {folder} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"config.json of {folder} holds {config!r:.40}, not an object")
    _check_config(config)
    return config


def _check_config(config: dict[str, Any]) -> None:
    """CheckpointError, naming the setting, for anything but a GPT-2 that is computed here as it was meant."""
    if config.get("model_type") != "gpt2":
        raise CheckpointError(
            f"config.json says model_type {config.get('model_type')!r}; only 'gpt2' can be loaded"
        )
    for key in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"):
        if type(config.get(key)) is not int or config[key] < 1:
            raise CheckpointError(
                f"config.json: {key} is {config.get(key)!r}; it must be an integer of at least 1"
            )
    if config["n_embd"] % config["n_head"]:
        raise CheckpointError(
            f"config.json: {config['n_embd']} (n_embd) is not a multiple of {config['n_head']} (n_head)"
        )
    activation = config.get("activation_function", "gelu_new")
    if activation not in list(ACTIVATIONS):  # a list, for the setting may be of a kind that has no hash
        raise CheckpointError(
            f"config.json: activation_function {activation!r} is not one of {', '.join(ACTIVATIONS)}"
        )
    if not isinstance(config.get("layer_norm_epsilon", 1e-5), int | float):
        raise CheckpointError(
            f"config.json: layer_norm_epsilon is {config['layer_norm_epsilon']!r}; it must be a number"
        )
    for key, plain in SUPPORTED.items():
        if config.get(key, plain) is not plain:
            raise CheckpointError(f"config.json: {key} is {config[key]!r}; only {plain} is supported")


def _read_weights(
    folder: Path, config: dict[str, Any], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    if not path.exists():
        raise CheckpointError(f"{folder} has no model.safetensors; other formats are not read")
    try:
        found = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise CheckpointError(
            f"model.safetensors of {folder} is damaged ({error}); fetch it again"
        ) from error
    weights = {}
    for name, shape in expected_shapes(config).items():
        if name not in found:
            raise CheckpointError(f"model.safetensors of {folder} has no tensor {name!r}")
        tensor = found[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(tensor.shape)} but config.json asks for {list(shape)}"
            )
        # Hugging Face keeps GPT-2's matrices as [in, out]; F.linear wants [out, in].
        turned = tensor.t() if name.startswith("h.") and tensor.ndim == 2 else tensor
        # A copy: what is loaded is the file itself, mapped, and would change when the file does.
        weights[name] = turned.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
    return weights
