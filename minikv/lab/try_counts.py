"""Let a learner's own counting run in place of ours: who shares a block, and when it is free.

tried = try_counts(MyRefCounts)
print(tried)
tried.map()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minikv.block_table import BlockTable
from minikv.lab.event_log import EventLog
from minikv.lab.exercises import check
from minikv.lab.stand_in import Tryout
from minikv.lab.watched import Watched
from minikv.lab.workbench import Workbench

NUM_BLOCKS, BLOCK_SIZE = 5, 6
OLD = "Tea is ready . The road is long . Rain fell all night ."
LEDGER = "Ada has three red kites . Bo has two gold cups ."
OTHER = "Bo has nine black horses . Finn has five green bells ."


class CountedManager:
    """A manager that leaves all counting to a learner's class; it only keeps tables.

    Args:
        counts: their counts and free queue, fresh, with take, share, drop and free_table.
    """

    def __init__(self, counts: Any, block_size: int) -> None:
        self.counts, self.block_size = counts, block_size

    @property
    def ref_counts(self) -> Any:
        """Their counts, as `Watched` looks for them."""
        return self.counts.counts

    @property
    def free_queue(self) -> list[int]:
        """Their free queue. O(free blocks)."""
        return list(self.counts.free_queue)

    def allocate(self, table: BlockTable, num_tokens: int) -> bool:
        """Take as many blocks as are missing, or none. O(free blocks)."""
        needed = max(0, -(-(table.offset + num_tokens) // self.block_size) - table.num_blocks)
        if needed > len(self.free_queue):
            return False
        for _ in range(needed):
            table.append_block(self.counts.take())
        return True

    def fork(self, table: BlockTable) -> BlockTable:
        """Share every block with a second table."""
        child = BlockTable(table.block_size, table.offset)
        for block_id in table.block_ids:
            child.append_block(block_id)
            self.counts.share(block_id)
        return child

    def copy_on_write(self, table: BlockTable, position: int) -> tuple[int, int] | None:
        """A block of its own for `table` at `position`, if the one there has several holders."""
        source = table.slot(position) // self.block_size
        if self.counts.counts[source] < 2:
            return None
        copy = self.counts.take()
        table.replace_block((table.offset + position) // self.block_size, copy)
        self.counts.drop(source)
        return source, copy

    def free(self, table: BlockTable) -> None:
        """Clear the table and drop what it listed."""
        block_ids = table.block_ids
        table.clear()
        self.counts.free_table(block_ids)


def try_counts(counts_class: type) -> Tryout:
    """Run `share_and_part` on a learner's counts, with ours doing the same sums beside it.

    Raises TypeError for anything but a class.
    """
    if not isinstance(counts_class, type):
        raise TypeError(f"try_counts takes a class, not {counts_class!r}; leave off the brackets")
    name = counts_class.__name__
    if "not answered yet" in check("04.refs", counts_class).message:
        return Tryout(name, None, EventLog())
    bench = Workbench(NUM_BLOCKS, BLOCK_SIZE)
    watched: Watched | None = None
    said: list[str] = []
    try:
        theirs = CountedManager(counts_class(NUM_BLOCKS), BLOCK_SIZE)
        watched = Watched(theirs, NUM_BLOCKS, BLOCK_SIZE, bench.log, bench.pool)
        stand_in: Any = watched
        bench.manager = bench.loop.manager = stand_in
        for sentence in share_and_part(bench):
            said.append(sentence)
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        said.append(f"the run stops with {type(error).__name__}: {error}")
    return Tryout(name, "\n".join(said), bench.log, None if watched is None else watched.divergence)


def share_and_part(bench: Workbench) -> Iterator[str]:
    """Two requests share a ledger, one ends, strangers come, a third forks off; what the model says of it.

    Meant for 5 blocks of 6 slots. Z takes blocks 0 to 2, A 3 and 4, and B shares A's. A ends, then Z: the
    queue is 2, 1, 0. C takes 2 and 1; B is answered, with 0. C ends; D forks off B, copies 0 to 1, and is
    answered.
    """
    z, a = bench.start(OLD, "Z"), bench.start(LEDGER, "A")
    bench.prefill(z), bench.prefill(a)
    b = bench.fork(a, "B")
    bench.finish(a)
    bench.finish(z)
    c = bench.start(OTHER, "C")
    bench.prefill(c)
    bench.say(b, "Bo has")
    yield f"B is told: Bo has {bench.finish_sentence(b)}"
    bench.finish(c)
    d = bench.fork(b, "D")
    bench.say(d, ". Ada has")
    yield f"D is told: Ada has {bench.finish_sentence(d)}"
    bench.finish(b)
    bench.finish(d)
    free = len(bench.log.state(len(bench.log) - 1).free_queue)
    yield f"at the end the free queue has {free} entries, in a pool of {NUM_BLOCKS} blocks"
