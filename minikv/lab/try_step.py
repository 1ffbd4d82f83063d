"""Let a learner's own step of the decode loop run the model, with ours doing the same beside it.

tried = try_step(my_step)
print(tried)
tried.map()

Their step gets the real model, manager and pool, each through a window that notes what is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from minikv.decode import Request
from minikv.errors import OutOfBlocksError, UnwrittenSlotError
from minikv.lab.event_log import EventLog
from minikv.lab.stand_in import Tryout
from minikv.lab.watched import Divergence
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool, ReadTable

NUM_BLOCKS, BLOCK_SIZE = 16, 4
PROMPT = "Ada has three red kites . Bo has two gold cups . What does Bo have ?"
LIMIT = 8  # steps after which a sentence without a full stop is given up

#: (model, manager, pool, request) -> the token chosen
Step = Callable[[Any, Any, Any, Request], Any]


class Done(NamedTuple):
    """What one step did, in the order in which a difference is looked for: its words, and the invariant."""

    tokens: list[int]
    positions: list[int]
    table: tuple[int, ...]
    announced: tuple[int, int] | None
    written: dict[int, list[int]]  # layer -> slots
    read: dict[int, list[int]]
    chosen: Any
    num_stored: int
    token_ids: list[int]


_SAYS = {
    "tokens": ("the tokens given to the model are", None),
    "positions": ("the positions given to the model are", None),
    "table": ("the block table is", "I5"),
    "announced": ("what note_write was told is", "I4"),
    "written": ("the slots written, layer by layer, are", "I5"),
    "read": ("the slots read, layer by layer, are", "I6"),
    "chosen": ("the token chosen is", None),
    "num_stored": ("request.num_stored is", None),
    "token_ids": ("request.token_ids ends with", None),
}


class Windows:
    """The model, the manager and the pool of a bench as one step sees them; notes what it asks of them."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.model, self.manager, self.pool = _Model(self), _Manager(self), _Pool(self)
        self.request: Request | None = None
        self.stored = 0  # of its tokens, when the step began: a step may move num_stored before it writes
        self._begin()

    def take(self, step: Step, request: Request) -> Done:
        """One step for `request`; what it did. Whatever it raises is passed on."""
        self.request, self.stored = request, request.num_stored
        self._begin()
        chosen = step(self.model, self.manager, self.pool, request)
        if isinstance(chosen, int) and not isinstance(chosen, bool):
            word, place = self.bench.model.text([chosen]), self.stored + len(self.tokens)
            self.bench.log({"op": "token", "request": request.name, "position": place, "word": word})
        return self.done(chosen)

    def done(self, chosen: Any) -> Done:
        """What was noted in this step so far."""
        request = self.request
        assert request is not None  # there is no step without one
        seen = (self.tokens, self.positions, tuple(request.table.block_ids), self.announced)
        ends = (chosen, request.num_stored, list(request.token_ids))
        return Done(*seen, self.written, self.read, *ends)

    def _begin(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.announced: tuple[int, int] | None = None
        self.written: dict[int, list[int]] = {}
        self.read: dict[int, list[int]] = {}

    def tell(self, op: str, **facts: Any) -> None:
        """Tell the log, of the request that takes the step."""
        assert self.request is not None
        self.bench.log({"op": op, "request": self.request.name, **facts})


class _Model:
    def __init__(self, windows: Windows) -> None:
        self._windows, self._model = windows, windows.bench.model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Any) -> Tensor:
        self._windows.tokens, self._windows.positions = token_ids[0].tolist(), positions[0].tolist()
        return self._model(token_ids, positions, attend)


