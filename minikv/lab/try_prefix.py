"""Let a learner's own prefix cache lend the blocks, and see which hit is the first wrong one.

tried = try_prefix(MyPrefixCache)
print(tried)
tried.map()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minikv.lab.event_log import EventLog
from minikv.lab.exercises import check
from minikv.lab.exercises.exercise import folded
from minikv.lab.prefix_bench import PrefixBench
from minikv.lab.stand_in import Tryout
from minikv.lab.watched import Divergence
from minikv.lab.watched_cache import WatchedCache, WrongCall
from minikv.manager import KVCacheManager

NUM_BLOCKS, BLOCK_SIZE = 12, 6  # a fact is six words: each has a block of its own
SHOP, ADA, BO, EVA = (
    "The shop opens at noon .",
    "Ada has three red kites .",
    "Bo has two gold cups .",
    "Eva has four blue boats .",
)
ALL_TRUE = (
    "Every hit was the KV of exactly these words. (Four prompts, and nothing is evicted: check is stricter.)"
)


class PrefixTryout(Tryout):
    """What came of it; the sentences of a wrong call are long, so they are folded."""

    def __repr__(self) -> str:
        if self.said is None:
            return super().__repr__()
        said = f"With {self.name}:\n{self.said}"
        if self.first is None:
            return said if "the run stops" in said else f"{said}\n{ALL_TRUE}"
        return folded(f"{said}\nFirst wrong call: {self.first.where}: {self.first.sentence}", indent="  ")


def try_prefix(cache_class: type) -> PrefixTryout:
    """Serve four prompts with a learner's cache, and compare each hit with what was really stored.

    Raises TypeError for anything but a class.
    """
    if not isinstance(cache_class, type):
        raise TypeError(f"try_prefix takes a class, not {cache_class!r}; leave off the brackets")
    name = cache_class.__name__
    if "not answered yet" in check("08.prefix", cache_class).message:
        return PrefixTryout(name, None, EventLog())
    bench = PrefixBench(NUM_BLOCKS, BLOCK_SIZE)
    found: list[Divergence] = []

    def report(wrong: WrongCall) -> None:
        bench.log({"op": "note", "text": wrong.sentence})
        found.append(Divergence(len(bench.log) - 1, wrong.invariant, wrong.block_id, wrong.sentence))

    def watched(manager: KVCacheManager) -> WatchedCache:
        return WatchedCache(cache_class(BLOCK_SIZE), manager, bench.model.tokenizer.word, report)

    said: list[str] = []
    try:
        cache: Any = watched(bench.manager)
        bench.cache = cache
        said.extend(ask_in_turn(bench))
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        said.append(f"the run stops with {type(error).__name__}: {error}")
    return PrefixTryout(name, "\n".join(said), bench.log, found[0] if found else None)


def ask_in_turn(bench: PrefixBench) -> Iterator[str]:
    """Four prompts, one after the other; how much of each was cached, and what the model says.

    S leaves four blocks: shop, Ada, Eva, a question. Q begins as S goes on behind the shop; it may take none.
    R begins as S does, and may take three. T is S again, word for word, and may take three of four.
    """
    prompts = {
        "S": f"{SHOP} {ADA} {EVA} Tell me what Eva has .",
        "Q": f"{ADA} {EVA} {BO} What does Bo have ?",
        "R": f"{SHOP} {ADA} {EVA} What does Ada have ?",
        "T": f"{SHOP} {ADA} {EVA} Tell me what Eva has .",
    }
    for name, prompt in prompts.items():
        request = bench.start(prompt, name)
        cached = request.num_stored
        answer = bench.finish_sentence(request)
        bench.finish(request)
        yield f"{name}: {cached} of {request.prompt_length} words cached; it is told: {answer}"
