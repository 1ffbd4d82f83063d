"""The picture of a gather shows what lies in memory and what came out, in words and in bytes."""

from xml.etree import ElementTree

import pytest

from minikv import BlockTable
from minikv.lab import Workbench
from minikv.lab.gather_picture import GatherPicture
from minikv.lab.stand_in import PROMPT, scatter


def scattered(offset=0):
    bench = Workbench(num_blocks=7, block_size=4)
    scatter(bench)
    bench.loop.new_table = lambda block_size: BlockTable(block_size, offset)
    request = bench.start(PROMPT, "A")
    bench.prefill(request)
    return bench, request


def test_the_row_is_the_prompt_and_the_pieces_are_the_table():
    picture = GatherPicture(*scattered())
    assert picture.row == tuple(PROMPT.split())
    assert picture.pieces == [(2, 0, 0, 4), (1, 0, 4, 4), (6, 0, 8, 4), (0, 0, 12, 4), (5, 0, 16, 1)]
    assert "17 × 1,024 bytes (K and V) = 17,408 bytes read" in picture.sum


def test_an_offset_shortens_the_first_piece():
    picture = GatherPicture(*scattered(offset=3))
    assert picture.row == tuple(PROMPT.split())
    assert picture.pieces[:2] == [(2, 3, 0, 1), (1, 0, 1, 4)]


def test_as_text_it_says_where_each_piece_comes_from():
    text = repr(GatherPicture(*scattered()))
    assert "2 Ada has three red | 3 It is late ." in text
    assert "Ada has three red (from 2) | kites . Bo has (from 1)" in text


def test_well_formed_named_small_and_the_same_every_time():
    picture = GatherPicture(*scattered())
    svg = picture.to_svg()
    assert svg == GatherPicture(*scattered()).to_svg()
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root[0].text == picture.title
    assert root[1].text == repr(picture)
    assert len(svg) < 40_000
    assert set(picture._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_a_band_for_each_piece_and_bytes_below_it():
    svg = GatherPicture(*scattered()).to_svg()
    assert svg.count('opacity="0.75"') == 5
    assert svg.count("4,096 B") == 4
    assert svg.count("1,024 B") == 1


def test_what_cannot_be_drawn_is_refused():
    bench, _ = scattered()
    with pytest.raises(ValueError, match="request N has nothing stored; prefill it first"):
        GatherPicture(bench, bench.start("Tea is ready .", "N"))
    large = Workbench(num_blocks=9, block_size=4)
    with pytest.raises(ValueError, match="the pool has 36 slots; a picture has room for 32"):
        GatherPicture(large, large.start("Tea is ready .", "N"))
