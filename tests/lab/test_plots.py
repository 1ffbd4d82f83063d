"""Plots: themed, legible without colour, the same every time, and refused where the numbers do not fit."""

import inspect
import re
from xml.etree import ElementTree

import pytest

from minikv.lab import plots
from minikv.lab.fitted import fitted
from minikv.lab.plots import DASHES, INKS, LIGHT, MARKERS, lines

SIZES = ("blocks held", [1_000, 4_000, 16_000])


def two_lines():
    return lines(
        "Cost", SIZES, "microseconds", {"a list": [9, 36, 140], "ours": [0.4, 0.4, 0.4]}, ("log", "log")
    )


def test_the_same_picture_every_time_and_no_moment_or_machine_in_it():
    first, second = two_lines().to_svg(), two_lines().to_svg()
    assert first == second
    assert two_lines()._repr_mimebundle_()["text/html"] == fitted(two_lines())["text/html"]
    assert not re.search(r"\d{4}-\d\d-\d\d|dc:date|Matplotlib v", first)
    assert two_lines().to_png() == two_lines().to_png()


def test_well_formed_named_and_small():
    plot = two_lines()
    root = ElementTree.fromstring(plot.to_svg())
    assert root.get("role") == "img"
    assert root[0].text == plot.title
    assert root[1].text == plot.table
    assert len(plot.to_svg()) < 40_000
    assert len(plot.to_png()) < 25_000


def test_every_colour_follows_the_theme():
    """No colour stands alone: each is a variable of the palette, with its light value for old viewers."""
    svg = two_lines().to_svg()
    drawn = svg[svg.index("</style>") :]
    fixed = re.findall(r"(?<!, )#[0-9a-f]{6}\b", drawn)
    assert not fixed
    for name, light in re.findall(r"var\(--mk-([\w-]+), (#[0-9a-f]{6})\)", drawn):
        assert LIGHT[name] == light


def test_style_rules_stay_inside_the_picture():
    """An SVG in a page shares its style sheets with everything else there."""
    svg = two_lines().to_svg()
    for rule in re.findall(r"<style[^>]*>(.*?)</style>", svg, re.S):
        if "@supports" not in rule:
            assert rule.strip().startswith(".minikv-plot *{")


def test_colour_is_never_alone():
    figure = two_lines().figure
    drawn = figure.axes[0].lines
    assert len({(line.get_marker(), line.get_linestyle()) for line in drawn}) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == ["a list", "ours"]
    assert len(INKS) == len(MARKERS) == len(DASHES)


def test_labels_that_would_lie_on_each_other_go_to_a_legend():
    close = lines("Close", SIZES, "y", {"one": [1, 2, 3], "two": [1, 2, 3.01]})
    assert not close.figure.axes[0].texts
    assert [text.get_text() for text in close.figure.axes[0].get_legend().get_texts()] == ["one", "two"]


def test_many_points_get_a_few_markers():
    values = list(range(1, 257))
    plot = lines("Many", ("size", values), "y", {"one": values}, ("log2", "linear"))
    marked = plot.figure.axes[0].lines[0].get_markevery()
    assert [values[place] for place in marked] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert len(plot.table.splitlines()) <= 22


def test_the_text_has_the_numbers():
    assert repr(two_lines()).splitlines() == [
        "Cost",
        "blocks held  a list  ours",
        "      1,000       9   0.4",
        "      4,000      36   0.4",
        "     16,000     140   0.4",
    ]


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="'a list' has 2 values, but 'blocks held' has 3; make them equal"):
        lines("Cost", SIZES, "y", {"a list": [1, 2]})


def test_no_pyplot():
    """Its state belongs to one thread, and a widget's callback may run on another."""
    assert "matplotlib.pyplot" not in inspect.getsource(plots)
