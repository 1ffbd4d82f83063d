"""Blocks that sharing saves, counted live: by hand for one prompt, by the simulator for many."""

import pytest

from minikv.engine.engine import Engine
from minikv.lab.shared_blocks import SharedBlocks, prompt_of, saved_by
from minikv.lab.workbench import tiny_gpt2
from minikv.sim.sharing import parallel_sampling
from minikv.sim.workload import ALPACA, lognormal


def count(prompt=40, new=24, block_size=16, **how):
    engine = Engine(tiny_gpt2(), 32, block_size, attention="gather")
    engine.submit(prompt_of(prompt, seed=1), new, ignore_eos=True, seed=0, **how)
    return SharedBlocks(engine).run()


def test_four_samples_share_the_full_blocks_of_the_prompt():
    counts = count(n=4, temperature=1.0).counts
    assert counts[0] == (
        12,
        3,
    )  # the prompt is stored: two full blocks and a half-full one, listed four times
    assert counts[1:9] == [(12, 6)] * 8  # 41 to 48 words: a last block each
    assert counts[9:23] == [(16, 10)] * 14
    assert counts[23:] == [(0, 0)]


def test_beams_list_as_many_and_hold_fewer():
    samples, beams = count(n=4, temperature=1.0), count(beam_width=4)
    assert [c.listed for c in samples.counts] == [c.listed for c in beams.counts]
    assert beams.saved > samples.saved > 0
    assert samples.saved == pytest.approx(1 - (3 + 8 * 6 + 14 * 10) / (12 * 9 + 16 * 14))


def test_one_sequence_saves_nothing():
    assert count().saved == 0
    assert SharedBlocks(Engine(tiny_gpt2(), 4, attention="gather")).saved == 0


@pytest.mark.parametrize("samples", [2, 5])
def test_many_requests_save_what_the_simulator_says(samples):
    requests = list(lognormal(ALPACA, 1, 8, seed=3, max_length=80))
    live = saved_by(tiny_gpt2(), requests, samples=samples, block_size=8)
    assert live == pytest.approx(parallel_sampling(requests, samples, 8), abs=0.02)


def test_the_plot_leaves_out_the_last_step():
    text = repr(count(n=2, new=4, temperature=1.0).plot("Two"))
    assert text.startswith("Two\nstep") and len(text.splitlines()) == 2 + 3


@pytest.mark.parametrize("length", [1, 7, 40])
def test_prompts_are_as_long_as_asked_and_known_to_the_model(length):
    assert len(tiny_gpt2().tokenizer.encode(prompt_of(length, seed=length))) == length
    assert prompt_of(length, 5) == prompt_of(length, 5)
