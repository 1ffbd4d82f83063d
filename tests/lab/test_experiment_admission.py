"""Rules for who may begin: what is certain of a decision, and what becomes of a rule on the engine."""

import random

import pytest

from minikv.lab.exercises import check, get, solution
from minikv.lab.exercises.experiment import admit, closest
from minikv.lab.experiment_admission import (
    admitting,
    bounds,
    most_together,
    three_rules,
    try_admission,
)
from minikv.lab.experiment_run import Scene, run
from minikv.lab.experiment_scenes import SCENES, SIX


def step_by_step(pairs, block_size):
    """The most blocks at once, by playing it: a token a step for each; at its longest, it leaves."""
    going, most = [list(pair) for pair in pairs], 0
    while going:
        most = max(most, sum((stored + block_size - 1) // block_size for stored, _ in going))
        going = [[stored + 1, longest] for stored, longest in going if stored < longest]
    return most


def test_the_most_blocks_at_once():
    assert most_together([(11, 22)], 4) == 6
    assert most_together([(5, 8), (5, 8)], 4) == 4
    assert most_together([(1, 8), (8, 8)], 4) == 3  # the second leaves when the first has come to 1
    rng = random.Random(1)
    for _ in range(300):
        size = rng.choice((1, 4, 16))
        pairs = [(rng.randint(1, n), n) for n in (rng.randint(1, 40) for _ in range(rng.randint(1, 5)))]
        assert most_together(pairs, size) == step_by_step(pairs, size)


def test_the_two_bounds():
    found = bounds((1, 8), [(8, 8)], 4)
    assert found == (3, 4)
    assert found.fault(True, 2) == (
        "in some step to come they may need 3 blocks, and there are 2: one would have to make room"
    )
    assert found.fault(True, 3) is None
    assert found.fault(False, 3) is None  # between the two, either answer will do
    assert "it waits without need" in found.fault(False, 4)


@pytest.mark.parametrize("rule", [admit, closest])
@pytest.mark.parametrize("blocks", [11, 13, 16, 24])
def test_rules_that_keep_the_promise(rule, blocks):
    outcome = admitting(rule, Scene("six", SIX, blocks))
    assert outcome.counts["preempted"] == 0
    assert outcome.counts["success"] == 6


def test_everybody_may_is_what_the_engine_does_by_itself():
    outcome = admitting(lambda *given: True, SCENES["reuse"])
    assert outcome.texts == run(SCENES["reuse"]).texts
    assert outcome.counts == run(SCENES["reuse"]).counts


def test_a_good_rule_is_told_so():
    tried = try_admission(admit)
    assert tried.first is None
    assert "In this scene nobody had to make room, and nobody waited without need." in repr(tried)
    assert repr(tried).endswith('check("10.admit", …) judges.')
    assert tried.outcome.counts["preempted"] == 0


def test_the_first_wrong_decision_is_shown():
    tried = try_admission(lambda *given: True)
    assert tried.first.sentence.startswith(
        "The rule lets in request C, but in some step to come they may need 18"
    )
    assert tried.log[tried.first.step]["op"] == "note"
    assert tried.map().step == tried.first.step
    assert tried.outcome.counts["preempted"] == 5


def test_to_wait_without_need_is_wrong_too():
    tried = try_admission(lambda newcomer, running, num_blocks, block_size: not running)
    assert "keeps out request C" in tried.first.sentence or "keeps out request B" in tried.first.sentence
    assert "without need" in tried.first.sentence


@pytest.mark.parametrize("mistake", [name for name, _ in get("10.admit").wrong])
def test_wrong_rules_run_and_are_shown(mistake):
    """On the engine, too, whatever they do; those that only break on other lengths may look right here."""
    tried = try_admission(dict(get("10.admit").wrong)[mistake])
    assert repr(tried)
    tried.map().to_text()


def test_an_untouched_starter_does_not_run():
    def admit(newcomer, running, num_blocks, block_size):
        return ...

    tried = try_admission(admit)
    assert repr(tried) == "admit is not written yet."
    assert tried.outcome is None


def test_a_rule_that_raises_is_shown():
    def admit(newcomer, running, num_blocks, block_size):
        if running:
            raise KeyError("lengths")
        return True

    assert "the run stops with KeyError: 'lengths'" in repr(try_admission(admit))


@pytest.mark.parametrize("nonsense", [None, 3, True, type])
def test_only_functions_are_tried(nonsense):
    with pytest.raises(TypeError, match="takes a function"):
        try_admission(nonsense)


def test_a_promise_costs_time():
    """Sums by hand are in no one's head here, but the order is certain."""
    table = three_rules(SCENES["reuse"])
    now, longest, steps = table.rows
    assert (now[1], longest[1], steps[1]) == (5, 0, 0)
    assert now[-2] < steps[-2] < longest[-2]  # steps in all
    assert now[-1] < steps[-1] < longest[-1]  # seconds to the first token


def test_the_printed_solution_passes_where_nothing_else_is_imported():
    scope = {}
    exec(get("10.admit").solution, scope)
    assert check("10.admit", scope["admit"]).ok


def test_a_careless_rule_is_shown_a_growth_that_it_did_not_see():
    def spare_block(newcomer, running, num_blocks, block_size):
        return sum(-(-stored // block_size) + 1 for stored, _ in [*running, newcomer]) <= num_blocks

    said = check("10.admit", spare_block).message
    assert "running [(4, 20)], a pool of 5 blocks with 4 slots each" in said
    assert "may need 10 blocks, and there are 5" in said


def test_the_solution_is_code_and_both_its_rules_pass():
    scope = {}
    exec(str(solution("10.admit")), scope)
    assert check("10.admit", scope["admit"]).ok
    assert check("10.admit", scope["closest"]).ok
