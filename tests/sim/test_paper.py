"""The published figures again, at the scale at which they are printed: 3 points, or 15 % of a batch."""

from __future__ import annotations

import pytest

from minikv.sim import paper, published
from minikv.sim.results import Reproduction


def differences(table: Reproduction) -> dict[str, float]:
    return {finding.what: table.difference(finding) for finding in table.findings}


def test_fig2_is_within_3_points() -> None:
    table = paper.fig2()
    print(table)
    assert len(table.findings) == 12
    assert max(map(abs, differences(table).values())) <= 3


@pytest.mark.parametrize("seconds", [1200, pytest.param(3600, marks=pytest.mark.nightly)])
def test_fig13_is_within_15_percent(seconds: int) -> None:
    """Twenty minutes of the paper's hour; at night all of it, which is what the benchmark prints."""
    table = paper.fig13(seconds)
    print(table)
    assert len(table.findings) == 8
    assert max(map(abs, differences(table).values())) <= 15


def test_fig15_parallel_sampling_is_within_3_points_but_for_one_figure() -> None:
    """More than 5/3 from 2 to 6 samples is not possible when only prompts are shared; published is 1.88."""
    table = paper.fig15_parallel()
    print(table)
    off = differences(table)
    assert off.pop("ShareGPT, 6 samples") == pytest.approx(-4.3, abs=0.5)
    assert len(off) == 4 and max(map(abs, off.values())) <= 3
    two, six = (finding.ours for finding in table.findings if finding.what.startswith("ShareGPT"))
    assert six / two == pytest.approx(5 / 3)


def test_fig15_beam_search_is_within_3_points() -> None:
    table = paper.fig15_beam()
    print(table)
    assert len(table.findings) == 5
    assert max(map(abs, differences(table).values())) <= 3


def test_larger_blocks_waste_more_and_hold_fewer_requests() -> None:
    table = paper.block_sizes("ShareGPT", (16, 64, 256), requests=400)
    wasted, batches = table.column("empty in blocks, %"), table.column("mean batch")
    assert wasted == sorted(wasted) and batches == sorted(batches, reverse=True)
    assert table.column("Fig. 18b") == ["best", "best", ""]
    assert table.column("block") == ["16", "64", "256"]


def test_no_cliff_up_to_32_and_one_beyond_for_short_requests() -> None:
    sharegpt = paper.block_sizes("ShareGPT", (16, 32, 256), requests=1000)
    small, medium, large = (result.mean_batch for result in sharegpt.results)
    assert medium > 0.95 * small and large < 0.85 * small
    alpaca = paper.block_sizes("Alpaca", (16, 128), requests=3000)
    assert alpaca.results[1].mean_batch < 0.65 * alpaca.results[0].mean_batch


def test_the_same_seed_prints_the_same() -> None:
    tables = [paper.fig2(requests=300, seed=seed) for seed in (1, 1, 2)]
    assert repr(tables[0]) == repr(tables[1]) != repr(tables[2])


def test_every_table_says_what_was_assumed_and_fitted() -> None:
    tables = [
        paper.fig2(requests=50),
        paper.fig13(seconds=5),
        paper.block_sizes("Alpaca", (16,), requests=50),
        paper.fig15_parallel(requests=5),
        paper.fig15_beam(requests=5),
    ]
    for table in tables:
        assert any("sigma" in note and "fitted" in note for note in table.assumptions)
        assert table.plot() is not None
    for table in tables[:3]:
        assert any("40 ms" in note and "fitted" in note for note in table.assumptions)
    assert any("0.018 (ShareGPT), 0.11 (Alpaca)" in note for note in tables[4].assumptions)


def test_published_figures_are_what_the_paper_prints() -> None:
    """Each row of Fig. 2 is all of memory, to the rounding."""
    for system, row in published.FIG_2.items():
        if system != "vLLM":
            assert sum(row.values()) == pytest.approx(100, abs=0.2)
