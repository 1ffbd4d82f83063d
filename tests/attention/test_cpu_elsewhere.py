"""The compiled kernel where Python was started otherwise: for an older processor, or without a compiler."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite.binding import get_host_cpu_features

ROOT = Path(__file__).parents[2]

#: What must hold on any processor. Everything in these is computed by the compiled kernel.
ANYWHERE = (
    "test_cpu.py",
    "test_cpu_guards.py::test_a_lone_query_that_fetches_ahead_against_the_formula",
    "test_step.py::test_bfloat16_is_rounded_as_torch_rounds_it",
)


def knows_avx2() -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    features = get_host_cpu_features()
    return all(features.get(name) for name in ("avx2", "bmi2", "fma"))


@pytest.mark.skipif(not knows_avx2(), reason="this processor cannot run what is compiled for Haswell")
def test_without_avx512(tmp_path: Path) -> None:
    """Compiled for a processor of 2013, whose vectors are half as long: other sums, the same promises.

    In a cache of its own, for what is compiled there must not be taken for what this processor runs.
    """
    older = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    tests = [str(Path("tests", "attention", test)) for test in ANYWHERE]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not torch_keeps", *tests],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, **older},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    indices = list(tmp_path.rglob("*.nbi"))  # which say for which processor
    assert indices and all(b"haswell" in index.read_bytes() for index in indices)


# ---- compiled just now, or before ----------------------------------------------------------------


READ_AND_STEP = """
import hashlib, torch
from minikv.attention import paged_attention
from minikv.block_table import BlockTable
from minikv.compiled_step import CompiledStep
from minikv.gpt2 import GPT2
from minikv.pool import BlockPool

def stored(block_size, num_layers, num_heads, head_dim):
    pool, table = BlockPool(3, block_size, num_layers, num_heads, head_dim), BlockTable(block_size)
    table.append_block(2)
    for layer in range(num_layers):
        pool.write(layer, table.slots(0, block_size), *torch.randn(2, block_size, num_heads, head_dim))
    return pool, table

torch.manual_seed(0)
said = hashlib.sha256()
pool, table = stored(960, 1, 12, 64)
for num_new in (1, 300):
    q = torch.randn(1, num_new, 12, 64)
    outs = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        outs.append(paged_attention(q, pool, 0, [table], [960], backend="cpu"))
    assert torch.equal(*outs)
    said.update(outs[0].numpy().tobytes())
model = GPT2.from_pretrained(device="cpu")
pool, table = stored(300, model.num_layers, model.num_heads, model.head_dim)
said.update(CompiledStep(model, pool)([5], [table], [300]).numpy().tobytes())
print(said.hexdigest())
"""


def test_code_from_the_disk_says_what_it_said_when_it_was_compiled(tmp_path: Path) -> None:
    """To the bit. A function that stands in several pieces of code must not matter by its place in them."""
    said, pieces = [], []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", READ_AND_STEP],
            cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        pieces.append({path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")})
    assert said[0] == said[1]
    assert len(pieces[0]) >= 5 and pieces[0] == pieces[1], "the second one compiled something itself"


# ---- NUMBA_DISABLE_JIT, for debuggers ------------------------------------------------------------


def without_compiler(code: str) -> str:
    """What the lines print where Numba may not compile."""
    lines = (
        "import torch",
        "from minikv.attention import paged_attention",
        "from minikv.attention.step import store_and_attend",
        "from minikv.block_table import BlockTable",
        "from minikv.pool import BlockPool",
        "pool, table, k = BlockPool(2, 4, 1, 1, 8), BlockTable(4), torch.ones(1, 1, 1, 8)",
        "table.append_block(1)",
        code,
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_auto_does_without_a_compiler() -> None:
    printed = without_compiler(
        "print(store_and_attend(pool, [table], [1], 1)(0, k, k, k).tolist())\n"
        "print(paged_attention(k[0], pool, 0, [table], [1]).tolist())"
    )
    assert printed.split("\n")[:2] == [str([[[[1.0] * 8]]]), str([[[1.0] * 8]])]


@pytest.mark.parametrize(
    "call",
    [
        "import minikv.attention.cpu",
        'paged_attention(k[0], pool, 0, [table], [0], backend="cpu")',
        'store_and_attend(pool, [table], [1], 1, backend="cpu")',
    ],
)
def test_the_kernel_says_that_it_needs_a_compiler_and_the_way_out(call: str) -> None:
    printed = without_compiler(f"try:\n    {call}\nexcept RuntimeError as error:\n    print(error)")
    assert "NUMBA_DISABLE_JIT forbids Numba to compile" in printed
    assert "unset it before Python starts" in printed and 'backend="auto"' in printed
