"""Random operations: after each, the manager agrees with the obvious books, and `check` finds nothing."""

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.books import Walk

OPERATIONS = int(os.environ.get("MINIKV_OPERATIONS", "1000000"))
POOLS = [(6, 4), (12, 1), (8, 3), (1, 2), (10, 5)]  # num_blocks, block_size
NUMBERS = st.integers(0, 2**16 - 1)


class Machine(RuleBasedStateMachine):
    """Hypothesis chooses the operations, and shortens what fails to the few that matter."""

    @initialize(pool=st.sampled_from(POOLS))
    def start(self, pool: tuple[int, int]) -> None:
        self.walk = Walk(*pool)

    @rule(op=st.sampled_from((*sorted(set(Walk.OPS)), "release_all")), a=NUMBERS, b=NUMBERS, c=NUMBERS)
    def step(self, op: str, a: int, b: int, c: int) -> None:
        self.walk.step(op, a, b, c)


def test_whatever_hypothesis_does() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=200, stateful_step_count=50))


def random_operations(total: int) -> None:
    for seed, pool in enumerate(POOLS):
        Walk(*pool).random_steps(total // len(POOLS), seed)


def test_100_000_random_operations() -> None:
    random_operations(100_000)


@pytest.mark.nightly
def test_many_random_operations() -> None:
    random_operations(OPERATIONS)
