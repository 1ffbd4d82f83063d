"""Where a step's time goes: the parts add up, a step leaves no trace, the blocks lie scattered."""

from xml.etree import ElementTree

import pytest

from minikv import KVCacheManager
from minikv.gpt2 import GPT2
from minikv.lab.step_share import Split, StepBars, StepScene, a_sixth_of_gpt2, shuffle_free_blocks


@pytest.fixture(scope="module")
def scene():
    return StepScene(70, requests=2)


def test_the_model_has_gpt2s_proportions():
    model = a_sixth_of_gpt2(64)
    assert (model.num_layers, model.width, model.num_heads, model.head_dim) == (2, 768, 12, 64)
    assert model.vocab_size == 50_257 * 2 // 12


def test_the_same_step_again_and_again_through_every_backend(scene):
    before = [(list(r.token_ids), r.num_stored, r.table.block_ids) for r in scene.requests]
    chosen = {tuple(scene.step(backend)) for backend in ("gather", "cpu", "reference", "gather")}
    assert len(chosen) == 1
    assert [(r.token_ids, r.num_stored, r.table.block_ids) for r in scene.requests] == before


def test_the_parts_are_all_of_it_and_a_kernel_has_no_gather(scene):
    gathered, lean, fused = scene.split("gather", "lean gather", "cpu", rounds=2)
    for split in (gathered, lean, fused):
        assert split.attention > 0 and split.rest > 0
        assert sum(split.percent.values()) == pytest.approx(100)
    for split in (gathered, lean):
        assert split.gather > 0 and 0 < split.share < 1
    assert fused.gather == fused.share == 0
    assert "read_layer" not in vars(scene.pool)  # nothing is watched any more


def test_blocks_lie_scattered(scene):
    ids = scene.requests[0].table.block_ids
    assert list(ids) != sorted(ids)
    manager = KVCacheManager(9, 4)
    shuffle_free_blocks(manager)
    assert sorted(manager.free_queue) == list(range(9)) != list(manager.free_queue)
    manager.check()


@pytest.mark.parametrize(("tokens", "requests"), [(0, 1), (4, 0)])
def test_nothing_stored_is_refused(tokens, requests):
    with pytest.raises(ValueError, match="both must be at least 1"):
        StepScene(tokens, requests)


def test_more_than_the_context_is_refused():
    tiny = GPT2.from_pretrained(device="cpu")
    with pytest.raises(ValueError, match=f"tokens is {tiny.context}; .* context of {tiny.context}"):
        StepScene(tiny.context, model=tiny)


def test_an_unknown_backend_is_refused(scene):
    with pytest.raises(ValueError, match="backend 'none' is unknown; there are 'reference'"):
        scene.split("none")


def test_bars_say_what_they_show():
    bars = StepBars("Steps", {"long": Split(6.0, 1.0, 3.0), "short": Split(0.0, 1.0, 1.0)})
    assert repr(bars).splitlines()[2].split() == ["long", "60", "10", "30", "10.0"]
    svg = bars.to_svg()
    ElementTree.fromstring(svg)
    assert "10.0 ms<" in svg and "60 %" in svg


def test_a_part_too_narrow_for_its_number_is_told_behind_the_bar():
    svg = StepBars("Steps", {"long": Split(30.0, 0.5, 9.5), "fused": Split(0.0, 10.0, 10.0)}).to_svg()
    assert "40.0 ms, attention 1 %<" in svg
    assert "20.0 ms<" in svg and "gather 0 %" not in svg  # a part that is not there has no number
