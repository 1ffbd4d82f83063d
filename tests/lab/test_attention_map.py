"""The recorder reads as the gather does, and its weights are what the words got."""

import pytest
import torch

from minikv.attention import gather
from minikv.lab.attention_map import (
    AttentionRecorder,
    Head,
    hidden_on_new_ledgers,
    on_new_ledgers,
    with_a_block_hidden,
)
from minikv.lab.stand_in import scatter
from minikv.lab.workbench import Workbench

PROMPT = "Tea is ready . Bo has two gold cups . Ada has three red kites . What does Bo have ?"


def scattered(look):
    bench = Workbench(num_blocks=9, block_size=4, backend=look)
    scatter(bench)
    return bench


@pytest.fixture
def asked():
    """A request that has just said "two"."""
    look = AttentionRecorder()
    bench = scattered(look)
    request = bench.start(PROMPT, "R")
    bench.prefill(request), bench.step(request), bench.step(request)
    return look, bench, request


@pytest.mark.parametrize("num_new", [1, 3])
def test_it_reads_as_the_gather_does(asked, num_new):
    _, bench, request = asked
    q = torch.randn(1, num_new, bench.model.num_heads, bench.model.head_dim)
    tables, lengths = [request.table], [request.num_stored]
    for layer in range(bench.model.num_layers):
        ours = AttentionRecorder()(q, bench.pool, layer, tables, lengths, 0.2)
        assert torch.allclose(ours, gather.attend(q, bench.pool, layer, tables, lengths, 0.2), atol=1e-6)


def test_a_batch_of_two_lengths_and_what_it_says():
    with_it, without = (Workbench(16, 4, backend=each) for each in (AttentionRecorder(), "gather"))
    said = []
    for bench in (with_it, without):
        a, b = bench.start(PROMPT), bench.start("Ada has three red kites . Ada has")
        bench.prefill(a), bench.prefill(b)
        said.append([bench.step(a, b) for _ in range(3)])
    assert said[0] == said[1]


def test_weights_add_up_to_one_and_blocks_to_the_same(asked):
    look, _, request = asked
    weights = look.weights()
    assert weights.shape == (4, 4, request.num_stored)
    assert torch.allclose(weights.sum(-1), torch.ones(4, 4), atol=1e-5)
    shares = look.by_block(request, Head(1, 1, 0.0))
    assert list(shares) == list(request.table.block_ids)
    assert sum(shares.values()) == pytest.approx(1)


def test_the_answer_lights_up_the_block_that_holds_the_fact(asked):
    look, _, request = asked
    head = look.strongest(6)
    assert (head.layer, head.weight > 0.9) == (1, True)
    shares = look.by_block(request, head)
    assert max(shares, key=shares.get) == request.table.block_ids[1]


def test_some_head_of_layer_1_finds_the_word_on_every_ledger():
    weights = on_new_ledgers(count=10, seed=3)
    assert weights.shape == (10, 4, 4)
    assert weights[:, 1].amax(1).min() > 0.9
    assert weights[:, 1].min() < 0.5  # no head does it always
    assert weights[:, 0].max() < 0.1


def test_a_hidden_block_changes_the_answer_where_it_holds_a_word_of_it():
    hidden = hidden_on_new_ledgers(count=12, seed=3)
    assert len(hidden) == 12 * 5  # of 23 words, all whole blocks of 4
    assert {each.changed for each in hidden if not each.holds} == {False}
    assert sum(each.changed for each in hidden if each.holds) >= 0.9 * sum(each.holds for each in hidden)


@pytest.mark.parametrize(
    ("index", "answer"),
    [(0, "two gold cups ."), (1, "three red kites ."), (2, "two gold kites ."), (3, "two gold cups .")],
)
def test_hiding_a_block_hides_what_it_holds(index, answer):
    assert with_a_block_hidden(scattered, PROMPT, index) == f"Bo has {answer}"


def test_a_hidden_block_gets_no_weight(asked):
    look, bench, request = asked
    look.hidden.add(request.table.block_ids[1])
    bench.step(request)
    assert look.weights()[:, :, 4:8].abs().max() == 0


def test_text_and_picture_show_every_word_with_its_offset(asked):
    look, bench, request = asked
    bench.slide(request, 6)
    bench.step(request)
    picture = look.picture(bench, request, look.strongest(0))
    words = [bench.model.text([token]) for token in request.token_ids[6 : request.num_stored]]
    assert [word for block in picture.blocks for word in block.words] == words
    assert [len(block.words) for block in picture.blocks] == [2, 4, 4, 4, 4]
    svg = picture.to_svg()
    assert all(f">{word}</text>" in svg for word in words)
    assert picture.title.endswith("at the step that says 'gold'")


def test_input_that_is_refused(asked):
    look, bench, request = asked
    with pytest.raises(IndexError, match="23"):
        look.strongest(99)
    with pytest.raises(ValueError, match="no step"):
        AttentionRecorder().weights()
    look.hidden.update(range(9))
    with pytest.raises(ValueError, match="hidden"):
        bench.step(request)
