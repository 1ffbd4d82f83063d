"""A request that outgrows its contiguous reservation, and what a neighbour then says."""

import pytest

from minikv.lab.sabotage import sabotage
from minikv.lab.workbench import Workbench

ADA = "Ada has three red kites . The road is long . What does Ada have ?"
BO = "Bo has two gold cups . Tea is ready ."


def answers(broken: bool) -> tuple[Workbench, str, str]:
    bench = Workbench(num_blocks=4, block_size=16)
    a, b = bench.start(ADA, "A"), bench.start(BO, "B")
    bench.prefill(a), bench.prefill(b)
    if broken:
        with sabotage("outgrown", bench, request=a):
            ada = bench.finish_sentence(a)
    else:
        ada = bench.finish_sentence(a)
    bench.say(b, "Tell me what Bo has .")
    return bench, ada, bench.finish_sentence(b)


def test_in_order_both_answers_are_right() -> None:
    bench, ada, bo = answers(broken=False)
    assert (ada, bo) == ("Ada has three red kites .", "Bo has two gold cups .")
    assert bench.log.violations == ()


def test_bo_gets_adas_kites_and_the_log_says_where() -> None:
    bench, ada, bo = answers(broken=True)
    assert (ada, bo) == ("Ada has three red kites .", "Bo has three red kites .")
    first = bench.log.violations[0]
    assert (first.invariant, first.block_id) == ("I5", 0)
    assert first.sentence == "Request A has 17 tokens stored, its table covers 16."
    assert bench.log[first.step]["slots"] == [16], "the first slot of block 1, which B holds"
    assert bench.log.state(len(bench.log) - 1).words_in(1)[:5] == tuple("Ada has three red kites".split())


def test_afterwards_everything_is_as_before() -> None:
    bench = Workbench(num_blocks=4, block_size=16)
    a = bench.start(ADA, "A")
    bench.prefill(a)
    before = (bench.loop.manager, bench.loop.backend, bench.loop.observer, a.table)
    with sabotage("outgrown", bench, request=a) as switch:
        assert switch.invariant == "I5 capacity"
        bench.step(a)
    assert (bench.loop.manager, bench.loop.backend, bench.loop.observer, a.table) == before
    bench.finish(a)
    bench.manager.check()


def test_a_request_without_a_block_has_nothing_to_outgrow() -> None:
    bench = Workbench(num_blocks=4, block_size=16)
    with (
        pytest.raises(ValueError, match="request A holds no block yet; prefill it first"),
        sabotage("outgrown", bench, request=bench.start(ADA, "A")),
    ):
        pass
