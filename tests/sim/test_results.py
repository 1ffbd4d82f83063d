"""Results print themselves in a terminal and a notebook, and draw themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from minikv.sim import plots
from minikv.sim.reservation import OrcaOracle, Paged
from minikv.sim.results import Cell, Comparison, Finding, Reproduction, SimResult, SplitReproduction, Table
from minikv.sim.simulate import simulate
from minikv.sim.split import Split
from minikv.sim.workload import Request

REQUESTS = [Request(0, 8, 5), Request(0, 20, 3), Request(0.1, 30, 9)]


@pytest.fixture
def results() -> list[SimResult]:
    return [simulate(REQUESTS, OrcaOracle(64, 64), sample_every=0.05), simulate(REQUESTS, Paged(4, 16))]


@pytest.mark.parametrize(
    ("column", "printed"),
    [
        ([None, "word", 1234567], ["–", "word", "1,234,567"]),
        ([0.0, 1.005, -2.349], ["0.00", "1.00", "-2.35"]),
        ([0.0, -12.349, None, 5], ["0.0", "-12.3", "–", "5"]),
        ([12345.6, 0.7], ["12,346", "1"]),
    ],
)
def test_the_numbers_of_a_column_are_rounded_alike(column: list[Cell], printed: list[str]) -> None:
    table = Table("", ("a",), [(cell,) for cell in column])
    assert [line.split("|")[1].strip() for line in table._repr_markdown_().splitlines()[4:]] == printed


def test_a_table_in_a_terminal() -> None:
    table = Table("Sizes", ("name", "slots"), [("a", 5), ("long name", 12345)], ["one", "two", "one"])
    assert repr(table) == (
        "Sizes\n\nname        slots\n---------  ------\na               5\nlong name  12,345\n\n"
        "Assumed:\n- one\n- two"
    )


def test_a_table_in_a_notebook() -> None:
    table = Table("Sizes", ("name", "slots"), [("a", 5.25)], ["one"])
    assert table._repr_markdown_() == (
        "**Sizes**\n\n| name | slots |\n| --- | ---: |\n| a | 5.25 |\n\nAssumed:\n\n- one"
    )


def test_a_table_without_rows_or_assumptions() -> None:
    assert repr(Table("Empty", ("a", "b"), [])) == "Empty\n\na  b\n-  -"


def test_long_assumptions_are_wrapped() -> None:
    lines = repr(Table("", ("a",), [], ["word " * 60])).splitlines()
    assert max(map(len, lines)) <= 110 and lines[-1].startswith("  word")


def test_columns_keep_their_values() -> None:
    table = Table("", ("name", "share"), [("a", 1 / 3)])
    assert table.column("share") == [1 / 3]
    with pytest.raises(ValueError, match="there is no column 'shares'; there are name, share"):
        table.column("shares")


def test_a_row_has_a_cell_for_each_heading() -> None:
    with pytest.raises(ValueError, match="has 1 cells, the head has 2"):
        Table("", ("a", "b"), [(1,)])


def test_a_result_says_all_it_knows(results: list[SimResult]) -> None:
    text = repr(results[1])
    assert text.startswith("paged (block 16)\n")
    for words in ("finished", "preemptions", "mean batch", "tokens, % of slots", "a step takes 40 ms"):
        assert words in text
    assert "| finished | 3 |" in results[1]._repr_markdown_()


def test_a_comparison_has_a_row_for_each(results: list[SimResult]) -> None:
    table = Comparison(results, ["lengths by hand"])
    assert table.column("policy") == ["Orca (Oracle)", "paged (block 16)"]
    assert table.column("tokens") == [result.mean.percent.tokens for result in results]
    assert table.assumptions[0] == "lengths by hand" and len(table.assumptions) == 2


def test_differences_are_points_for_shares_and_else_percent() -> None:
    finding = Finding("x", 40.0, 42.0)
    assert Reproduction("", "%", [finding], ()).difference(finding) == 2
    assert Reproduction("", "requests", [finding], ()).difference(finding) == 5
    assert "+0.0 %" in repr(Reproduction("", "requests", [Finding("x", 1000.0, 999.9)], ()))
    assert "+2.0 points" in repr(Reproduction("", "%", [finding], ()))
    assert "+5.0 %" in repr(Reproduction("", "requests", [finding], ()))


# ---- pictures ------------------------------------------------------------------------------------


def texts(figure: object) -> set[str]:
    """Everything written in a figure."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    assert isinstance(figure, Figure)
    figure.canvas.draw()
    return {text.get_text() for text in figure.findobj(Text) if text.get_text()}


def test_a_result_with_samples_is_drawn_over_time(results: list[SimResult]) -> None:
    assert {"seconds", "tokens", "Orca (Oracle)"} <= texts(results[0].plot())


def test_a_result_without_samples_is_a_bar(results: list[SimResult]) -> None:
    assert {"paged (block 16)", "% of KV memory"} <= texts(results[1].plot())


def test_a_comparison_is_drawn_with_numbers_and_labels(results: list[SimResult]) -> None:
    found = texts(Comparison(results).plot())
    assert {"Orca (Oracle)", "paged (block 16)", "external fragmentation, others"} <= found
    assert f"{results[0].mean.percent.tokens:.1f}" in found


def test_published_bars_stand_under_ours() -> None:
    ours, published = {"vLLM": Split(90, 5, 1, 0, 4)._asdict()}, {"vLLM": {"tokens": 96.3}}
    table = SplitReproduction("", ours, published, ())
    assert table.findings == (Finding("vLLM: tokens", 96.3, 90),)
    assert {"vLLM, ours", "vLLM, published", "96.3", "90.0"} <= texts(table.plot())


def test_pairs_of_bars_carry_both_numbers() -> None:
    table = Reproduction("", "requests", [Finding("a", 7.0, 6.9), Finding("b", 30.4, 33.0)], ())
    assert {"a", "b", "published", "ours", " 7.0", " 6.9", "requests"} <= texts(table.plot())


def test_the_legend_lies_within_the_figure(results: list[SimResult]) -> None:
    for figure in (results[0].plot(), Comparison(results).plot()):
        figure.canvas.draw()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_no_two_states_look_alike_without_colour() -> None:
    """States that lie beside each other differ by hatch, or by one having none and being much lighter."""
    looks = list(plots.LOOKS.values())
    assert len({look.colour for look in looks}) == len(looks) == len(Split._fields)
    assert all(a.hatch != b.hatch for a, b in pairwise(looks))
    assert list(plots.LOOKS) == list(Split._fields)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#111111"])
def test_text_beside_the_bars_reads_on_light_and_dark(background: str) -> None:
    light, dark = sorted((luminance(plots.GREY), luminance(background)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4


def test_a_figure_is_not_shown_a_second_time(results: list[SimResult]) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    results[1].plot()
    assert plt.get_fignums() == before
