"""Words are read out of the pool's tensor itself, those of requests that are gone as well."""

import pytest
import torch

from minikv import BlockPool
from minikv.lab import Workbench
from minikv.lab.memory_words import NOTHING, words_in_memory, words_of_keys

OLD = "The shop opens at noon . Bo has nine black horses ."
NEW = "Ada has three red kites ."


def one_after_the_other():
    bench = Workbench(num_blocks=2, block_size=8)
    first = bench.start(OLD, "S")
    bench.prefill(first)
    bench.finish(first)
    second = bench.start(NEW, "B")
    bench.prefill(second)
    return bench, second


def test_each_slot_says_what_the_log_says():
    bench = Workbench(num_blocks=3, block_size=4)
    bench.ask("Ada has three red kites . What does Ada", max_new_tokens=2)
    words, state = words_in_memory(bench.pool, bench.model), bench.log.state(len(bench.log) - 1)
    for block_id in range(3):
        told = [word or NOTHING for word in state.words_in(block_id)]
        assert list(words.in_block(block_id)) == told
    assert words.left_over == ()


def test_old_words_stay_behind_and_are_told_apart():
    bench, request = one_after_the_other()
    assert request.table.block_ids == (1,)
    words = words_in_memory(bench.pool, bench.model)
    assert words.in_block(1)[:6] == tuple(NEW.split())
    assert words.left_over == tuple(
        OLD.split()[:8]
    )  # block 0 is free; nothing is left in the rest of block 1
    assert repr(words).splitlines()[0].split() == ["block", "0", *(f"[{word}]" for word in OLD.split()[:8])]
    assert "not marked as written" in repr(words)
    assert repr(words).splitlines()[-1] == "·: no word's key"


def test_the_same_word_at_another_position_is_that_word():
    bench = Workbench(num_blocks=2, block_size=8)
    bench.prefill(bench.start("Bo has two gold cups . Bo has two", "A"))
    assert words_in_memory(bench.pool, bench.model).in_block(0)[6:] == ("Bo", "has")


def test_what_is_no_key_is_no_word():
    model = Workbench().model
    keys = torch.full((2, model.num_heads, model.head_dim), 100.0)
    assert words_of_keys(keys, model) == (NOTHING, NOTHING)
    assert words_of_keys(keys * float("nan"), model) == (NOTHING, NOTHING)
    assert words_of_keys(keys[:0], model) == ()


def test_a_pool_of_another_model_is_refused():
    with pytest.raises(ValueError, match="the pool keeps 1 heads × 8, the model makes 4 × 32"):
        words_in_memory(BlockPool(2, 4, 1, 1, 8), Workbench().model)


@pytest.mark.parametrize("block_id", [-1, 2])
def test_a_block_outside_is_refused(block_id):
    bench, _ = one_after_the_other()
    with pytest.raises(IndexError, match=rf"block {block_id} is outside \[0, 2\)"):
        words_in_memory(bench.pool, bench.model).in_block(block_id)
