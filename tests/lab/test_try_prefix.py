"""A learner's prefix cache: judged by fingerprints, and run by the model; the other exercises of 08."""

import re
from hashlib import sha256
from itertools import takewhile

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
        ("a key of a chained hash alone", "hash() 0, 7 calls in: match(c d x) gives block 0", None),
        ("a key that is a hash alone", "hash() 0, 7 calls in: match(c d x) gives block 0", None),
        ("a key of numbers joined into one string", "computed for “b”, and should be for “l”", None),
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


class CuttingTree(Tree):
    """As the notebook draws it: a block that is let go leaves its parent's dict, with all behind it."""

    def match(self, tokens):
        node, found = self.root, []
        for page in self.pages(tokens, len(tokens) - 1):
            if page not in node:
                break
            block_id, node = node[page]
            found.append(block_id)
        return found

    def insert(self, tokens, block_ids):
        node, new = self.root, []
        for page, block_id in zip(self.pages(tokens, len(tokens)), block_ids, strict=False):
            if page not in node:
                node[page] = (block_id, {})
                self.places[block_id] = (node, page)
                new.append(block_id)
            node = node[page][1]
        return new

    def drop(self, block_id):
        node, page = self.places.pop(block_id)
        del node[page]


class Chain(Tree):
    """A chain of SHA-256, as vLLM's; no words are compared, and none need be."""

    def keys(self, tokens, stop):
        key = b""
        for page in self.pages(tokens, stop):
            key = sha256(key + repr(page).encode()).digest()
            yield key

    def match(self, tokens):
        found = [self.root.get(key) for key in self.keys(tokens, len(tokens) - 1)]
        return [*takewhile(lambda block_id: block_id is not None, found)]

    def insert(self, tokens, block_ids):
        keys = list(self.keys(tokens, len(tokens)))
        new = {key: b for key, b in zip(keys, block_ids, strict=False) if key not in self.root}
        self.root |= new
        return list(new.values())

    def drop(self, block_id):
        self.root = {key: cached for key, cached in self.root.items() if cached != block_id}


class Compares(Tree):
    """Python's hash() as key, the words beside the block: where keys collide it finds less, never lies."""

    def match(self, tokens):
        found = []
        for end in range(self.size, len(tokens), self.size):
            words, block_id = self.root.get(hash(tuple(tokens[:end])), (None, None))
            if words != tokens[:end]:
                break
            found.append(block_id)
        return found

    def insert(self, tokens, block_ids):
        new = []
        for end, block_id in zip(range(self.size, len(tokens) + 1, self.size), block_ids, strict=False):
            if hash(tuple(tokens[:end])) not in self.root:
                self.root[hash(tuple(tokens[:end]))] = (tokens[:end], block_id)
                new.append(block_id)
        return new

    def drop(self, block_id):
        self.root = {key: entry for key, entry in self.root.items() if entry[1] != block_id}


@pytest.mark.parametrize("other", [Tree, CuttingTree, Chain, Compares])
def test_another_right_way_is_right_too(other):
    assert check("08.prefix", other).ok, check("08.prefix", other)
    assert try_prefix(other).first is None


@pytest.mark.parametrize("bits", [8, 16, 64])
def test_a_cut_of_pythons_hash_is_no_key_however_long(bits):
    class Cut(Compares):
        def match(self, tokens):
            found = (self.root.get(self.key(tokens, end)) for end in range(self.size, len(tokens), self.size))
            return [entry[1] for entry in takewhile(bool, found)]

        def key(self, tokens, end):
            return hash(tuple(tokens[:end])) & (2**bits - 1)

        def insert(self, tokens, block_ids):
            ends = range(self.size, len(tokens) + 1, self.size)
            new = {self.key(tokens, end): (end, b) for end, b in zip(ends, block_ids, strict=False)}
            new = {key: entry for key, entry in new.items() if key not in self.root}
            self.root |= new
            return [entry[1] for entry in new.values()]

    verdict = check("08.prefix", Cut)
    assert not verdict.ok and ("was computed for" in words(verdict.message) or bits == 8)


def test_a_block_with_others_behind_it_is_never_dropped():
    """What the exercise promises: the prefixes in a learner's cache are closed, whatever is let go."""
    kept = {}

    class Watching(RIGHT):
        def drop(self, block_id):
            prefix = next(prefix for prefix, cached in self.blocks.items() if cached == block_id)
            behind = [p for p in self.blocks if p != prefix and p[: len(prefix)] == prefix]
            kept[block_id] = behind
            super().drop(block_id)

    assert check("08.prefix", Watching).ok
    assert kept and not any(kept.values())


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
        "S: 0 of 24 words cached; it is told: Eva has four blue boats .",
        "Q: 0 of 23 words cached; it is told: Bo has two gold cups .",
        "R: 18 of 23 words cached; it is told: Ada has three red kites .",
        "T: 18 of 24 words cached; it is told: Eva has four blue boats .",
    ]
    assert "Every hit was the KV of exactly these words." in repr(tried)


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
    assert tried.said.startswith("S: 0 of 24")
    assert repr(tried).startswith(f"With {WRONG[mistake].__name__}:\n")


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
    for said, value in exercise.wrong:
        assert more or "first other token" not in said, "there is no other token"
        if said == "only whole blocks are taken over":
            assert value % size
        if said.startswith("never the whole prompt"):
            assert value == prompt == same


def test_the_whole_prompt_is_answered_with_the_reason():
    assert "its last token must be computed" in check("08.cached", 40).message


def test_wrong_copies_are_answered_with_the_reason():
    assert "the last one to write finds a count of 1" in words(check("08.copies", (6, 7)).message)
    assert get("08.copies").question.startswith("A prompt of 12 tokens, blocks of 8, 6 continuations")
    assert "12 tokens fill 1 block of 8" in get("08.copies").hints[0]
