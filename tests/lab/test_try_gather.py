"""A learner's gather at work: judged by where each number lies, and run by the model beside ours."""

import pytest
import torch

from minikv.lab import Workbench, solution
from minikv.lab.exercises import check, get
from minikv.lab.exercises.pool import CASES, OLD, WORDS, fingerprints, words_of
from minikv.lab.try_gather import leave_old_words, try_gather

RIGHT = get("05.gather").right
WRONG = dict(get("05.gather").wrong)

# ---- the judge -------------------------------------------------------------------------------


def test_every_number_is_its_own_address():
    kv = fingerprints()
    assert kv.flatten().tolist() == list(range(1, kv.numel() + 1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_request_has_its_words_in_order_and_the_rest_are_old(case):
    words = words_of(case)
    assert [words[slot] for slot in case.slots] == WORDS[: case.length]
    assert sum(word == old for word, old in zip(words, OLD, strict=True)) >= len(OLD) - case.length


@pytest.mark.parametrize(
    ("mistake", "said", "invariant"),
    [
        (
            "ignores length: what is left over comes along",
            "position 10: length is 10, and here follows 'Eva'",
            "I6",
        ),
        ("ignores the offset", "'Ada' (block 3, place 2) should stand there, but it is 'ready'", "I6"),
        ("K and V change places", "the value of 'Ada' (block 2, place 0), and should be its key", None),
        ("the keys as values, too", "in V is at position 0: it is the key of 'Ada'", None),
        ("always reads layer 0", "'Ada' (block 5, place 0), but of layer 0 and not of layer 1", None),
        ("full blocks only", "position 8: 'two' is missing", None),
        ("tokens first, heads second", "K has the shape [4, 2, 3]; it should be", None),
        ("reads straight on from the first block", "'kites' (block 1, place 0) should stand there", "I6"),
        ("changes the pool", "has changed the pool", None),
    ],
)
def test_the_first_word_that_is_wrong_is_named(mistake, said, invariant):
    verdict = check("05.gather", WRONG[mistake])
    assert said in verdict.message
    assert verdict.invariant == invariant


def right_by_index(kv, layer, block_ids, offset, length):
    slots = [block * kv.shape[4] + place for block in block_ids for place in range(kv.shape[4])]
    row = torch.stack([kv[layer, s // kv.shape[4], :, :, s % kv.shape[4]] for s in slots], dim=2)
    return row[:, :, offset : offset + length]


def test_another_right_way_is_right_too_even_as_one_tensor():
    assert check("05.gather", right_by_index).ok
    assert try_gather(right_by_index).first is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda *call: torch.tensor(1.0),
        lambda *call: torch.zeros(3),
        lambda *call: (1, 2),
        lambda *call: None,
        lambda kv, layer, ids, offset, length: torch.full((2, 2, length, 3), float("nan")),
        lambda kv, layer, ids, offset, length: torch.full((2, 2, length, 3), 0.5),
        lambda kv, layer, ids, offset, length: torch.zeros(2, 2, 0, 3),
    ],
)
def test_odd_answers_are_rejected_and_do_not_raise(answer):
    verdict = check("05.gather", answer)
    assert not verdict.ok and "gather(kv, " in verdict.message


def test_heads_that_change_places_are_seen():
    def swapped_heads(*call):
        return tuple(part.flip(0) for part in RIGHT(*call))

    assert "head 0 has numbers of head 1" in check("05.gather", swapped_heads).message


def test_the_solution_is_code_that_passes():
    scope = {"torch": torch}
    exec(solution("05.gather"), scope)
    assert check("05.gather", scope["gather"]).ok


def test_the_default_variants_are_not_the_examples_of_the_notebook():
    for name in ("05.address", "05.bytes"):
        for seed in range(40):
            exercise = get(f"{name}#{seed}")
            assert exercise.right not in (1088, 1600, 21792, 122_880, 245_760)
            assert len(exercise.wrong) >= 4


# ---- beside ours -----------------------------------------------------------------------------


def test_the_old_words_are_where_the_docstring_says():
    bench = Workbench(num_blocks=8, block_size=4)
    leave_old_words(bench)
    assert bench.manager.free_queue == (7, 2, 1, 0, 4, 3, 6, 5)
    state = bench.log.state(len(bench.log) - 1)
    empty = [block_id for block_id in range(8) if None in state.words_in(block_id)]
    assert empty == [2, 7]


def test_the_solution_reads_as_ours_does():
    tried = try_gather(RIGHT)
    assert tried.first is None
    assert not tried.log.violations
    assert tried.said == "the model says: Bo has two gold cups ."
    assert repr(tried).endswith("Every slot was the right one.")


@pytest.mark.parametrize(
    ("mistake", "invariant", "block", "said"),
    [
        (
            "ignores length: what is left over comes along",
            "I6",
            4,
            "there is the key of “black” (block 4, place 3)",
        ),
        ("pads with zeros to the end of the last block", "I6", 7, "the row should have ended"),
        ("ignores the offset", "I6", 7, "it should be the key of “Ada” (block 7, place 2)"),
        ("skips the offset in every block", "I6", 2, "there is the key of “kites” (block 2, place 2)"),
        ("permutes in the wrong order: the places before the blocks", "I6", 7, "there is the key of “Bo”"),
        (
            "cuts at length before it skips the offset",
            None,
            4,
            "there is nothing; it should be the key of “have”",
        ),
        ("K and V change places", None, 7, "there is the value of “Ada” (block 7, place 2)"),
        ("the keys as values, too", None, 7, "it should be the value of “Ada”"),
        ("always reads layer 0", None, 7, "Layer 1, position 0: there is something that lies nowhere"),
        ("changes the pool", None, 0, "gather has changed block 0"),
    ],
)
def test_the_first_divergence_is_named_and_shown(mistake, invariant, block, said):
    tried = try_gather(WRONG[mistake])
    assert (tried.first.invariant, tried.first.block_id) == (invariant, block)
    assert said in tried.first.sentence
    assert said in " ".join(repr(tried).split())
    shown = tried.map()
    assert (shown.step, shown.highlight) == (tried.first.step, [block])
    assert bool(tried.log.violations) == (invariant is not None)  # the map says what the sentence says


def test_a_wrong_order_makes_the_model_say_something_false():
    said = try_gather(WRONG["permutes in the wrong order: the places before the blocks"]).said
    assert said == "the model says: Bo has eight red cups ."


def test_what_attention_cannot_read_stops_the_run():
    assert (
        "the run stops with TypeError: gather gives back"
        in try_gather(WRONG["tokens first, heads second"]).said
    )
    assert "the run stops with" in try_gather(lambda *call: None).said


def test_code_that_is_not_written_yet_runs_nothing_and_nonsense_is_refused():
    tried = try_gather(WRONG["untouched starter"])
    assert tried.said is None and len(tried.log) == 0
    for nonsense in (None, 3, list):
        with pytest.raises(TypeError, match="try_gather takes a function"):
            try_gather(nonsense)
