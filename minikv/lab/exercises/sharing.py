"""Exercises of notebook 08: copies of a shared prompt, tokens taken over, an own prefix cache."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

from minikv.block_table import BlockTable
from minikv.lab.exercises.exercise import Exercise, Verdict, number
from minikv.manager import KVCacheManager

# ---- 08.copies: n continuations of one prompt ---------------------------------------------------


def _copies(rng: random.Random) -> Exercise:
    size, n = rng.choice((4, 8, 16)), rng.randint(3, 8)
    full, over = rng.randint(1, 4), rng.choice((0, *range(1, size)))
    prompt = full * size + over
    copies, held = _count_copies(prompt, n, size)
    listed = n * -(-(prompt + 1) // size)
    slips: list[tuple[str, tuple[int, int]]] = [
        ("everybody copies", (n, held)),
        ("nobody copies", (0, held)) if over else ("a full block is copied", (n - 1, held)),
        ("one copies", (1, held)),
        ("counts the tables' entries", (copies, listed)),
        ("forgets the blocks of their own", (copies, full + (1 if over else 0))),
        ("counts the original once more", (copies, held + 1)),
        ("copies the whole prompt", (copies * full, held)),
    ]
    why = (
        f"the last block is shared by {n}: the first {n - 1} to write copy it, the last one writes in place"
        if over
        else "the prompt fills its blocks: nobody writes into them, and each takes a new one"
    )
    return Exercise(
        question=f"A prompt of {prompt} tokens, blocks of {size}, {n} continuations. Each stores one new "
        "token, one after the other. How many blocks are copied until all have done so, and how many blocks "
        "are held then? Answer with both: check(…, (copies, held))",
        judge=_judge_pair((copies, held), why, _reasons(n, full, over, listed)),
        hints=(
            f"{prompt} tokens fill {full} block{'s' if full > 1 else ''} of {size} and {over} slots of "
            "another. Into which block does the first continuation write?",
            "A block is copied if its count is above 1 when somebody writes to it. How does its count go?",
            f"Copies: {n} - 1 if the last block is begun, else 0. Held: the {full} full ones, and one for "
            "each continuation.",
        ),
        solution=f"copies {copies}, held {full} + {n} = {held}: {why}",
        right=(copies, held),
        wrong=tuple((why, said) for why, said in slips if said != (copies, held)),
    )


def _count_copies(prompt: int, n: int, size: int) -> tuple[int, int]:
    """By the real manager: copies, and blocks held at the end."""
    manager, first = KVCacheManager((n + 1) * (prompt // size + 2), size), BlockTable(size)
    manager.allocate(first, prompt)
    copies = 0
    for table in [first, *(manager.fork(first) for _ in range(n - 1))]:
        if prompt < table.capacity:
            copies += manager.copy_on_write(table, prompt) is not None
        else:
            manager.allocate(table, prompt + 1)
    return copies, manager.allocated_blocks


def _reasons(n: int, full: int, over: int, listed: int) -> dict[tuple[str, int], str]:
    """What probably led to a wrong number of copies, or of blocks held."""
    reasons = {("held", listed): "a block that several tables list is held once"}
    if over:
        reasons["copies", n] = "the last one to write finds a count of 1, and copies nothing"
        reasons["copies", 0] = "the last block is shared when the first one writes to it"
        reasons["held", full + 1] = "each continuation has a last block of its own by then"
    else:
        for copies in (1, n - 1, n):
            reasons["copies", copies] = "the prompt fills its blocks, and nobody writes to a full one"
        reasons["held", full] = "each continuation takes a new block for its token"
    return reasons


def _judge_pair(
    right: tuple[int, int], why: str, reasons: dict[tuple[str, int], str]
) -> Callable[[Any], Verdict]:
    def judge(answer: Any) -> Verdict:
        if not isinstance(answer, tuple | list) or [type(each) for each in answer] != [int, int]:
            return Verdict(False, f"the answer is two whole numbers, (copies, held), not {answer!r}")
        for name, said, true in zip(("copies", "held"), answer, right, strict=True):
            if said != true:
                way = "too many" if said > true else "too few"
                reason = reasons.get((name, said))
                return Verdict(
                    False, f"{name}: {said} is {way}{f': {reason}' if reason else '; hint(…) helps'}"
                )
        return Verdict(True, why)

    return judge


# ---- 08.cached: how much of a prompt is taken over ----------------------------------------------


def _cached(rng: random.Random) -> Exercise:
    size = rng.choice((4, 8))
    stored = rng.randint(2, 5) * size + rng.randint(0, size - 1)
    same = stored if rng.random() < 0.3 else rng.randint(size + 1, stored - 1)
    more = 0 if same == stored and rng.random() < 0.6 else rng.randint(1, size)
    prompt = same + more
    right = _taken_over(stored, same, prompt, size)
    slips = _cached_slips(stored, same, prompt, size, right)
    begins = f"Its first {same} tokens are the same" if more else "It is the same, token for token"
    if same == stored and more:
        begins = f"It begins with all {same} of them"
    return Exercise(
        question=f"A prompt of {stored} tokens is cached, in blocks of {size}. Another of {prompt} tokens "
        f"comes. {begins}. How many of its tokens are taken over from the cache?",
        judge=number(right, f"{right // size} blocks of {size}: {right} tokens; the rest is computed", slips),
        hints=(
            "Whole blocks only. How many of the cached prompt's blocks are full?",
            f"The first {same} tokens are the same: of how many blocks of {size} is that every token?",
            f"At most ({prompt} - 1) // {size} = {(prompt - 1) // size} blocks, so that at least the last "
            "token is computed.",
        ),
        solution=f"min({stored} // {size}, {same} // {size}, ({prompt} - 1) // {size}) × {size} = {right}",
        right=right,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


def _cached_slips(stored: int, same: int, prompt: int, size: int, right: int) -> dict[Any, str]:
    """Wrong numbers of tokens, and what is wrong with each; of two reasons for one number the first."""
    slips: dict[Any, str] = {}

    def slip(value: int, reason: str, if_: bool = True) -> None:
        if if_ and value != right:
            slips.setdefault(value, reason)

    slip(same // size * size, "never the whole prompt: its last token must be computed")
    slip(same, "only whole blocks are taken over", same % size > 0)
    not_full = "the cached prompt's last block is not full, and only full ones are cached"
    slip(
        -(-same // size) * size,
        not_full if same == stored else "a block that differs in one token is another block",
        same % size > 0,
    )
    after = "the cached prompt" if same == stored else "the first other token"
    slip(prompt // size * size, f"what comes after {after} is not cached", prompt > same)
    slip(prompt - 1, "only whole blocks are taken over", (prompt - 1) % size > 0)
    slip(0, "it begins as the cached one does")
    slip(right // size, "that is the number of blocks; the question is about tokens")
    slip(right - size, "one block more begins alike, to its end")
    return slips


def _taken_over(stored: int, same: int, prompt: int, size: int) -> int:
    """By the real cache."""
    from minikv.engine.radix_cache import RadixCache

    manager = KVCacheManager(64, size)
    cache, table = RadixCache(manager), BlockTable(size)
    manager.allocate(table, stored)
    cache.insert(range(stored), table)
    return cache.acquire([*range(same), *range(1000, 1000 + prompt - same)]).num_cached_tokens


# ---- 08.prefix: the learner's own prefix cache --------------------------------------------------


# The solution of 08.prefix, as a learner would write it; each wrong one differs in one thing.
class MyPrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.blocks = {}  # all tokens up to the end of a block -> the block

    def match(self, tokens):
        found = []
        for end in range(self.block_size, len(tokens), self.block_size):
            block_id = self.blocks.get(tuple(tokens[:end]))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def insert(self, tokens, block_ids):
        new = []
        for index, block_id in enumerate(block_ids):
            end = (index + 1) * self.block_size
            if end <= len(tokens) and tuple(tokens[:end]) not in self.blocks:
                self.blocks[tuple(tokens[:end])] = block_id
                new.append(block_id)
        return new

    def drop(self, block_id):
        for prefix, cached in list(self.blocks.items()):
            if cached == block_id:
                del self.blocks[prefix]


def _but(*changes: tuple[str, str]) -> type:
    """The solution with something changed in its text: a mistake."""
    source = inspect.getsource(MyPrefixCache)
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    scope: dict[str, Any] = {}
    exec(source, scope)
    wrong: type = scope["MyPrefixCache"]
    return wrong


_KEY = "tuple(tokens[:end])"
_OWN = "tuple(tokens[end - self.block_size : end])"
_TWO = "tuple(tokens[max(0, end - 2 * self.block_size) : end])"
_CUT = '__import__("hashlib").sha256(repr(tokens[:end]).encode()).digest()[:1]'
_FOUND = "            found.append(block_id)"
_NEW = "                new.append(block_id)"
_DROP = "            if cached == block_id:\n                del self.blocks[prefix]"


class _ChainedHashAlone(MyPrefixCache):
    """As vLLM chains them, but with Python's hash(), and nobody compares the words."""

    def keys(self, tokens, stop):
        key = None
        for end in range(self.block_size, stop, self.block_size):
            key = hash((key, tuple(tokens[end - self.block_size : end])))
            yield key

    def match(self, tokens):
        found = [self.blocks.get(key) for key in self.keys(tokens, len(tokens))]
        return found[: found.index(None)] if None in found else found

    def insert(self, tokens, block_ids):
        new = []
        for key, block_id in zip(self.keys(tokens, len(tokens) + 1), block_ids, strict=False):
            if key not in self.blocks:
                self.blocks[key] = block_id
                new.append(block_id)
        return new


