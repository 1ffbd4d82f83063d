"""The careless loop: what it says, where the log points, and that it is put back."""

import pytest

from minikv.lab import Workbench, sabotage

A = "Ada has three red kites . Bo has two gold cups . What does Ada have ?"
B = "Bo has six grey drums . Eva has four blue hats . What does Bo have ?"


def serve(bench):
    a, b = bench.start(A, "A"), bench.start(B, "B")
    bench.prefill(a), bench.step(a), bench.step(a), bench.prefill(b)
    while not bench.said(a).endswith("."):
        bench.step(a, b)
    bench.finish(a)
    return bench.said(a), bench.finish_sentence(b)


def test_rows_that_stay_give_b_the_words_of_a():
    bench = Workbench(12, 4)
    with sabotage("stale-rows", bench) as switch:
        assert serve(bench) == ("Ada has three red kites .", "Bo has six grey kites .")
    first = bench.log.violations[0]
    assert first.name == switch.invariant
    assert (first.block_id, bench.log[first.step]["op"]) == (0, "read")
    assert "request B" in first.sentence
    bench.manager.check()


def test_nothing_is_wrong_while_nobody_leaves():
    bench = Workbench(12, 4)
    with sabotage("stale-rows", bench):
        a, b = bench.start(A, "A"), bench.start(B, "B")
        bench.prefill(a), bench.prefill(b)
        for _ in range(5):
            bench.step(a, b)
    assert (bench.said(a), bench.said(b)) == ("Ada has three red kites .", "Bo has six grey drums .")
    assert bench.log.violations == ()


@pytest.mark.parametrize("broken", [False, True])
def test_it_is_put_back(broken):
    bench = Workbench(12, 4)
    parts = bench.loop.backend, bench.loop.observer
    if broken:
        with sabotage("stale-rows", bench):
            pass
    assert (bench.loop.backend, bench.loop.observer) == parts
    assert serve(bench) == ("Ada has three red kites .", "Bo has six grey drums .")
