"""The roofline: work counted by hand, the roof's two halves, and a picture that follows the theme."""

import re
from xml.etree import ElementTree

import pytest
import torch

from minikv.lab.plots import LIGHT
from minikv.lab.roofline import (
    Machine,
    Point,
    Roofline,
    Work,
    decode_work,
    measure_attention,
    measure_machine,
    prefill_work,
)

MACHINE = Machine(bytes_per_second=40e9, flops=100e9)


def test_a_decode_step_does_half_a_flop_per_byte_whatever_the_length():
    assert decode_work(1, heads=1, head_dim=64) == (256, 512)
    for tokens in (16, 4096):
        assert decode_work(tokens).intensity == 0.5
        assert decode_work(tokens, copies=1).intensity == pytest.approx(1 / 6)


def test_a_prefill_counts_what_each_query_sees():
    tokens = 5
    pairs = sum(1 for query in range(tokens) for key in range(tokens) if key <= query)
    work = prefill_work(tokens, heads=2, head_dim=8)
    assert work.flop == pairs * 2 * 4 * 8  # heads, score and sum, head_dim
    assert work.bytes == 4 * tokens * 2 * 8 * 4  # q, k, v and the output; heads, head_dim, bytes
    assert prefill_work(512).intensity == pytest.approx(513 / 8)


def test_the_roof_has_two_halves():
    assert MACHINE.ridge == 2.5
    assert MACHINE.roof(0.5) == 20e9
    assert MACHINE.roof(2.5) == MACHINE.roof(64) == 100e9
    assert repr(MACHINE) == "reads 40 GB/s, computes 100 GFLOP/s: they meet at 2.5 FLOP per byte"


def test_what_is_measured_is_positive_and_named():
    machine = measure_machine(torch.ones(4096), size=16)
    assert machine.bytes_per_second > 0 and machine.flops > 0
    points = measure_attention(tokens=64, prompt=16)
    assert [point.name for point in points] == [
        "decode, gather",
        "decode, cpu",
        "decode, step 4",
        "prefill, cpu",
        "prefill, torch",
    ]
    assert all(point.flops > 0 for point in points)


def roofline():
    points = [Point("slow", Work(10**9, 2 * 10**9), 0.1), Point("fast", Work(64 * 10**9, 10**9), 0.8)]
    return Roofline(MACHINE, points)


def test_the_table_says_what_each_point_reaches_and_what_limits_its_roof():
    slow, fast = roofline().table.splitlines()[2:]
    assert roofline().table.splitlines()[1].endswith("limit of the roof")
    assert slow.split() == ["slow", "0.50", "10.0", "50", "memory"]
    assert fast.split() == ["fast", "64.00", "80.0", "80", "arithmetic"]


def test_the_picture_follows_the_theme_and_holds_the_numbers():
    svg = roofline().plot.to_svg()
    root = ElementTree.fromstring(svg)
    assert root[1].text == roofline().table
    drawn = svg[svg.index("</style>") :]
    assert not re.findall(r"(?<!, )#[0-9a-f]{6}\b", drawn)
    for name, light in re.findall(r"var\(--mk-([\w-]+), (#[0-9a-f]{6})\)", drawn):
        assert LIGHT[name] == light
    assert svg == roofline().plot.to_svg()


def test_the_picture_says_how_much_of_its_roof_each_point_reaches():
    svg = roofline().plot.to_svg()
    assert "slow: 50 %" in svg and "fast: 80 %" in svg
