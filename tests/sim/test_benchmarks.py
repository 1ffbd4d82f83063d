"""`python -m minikv.benchmarks paper` and `… simulator`, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from minikv.benchmarks import paper as paper_benchmark
from minikv.benchmarks import simulator
from minikv.benchmarks.__main__ import main, names
from minikv.manager import KVCacheManager
from minikv.sim.results import Table


def test_both_are_named() -> None:
    assert {"paper", "simulator"} <= set(names())


def test_paper_prints_its_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables themselves are tested in test_paper.py; all of them take a minute."""
    asked = []

    def tables(seed: int, progress: bool) -> list[Table]:
        asked.append((seed, progress))
        return [Table("One", ("a",), []), Table("Two", ("b",), [])]

    monkeypatch.setattr(paper_benchmark, "tables", tables)
    main(["paper", "--seed", "7"])
    assert asked == [(7, True)]
    assert capsys.readouterr().out == "One\n\na\n-\n\nTwo\n\nb\n-\n\n"


def test_simulator_prints_speed_memory_and_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    azure, mooncake = tmp_path / "azure", tmp_path / "mooncake"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    mooncake.write_text('{"timestamp": 0, "input_length": 67, "output_length": 5, "hash_ids": [0]}\n')
    monkeypatch.setattr(simulator, "LARGE", 10_000)
    monkeypatch.setattr(simulator, "ROUNDS", 2)
    main(["simulator", "--requests", "30", "--azure", str(azure), "--mooncake", str(mooncake)])
    printed = capsys.readouterr().out
    for words in ("ShareGPT-like, 5/s", str(azure), str(mooncake), "peak memory, KiB", "10,000 blocks"):
        assert words in printed


def test_a_trace_that_is_not_there_is_said_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulator", "--azure", "nowhere.csv"])
    assert "argument --azure: there is no file nowhere.csv" in capsys.readouterr().err


def test_an_operation_costs_the_same_in_a_thousand_times_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of many rounds, taken in turn, so that a busy machine disturbs both alike."""
    monkeypatch.setattr(simulator, "ROUNDS", 500)
    managers = [KVCacheManager(size) for size in (simulator.SMALL, simulator.LARGE)]
    for operation in simulator.OPERATIONS:
        ratios = []
        for _ in range(3):
            small, large = simulator.costs(managers, operation)
            ratios.append(large / small)
        print(f"{operation.__name__}: {min(ratios):.2f}")
        assert min(ratios) < 1.3
