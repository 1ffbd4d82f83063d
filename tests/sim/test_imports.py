"""The simulator needs no torch, and looks for matplotlib and tqdm only when they are used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import minikv.sim

MODULES = sorted(f"minikv.sim.{module.name}" for module in iter_modules(minikv.sim.__path__))


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_all_of_it_brings_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "matplotlib", "tqdm", "transformers", "tokenizers", "IPython"}
    assert modules_after(f"import {', '.join(MODULES)}") & heavy == set()


def test_a_whole_simulation_needs_nothing_heavy_either() -> None:
    code = (
        "from minikv.sim.workload import ALPACA, lognormal\n"
        "from minikv.sim.reservation import Paged\n"
        "from minikv.sim.simulate import simulate\n"
        "repr(simulate(lognormal(ALPACA, 9, 9), Paged(99)))"
    )
    assert modules_after(code) & {"torch", "numpy", "matplotlib", "tqdm"} == set()


@pytest.mark.parametrize("name", MODULES)
def test_every_file_says_what_it_is_for(name: str) -> None:
    assert import_module(name).__doc__
    assert len(Path(str(import_module(name).__file__)).read_text(encoding="utf-8").splitlines()) < 300