class _Untouched:
    def __init__(self, block_size):
        self.block_size = block_size
        self.blocks = {}

    def match(self, tokens):
        return ...

    def insert(self, tokens, block_ids):
        return ...

    def drop(self, block_id): ...


def _prefix(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write a class MyPrefixCache with match, insert and drop, as described above.",
        judge=_judge_prefix,
        hints=(
            "What must be the same so that a block's KV can be used again? Not only its own tokens: all "
            "up to its end. Let that be the key of a dict.",
            "match: for end in range(block_size, len(tokens), block_size), look up tuple(tokens[:end]), and "
            "stop at the first that is missing. The range ends before len(tokens), so the last "
            "token is not in it.",
            "insert: block i ends at (i + 1) * block_size. Keep it if that is not beyond len(tokens), and "
            "its prefix has no block yet; give back those kept. drop: delete the entry of this block.",
        ),
        solution=inspect.getsource(MyPrefixCache),
        right=MyPrefixCache,
        wrong=(
            ("a key of the block's own tokens", _but((_KEY, _OWN))),
            ("a key of its own tokens and its place", _but((_KEY, f"(end, {_OWN})"))),
            ("a key of its tokens and the block before", _but((_KEY, _TWO))),
            ("a key without order", _but((_KEY, "tuple(sorted(tokens[:end]))"))),
            ("a key that is a sum", _but((_KEY, "(end, sum(tokens[:end]))"))),
            ("a key of the last token", _but((_KEY, "(end, tokens[end - 1])"))),
            ("a key that leaves out the first token", _but((_KEY, "tuple(tokens[1:end])"))),
            ("a key without the block's own tokens", _but((_KEY, "(end, *tokens[: end - self.block_size])"))),
            ("a key that is a hash alone", _but((_KEY, "hash(tuple(tokens[:end]))"))),
            ("a key that is a hash cut to 8 bits", _but((_KEY, "(hash(tuple(tokens[:end])) & 0xFF)"))),
            ("a key that is a good hash cut to 8 bits", _but((_KEY, _CUT))),
            ("a key of numbers joined into one string", _but((_KEY, '"".join(map(str, tokens[:end]))'))),
            ("a key of a chained hash alone", _ChainedHashAlone),
            ("the whole prompt", _but(("len(tokens), self", "len(tokens) + 1, self"))),
            ("always one block too few", _but(("len(tokens), self", "len(tokens) - self.block_size, self"))),
            ("the first block only", _but((_FOUND, "            return [block_id]"))),
            ("last block first", _but(("return found", "return found[::-1]"))),
            ("keeps a block that is not full", _but(("end <= len(tokens) and ", ""))),
            ("keeps the newest twin", _but((" and tuple(tokens[:end]) not in self.blocks", ""))),
            ("keeps only the first block", _but((_NEW, f"{_NEW}\n                break"))),
            ("does not say what it keeps", _but(("return new", "return None"))),
            ("says it keeps all", _but(("return new", "return block_ids"))),
            ("forgets nothing", _but((_DROP, "            pass"))),
            ("forgets everything", _but((_DROP, "            del self.blocks[prefix]"))),
            ("never finds anything", _but(("return found", "return []"))),
            ("untouched starter", _Untouched),
        ),
    )


