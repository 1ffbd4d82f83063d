"""Let a learner's own code run in place of ours, and see where it first goes another way.

tried = try_table(MyBlockTable)     # or try_manager(MyManager)
print(tried)
tried.map()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikv.block_table import BlockTable
from minikv.errors import OutOfBlocksError
from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from minikv.lab.exercises import check
from minikv.lab.watched import Divergence, Watched
from minikv.lab.workbench import Workbench

PROMPT = "Ada has three red kites . Bo has two gold cups . What does Bo have ?"
ANSWER = "Bo has two gold cups ."


class Tryout:
    """What came of it.

    Attributes:
        said: how the run ended, as a sentence; None if the code is not written yet.
        log: everything that happened, as the learner's code made it happen.
        other_way: where the code went another way than ours without breaking an invariant, if it did.
    """

    def __init__(
        self, name: str, said: str | None, log: EventLog, other_way: Divergence | None = None
    ) -> None:
        self.name, self.said, self.log, self.other_way = name, said, log, other_way

    @property
    def first(self) -> Divergence | None:
        """The first divergence: a broken invariant, or else the first step that is not as ours."""
        broken = [Divergence(v.step, v.invariant, v.block_id, v.sentence) for v in self.log.violations[:1]]
        seen = broken + ([self.other_way] if self.other_way else [])
        return min(seen, key=lambda divergence: divergence.step, default=None)

    def map(self) -> BlockMap:
        """The block map at the first divergence, its block marked; at the end if there is none."""
        first = self.first
        if first is None:
            return BlockMap(self.log)
        blocks = [] if first.block_id is None else [first.block_id]
        return BlockMap(self.log, step=first.step, highlight=blocks, caption="first divergence")

    def __repr__(self) -> str:
        if self.said is None:
            return f"{self.name} is not written yet."
        said = f"With {self.name} {self.said}"
        if self.first is None:
            stopped = "the run stops" in self.said
            end = "No wrong slot was seen before that." if stopped else "Every slot was the right one."
            return f"{said}\n{end}"
        return f"{said}\nFirst divergence: {self.first.where}: {self.first.sentence}"


def try_table(table_class: type) -> Tryout:
    """Decode a request whose block table is a `table_class`, in a pool where free blocks lie scattered.

    Raises TypeError for anything but a class.
    """
    if not isinstance(table_class, type):
        raise TypeError(f"try_table takes a class, not {table_class!r}; leave off the brackets")
    if "not answered yet" in check("02.table", table_class).message:
        return Tryout(table_class.__name__, None, EventLog())
    bench = Workbench(num_blocks=7, block_size=4)
    scatter(bench)
    bench.loop.new_table = lambda block_size: table_class(block_size, 2)
    try:
        said = f"the model says: {bench.ask(PROMPT, name='mine')}"
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        said = f"the run stops with {type(error).__name__}: {error}"
    return Tryout(table_class.__name__, said, bench.log)


def try_manager(
    manager_class: type,
    story: Callable[[Workbench], str] | None = None,
    exercise: str = "03.manager",
    num_blocks: int = 10,
    block_size: int = 4,
) -> Tryout:
    """Decode several requests on a learner's manager, with ours doing the same sums beside it.

    Args:
        manager_class: makes a manager from num_blocks and block_size; see `Watched` for what is read off it.
        story: what happens on the bench, and gives back what the model said; `come_and_go` if None.
        exercise: the one whose judge knows an untouched starter.

    Raises TypeError for anything but a class.
    """
    if not isinstance(manager_class, type):
        raise TypeError(f"try_manager takes a class, not {manager_class!r}; leave off the brackets")
    name = manager_class.__name__
    if "not answered yet" in check(exercise, manager_class).message:
        return Tryout(name, None, EventLog())
    bench = Workbench(num_blocks, block_size)
    try:
        theirs = manager_class(num_blocks, block_size)
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        return Tryout(name, f"the run stops with {type(error).__name__}: {error}", bench.log)
    watched = Watched(theirs, num_blocks, block_size, bench.log, bench.pool)
    stand_in: Any = watched
    bench.manager = bench.loop.manager = stand_in
    try:
        said = f"the model says: {(story or come_and_go)(bench)}"
    except Exception as error:
        said = f"the run stops with {type(error).__name__}: {error}"
    return Tryout(name, said, bench.log, watched.divergence)


def come_and_go(bench: Workbench) -> str:
    """Five requests come, three go, and one is refused; then A, who was there first, answers.

    Meant for 10 blocks of 4 slots. A takes blocks 0 to 4, B 5, C (offset 2) 6 and 7; B goes, D takes 8 and 9.
    E needs two and finds one: C goes, E takes 5 and 7. A takes 6 to grow, and the pool is full.
    """
    a = bench.start("Ada has three red kites . Bo has two gold cups . What does Ada have ?", "A")
    b = bench.start("Tea is ready .", "B")
    bench.loop.new_table = lambda block_size: BlockTable(block_size, 2)
    c = bench.start("It is late .", "C")
    bench.loop.new_table = BlockTable
    for request in (a, b, c):
        bench.prefill(request)
    bench.finish(b)
    bench.prefill(bench.start("The shop opens at noon .", "D"))
    e = bench.start("Eva has six grey drums .", "E")
    try:
        bench.prefill(e)
    except OutOfBlocksError:
        bench.finish(c)
        bench.prefill(e)
    return bench.finish_sentence(a)


def scatter(bench: Workbench) -> None:
    """Let five requests come and four of them go, so that the next one's blocks do not lie in a row.

    Meant for 7 blocks of 4 slots: the free queue is then 2, 1, 6, 0, 5, 4, and block 3 is held by Z.
    """
    prompts = {
        "X": "Tea is ready .",
        "Y": "The shop opens at noon .",
        "Z": "It is late .",
        "U": "The road is long .",
        "V": "Tea is ready .",
    }
    requests = {name: bench.start(prompt, name) for name, prompt in prompts.items()}
    for request in requests.values():
        bench.prefill(request)
    for name in "YVXU":
        bench.finish(requests[name])