class _Manager:
    def __init__(self, windows: Windows) -> None:
        self._windows, self._manager = windows, windows.bench.manager
        log = windows.bench.log
        # What is announced is not what is written: the pool's window tells of that.
        self._manager.observer = lambda event: None if event["op"] == "write" else log(event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def note_write(self, table: Any, start: int, stop: int, words: Sequence[str] = ()) -> None:
        self._manager.note_write(table, start, stop, words)
        self._windows.announced = (start, stop)


class _Pool(BlockPool):
    def __init__(self, windows: Windows) -> None:
        self.__dict__ = dict(windows.bench.pool.__dict__)  # the tensors are the same, the window is not
        self._windows = windows

    def write(self, layer: int, slots: Any, k: Tensor, v: Tensor) -> None:
        super().write(layer, slots, k, v)
        flat = [int(slot) for slot in slots]
        self._windows.written[layer] = flat
        if layer == 0:
            text = self._windows.bench.model.text
            words = [text([token]) for token in self._windows.tokens]
            words = (words + ["·"] * len(flat))[: len(flat)]
            self._windows.tell("write", start=self._windows.stored, slots=flat, words=words)

    def row_slots(self, tables: Sequence[ReadTable], lengths: Sequence[int]) -> list[Tensor]:
        rows = super().row_slots(tables, lengths)
        if rows and sum(layer in self._windows.read for layer in range(self.num_layers)) == 0:
            self._windows.tell("read", length=len(rows[0]), slots=rows[0].tolist())
        self._windows.read[len(self._windows.read)] = rows[0].tolist() if rows else []
        return rows


class Beside:
    """Runs their step and ours on two benches alike, and notes the first difference.

    Attributes:
        log: what their step did.
        divergence: the first difference, or None.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._benches = [Workbench(NUM_BLOCKS, BLOCK_SIZE) for _ in range(2)]
        self._theirs, self._ours = (Windows(bench) for bench in self._benches)
        loop = self._benches[1].loop
        windows: Any = self._ours  # they stand in for what the loop was made with
        loop.model, loop.manager, loop.pool = windows.model, windows.manager, windows.pool
        self.log = self._benches[0].log
        self.divergence: Divergence | None = None
        self.unwritten = False  # the step is still as the notebook has it
        self._pairs: dict[str, tuple[Request, Request]] = {}

    def start(self, prompt: str, name: str) -> None:
        """A request on both benches."""
        theirs, ours = (bench.start(prompt, name) for bench in self._benches)
        self._pairs[name] = (theirs, ours)

    def fork(self, name: str, child: str) -> None:
        """A fork of it on both."""
        theirs, ours = (
            bench.fork(request, child)
            for bench, request in zip(self._benches, self._pairs[name], strict=True)
        )
        self._pairs[child] = (theirs, ours)

    def goes_on(self, name: str, text: str) -> None:
        """The user types on, after what was said so far."""
        for request in self._pairs[name]:
            request.token_ids += self._benches[0].model.tokenizer.encode(text)
            request.prompt_length = len(request.token_ids)

    def answer(self, name: str) -> str:
        """Step until a full stop, or `LIMIT` times; what their request said."""
        theirs = self._pairs[name][0]
        for _ in range(LIMIT):
            self._step_both(name)
            if self._said(theirs).endswith(".") or self.unwritten:
                break
        return self._said(theirs)

    def _said(self, request: Request) -> str:
        return self._benches[0].model.tokenizer.decode(request.generated)

    def _step_both(self, name: str) -> None:
        theirs, ours = self._pairs[name]
        loop = self._benches[1].loop
        right = self._ours.take(lambda *parts: loop.prefill(ours), ours)
        try:
            done = self._theirs.take(self._step, theirs)
        except Exception as error:
            self._blame_error(name, error, self._theirs.done(None), right)
            raise
        self.unwritten = done.chosen is ...
        self._compare(name, done, right)

    def _compare(self, name: str, done: Done, right: Done) -> None:
        """Note the first difference."""
        if self.divergence is not None:
            return
        for field, (says, invariant) in _SAYS.items():
            seen, should = getattr(done, field), getattr(right, field)
            if _same(seen, should):
                continue
            block_id = None
            if field in ("written", "read"):
                seen, should, block_id = _first_difference(seen, should)
            if field == "token_ids":
                seen, should = seen[-3:], should[-3:]
            if field in ("tokens", "chosen", "token_ids"):
                seen, should = self._in_words(seen, should), self._in_words(should, seen)
            self._blame(
                f"In {name}'s step at position {right.positions[0]} {says} {seen}; ours: {should}.",
                invariant,
                block_id,
            )
            return

    def _blame_error(self, name: str, error: Exception, done: Done, right: Done) -> None:
        """Their step stopped: the invariant is the one the error names, or else that of a short table."""
        if self.divergence is not None:
            return
        invariant = "I6" if isinstance(error, UnwrittenSlotError) else None
        if len(done.table) < len(right.table):
            invariant = "I5"
        invariant = getattr(error, "invariant", invariant)
        told = f"{name}'s step at position {right.positions[0]} stops with {type(error).__name__}: {error}."
        self._blame(told, invariant, getattr(error, "block_id", None))

    def _blame(self, sentence: str, invariant: str | None, block_id: int | None) -> None:
        self.log({"op": "note", "text": sentence})
        self.divergence = Divergence(len(self.log) - 1, invariant, block_id, sentence)

    def _in_words(self, tokens: Any, like: Any) -> str:
        """Token ids as words; what is not of the same type as `like`, as it is."""
        ids = tokens if isinstance(tokens, list) else [tokens]
        if type(tokens) is not type(like) or not all(type(token) is int for token in ids):
            return f"{tokens!r} ({type(tokens).__name__})"
        return repr(" ".join(self._benches[0].model.text([token]) for token in ids))


def _same(seen: Any, should: Any) -> bool:
    """Equal, and of the same types: a tensor is equal to the int in it, and is not one."""
    if isinstance(should, list):
        return [type(each) for each in seen] == [type(each) for each in should] and bool(seen == should)
    return type(seen) is type(should) and bool(seen == should)


def _first_difference(
    seen: dict[int, list[int]], should: dict[int, list[int]]
) -> tuple[str, str, int | None]:
    """Of slots layer by layer: the first layer that differs, and the block of its first other slot."""
    for layer, right in should.items():
        slots = seen.get(layer)
        if slots == right:
            continue
        if slots is None:
            return f"none in layer {layer}", str(right), None
        other = next((a for a, b in zip(slots, right, strict=False) if a != b), (slots + right)[-1])
        return f"{slots} in layer {layer}", str(right), other // BLOCK_SIZE
    return f"those of {len(seen)} layers", f"of {len(should)}", None


def run_story(beside: Beside) -> Iterator[str]:
    """A is answered. B forks off A, and each is asked something else. Sentence by sentence, what they say."""
    beside.start(PROMPT, "A")
    yield f"A says: {beside.answer('A')}"
    if beside.unwritten:
        return
    beside.fork("A", "B")
    beside.goes_on("A", "What does Ada have ?")
    beside.goes_on("B", "Tell me what Bo has .")
    yield f"A, asked what Ada has: {beside.answer('A')}"
    yield f"B, asked what Bo has: {beside.answer('B')}"


def try_step(step: Step) -> Tryout:
    """Run the story on a learner's step, with ours doing the same beside it.

    Raises TypeError for anything that cannot be called.
    """
    if not callable(step):
        raise TypeError(f"try_step takes a function, not {step!r}")
    name = getattr(step, "__name__", "the step")
    beside, said = Beside(step), []
    try:
        for sentence in run_story(beside):
            said.append(sentence)
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        said.append(f"the run stops with {type(error).__name__}: {error}")
    if beside.unwritten:
        return Tryout(name, None, EventLog())
    return Tryout(name, "\n".join(said), beside.log, beside.divergence)


def in_a_full_pool(step: Step) -> str | None:
    """What is wrong with a step that finds no block; None if it raises OutOfBlocksError, as it should."""
    bench = Workbench(num_blocks=2, block_size=4)
    request = bench.start("Ada has three red kites . Ada has")  # 8 tokens fill both blocks
    bench.prefill(request)
    try:
        step(bench.model, bench.manager, bench.pool, request)
    except OutOfBlocksError:
        return None
    except Exception as error:  # a learner's code may raise anything
        return f"when allocate returns False it stops with {type(error).__name__}: {error}"
    return "when allocate returns False it goes on as if there were room"
