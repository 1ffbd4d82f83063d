"""The GPU's kernel, compiled for real GPUs by Triton's compiler, which needs none: down to machine code.

What it computes is tested with Triton's interpreter (test_agreement.py); this is whether it would run at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attention.test_attention import WITH_TRITON

#: What the smallest of these GPUs (compute capability 8.9) lends one program, in bytes.
FAST_MEMORY = 99 * 1024

PROGRAM = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from minikv.attention import gpu

stored, block_size, head_dim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kinds = dict.fromkeys(gpu._part.arg_names, "i32")
kinds.update(dict.fromkeys(("q_start", "best_start", "total_start", "mixed_start"), "*fp32"))
kinds.update(kv_start=stored, block_ids_start="*i32", offsets_start="*i64", ends_start="*i64", scale="fp32")
kinds.update(dict.fromkeys(("ROWS", "PLACES", "DIMS"), "constexpr"))
places, dims = gpu.tile_of(block_size, head_dim)
source = ASTSource(gpu._part, kinds, {"ROWS": gpu.ROWS, "PLACES": places, "DIMS": dims})
for capability in (80, 89, 90):
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    print(capability, len(made.asm["cubin"]), made.metadata.shared)
"""


@pytest.mark.skipif(not WITH_TRITON, reason="Triton is for Linux")
@pytest.mark.parametrize("stored", ["*fp32", "*bf16"])
@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 64), (16, 64), (512, 128), (64, 256)])
def test_it_compiles_and_fits_whatever_the_block(
    stored: str, block_size: int, head_dim: int, tmp_path: Path
) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, stored, str(block_size), str(head_dim)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    made = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [capability for capability, _, _ in made] == [80, 89, 90]
    assert all(code > 0 and shared <= FAST_MEMORY for _, code, shared in made), made
