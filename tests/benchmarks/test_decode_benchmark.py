"""`python -m minikv.benchmarks decode`, in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minikv.benchmarks import decode
from minikv.benchmarks.decode import Row, Scene, System


def test_a_small_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decode, "SMALL", (Scene("tiny", 2, 5, 4), Scene("tiny", 3, 5, 4)))
    decode.main(["--small", "--rounds", "1", "--json", str(tmp_path / "rows.json")])
    said = capsys.readouterr().out
    assert "tiny 2 × (5 + 4)" in said and "times transformers" in said
    rows = [Row(**row) for row in json.loads((tmp_path / "rows.json").read_text())["rows"]]
    systems = {row.system for row in rows}
    assert {"minikv", "transformers", "minikv again"} <= systems
    assert [row.differing for row in rows] == [0] * len(rows)
    assert all(0 < row.median_tokens_per_s <= row.best_tokens_per_s for row in rows)


def test_prompts_are_the_same_each_time_and_do_not_end() -> None:
    prompts = Scene("tiny", 4, 7, 1).prompts(216)
    assert prompts == Scene("tiny", 4, 7, 1).prompts(216)
    assert [len(prompt) for prompt in prompts] == [7] * 4
    assert all(1 <= token < 216 for prompt in prompts for token in prompt)


def test_tokens_that_differ_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(*tokens: int) -> object:
        return lambda folder: System(lambda prompts, new: [list(tokens)] * len(prompts))

    monkeypatch.setattr(decode, "GROUPS", ({"minikv": fixed(1, 2)}, {"other": fixed(1, 3)}))
    rows = decode.measure(decode.TINY, (Scene("tiny", 3, 5, 2),), 1, {})
    assert [(row.system, row.differing) for row in rows] == [("minikv", 0), ("other", 3)]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(folder: Path) -> System:
        raise decode.Missing("it is not installed")

    monkeypatch.setattr(decode, "GROUPS", ({"minikv": decode.minikv}, {"other": absent}))
    missing: dict[str, str] = {}
    rows = decode.measure(decode.TINY, (Scene("tiny", 1, 5, 2),), 1, missing)
    assert [row.system for row in rows] == ["minikv"] and missing == {"other": "it is not installed"}
