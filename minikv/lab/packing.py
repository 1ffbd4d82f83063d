"""The packing game: reserve contiguous memory for requests whose length nobody knows. (chapter §1)

    game = PackingGame(seed=2)
    game.place("A", start=0, size=12)     # reserve slots 0 to 11 for A
    game.step()                           # every running request writes one token
    game.play("max")                      # or let a rule play on to the end
    game.board()                          # play it by hand, with the mouse or the keys

Requests are served in the order in which they come, and there are always more. The clock stands still
while the player decides. What counts is how much of the memory holds tokens, and how many requests end.

The state is one immutable value, replaced by every operation: an illegal one changes nothing, and `undo`
is to take the value before. The board (packing_board.py) draws it; nothing here knows of widgets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from minikv.checks import whole_number
from minikv.lab import packing_words as words
from minikv.lab.packing_play import play_step, resolve
from minikv.lab.packing_requests import Hole, Merge, PackingRequest, Place, Rule, merge, seeded_requests
from minikv.lab.packing_split import Held, Moment, Split, mean, split

if TYPE_CHECKING:
    from minikv.lab.packing_board import PackingBoard


class PackingError(ValueError):
    """A move that the rules do not allow. The message names the numbers and the way out; nothing changed."""


class Run(NamedTuple):
    """A running request: it holds the slots start … start + size - 1, and the first `tokens` are written."""

    request: PackingRequest
    start: int
    size: int
    tokens: int
    stay: int  # counts admissions: a dropped request comes back as another stay

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def stop(self) -> int:
        """The first slot behind it."""
        return self.start + self.size

    @property
    def is_outgrown(self) -> bool:
        """Its reservation is full and it goes on: before the next step it must grow, move or go."""
        return self.tokens == self.size


class Score(NamedTuple):
    """What came of it so far."""

    steps: int
    served: int  # requests that ended
    tokens_copied: int
    dropped: int  # times that a request was sent back to the head of the queue
    tokens_lost: int  # tokens of answers that were written and dropped
    tokens_written: int  # tokens of answers, those that were dropped later included
    split: Split  # the kinds, in per cent of the memory, as a mean over the steps

    def __repr__(self) -> str:
        return words.score_text(self)


@dataclass(frozen=True)
class _State:
    runs: tuple[Run, ...]  # in the order of admission
    waiting: tuple[PackingRequest, ...]
    pieces: tuple[Hole, ...]  # free slots in address order; pieces that touch are not joined
    moments: tuple[Moment, ...]
    finals: tuple[tuple[int, int], ...]  # stay -> tokens when it ended
    room: int  # slots for the answer that the last reservation had
    sentence: str
    stays: int = 0
    served: tuple[str, ...] = ()
    tokens_copied: int = 0
    dropped: int = 0
    tokens_lost: int = 0
    seen: tuple[tuple[str, int], ...] = ()  # name -> tokens that a dropped request is known to exceed
    player: str = "You"


class PackingGame:
    """A strip of slots, a queue of requests, and a clock.

    Args:
        seed: of the requests; the same seed is the same game.
        num_slots: token slots in the memory.
        num_steps: steps until the game is over.
        max_new_tokens: the longest answer that a request may give.
        requests: instead of seeded ones.

    Raises:
        ValueError: a number below 1, or a memory too small for the longest request.
        TypeError: a number that is no integer.
    """

    def __init__(
        self,
        seed: int = 0,
        num_slots: int = 96,
        num_steps: int = 24,
        max_new_tokens: int = 24,
        requests: Sequence[PackingRequest] | None = None,
    ) -> None:
        self.seed = whole_number("seed", seed)
        self.num_slots = _at_least_one("num_slots", num_slots)
        self.num_steps = _at_least_one("num_steps", num_steps)
        self.max_new_tokens = _at_least_one("max_new_tokens", max_new_tokens)
        more_than_enough = 2 * self.num_slots
        self.requests = (
            seeded_requests(self.seed, more_than_enough, max_new_tokens)
            if requests is None
            else tuple(requests)
        )
        for each in self.requests:
            self._check_request(each)
        self._followers: list[Callable[[], None]] = []
        self._history = [self._start()]

    def _check_request(self, request: PackingRequest) -> None:
        if request.prompt < 1 or not 1 <= request.answer <= self.max_new_tokens:
            raise ValueError(
                f"{request}: a prompt has at least 1 token, an answer 1 to {self.max_new_tokens} tokens"
            )
        if request.prompt + self.max_new_tokens > self.num_slots:
            raise ValueError(
                f"request {request.name} may need {request.prompt} + {self.max_new_tokens} slots, but the "
                f"memory has {self.num_slots}; make num_slots larger or max_new_tokens smaller"
            )

    def _start(self) -> _State:
        sentence = words.opening(self.num_slots, self.requests)
        return _State(
            (), self.requests, ((0, self.num_slots),), (), (), self.max_new_tokens, sentence=sentence
        )

    # ---- what there is ----------------------------------------------------------------------

    @property
    def _state(self) -> _State:
        return self._history[-1]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The running requests, in the order in which they came in."""
        return self._state.runs

    @property
    def waiting(self) -> tuple[PackingRequest, ...]:
        """The queue. Only its head can be placed."""
        return self._state.waiting

    @property
    def outgrown(self) -> tuple[Run, ...]:
        """Running requests that must grow, move or go before the next step."""
        return tuple(run for run in self.runs if run.is_outgrown)

    @property
    def pieces(self) -> list[Hole]:
        """Free slots as they became free, in address order: pieces that touch are not joined."""
        return list(self._state.pieces)

    @property
    def holes(self) -> list[Hole]:
        """The free slots as (start, size), in address order, all that touch joined."""
        return merge(self._state.pieces)

    @property
    def free_slots(self) -> int:
        return sum(size for _, size in self._state.pieces)

    @property
    def largest_hole(self) -> int:
        return max((size for _, size in self.holes), default=0)

    @property
    def steps(self) -> int:
        """Steps that have passed."""
        return len(self._state.moments)

    @property
    def is_over(self) -> bool:
        return self.steps == self.num_steps or not (self.runs or self.waiting)

    @property
    def can_undo(self) -> bool:
        return len(self._history) > 1

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the requests that have ended, in order."""
        return self._state.served

    @property
    def sentence(self) -> str:
        """What happened last."""
        return self._state.sentence

    @property
    def player(self) -> str:
        """Who played the game to its end: "You", or a rule's name."""
        return self._state.player

    @property
    def wanted(self) -> int:
        """Slots for the head of the queue, with as much room for its answer as the last one was given.

        One that was dropped is known to need more than it had filled, and wants at least twice that.
        """
        if not self.waiting:
            return 0
        head = self.waiting[0]
        size = max(head.prompt + self._state.room, 2 * self.seen(head.name))
        return min(max(size, self.least(head.name)), self.most(head.name))

    def seen(self, name: str) -> int:
        """Tokens that a request had when it was dropped, of all times the most; 0 if it never was."""
        return max((tokens for each, tokens in self._state.seen if each == name), default=0)

    def run_of(self, name: str) -> Run:
        """The running request of this name. PackingError if it does not run."""
        found = next((run for run in self.runs if run.name == name), None)
        if found is None:
            raise PackingError(f"{name!r} is not running; running are {words.names_of(self.runs)}")
        return found

    def least(self, name: str) -> int:
        """The smallest reservation: one slot more than it has tokens. PackingError if it has no turn."""
        tokens = self._head(name).prompt if self._is_head(name) else self.run_of(name).tokens
        return tokens + 1

    def most(self, name: str) -> int:
        """The largest reservation that could ever be filled."""
        request = self._head(name) if self._is_head(name) else self.run_of(name).request
        return request.prompt + self.max_new_tokens

    # ---- moves --------------------------------------------------------------------------------

    def place(self, name: str, start: int, size: int) -> None:
        """Reserve slots start … start + size - 1 for the request at the head of the queue.

        Its prompt is written at once.

        Raises:
            PackingError: it is not its turn, or the slots are too few, too many, outside or taken.
            TypeError: start or size is no integer.
        """
        request = self._head(name)
        start, size = self._check_slots(name, start, size)
        self._check_free(name, start, size)
        now = self._state
        run = Run(request, start, size, request.prompt, now.stays)
        self._set(
            runs=(*now.runs, run),
            waiting=now.waiting[1:],
            pieces=_cut(now.pieces, start, size),
            stays=now.stays + 1,
            room=size - request.prompt,
            sentence=words.placed(run),
        )

    def move(self, name: str, start: int, size: int) -> None:
        """Give a running request other slots. All its tokens are copied, unless it begins where it began.

        Raises:
            PackingError: it does not run, or the slots are too few, too many, outside or taken. Its own
                old slots count as taken: they are free only when everything has been copied out of them.
            TypeError: start or size is no integer.
        """
        run = self.run_of(name)
        start, size = self._check_slots(name, start, size)
        now = self._state
        in_place = start == run.start
        if in_place:
            self._check_free(name, run.stop, size - run.size)
            kept = _cut(_with(now.pieces, (run.start, run.size)), start, size)
        else:
            self._check_free(name, start, size)
            kept = _with(_cut(now.pieces, start, size), (run.start, run.size))
        moved = run._replace(start=start, size=size)
        copied = 0 if in_place else run.tokens
        self._set(
            runs=tuple(moved if each is run else each for each in now.runs),
            pieces=kept,
            tokens_copied=now.tokens_copied + copied,
            sentence=words.moved(run, moved, copied),
        )

    def drop(self, name: str) -> None:
        """Take a running request's slots away. It goes back to the head of the queue and starts again.

        Raises:
            PackingError: it does not run, or the game is over.
        """
        self._check_running()
        run = self.run_of(name)
        now = self._state
        lost = run.tokens - run.request.prompt
        self._set(
            runs=tuple(each for each in now.runs if each is not run),
            waiting=(run.request, *now.waiting),
            pieces=_with(now.pieces, (run.start, run.size)),
            finals=(*now.finals, (run.stay, run.tokens)),
            dropped=now.dropped + 1,
            tokens_lost=now.tokens_lost + lost,
            seen=(*now.seen, (name, run.tokens)),
            sentence=words.dropped(run, lost),
        )

    def step(self, wanted: int | None = None) -> None:
        """Every running request writes one token; those whose answer has ended leave.

        Args:
            wanted: slots that the head of the queue would be given, for the record of this step: if so
                many are free but in no one hole, the free slots are external fragmentation.

        Raises:
            PackingError: a request has outgrown its reservation, or the game is over.
        """
        self._check_running()
        if self.outgrown:
            raise PackingError(words.must_decide(self.outgrown))
        now = self._state
        runs = tuple(run._replace(tokens=run.tokens + 1) for run in now.runs)
        ended = [run for run in runs if run.tokens == run.request.total]
        pieces = now.pieces
        for run in ended:
            pieces = _with(pieces, (run.start, run.size))
        self._set(
            runs=tuple(run for run in runs if run not in ended),
            pieces=pieces,
            moments=(*now.moments, self._moment(runs, self.wanted if wanted is None else wanted)),
            finals=(*now.finals, *((run.stay, run.tokens) for run in ended)),
            served=(*now.served, *(run.name for run in ended)),
            sentence=words.stepped(runs, ended),
        )

    def undo(self) -> None:
        """Take the last move back, a step or a restart too. PackingError if there was none."""
        if not self.can_undo:
            raise PackingError("there is nothing to take back: this is the beginning")
        self._history.pop()
        self._tell()

    def restart(self) -> None:
        """Begin again, with the same requests."""
        self._push(self._start())

    def play(
        self,
        reserve: str | Rule = "max",
        place: str | Place = "first",
        merge: Merge = merge,
        steps: int | None = None,
    ) -> Score:
        """Let a rule play on, to the end or for some steps.

        Args:
            reserve: how many slots a request is given: "max", "double", "least", "oracle" (which knows what
                nobody can know), or a function of (request, tokens it has, max_new_tokens).
            place: where: "first" or "best" fit, or a function of (holes, size).
            merge: what joins the holes before `place` sees them.
            steps: for how many steps; None: to the end.

        Raises:
            ValueError: no such name, or a function that chose what the rules do not allow (PackingError).
        """
        rule, choose = resolve(reserve, place)
        until = self.num_steps if steps is None else self.steps + steps
        while not self.is_over and self.steps < until:
            play_step(self, rule, choose, merge)
        if self.is_over:
            self._history[-1] = replace(
                self._state, player=reserve if isinstance(reserve, str) else "Your rule"
            )
            self._tell()
        return self.score

    # ---- what came of it ----------------------------------------------------------------------

    @property
    def splits(self) -> list[Split]:
        """The kinds of slots at the end of each step, as far as they are known by now."""
        finals = dict(self._state.finals)
        if self.is_over:  # the truth comes out
            finals.update((run.stay, run.request.total) for run in self.runs)
        return [split(moment, finals) for moment in self._state.moments]

    def now(self, wanted: int | None = None) -> Split:
        """The kinds of slots at this moment. Whatever is reserved and not written is not yet known."""
        return split(self._moment(self.runs, self.wanted if wanted is None else wanted), {})

    @property
    def score(self) -> Score:
        now, found = self._state, self.splits or [self.now()]
        return Score(
            self.steps,
            len(now.served),
            now.tokens_copied,
            now.dropped,
            now.tokens_lost,
            sum(len(moment.held) for moment in now.moments),  # every running request writes one in a step
            mean(found).shares,
        )

    def board(self, start: int | None = None, size: int | None = None) -> PackingBoard:
        """The game as a board to play on; `start` and `size` say which slots are aimed at first."""
        from minikv.lab.packing_board import PackingBoard  # here: the rules need no widgets

        return PackingBoard(self, start, size)

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback()` after each change. Returns a function that ends it."""
        self._followers.append(callback)
        return lambda: self._followers.remove(callback) if callback in self._followers else None

    def __repr__(self) -> str:
        return f"PackingGame(seed {self.seed}, {self.num_slots} slots, step {self.steps} of {self.num_steps})"

    # ---- plumbing -------------------------------------------------------------------------------

    def _moment(self, runs: Sequence[Run], wanted: int) -> Moment:
        held = tuple(Held(run.stay, run.size, run.tokens) for run in runs)
        free = self.free_slots
        scattered = bool(self.waiting) and self.largest_hole < wanted <= free
        return Moment(held, free if scattered else 0, 0 if scattered else free)

    def _is_head(self, name: str) -> bool:
        return bool(self.waiting) and self.waiting[0].name == name

    def _head(self, name: str) -> PackingRequest:
        if not self._is_head(name):
            first = f"next is {self.waiting[0].name}" if self.waiting else "nobody waits"
            raise PackingError(f"{name!r} cannot be placed now: {first}")
        return self.waiting[0]

    def _check_running(self) -> None:
        if self.is_over:
            raise PackingError(f"the game is over after {self.steps} steps; restart() begins again")

    def _check_slots(self, name: str, start: int, size: int) -> tuple[int, int]:
        """Start and size as integers, if so many slots make sense and lie in the memory."""
        self._check_running()
        start, size = whole_number("start", start), whole_number("size", size)
        if fault := words.size_fault(name, size, self.least(name), self.most(name)):
            raise PackingError(fault)
        if start < 0 or start + size > self.num_slots:
            raise PackingError(
                f"{words.slots(start, size)} reach outside the memory, slots 0 to {self.num_slots - 1}"
            )
        return start, size

    def _check_free(self, name: str, start: int, size: int) -> None:
        if start + size > self.num_slots:
            raise PackingError(f"the memory ends at slot {self.num_slots - 1}, {name} cannot grow beyond it")
        for run in self.runs:
            if max(start, run.start) < min(start + size, run.stop):
                raise PackingError(words.taken(name, max(start, run.start), run))

    def _set(self, **changes: object) -> None:
        self._push(replace(self._state, **changes))  # type: ignore[arg-type]

    def _push(self, state: _State) -> None:
        self._history.append(state)
        self._tell()

    def _tell(self) -> None:
        for follower in tuple(self._followers):
            follower()


def _at_least_one(name: str, value: int) -> int:
    number = whole_number(name, value)
    if number < 1:
        raise ValueError(f"{name} is {number}; it must be at least 1")
    return number


def _with(pieces: Sequence[Hole], piece: Hole) -> tuple[Hole, ...]:
    """One more free piece, in address order."""
    return tuple(sorted((*pieces, piece)))


def _cut(pieces: Sequence[Hole], start: int, size: int) -> tuple[Hole, ...]:
    """The pieces without these slots, which all lie in them."""
    stop = start + size
    left = ((a, min(n, start - a)) for a, n in pieces)
    right = ((max(a, stop), a + n - max(a, stop)) for a, n in pieces)
    return tuple(sorted({piece for piece in (*left, *right) if piece[1] > 0}))
