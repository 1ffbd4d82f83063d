"""A learner's prefix cache: judged by fingerprints, and run by the model; the other exercises of 08."""

import re

import pytest

from minikv.lab import solution
from minikv.lab.exercises import check, get
from minikv.lab.try_prefix import try_prefix

RIGHT = get("08.prefix").right
WRONG = dict(get("08.prefix").wrong)


def words(text):
    return " ".join(text.split())


# ---- the judge -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "said", "invariant"),
    [
        ("a key of the block's own tokens", "match(c d x) gives block 1; its place 0 was computed for", None),
        ("a key without order", "match(b a c d) gives block 0; its place 0 was computed for “a”", None),
        ("the whole prompt", "match(a b c d) gives blocks for the whole prompt", None),
        ("always one block too few", "match(a b c d x) finds 1 of its blocks; the first 2 are cached", None),
        ("keeps a block that is not full", "insert(a b c d x) keeps block 2, which is not full", "I6"),
        ("keeps the newest twin", "insert(a b c d x) keeps block 0 twice", "I2"),
        ("forgets nothing", "match(p q r s t u) gives block 4; it was let go, and nobody holds it", "I6"),
        ("does not say what it keeps", "gives None; it should be a list of block ids", None),
        ("keeps only the first block", "does not keep block 1; none is cached for “a b c d”", None),
    ],
)  # fmt: skip
def test_the_first_wrong_call_is_named_with_tokens_block_and_invariant(mistake, said, invariant):
    verdict = check("08.prefix", WRONG[mistake])
    assert said in words(verdict.message) and verdict.invariant == invariant


class Tree:
    """Another right way: nested dicts, one step a block."""

    def __init__(self, block_size):
        self.size, self.root, self.places = block_size, {}, {}

    def pages(self, tokens, stop):
        return [tuple(tokens[i : i + self.size]) for i in range(0, stop - self.size + 1, self.size)]

    def match(self, tokens):
        node, found = self.root, []
        for page in self.pages(tokens, len(tokens) - 1):
            if page not in node or node[page][0] is None:
                break
            found.append(node[page][0])
            node = node[page][1]
        return tuple(found)

    def insert(self, tokens, block_ids):
        node, new = self.root, []
        for page, block_id in zip(self.pages(tokens, len(tokens)), block_ids, strict=False):
            entry = node.setdefault(page, [None, {}])
            if entry[0] is None:
                entry[0] = block_id
                self.places[block_id] = entry
                new.append(block_id)
            node = entry[1]
        return new

    def drop(self, block_id):
        self.places.pop(block_id)[0] = None


def test_another_right_way_is_right_too():
    assert check("08.prefix", Tree).ok
    assert try_prefix(Tree).first is None


@pytest.mark.parametrize("said", [None, 3, "abc", [None], [1.0], [[1]], {1}])
def test_odd_answers_are_named_and_do_not_raise(said):
    class Odd(RIGHT):
        def match(self, tokens):
            return said

    verdict = check("08.prefix", Odd)
    assert not verdict.ok and "it should be a list of block ids" in words(verdict.message)


@pytest.mark.parametrize("said", [[99], [-1], [0, 0, 0, 0, 0], [11]])
def test_impossible_blocks_are_named_and_do_not_raise(said):
    class Odd(RIGHT):
        def match(self, tokens):
            return said

    verdict = check("08.prefix", Odd)
    assert not verdict.ok and f"gives block {said[0]}" in words(verdict.message)
    assert try_prefix(Odd).said


def test_what_a_learners_code_raises_is_shown():
    class Raises(RIGHT):
        def drop(self, block_id):
            raise KeyError(block_id)

    assert "KeyError" in check("08.prefix", Raises).message


def test_the_solution_is_code_that_passes():
    scope = {}
    exec(solution("08.prefix"), scope)
    assert check("08.prefix", scope["MyPrefixCache"]).ok


# ---- with the model --------------------------------------------------------------------------


def test_with_the_solution_all_four_are_told_the_truth():
    tried = try_prefix(RIGHT)
    assert tried.first is None and not tried.log.violations
    assert tried.said.splitlines() == [
        "S: 0 of 24 words cached; it is told: Eva has six grey drums .",
        "Q: 0 of 23 words cached; it is told: Bo has two gold cups .",
        "R: 18 of 23 words cached; it is told: Ada has three red kites .",
        "T: 18 of 24 words cached; it is told: Eva has six grey drums .",
    ]
    assert repr(tried).endswith("Every hit was the KV of exactly these words.")


def test_a_key_of_the_blocks_own_words_gives_bo_adas_kites_and_the_map_opens_there():
    tried = try_prefix(WRONG["a key of the block's own tokens"])
    assert "Q: 12 of 23 words cached; it is told: Bo has three red kites ." in tried.said
    assert not tried.log.violations  # every slot was the right one
    assert (tried.first.invariant, tried.first.block_id) == (None, 1)
    shown = tried.map()
    assert (shown.step, shown.highlight) == (tried.first.step, [1])
    assert shown.frame.state.tables["Q"] == (1, 2)


@pytest.mark.parametrize("mistake", [m for m in WRONG if m != "untouched starter"])
def test_whatever_goes_wrong_the_run_is_shown(mistake):
    tried = try_prefix(WRONG[mistake])
    assert tried.said.startswith("S: 0 of 24") and repr(tried).startswith("With MyPrefixCache:\n")


def test_code_that_is_not_written_yet_runs_nothing_and_nonsense_is_refused():
    tried = try_prefix(WRONG["untouched starter"])
    assert tried.said is None and len(tried.log) == 0
    assert repr(tried) == "_Untouched is not written yet."
    for nonsense in (None, 3, len):
        with pytest.raises(TypeError, match="try_prefix takes a class"):
            try_prefix(nonsense)


# ---- the other exercises of 08 -----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_copies_and_held_by_hand(seed):
    exercise = get(f"08.copies#{seed}")
    prompt, size, n = map(int, re.findall(r"\d+", exercise.question)[:3])
    copies = n - 1 if prompt % size else 0
    assert exercise.right == (copies, prompt // size + n)
    assert len(exercise.wrong) >= 5


@pytest.mark.parametrize("seed", range(40))
def test_cached_by_hand(seed):
    exercise = get(f"08.cached#{seed}")
    stored, size, prompt, *more = map(int, re.findall(r"\d+", exercise.question))
    same = more[0] if more else stored
    assert exercise.right == min(stored // size, same // size, (prompt - 1) // size) * size
    assert len(exercise.wrong) >= 3
