"""Let a learner's own code run in place of ours, and see where it first goes another way.

tried = try_table(MyBlockTable)
print(tried)
tried.map()
"""

from __future__ import annotations

from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from minikv.lab.exercises import check
from minikv.lab.workbench import Workbench

PROMPT = "Ada has three red kites . Bo has two gold cups . What does Bo have ?"
ANSWER = "Bo has two gold cups ."


class Tryout:
    """What came of it.

    Attributes:
        said: how the run ended, as a sentence; None if the code is not written yet.
        log: everything that happened, as the learner's code made it happen.
    """

    def __init__(self, name: str, said: str | None, log: EventLog) -> None:
        self.name, self.said, self.log = name, said, log

    def map(self) -> BlockMap:
        """The block map at the first divergence, its block marked; at the end if there is none."""
        if not self.log.violations:
            return BlockMap(self.log)
        first = self.log.violations[0]
        blocks = [] if first.block_id is None else [first.block_id]
        return BlockMap(self.log, step=first.step, highlight=blocks, caption="first divergence")

    def __repr__(self) -> str:
        if self.said is None:
            return f"{self.name} is not written yet."
        said = f"With {self.name} {self.said}"
        if not self.log.violations:
            stopped = "the run stops" in self.said
            end = "No wrong slot was seen before that." if stopped else "Every slot was the right one."
            return f"{said}\n{end}"
        first = self.log.violations[0]
        where = f"step {first.step}, {first.invariant}, block {first.block_id}"
        return f"{said}\nFirst divergence: {where}: {first.sentence}"


def try_table(table_class: type) -> Tryout:
    """Decode a request whose block table is a `table_class`, in a pool where free blocks lie scattered.

    Raises TypeError for anything but a class.
    """
    if not isinstance(table_class, type):
        raise TypeError(f"try_table takes a class, not {table_class!r}; leave the brackets away")
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
