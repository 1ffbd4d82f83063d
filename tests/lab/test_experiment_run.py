"""The experiment: what its moments say is what the event log says, and all slots are accounted for."""

import pytest
import torch

from minikv.lab.event_log import EventLog
from minikv.lab.experiment_limit import CACHES
from minikv.lab.experiment_run import Ask, Experiment, Scene, run
from minikv.lab.experiment_scenes import LATE, SCENES, SIX, questions
from minikv.sim.split import Split

TALK = "Ada has three red kites . What does Ada have ?"  # 11 tokens


def by_the_log(log, block_size):
    """(blocks held, tokens stored by those who hold them) at each run of the model, from the events alone.

    A run of the model ends with the reads of all who took part; the first of them is where we look.
    """
    held, tokens, moments, reading = {}, {}, [], False
    for event in log:
        name = event.get("request")
        if event["op"] == "allocate":
            held.setdefault(name, set()).add(event["block_id"])
        elif event["op"] == "drop":
            held[name].discard(event["block_id"])
        elif event["op"] == "write":
            tokens[name] = event["start"] + len(event["slots"])
        if event["op"] == "read" and not reading:
            holders = {request: blocks for request, blocks in held.items() if blocks}
            moments.append(
                (sum(map(len, holders.values())) * block_size, sum(tokens[request] for request in holders))
            )
        reading = event["op"] in ("read", "token", "finish", "drop", "release") and (
            reading or event["op"] == "read"
        )
    return moments


@pytest.mark.parametrize("name", SCENES)
def test_moments_are_those_of_the_log(name):
    experiment = Experiment(SCENES[name], log=EventLog())
    outcome = experiment.to_the_end()
    assert [(m.slots, m.tokens) for m in outcome.moments] == by_the_log(experiment.log, 4)
    assert experiment.log.violations == ()
    experiment.engine.check()


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("scene", [SCENES["reuse"], Scene("q", questions(24, 32, seed=1), 64)])
def test_every_slot_is_in_one_state_at_every_moment(cache, scene):
    outcome = run(scene, **CACHES[cache])
    for moment in outcome.moments:
        split = outcome.split(moment)
        assert min(split) >= 0
        assert split.total == outcome.slots
    assert outcome.mean_split.total == pytest.approx(100)
    held = outcome.mean_split
    assert held.tokens + held.reserved + held.internal == pytest.approx(100 * outcome.mean_held)
    assert held.tokens == pytest.approx(100 * outcome.mean_tokens)


def test_the_kinds_of_slots_by_hand():
    """A prompt of 11 and an answer of 3: 13 tokens. Step 1 has 11 of them, step 3 all."""
    ask = Ask(TALK, 3)
    paged = run(Scene("one", (ask,), 8))
    assert [paged.split(m) for m in paged.moments] == [
        Split(11, 1, 0, 0, 20),  # 3 blocks; one slot to be filled
        Split(12, 0, 0, 0, 20),
        Split(13, 0, 3, 0, 16),  # 4 blocks; 3 slots never
    ]
    generous = run(Scene("one", (Ask(TALK, 12, stop="kites"),), 8), cache="contiguous")
    assert generous.texts == ("Ada has three red kites",)  # 5 tokens: 15 stored of 22
    assert generous.split(generous.moments[0]) == Split(11, 4, 7, 0, 10)
    assert generous.split(generous.moments[-1]) == Split(15, 0, 7, 0, 10)


def test_free_memory_in_pieces_is_external_fragmentation():
    """20 slots: A, B and C hold 6 each. A and C end: 14 are free, in holes of 6 and 8, and D wants 14."""
    short, long = Ask("Tea is ready .", 3), Ask("Tea is", 5)
    asks = (short, long, short, Ask(TALK, 4, at=2))
    outcome = run(Scene("pieces", asks, 5), cache="contiguous")
    # Steps 1-3: 18 held, 2 free, and D does not wait for pieces; 4 and 5: only B, 6 held.
    found = [(m.free, m.external, m.waiting) for m in outcome.moments[:5]]
    assert found == [(2, 0, 0), (2, 0, 1), (2, 0, 1), (0, 14, 1), (0, 14, 1)]
    assert outcome.counts["success"] == 4


