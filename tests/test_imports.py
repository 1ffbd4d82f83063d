"""What an import may bring along: no torch below storage, and next to nothing for `import minikv`."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "matplotlib", "IPython", "ipywidgets", "anywidget", "transformers", "tokenizers"}


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def seconds_to_import(statement: str) -> float:
    """Time for `statement` inside a fresh interpreter, the best of five."""
    code = f"import time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    command = [sys.executable, "-c", code]
    return min(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5)
    )


PREFIX_CACHES = [
    f"minikv.engine.{name}" for name in ("prefix_cache", "lru", "tree_cache", "radix_cache", "hash_cache")
]


ENGINE_BOOKS = [
    f"minikv.engine.{name}" for name in ("params", "request", "scheduler", "metrics", "contiguous")
]


@pytest.mark.parametrize(
    "module", ["minikv", "minikv.block_table", "minikv.manager", *PREFIX_CACHES, *ENGINE_BOOKS]
)
def test_logical_and_management_layers_import_no_torch(module: str) -> None:
    assert "torch" not in modules_after(f"import {module}")


def test_the_prefix_caches_import_no_array_library_either() -> None:
    assert modules_after(f"import {', '.join(PREFIX_CACHES)}") & HEAVY == set()


def test_the_compiler_comes_with_the_compiled_kernel_only() -> None:
    assert "numba" not in modules_after("import minikv.attention, minikv.decode, minikv.lab.workbench")


def test_import_minikv_brings_nothing_heavy() -> None:
    assert modules_after("import minikv") & HEAVY == set()


def test_import_minikv_costs_less_than_a_few_standard_modules() -> None:
    """Measured against the standard library on the same machine, so that a slow machine changes nothing."""
    ours = seconds_to_import("import minikv")
    yardstick = seconds_to_import("import json, decimal, asyncio")
    print(f"import minikv: {ours * 1000:.1f} ms; json, decimal and asyncio: {yardstick * 1000:.1f} ms")
    assert ours < yardstick
