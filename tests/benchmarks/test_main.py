"""`python -m minikv.benchmarks NAME`: the way in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minikv.benchmarks.__main__ import main, names
from minikv.benchmarks._table import format_table


def test_every_benchmark_is_named() -> None:
    assert {"exactness", "recall"} <= set(names())
    assert not [name for name in names() if name.startswith("_")]


@pytest.mark.parametrize("argv", [[], ["recal"]])
def test_without_a_known_name_the_names_are_listed(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"exactness, .*recall"):
        main(argv)


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert "exactness" in capsys.readouterr().out


def test_missing_transformers_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match="exactness compares with transformers, which is not installed"):
        main(["exactness", "--prompts", "1"])


def test_nothing_but_exactness_needs_transformers() -> None:
    code = "import sys, minikv.benchmarks.recall; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["exactness", "--prompts", "3", "--new-tokens", "2"], "largest logit difference"),
        (["recall", "--per-cell", "1", "--texts", "2", "--pairs", "1"], "recalled overall"),
    ],
)
def test_a_small_run_prints_its_table(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(argv)
    assert said in capsys.readouterr().out


def test_table_columns_line_up() -> None:
    assert format_table(["a", "long"], [[100, 2]]) == "  a  long\n---  ----\n100     2"
