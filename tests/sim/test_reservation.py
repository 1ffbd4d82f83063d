"""The policies: splits by hand, every slot accounted for at every moment, and faults that this finds."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minikv.sim.policy import Books, Holding
from minikv.sim.reservation import GrowAndMove, OrcaMax, OrcaOracle, OrcaPow2, Paged
from minikv.sim.split import Split
from minikv.sim.workload import Request
from tests.sim.reference import Stored, slot_by_slot
from tests.sim.test_simulate import POLICIES

# ---- by hand -----------------------------------------------------------------------------------


def test_max_reserves_the_longest_there_may_be() -> None:
    """The paper's Fig. 3: a prompt of 7 and 5 tokens of output, in a reservation of 2,048."""
    policy = OrcaMax(2048 + 100)
    assert policy.admit(1, Request(0, 7, 5))
    assert policy.split() == Split(tokens=7, reserved=4, internal=2037, external=0, free=100)
    assert policy.split(waiting=True) == Split(7, 4, 2037, 100, 0)
    assert policy.append(1)
    assert policy.split() == Split(8, 3, 2037, 0, 100)
    assert not policy.admit(2, Request(0, 1, 1))


def test_pow2_reserves_the_next_power_of_two_of_the_output() -> None:
    """The paper's example: an output of 25 gets 32. With the prompt that is 40; the allocator takes 64."""
    policy = OrcaPow2(128, 64)
    assert policy.admit(1, Request(0, 8, 25))
    assert policy.split() == Split(tokens=8, reserved=24, internal=8, external=24, free=64)


@pytest.mark.parametrize(
    ("outputs", "reserved"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1024, 1024), (1025, 2048)]
)
def test_powers_of_two(outputs: int, reserved: int) -> None:
    assert OrcaPow2(8192, 4096).reservation(Request(0, 10, outputs)) == 10 + reserved


def test_pow2_never_reserves_more_than_the_model_can_use() -> None:
    assert OrcaPow2(8192, 2048).reservation(Request(0, 1000, 1030)) == 2048


def test_the_oracle_has_no_internal_fragmentation() -> None:
    policy = OrcaOracle(64, 64)
    assert policy.admit(1, Request(0, 8, 25))
    assert policy.split() == Split(tokens=8, reserved=24, internal=0, external=0, free=32)
    assert policy.admit(2, Request(0, 8, 10))
    assert policy.split() == Split(16, 33, 0, 15, 0)


def test_grow_and_move_grows_in_place_and_else_copies() -> None:
    policy = GrowAndMove(20, "first", headroom=2)
    assert policy.admit(1, Request(0, 4, 9)) and policy.admit(2, Request(0, 2, 2))
    assert policy.arena.spans == {1: (0, 6), 2: (6, 4)}
    assert policy.split() == Split(6, 3, 1, 0, 10)
    assert policy.append(1) and policy.append(1)
    assert policy.tokens_copied == 0
    assert policy.append(1)
    assert policy.arena.spans == {1: (10, 8), 2: (6, 4)} and policy.tokens_copied == 6
    policy.finish(2)
    assert policy.append(1) and policy.append(1)
    assert policy.arena.spans == {1: (10, 10)} and policy.tokens_copied == 6


def test_paged_holds_less_than_one_block_too_many() -> None:
    policy = Paged(4, 4)
    assert policy.admit(1, Request(0, 5, 5))
    assert policy.split(waiting=True) == Split(tokens=5, reserved=3, internal=0, external=0, free=8)
    for _ in range(4):
        assert policy.append(1)
    assert policy.split() == Split(9, 0, 3, 0, 4)
    assert policy.tables[1].block_ids == (0, 1, 2)
    policy.finish(1)
    assert policy.split() == Split(0, 0, 0, 0, 16) and policy.tables == {}


def test_a_preempted_request_comes_back_with_what_it_had_generated() -> None:
    policy = Paged(4, 4)
    assert policy.admit(1, Request(0, 5, 6), done=3)
    assert policy.stored(1) == 8 and policy.room(1) == 0


def test_advance_is_a_token_for_everybody() -> None:
    one, other = Paged(9, 4), Paged(9, 4)
    for policy in (one, other):
        assert policy.admit(1, Request(0, 5, 9)) and policy.admit(2, Request(0, 1, 9))
    one.advance(3)
    for key in (1, 2):
        for _ in range(3):
            assert other.append(key)
    assert one.split() == other.split() and one.stored(2) == other.stored(2) == 4


def test_fig2_counts_free_memory_with_external() -> None:
    assert Split(1, 2, 3, 4, 5).fig2 == Split(1, 2, 3, 9, 0)
    assert Split(1, 1, 1, 0, 1).percent == Split(25, 25, 25, 0, 25)


# ---- misuse ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda p: p.admit(1, Request(0, 1, 1)), ValueError, "request 1 is running already"),
        (lambda p: p.admit(2, Request(0, 17, 1)), ValueError, "request 2 needs 17 slots, and"),
        (lambda p: p.append(2), KeyError, "2"),
        (lambda p: p.finish(2), KeyError, "2"),
    ],
)
@pytest.mark.parametrize("make", [lambda: Paged(4, 4), lambda: OrcaMax(16, 16), lambda: GrowAndMove(16)])
def test_misuse_is_refused_and_changes_nothing(
    make: Callable[[], Books], call: Callable[[Books], object], error: type[Exception], said: str
) -> None:
    policy = make()
    policy.admit(1, Request(0, 2, 2))
    before = policy.split()
    with pytest.raises(error, match=re.escape(said)):
        call(policy)
    assert policy.split() == before


