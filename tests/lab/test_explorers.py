"""The block-size slider: what it shows is what the manager does, and turning it redraws the picture."""

from xml.etree import ElementTree

import pytest

from minikv import BlockTable, KVCacheManager
from minikv.lab.explorers import SIZES, BlockSizeExplorer, block_costs

LENGTHS = [1, 15, 16, 17, 30, 64, 200]


@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 256])
def test_the_costs_are_those_of_the_manager(block_size):
    manager = KVCacheManager(sum(LENGTHS), block_size)
    tables = [BlockTable(block_size) for _ in LENGTHS]
    for table, length in zip(tables, LENGTHS, strict=True):
        assert manager.allocate(table, length)
    empty = sum(table.capacity for table in tables) - sum(LENGTHS)
    costs = block_costs(LENGTHS, block_size)
    assert costs.entries * len(LENGTHS) == pytest.approx(manager.allocated_blocks)
    assert costs.empty * len(LENGTHS) == pytest.approx(empty)
    assert costs.share == pytest.approx(empty / (manager.allocated_blocks * block_size))


def test_the_two_costs_pull_in_opposite_directions():
    costs = [block_costs(LENGTHS, size) for size in (1, 4, 16, 64, 256)]
    assert [each.entries for each in costs] == sorted((each.entries for each in costs), reverse=True)
    assert [each.share for each in costs] == sorted(each.share for each in costs)
    assert costs[0].empty == 0


def test_turning_the_slider_redraws_the_picture():
    explorer = BlockSizeExplorer({"some": LENGTHS, "short": [3, 4, 5]})
    before = explorer.picture.value
    assert "Block size 16" in before
    explorer.slider.value = 256
    assert explorer.picture.value != before
    assert "Block size 256" in explorer.picture.value
    explorer.workload.value = "short"
    assert explorer.costs == block_costs([3, 4, 5], 256)
    assert explorer.costs.share > 0.98
    assert repr(explorer).startswith("Block size 256, short: On average a request leaves 252.0 slots")


@pytest.mark.parametrize("size", SIZES)
def test_every_picture_is_well_formed_and_stays_inside_its_frame(size):
    explorer = BlockSizeExplorer({"some": LENGTHS}, block_size=size)
    root = ElementTree.fromstring(explorer.to_svg())
    width = float(root.get("viewBox").split()[2])
    boxes = root.iter("{http://www.w3.org/2000/svg}rect")
    assert all(float(box.get("x", 0)) + float(box.get("width")) <= width for box in boxes)
    assert len(explorer.to_svg()) < 25_000


def test_without_a_kernel_there_is_a_picture_and_a_sentence():
    data = BlockSizeExplorer({"some": LENGTHS})._repr_mimebundle_()
    assert data["text/html"].startswith('<img alt="Block size 16, some: On average')
    assert data["text/plain"].startswith("Block size 16, some")
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize(("lengths", "size"), [([], 16), ([0, 3], 16), ([3], 0)])
def test_nonsense_is_refused(lengths, size):
    with pytest.raises(ValueError, match="at least 1"):
        block_costs(lengths, size)
