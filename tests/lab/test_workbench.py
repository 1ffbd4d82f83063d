"""The workbench, its sabotage and the stand-ins: what the notebooks lean on."""

import pytest

from minikv import BlockTable
from minikv.lab import Workbench, sabotage
from minikv.lab.exercises import get
from minikv.lab.sabotage import SWITCHES
from minikv.lab.stand_in import ANSWER, PROMPT, scatter, try_table


def test_it_answers_from_its_context_and_keeps_the_blocks_to_be_seen():
    bench = Workbench(num_blocks=16, block_size=4)
    assert bench.ask("Ada has three red kites . Bo has two gold cups . What does Bo have ?", "A") == ANSWER
    assert bench.manager.allocated_blocks == 6
    bench.manager.check()
    assert not bench.log.violations


def test_words_typed_later_give_the_same_answer_as_words_typed_at_once():
    whole, later = Workbench(num_blocks=8), Workbench(num_blocks=8)
    at_once = whole.ask("Ada has three red kites . Bo has two gold cups . Bo has", max_new_tokens=4)
    request = later.start("Ada has three red kites . Bo has two gold cups .")
    later.prefill(request)
    later.say(request, "Bo has")
    assert later.finish_sentence(request, 4) == at_once
    assert later.pool.kv[:, : request.table.num_blocks - 1].allclose(
        whole.pool.kv[:, : request.table.num_blocks - 1], atol=1e-5
    )


def test_slide_and_finish_keep_the_books_in_order():
    bench = Workbench(num_blocks=8, block_size=4)
    request = bench.start("Ada has three red kites . Bo has two gold cups . Bo has")
    bench.prefill(request)
    bench.slide(request, 6)
    assert (request.table.offset, request.table.capacity) == (2, 10)
    assert bench.finish_sentence(request) == "two gold cups ."
    bench.finish(request)
    assert bench.manager.num_free_blocks == 8
    bench.manager.check()
    assert not bench.log.violations


def test_a_foreign_block_gives_a_foreign_answer_and_is_put_back():
    bench = Workbench(num_blocks=8, block_size=6)
    ada, bo = bench.start("Ada has three red kites .", "C"), bench.start("Bo has two gold cups .", "D")
    bench.prefill(ada), bench.prefill(bo)
    own = bo.table.block_ids
    with sabotage("foreign-block", bench, table=bo.table, index=0, block_id=ada.table.block_ids[0]):
        bench.say(bo, "What does Bo have ?")
        assert bench.finish_sentence(bo) == "Bo has three red kites ."
    assert bo.table.block_ids[:1] == own
    assert bench.log.violations[0].block_id == ada.table.block_ids[0]
    bench.manager.check()


def test_two_full_entries_may_change_places_but_a_full_one_and_the_last_may_not():
    said = []
    for other in (1, 4):
        bench = Workbench(num_blocks=8, block_size=4)
        request = bench.start("Ada has three red kites . Bo has two gold cups . What does Ada have ?")
        bench.prefill(request)
        with sabotage("swapped-entries", bench, table=request.table, first=0, second=other):
            said.append(bench.finish_sentence(request))
        assert request.table.block_ids[:5] == (0, 1, 2, 3, 4)
    assert said[0] == "Ada has three red kites ."
    assert said[1] != "Ada has three red kites ."


def test_ignoring_the_offset_changes_the_answer_and_the_honest_reader_comes_back():
    bench = Workbench(num_blocks=6, block_size=8)
    honest = bench.loop.backend
    request = bench.start(
        "Ada has four gold tents . Bo has three red bells . Finn has nine grey maps . Tell me what Bo has ."
    )
    bench.prefill(request)
    bench.slide(request, 6)
    with sabotage("ignored-offset", bench):
        assert bench.finish_sentence(request) == "Bo has four gold bells ."  # four gold ones are Ada's
    assert bench.loop.backend is honest
    first = bench.log.violations[0]
    assert (first.invariant, first.block_id) == ("I6", 0)


def test_sabotage_is_undone_when_the_block_raises():
    bench = Workbench()
    honest = bench.loop.backend
    with pytest.raises(RuntimeError), sabotage("ignored-offset", bench):
        raise RuntimeError
    assert bench.loop.backend is honest


def test_an_unknown_sabotage_names_what_there_is():
    with pytest.raises(ValueError, match=", ".join(SWITCHES)), sabotage("gremlins", Workbench()):
        pass


def test_scatter_leaves_the_queue_its_docstring_promises():
    bench = Workbench(num_blocks=7, block_size=4)
    scatter(bench)
    assert bench.manager.free_queue == (2, 1, 6, 0, 5, 4)
    assert bench.manager.blocks[3].ref_count == 1


def test_our_own_table_and_the_solution_stand_in_without_divergence():
    for table_class in (BlockTable, get("02.table").right):
        tried = try_table(table_class)
        assert tried.said == f"the model says: {ANSWER}"
        assert not tried.log.violations


@pytest.mark.parametrize(
    ("mistake", "invariant", "block"),
    [
        ("slot ignores the offset", "I5", 2),
        ("takes the logical place for the physical one", "I5", 0),
        ("slots runs on into the neighbouring block", "I5", 3),
    ],
)
def test_the_first_divergence_of_a_wrong_table_is_named(mistake, invariant, block):
    tried = try_table(dict(get("02.table").wrong)[mistake])
    first = tried.log.violations[0]
    assert (first.invariant, first.block_id) == (invariant, block)
    assert f"{invariant}, block {block}" in repr(tried)
    shown = tried.map()
    assert (shown.step, shown.highlight) == (first.step, [block])


def test_a_table_that_is_not_written_yet_runs_nothing():
    tried = try_table(dict(get("02.table").wrong)["untouched starter"])
    assert tried.said is None
    assert len(tried.log) == 0
    assert "not written yet" in repr(tried)
    assert PROMPT


def test_a_map_stays_as_it_is_unless_it_is_live():
    bench = Workbench(num_blocks=8, block_size=4)
    bench.ask("Ada has three red kites . Ada has")
    still, live = bench.map(), bench.map(live=True)
    last = len(bench.log) - 1
    bench.start("It is late .")
    assert (still.step, live.step) == (last, last + 1)
    assert len(still.event_log) == last + 1


def test_a_name_that_is_taken_is_refused_and_nothing_happens():
    bench = Workbench(num_blocks=8, block_size=4)
    bench.start("It is late .", "A")
    events = len(bench.log)
    with pytest.raises(ValueError, match="request 'A' on this bench already; give another name"):
        bench.start("Tea is ready .", "A")
    assert len(bench.log) == events


def test_while_sabotaged_the_log_hears_of_the_read_that_was_done_and_of_no_other():
    bench = Workbench(num_blocks=6, block_size=8)
    request = bench.start("Ada has three red kites . Bo has two gold cups . Tell me what Bo has .")
    bench.prefill(request)
    bench.slide(request, 6)
    with sabotage("ignored-offset", bench):
        before = len(bench.log)
        bench.step(request)
    assert [event["op"] for event in bench.log[before:-1]] == ["write", "read", "token"]


def test_a_run_that_stops_does_not_say_that_all_was_right():
    class Unfinished(BlockTable):
        def slots(self, start, stop):
            raise RuntimeError("still thinking")

    assert "No wrong slot was seen before that" in repr(try_table(Unfinished))
    with pytest.raises(TypeError, match="leave off the brackets"):
        try_table(BlockTable(4))
