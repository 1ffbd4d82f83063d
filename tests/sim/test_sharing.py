"""Sharing between the continuations of one prompt: counted by hand, and against the sequences themselves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikv.block_table import BlockTable
from minikv.manager import KVCacheManager
from minikv.sim import sharing
from minikv.sim.sharing import beam_search, parallel_sampling, reselect
from minikv.sim.workload import ALPACA, Request, lognormal

REQUEST = st.builds(Request, st.just(0.0), st.integers(1, 20), st.integers(1, 20))


def test_two_samples_by_hand() -> None:
    """Block size 4, a prompt of 6, 4 tokens each. Stored 6: 2 + 2 blocks listed, 2 held. 7 and 8: the second
    block has been copied, 3 held. 9: a third block each, 5 held."""
    listed, held = 4 + 4 + 4 + 6, 2 + 3 + 3 + 5
    assert parallel_sampling([Request(0, 6, 4)], 2, 4) == pytest.approx(1 - held / listed)


def test_a_prompt_that_fills_its_blocks_is_shared_to_the_end() -> None:
    """Two blocks of prompt for three samples; then one block each."""
    listed, held = 6 + 9 + 9, 2 + 5 + 5
    assert parallel_sampling([Request(0, 8, 3)], 3, 4) == pytest.approx(1 - held / listed)


def test_one_continuation_shares_nothing() -> None:
    assert parallel_sampling([Request(0, 9, 9)], 1) == 0
    assert beam_search([Request(0, 9, 9)], 1, 0.5) == 0
    assert parallel_sampling([], 4) == 0


@given(requests=st.lists(REQUEST, max_size=4), samples=st.integers(1, 4), block_size=st.integers(1, 9))
def test_block_by_block_is_step_by_step(requests: list[Request], samples: int, block_size: int) -> None:
    slow = sharing._saved(
        requests, samples, block_size, sharing._step_by_step, select=lambda manager, tables: tables
    )
    assert parallel_sampling(requests, samples, block_size) == pytest.approx(slow)


@given(requests=st.lists(REQUEST, max_size=4), width=st.integers(1, 4), block_size=st.integers(1, 9))
def test_beams_that_never_change_are_samples(requests: list[Request], width: int, block_size: int) -> None:
    same = parallel_sampling(requests, width, block_size)
    assert beam_search(requests, width, 0.0, block_size) == pytest.approx(same)


def test_beams_fork_die_and_are_taken_over() -> None:
    manager = KVCacheManager(16, 4)
    beams = [BlockTable(4) for _ in range(3)]
    for beam in beams:
        manager.allocate(beam, 8)
    first, _, third = (beam.block_ids for beam in beams)
    chosen = reselect(manager, beams, [0, 2, 0])
    assert [beam.block_ids for beam in chosen] == [first, third, first]
    assert chosen[0] is beams[0] and chosen[1] is beams[2]
    assert [manager.blocks[b].ref_count for b in (*first, *third)] == [2, 2, 1, 1]
    assert beams[1].block_ids == () and manager.allocated_blocks == 4
    manager.check()


@given(
    width=st.integers(1, 4),
    block_size=st.integers(1, 5),
    prompt=st.integers(1, 9),
    steps=st.integers(1, 15),
    seed=st.integers(0, 99),
)
def test_two_beams_hold_the_same_block_exactly_if_it_has_the_same_tokens(
    width: int, block_size: int, prompt: int, steps: int, seed: int
) -> None:
    """The oracle knows the sequences, each token with a name of its own: blocks are held once for each
    different content that was shared by a fork."""
    rng = random.Random(seed)
    manager = KVCacheManager(200, block_size)
    root = BlockTable(block_size)
    manager.allocate(root, prompt)
    tables = [root, *(manager.fork(root) for _ in range(width - 1))]
    texts = [tuple(range(-prompt, 0))] * width
    for step in range(steps):
        parents = [rng.randrange(width) for _ in range(width)]
        tables = reselect(manager, tables, parents)
        texts = [(*texts[parent], step * width + i) for i, parent in enumerate(parents)]
        for table in tables:
            sharing._write(manager, table, prompt + step)
        contents: dict[int, tuple[int, ...]] = {}
        for table, text in zip(tables, texts, strict=True):
            for i, block in enumerate(table.block_ids):
                assert (
                    contents.setdefault(block, text[: (i + 1) * block_size]) == text[: (i + 1) * block_size]
                )
        assert manager.allocated_blocks == len(contents) == len(set(contents.values()))
        manager.check()


def test_the_same_seed_saves_the_same() -> None:
    requests = list(lognormal(ALPACA, 1, 20))
    saved = [beam_search(requests, 4, 0.3, seed=seed) for seed in (1, 1, 2)]
    assert saved[0] == saved[1] != saved[2]


@pytest.mark.parametrize("turnover", [-0.1, 1.1, float("nan")])
def test_a_chance_is_between_0_and_1(turnover: float) -> None:
    with pytest.raises(ValueError, match=r"turnover is .*; a chance is between 0 and 1"):
        beam_search([], 2, turnover)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 0 continuations"):
        parallel_sampling([], 0)
    with pytest.raises(ValueError, match="block_size is 0"):
        parallel_sampling([Request(0, 1, 1)], 2, 0)
    with pytest.raises(TypeError, match=r"width is 1\.5"):
        beam_search([], 1.5, 0.1)  # type: ignore[arg-type]