def test_no_more_tokens_than_a_request_has() -> None:
    policy = Paged(4, 4)
    policy.admit(1, Request(0, 2, 2))
    assert policy.append(1)
    with pytest.raises(ValueError, match="request 1 has stored all its 3 tokens; finish it"):
        policy.append(1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OrcaMax(100), "max_length is 2048; the largest power of two in 100 slots is 64"),
        (lambda: OrcaOracle(100, 0), "max_length is 0"),
        (lambda: GrowAndMove(100, "first", 0), "headroom is 0"),
        (lambda: GrowAndMove(100, "worst"), "fit is 'worst'"),
        (lambda: Paged(0), "num_blocks is 0"),
        (lambda: Paged(4, 0), "block_size is 0"),
    ],
)
def test_impossible_memory_is_refused(make: Callable[[], Books], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        make()


# ---- every slot, at every moment -----------------------------------------------------------------


class Walk(RuleBasedStateMachine):
    """Random calls; after each, the sums must be what marking slot by slot gives."""

    @initialize(make=st.sampled_from(POLICIES))
    def start(self, make: Callable[[], Books]) -> None:
        self.policy, self.running, self.key = make(), {}, 0

    def keys(self) -> list[int]:
        return sorted(self.running)

    @rule(inputs=st.integers(1, 9), outputs=st.integers(1, 9), done=st.integers(0, 8))
    def admit(self, inputs: int, outputs: int, done: int) -> None:
        request, done = Request(0, inputs, outputs), min(done, outputs - 1)
        if request.slots <= self.policy.longest:
            before = self.policy.split()
            if self.policy.admit(self.key, request, done):
                self.running[self.key] = Stored(request, inputs + done)
                self.key += 1
            else:
                assert self.policy.split() == before

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.keys()))
        request, tokens = self.running[key]
        if tokens < request.slots:
            before = self.policy.split()
            if self.policy.append(key):
                self.running[key] = Stored(request, tokens + 1)
            else:
                assert self.policy.split() == before

    @precondition(lambda self: self.running)
    @rule()
    def everybody_stores_one(self) -> None:
        room = min(map(self.policy.room, self.running))
        if room and all(tokens < request.slots for request, tokens in self.running.values()):
            self.policy.advance(1)
            self.running = {key: Stored(request, n + 1) for key, (request, n) in self.running.items()}

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.keys()))
        self.policy.finish(key)
        del self.running[key]

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        for waiting in (False, True):
            split = self.policy.split(waiting)
            assert split == slot_by_slot(self.policy, self.running, waiting)
            assert split.total == self.policy.num_slots and min(split) >= 0


TestWalk = Walk.TestCase


# ---- faults that this must find --------------------------------------------------------------------


class Leaks(Paged):
    def _release(self, holding: Holding) -> None:
        self.tables.pop(holding.key)  # the manager is not told


class GivesBackOneTooFew(OrcaOracle):
    def _release(self, holding: Holding) -> None:
        super()._release(holding)
        holding.held -= 1


class SharesAPlace(OrcaMax):
    def _place(self, holding: Holding, request: Request, tokens: int) -> bool:
        done = super()._place(holding, request, tokens)
        if done and holding.key:
            self.arena._spans[holding.key] = self.arena._spans[0]
        return done


class GrowsOnPaper(GrowAndMove):
    def grow(self, key: int) -> bool:
        holding = self._holdings[key]
        self._book(holding, holding.capacity + 1, holding.held + 1)
        return True


class ForgetsRounding(OrcaPow2):
    def _place(self, holding: Holding, request: Request, tokens: int) -> bool:
        size = self.reservation(request)
        placed = self.arena.allocate(holding.key, size) is not None
        if placed:
            self._book(holding, size, size)
        return placed


class CountsThePromptTwice(Paged):
    def admit(self, key: int, request: Request, done: int = 0) -> bool:
        admitted = super().admit(key, request, done)
        self._tokens += admitted * request.input_tokens
        return admitted


@pytest.mark.parametrize(
    "make",
    [
        lambda: Leaks(8, 4),
        lambda: GivesBackOneTooFew(40, 16),
        lambda: SharesAPlace(40, 16),
        lambda: GrowsOnPaper(40, "first", 1),
        lambda: ForgetsRounding(40, 16),
        lambda: CountsThePromptTwice(8, 4),
    ],
)
def test_a_faulty_policy_is_found_out(make: Callable[[], Books]) -> None:
    """Two requests live and die, twice; the same checks as in the random walk."""
    policy = make()
    running: dict[int, Stored] = {}

    def check() -> None:
        assert policy.split() == slot_by_slot(policy, running, False)
        assert policy.split().total == policy.num_slots
        if isinstance(policy, Paged):
            held = {block for table in policy.tables.values() for block in table.block_ids}
            assert policy.manager.allocated_blocks == len(held)

    with pytest.raises(AssertionError):
        for _ in range(2):
            for key in (0, 1):
                assert policy.admit(key, Request(0, 3, 6))
                running[key] = Stored(Request(0, 3, 6), 3)
                check()
            for tokens in range(4, 9):
                assert policy.append(0)
                running[0] = Stored(Request(0, 3, 6), tokens)
                check()
            for key in (0, 1):
                policy.finish(key)
                del running[key]
                check()
