"""Random walks of a correct pool: the log agrees with a plain model at every step, and nothing is flagged."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from minikv.lab.event_log import EventLog
from tests.lab.logs import allocate, copy, drop, pool, release, share, write

BLOCKS, SIZE = 6, 2


class Model:
    """A pool by the book: a deque, counts and tables."""

    def __init__(self) -> None:
        self.log = EventLog([pool(BLOCKS, SIZE)])
        self.free = deque(range(BLOCKS))
        self.counts = [0] * BLOCKS
        self.tables: dict[str, list[int]] = {}
        self.words: dict[str, list[str]] = {}
        self.born = 0

    def grow(self, name: str) -> None:
        """Store one more token, with a new block or a copy where it needs one."""
        table, words = self.tables.setdefault(name, []), self.words.setdefault(name, [])
        index, place = divmod(len(words), SIZE)
        needs = index == len(table) or self.counts[table[index]] > 1
        if needs and not self.free:
            self.log({"op": "full", "request": name, "needed": 1, "free": 0})
            return
        if index == len(table):
            table.append(self.free.popleft())
            self.counts[table[-1]] = 1
            self.log(allocate(name, index, table[-1]))
        elif needs:
            source, table[index] = table[index], self.free.popleft()
            self.counts[source] -= 1
            self.counts[table[index]] = 1
            self.log(copy(name, index, source, table[index], self.counts[source]))
        word = f"{name}{len(words)}"
        self.log(write(name, len(words), [table[index] * SIZE + place], word))
        words.append(word)

    def fork(self, name: str) -> None:
        self.born += 1
        child = f"F{self.born}"
        self.tables[child], self.words[child] = (
            list(self.tables.get(name, [])),
            list(self.words.get(name, [])),
        )
        for index, block in enumerate(self.tables[child]):
            self.counts[block] += 1
            self.log(share(child, index, block, self.counts[block], name))

    def end(self, name: str) -> None:
        for index, block in reversed(list(enumerate(self.tables.pop(name, [])))):
            self.counts[block] -= 1
            self.log(drop(name, index, block, self.counts[block]))
            if self.counts[block] == 0:
                self.free.append(block)
                self.log(release(block))
        self.words.pop(name, None)

    def compare(self) -> None:
        state = self.log.state(len(self.log) - 1)
        assert self.log.violations == ()
        assert state.free_queue == tuple(self.free)
        assert state.ref_counts == tuple(self.counts)
        for name, table in self.tables.items():
            if table:
                assert state.tables[name] == tuple(table)
                assert state.text_of(name) == tuple(self.words[name])
        memory = state.memory
        assert memory["held"] == sum(count > 0 for count in self.counts)
        assert memory["tokens"] + memory["unused"] + memory["before"] == memory["held"] * SIZE


@given(st.lists(st.tuples(st.sampled_from(["grow", "grow", "fork", "end"]), st.integers(0, 3)), max_size=30))
def test_the_log_agrees_with_a_plain_model(moves: list[tuple[str, int]]) -> None:
    model = Model()
    for move, which in moves:
        names = [*model.tables, "A", "B"]
        getattr(model, move)(names[which % len(names)])
        model.compare()
