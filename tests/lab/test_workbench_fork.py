"""`Workbench.fork`: a second request over the same blocks."""

import pytest

from minikv.lab import Workbench

FACTS = "Ada has three red kites . Bo has two gold cups ."


def test_a_fork_shares_every_block_and_no_data_moves():
    bench = Workbench(num_blocks=8, block_size=4)
    a = bench.start(FACTS + " Eva has", "A")
    bench.prefill(a)
    before = bench.pool.kv.clone()
    b = bench.fork(a, "B")
    assert b.table.block_ids == a.table.block_ids == (0, 1, 2, 3)
    assert [bench.manager.blocks[block].ref_count for block in range(5)] == [2, 2, 2, 2, 0]
    assert bench.pool.kv.equal(before)
    bench.manager.check()
    assert not bench.log.violations


def test_both_go_on_by_themselves_and_say_what_requests_of_their_own_would():
    bench = Workbench(num_blocks=16, block_size=8)
    a = bench.start(FACTS, "A")
    bench.prefill(a)
    b = bench.fork(a, "B")
    bench.say(b, "What does Bo have ?")
    bench.say(a, "Tell me what Ada has .")
    assert bench.finish_sentence(b) == "Bo has two gold cups ."
    assert bench.finish_sentence(a) == "Ada has three red kites ."
    assert [event["source"] for event in bench.log if event["op"] == "copy"] == [1]
    alone = Workbench(num_blocks=16, block_size=8)
    whole = alone.start(FACTS + " What does Bo have ?", "B")
    alone.finish_sentence(whole)
    assert b.token_ids == whole.token_ids


def test_in_the_middle_of_a_sentence_both_have_said_the_same_and_go_on_alike():
    bench = Workbench(num_blocks=8, block_size=8)
    a = bench.start(FACTS + " What does Bo have ?", "A")
    bench.prefill(a)
    bench.step(a)
    b = bench.fork(a, "B")
    assert bench.said(b) == bench.said(a) == "Bo has"
    assert bench.finish_sentence(b) == "Bo has two gold cups ."
    assert bench.said(a) == "Bo has"
    assert bench.finish_sentence(a) == "Bo has two gold cups ."


def test_the_log_knows_its_prompt_and_the_word_it_has_chosen():
    bench = Workbench(num_blocks=8, block_size=8)
    a = bench.start(FACTS + " Bo has", "A")
    bench.prefill(a)
    bench.fork(a, "B")
    state = bench.log.state(len(bench.log) - 1)
    a_view, b_view = state.requests["A"], state.requests["B"]
    assert (b_view.text, b_view.next_word) == (a_view.text, a_view.next_word) == (FACTS + " Bo has", "two")
    assert state.text_of("A") == state.text_of("B")


def test_after_a_window_has_slid_the_fork_has_the_same_offset():
    bench = Workbench(num_blocks=8, block_size=4)
    a = bench.start(FACTS + " Bo has", "A")
    bench.prefill(a)
    bench.slide(a, 6)
    b = bench.fork(a, "B")
    assert (b.table.offset, b.num_dropped, b.table.block_ids) == (2, 6, a.table.block_ids)
    assert bench.finish_sentence(b) == "two gold cups ."
    assert not bench.log.violations


def test_before_its_prefill_a_fork_is_simply_a_second_request():
    bench = Workbench(num_blocks=8, block_size=8)
    a = bench.start(FACTS + " Bo has", "A")
    b = bench.fork(a, "B")
    assert b.table.num_blocks == 0
    assert bench.finish_sentence(b) == bench.finish_sentence(a) == "two gold cups ."
    bench.finish(a), bench.finish(b)
    assert bench.manager.num_free_blocks == 8
    assert not bench.log.violations


def test_a_taken_name_and_a_finished_request_are_refused_and_nothing_happens():
    bench = Workbench(num_blocks=8, block_size=8)
    a = bench.start(FACTS, "A")
    bench.prefill(a)
    events = len(bench.log)
    with pytest.raises(ValueError, match="request 'A' on this bench already; give another name"):
        bench.fork(a, "A")
    assert len(bench.log) == events
    bench.finish(a)
    events = len(bench.log)
    with pytest.raises(ValueError, match="request A is finished and holds no blocks; fork it before that"):
        bench.fork(a, "B")
    assert len(bench.log) == events
