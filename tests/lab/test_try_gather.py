"""A learner's gather at work: judged by where each number lies, and run by the model beside ours."""

import pytest
import torch

from minikv.lab import Workbench, solution
from minikv.lab.exercises import check, get
from minikv.lab.exercises.pool import CASES, OLD, OTHER, SHAPE, WORDS, fingerprints, kind, words_of
from minikv.lab.memory_words import words_in_memory
from minikv.lab.try_gather import leave_old_words, try_gather

RIGHT = get("05.gather").right
WRONG = dict(get("05.gather").wrong)

# ---- the judge -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SHAPE, OTHER])
def test_every_number_is_its_own_address(shape):
    kv = fingerprints(shape)
    assert kv.shape == shape
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
        ("permutes in the wrong order: the places before the blocks", "but it is 'kites' (block 1, p", "I5"),
        ("sorts the blocks", "'Ada' (block 4, place 0) should stand there, but it is 'kites'", "I5"),
        (
            "knows that a block has four slots",
            "blocks of 6 slots: the first difference in K is at position 0: 'Ada'",
            "I5",
        ),
        ("knows that there are two heads, with three numbers each", "K has the shape [2, 6, 2]; it", None),
        ("makes double precision of it", "K is of torch.float64; the pool's numbers are of torch.fl", None),
        (
            "makes half precision of it",
            "K is of torch.float16; the pool's numbers are of torch.float32",
            None,
        ),
        (
            "gives back the keys only",
            "gives one tensor [2, 4, 3] of torch.float32; it should be a pair",
            None,
        ),
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


def test_what_is_given_in_place_of_a_function_is_named_and_not_dumped():
    given = torch.zeros(100, 100), torch.zeros(100, 100)
    assert check("05.gather", given).message == "the answer is a function, not a tuple of 2"
    with pytest.raises(TypeError, match="try_gather takes a function, not a tuple of 2; leave off"):
        try_gather(given)
    assert [kind(each) for each in (None, 3, "x", {})] == ["None", "3", "'x'", "a dict"]


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
            assert exercise.right not in (6176, 1600, 21792, 122_880, 245_760)
            assert len(exercise.wrong) >= 4


# ---- beside ours -----------------------------------------------------------------------------


def test_the_old_words_are_where_the_docstring_says():
    bench = Workbench(num_blocks=8, block_size=4)
    leave_old_words(bench)
    assert bench.manager.free_queue == (7, 2, 1, 0, 4, 3, 6, 5)
    words = words_in_memory(bench.pool, bench.model)
    assert len(words.left_over) == 8 * 4
    assert words.in_block(7) == ("Rain", "fell", "all", "night")


def test_the_solution_reads_as_ours_does():
    tried = try_gather(RIGHT)
    assert tried.first is None
    assert not tried.log.violations
    assert tried.said == "the model says: Ada has three red kites ."
    assert repr(tried).endswith("Every slot was the right one.")


@pytest.mark.parametrize(
    ("mistake", "invariant", "block", "said"),
    [
        (
            "ignores length: what is left over comes along",
            "I6",
            3,  # at first the last block is just full
            "there is the key of “is” (block 3, place 1)",
        ),
        (
            "pads with zeros to the end of the last block",
            None,
            3,
            "there is something that lies nowhere in the pool; the row should have ended",
        ),
        (
            "ignores the offset",
            "I6",
            7,
            "there is the key of “Rain” (block 7, place 0); it should be the key",
        ),
        ("skips the offset in every block", "I5", 2, "there is the key of “kites” (block 2, place 2)"),
        ("permutes in the wrong order: the places before the blocks", "I5", 7, "there is the key of “Bo”"),
        (
            "cuts at length before it skips the offset",
            None,
            4,
            "there is nothing; it should be the key of “has”",
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
    assert "Marked: P" in shown.to_text() and shown.to_text().endswith("this should have been read")
    found = {violation.invariant for violation in tried.log.violations[:1]}
    assert found == {invariant} - {None}, "the map says what the sentence says"


def test_a_wrong_order_makes_the_model_say_something_false():
    said = try_gather(WRONG["permutes in the wrong order: the places before the blocks"]).said
    assert said == "the model says: Ada has eight red cups ."


def test_what_attention_cannot_read_stops_the_run():
    assert (
        "the run stops with TypeError: gather gives back"
        in try_gather(WRONG["tokens first, heads second"]).said
    )
    assert "gather gives back None; it should be k and v" in try_gather(lambda *call: None).said
    assert (
        "gather gives back one tensor [4, 18, 32] of torch.float64 and one tensor"
        in try_gather(WRONG["makes double precision of it"]).said
    )


def test_code_that_is_not_written_yet_runs_nothing_and_nonsense_is_refused():
    tried = try_gather(WRONG["untouched starter"])
    assert tried.said is None and len(tried.log) == 0
    assert repr(tried.map()).startswith("There is nothing to be seen yet")
    for nonsense in (None, 3, list):
        with pytest.raises(TypeError, match="try_gather takes a function"):
            try_gather(nonsense)