def test_headroom_counts_when_memory_is_in_pieces():
    """48 slots: A takes its longest, 13, and B 2 + 16. D wants 11 + 16. When A has ended after 12 steps, 30
    are free, in holes of 13 and 17: enough for 27, and each large enough for D's tokens, but not for both."""
    asks = (Ask("Tea is", 12), Ask("Tea is", 30), Ask(TALK, 30, at=2))
    outcome = run(Scene("pieces", asks, 12), cache="contiguous", reserve="grow")
    found = [(moment.free, moment.external, moment.waiting) for moment in outcome.moments[:17]]
    assert found == [(17, 0, 0)] + [(17, 0, 1)] * 11 + [(0, 30, 1)] * 5


def test_growing_moves_tokens_and_max_never_does():
    asks = (Ask(TALK, 60), Ask(TALK, 60))
    grow = run(Scene("two", asks, 64), cache="contiguous", reserve="grow")
    assert grow.tokens_moved > 0
    assert run(Scene("two", asks, 64), cache="contiguous").tokens_moved == 0
    assert run(Scene("two", asks, 64)).tokens_moved == 0
    assert grow.texts == run(Scene("two", asks, 64)).texts


def test_those_who_come_later_come_later():
    experiment = Experiment(Scene("late", (Ask("Tea is ready .", 2), Ask("Tea is ready .", 2, at=9)), 8))
    outcome = experiment.to_the_end()
    first, second = experiment.requests
    assert (first.arrived, first.ended_at) == (0.0, 0.2)
    assert (second.arrived, second.first_token_at, second.ended_at) == (0.8, 0.9, 1.0)
    assert outcome.steps == 4  # nobody is there in between, and no step is taken
    assert outcome.ttft == pytest.approx(0.1)


def test_a_time_out_is_exact():
    """An answer of 12 tokens takes 12 steps of 0.1 s: in time at 1.2 s, late at 1.1 s."""
    ask = (Ask(TALK, 12),)
    assert run(Scene("one", ask, 8, timeout=1.2)).counts["success"] == 1
    late = run(Scene("one", ask, 8, timeout=1.1))
    assert (late.counts["timeout"], late.free, late.num_tokens) == (1, 8, 11)
    assert late.texts == ("Ada has three red kites . What does Ada have ?",)


@pytest.mark.parametrize("threads", [1, 2])
def test_it_leaves_the_number_of_threads_as_it_was(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert run(SCENES["too large"]).counts["success"] == 2
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_backends_say_the_same():
    assert run(SCENES["reuse"], attention="cpu").texts == run(SCENES["reuse"]).texts


def test_what_it_prints():
    experiment = Experiment(SCENES["reuse"])
    assert repr(experiment) == (
        "Experiment('pool full, then reuse', paged, Engine(paged, 0 running, 0 waiting))"
    )
    experiment.step()
    assert repr(experiment).endswith("Engine(paged, 5 running, 1 waiting))")
    said = repr(experiment.to_the_end())
    assert said == "paged, 16 blocks: peak 16, free at the end 16; success 6, oom 0, timeout 0, preempted 5"


def test_nothing_asked_is_nothing_done():
    outcome = run(Scene("empty", (), 4))
    assert (outcome.steps, outcome.max_allocated, outcome.free, outcome.ttft) == (0, 0, 4, None)
    assert outcome.mean_held == outcome.mean_tokens == 0


def test_questions_are_the_same_each_time_and_answered_in_six_tokens():
    assert questions(9, 32) == questions(20, 32)[:9] != questions(9, 32, seed=1)
    assert [a.prompt for a in questions(9, 32)] == [a.prompt for a in questions(20, 96)][:9]
    outcome = run(Scene("q", questions(9, 32), 256))
    assert outcome.num_tokens == 9 * 6
    for ask, text in zip(outcome.scene.asks, outcome.texts, strict=True):
        assert text in ask.prompt  # a statement of the ledger


def test_the_late_scene_without_a_fault():
    outcome = run(LATE)
    assert (outcome.counts["success"], outcome.counts["timeout"], outcome.free) == (2, 1, 6)
    assert outcome.texts[1:] == ("Bo has two gold cups .", "Ada has three red kites .")


def test_the_six_go_on_to_their_limits():
    outcome = run(SCENES["far larger"])
    assert [len(text.split()) for text in outcome.texts] == [ask.limit for ask in SIX]
