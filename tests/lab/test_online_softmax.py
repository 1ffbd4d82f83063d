"""The online softmax against the plain one, in float64; and its picture against sums done by hand."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch

from minikv.attention import paged_attention
from minikv.block_table import BlockTable
from minikv.gpt2 import GPT2
from minikv.lab import Workbench
from minikv.lab.online_picture import OnlinePicture, Shown, stages
from minikv.lab.online_softmax import Partial, ScoreRecorder, merge, merged, reading, seen
from minikv.lab.stand_in import scatter
from minikv.pool import BlockPool

PROMPT = "Ada has three red kites . Bo has two gold cups . Tell me what Bo has ."


@pytest.fixture(scope="module")
def model():
    return GPT2.from_pretrained(device="cpu")


def all_at_once(q, k, v, scale):
    """Attention by the book, in float64."""
    scores = (torch.einsum("hd,htd->ht", q.double(), k.double()) * scale).softmax(-1)
    return torch.einsum("ht,htd->hd", scores, v.double())


def random_words(tokens, heads=3, head_dim=8, seed=0):
    made = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(heads, head_dim, generator=made), *torch.randn(
        2, heads, tokens, head_dim, generator=made
    )


@pytest.mark.parametrize("cuts", [(), (1,), (7,), (3, 5), (1, 2, 3, 4, 5, 6, 7)])
def test_wherever_it_is_cut_the_result_is_that_of_one_softmax(cuts):
    q, k, v = random_words(8)
    ends = [0, *cuts, 8]
    parts = [seen(q, k[:, a:b], v[:, a:b], 0.5) for a, b in pairwise(ends)]
    torch.testing.assert_close(merged(parts).double(), all_at_once(q, k, v, 0.5), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(merged(parts[::-1]), merged(parts), atol=1e-6, rtol=1e-5)


def test_merging_is_associative_and_keeps_what_it_is_given():
    q, k, v = random_words(9)
    a, b, c = (seen(q, k[:, i : i + 3], v[:, i : i + 3], 1.0) for i in (0, 3, 6))
    before = [each.clone() for each in a]
    for left, right in zip(merge(merge(a, b), c), merge(a, merge(b, c)), strict=True):
        torch.testing.assert_close(left, right)
    assert all(old.equal(new) for old, new in zip(before, a, strict=True))


def test_scores_that_no_power_can_hold():
    a = Partial(torch.tensor([200.0]), torch.tensor([1.0]), torch.tensor([[5.0]]))
    b = Partial(torch.tensor([-200.0]), torch.tensor([1.0]), torch.tensor([[7.0]]))
    assert merge(a, b).result.item() == merge(b, a).result.item() == 5.0


# ---- as a backend ------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
@pytest.mark.parametrize("num_new", [1, 3])
def test_as_a_backend_it_reads_what_the_gather_reads(heads, kv_heads, num_new):
    made = torch.Generator().manual_seed(1)
    pool = BlockPool(8, 4, 2, kv_heads, 8)
    tables, lengths = [], [9, 4, 0]
    free = iter((5, 2, 7, 0, 3, 6))
    for length, offset in zip(lengths, (2, 0, 0), strict=True):
        table = BlockTable(4, offset)
        while table.capacity < length:
            table.append_block(next(free))
        if length:
            k, v = torch.randn(2, length, kv_heads, 8, generator=made)
            pool.write(1, table.slots(0, length), k, v)
        tables.append(table)
    q = torch.randn(3, num_new, heads, 8, generator=made)
    ours = paged_attention(q, pool, 1, tables, lengths, backend=reading(merged))
    theirs = paged_attention(q, pool, 1, tables, lengths, backend="reference")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert not ours[2].any()  # nothing stored


def average(parts):
    return torch.stack([part.result for part in parts]).mean(0)


@pytest.mark.parametrize(
    ("combine", "said"), [(merged, "Bo has two gold cups ."), (average, "Bo has three red kites .")]
)
def test_a_softmax_per_block_makes_the_model_say_something_false(model, combine, said):
    bench = Workbench(5, 8, model=model, backend=reading(combine))
    scatter(bench)
    assert bench.ask(PROMPT) == said


def test_the_scores_are_those_of_the_newest_word(model):
    look = ScoreRecorder()
    with pytest.raises(ValueError, match="layer 1 was not read yet"):
        look.scores(1, 0)
    bench = Workbench(5, 8, model=model, backend=look)
    request = bench.start(PROMPT)
    bench.prefill(request), bench.step(request), bench.step(request)
    words = [model.text([token]) for token in request.token_ids]
    scores = look.scores(1, 2)
    assert len(scores) == request.num_stored
    assert words[scores.index(max(scores))] == "two"


def test_in_the_other_order_the_same_mean_may_be_lucky(model):
    bench = Workbench(5, 8, model=model, backend=reading(average))
    scatter(bench)
    said = bench.ask("Bo has two gold cups . Ada has three red kites . Tell me what Bo has .")
    assert said == "Bo has two gold cups ."


# ---- the picture ---------------------------------------------------------------------------------

BLOCKS = [Shown(0, ("a", "b"), (0, 1), (3, 6)), Shown(4, ("c",), (3,), (16,))]


def test_the_stages_are_those_of_the_sum_by_hand():
    first, second = stages(BLOCKS, base=2)
    assert (first.best, first.shrink, first.total, first.mixed) == (1, None, 1.5, 7.5)
    assert first.weights == [[0.5, 1.0]]
    assert (second.best, second.shrink, second.total, second.mixed) == (3, 0.25, 1.375, 17.875)
    assert second.weights == [[0.125, 0.25], [1.0]]
    assert (first.result, second.result) == (5, 13)


def test_with_e_and_without_values():
    found = stages([Shown(0, ("a",), (2.0,)), Shown(1, ("b", "c"), (1.0, 0.0))])
    assert found[1].shrink == 1 and found[1].result is None
    assert found[1].total == pytest.approx(1 + math.exp(-1) + math.exp(-2))


def test_picture_and_text_say_the_same():
    picture = OnlinePicture("three words", BLOCKS, base=2)
    svg = picture.to_svg()
    ElementTree.fromstring(svg)
    for said in ("after P0: best 1", "what was kept × 0.25", "result 13"):
        assert said in repr(picture) and said in svg
    assert svg.count("not seen") == 1
    assert svg == OnlinePicture("three words", BLOCKS, base=2).to_svg()


def test_tiny_factors_are_not_called_zero():
    picture = OnlinePicture("far apart", [Shown(0, ("a",), (0.0,)), Shown(1, ("b",), (8.0,))])
    assert "what was kept × 0.0003" in repr(picture)