SIZE, BLOCKS = 2, 12  # of the walk
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Colliding(int):
    """A token with the same hash() as all others. A dict still tells them apart: it compares, too."""

    def __hash__(self) -> int:
        return 0


class _Walk:
    """Leads requests through a learner's cache; each letter is a token.

    Args:
        token: makes a token of a letter's number.
        may_miss: a cache may find less than it could; whose keys collide, and who compares the words, does.
    """

    def __init__(self, cache_class: type, token: type[int] = int, may_miss: bool = False) -> None:
        from minikv.lab.watched_cache import WatchedCache  # the lab may import exercises, so not above

        self.manager, self.token = KVCacheManager(BLOCKS, SIZE), token
        self.cache = WatchedCache(cache_class(SIZE), self.manager, LETTERS.__getitem__, may_miss=may_miss)
        self.running: list[tuple[list[int], BlockTable]] = []

    @property
    def fine(self) -> bool:
        return self.cache.wrong is None

    def start(self, letters: str) -> tuple[list[int], BlockTable]:
        """Match, then find room for the rest."""
        tokens = [self.token(LETTERS.index(letter)) for letter in letters]
        table = self.cache.acquire(tokens).table
        missing = -(-len(tokens) // SIZE) - table.num_blocks - self.manager.num_free_blocks
        if missing > 0:
            self.cache.evict(missing)
        if self.fine:
            self.manager.allocate(table, len(tokens))
        return tokens, table

    def store(self, request: tuple[list[int], BlockTable]) -> None:
        """All is computed: the cache may keep it."""
        tokens, table = request
        if self.fine and table.capacity >= len(tokens):
            self.cache.insert(tokens, table)

    def serve(self, letters: str) -> None:
        """A request from its beginning to its end."""
        request = self.start(letters)
        self.store(request)
        self.end(request)

    def end(self, request: tuple[list[int], BlockTable]) -> None:
        if self.fine:
            self.manager.free(request[1])

    def script(self) -> None:
        """Cases that matter, one by one."""
        for letters in ("abcd", "abcdx", "abcd", "cdx", "abce", "bacd", "abcdefg", "xyabcd", "xycdab"):
            self.serve(letters)
        twins = [self.start("pqrs"), self.start("pqrs")]
        for request in (*twins, *twins):
            self.store(request)
        for request in twins:
            self.end(request)
        self.serve("pqrst")
        for count in (1, 2, 20):
            if self.fine:
                self.cache.evict(count)
            self.serve("pqrstu")
        self.serve("mnop")
        self.serve("abcdefgh")
        self.serve("abcdefg")
        for letters in ("bmx", "lcx"):  # the tokens are 1, 12 and 11, 2: joined, both are 112
            self.serve(letters)

    def at_random(self, steps: int, letters_used: str) -> None:
        """Prompts that begin as earlier ones do; some run side by side."""
        chance, past = random.Random(0), ["a"]
        for _ in range(steps):
            if not self.fine:
                return
            if len(self.running) > 2:
                self.end(self.running.pop(chance.randrange(len(self.running))))
            old = chance.choice(past)
            letters = old[: chance.randrange(len(old) + 1)] + "".join(
                chance.choices(letters_used, k=chance.randint(1, 4))
            )
            past = [*past[-6:], letters[:7]]
            request = self.start(letters[:7])
            self.store(request)
            self.running.append(request)


def _judge_prefix(answer: Any) -> Verdict:
    if not isinstance(answer, type):
        return Verdict(False, f"the answer is a class, not {answer!r}; leave off the brackets")
    try:
        if answer(SIZE).match([0, 1, 2]) is ...:
            return Verdict(False, "not answered yet: match still returns ...")
        walk, plain = _Walk(answer), 0
        walk.script()
        walk.at_random(400, "ab")
        where = f"blocks of {SIZE}"
        if walk.fine:  # once more; now only a lie is wrong
            plain, walk = walk.cache.calls, _Walk(answer, Colliding, may_miss=True)
            walk.script()
            walk.at_random(400, LETTERS)
            where = f"blocks of {SIZE}, tokens which all have the hash() 0"
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        return Verdict(False, f"{answer.__name__} raised {type(error).__name__}: {error}")
    wrong, calls = walk.cache.wrong, walk.cache.calls
    if wrong is not None:
        return Verdict(False, f"{where}, {calls} calls in: {wrong.sentence}", wrong.invariant)
    return Verdict(
        True, f"{plain + calls} calls, and every hit is the KV of exactly these words after exactly these"
    )


EXERCISES: dict[str, Callable[[random.Random], Exercise]] = {
    "08.copies": _copies,
    "08.cached": _cached,
    "08.prefix": _prefix,
}
WITH_VARIANTS = ("08.copies", "08.cached")
