"""Cases that went wrong in real engines, with exact numbers. The model's KV are fingerprints: whatever is
read from a wrong place shows in the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minikv.block_table import BlockTable
from minikv.engine.engine import Engine, StepReport
from minikv.engine.request import Request, Status
from minikv.errors import RequestError, RequestTooLargeError
from minikv.lab.event_log import EventLog
from tests.engine import fingerprint_model as fm

MODEL = fm.FingerprintModel()
SIX = [7, 3, 9, 1, 4, 8]
TWENTY = [(i * 7 + 3) % 26 + 1 for i in range(20)]


def make(num_blocks: int = 16, block_size: int = 4, **setting: Any) -> Engine:
    return Engine(MODEL, num_blocks, block_size, attention=fm.read, **setting)


def finish(engine: Engine) -> list[StepReport]:
    reports = []
    while engine.has_work:
        reports.append(engine.step())
        engine.check()
        assert len(reports) < 500, "it does not come to an end"
    return reports


def tokens(request: Request) -> list[int]:
    return request.result()[0].token_ids


def free(engine: Engine) -> int:
    return int(engine.manager.num_free_blocks)


# ---- 1: never fits -------------------------------------------------------------------------------


MEMORY: dict[str, dict[str, Any]] = {
    "blocks of 4": {"num_blocks": 4, "block_size": 4},
    "blocks of 1": {"num_blocks": 16, "block_size": 1},
    "one block": {"num_blocks": 1, "block_size": 16},
    "reserved": {"num_blocks": 4, "block_size": 4, "cache": "contiguous"},
    "growing": {"num_blocks": 1, "block_size": 16, "cache": "contiguous", "reserve": "grow"},
}
memory = pytest.mark.parametrize("setting", MEMORY.values(), ids=MEMORY)


@memory
def test_what_never_fits_is_refused_and_the_next_one_runs(setting: dict[str, Any]) -> None:
    engine = make(**setting)
    with pytest.raises(
        RequestTooLargeError, match=r"20 tokens and 1 new .* up to (20|32) slots; the cache has 16"
    ):
        engine.submit(TWENTY, 1)
    request = engine.submit(SIX, 3, ignore_eos=True)
    finish(engine)
    assert tokens(request) == fm.greedy(SIX, 3, ignore_eos=True)
    figures = engine.metrics()
    assert (figures["submitted"], figures["oom"], figures["success"]) == (2, 1, 1)


@memory
def test_the_last_token_needs_no_slot(setting: dict[str, Any]) -> None:
    """16 slots: 12 + 5 new store 16 tokens, 12 + 6 would store 17."""
    engine = make(**setting)
    request = engine.submit(TWENTY[:12], 5, ignore_eos=True)
    finish(engine)
    assert tokens(request) == fm.greedy(TWENTY[:12], 5, ignore_eos=True)
    assert engine.manager.max_allocated == engine.manager.snapshot()["total_blocks"]
    with pytest.raises(RequestTooLargeError):
        engine.submit(TWENTY[:12], 6)


def test_continuations_count_what_they_do_not_share() -> None:
    """Block size 4, prompt 6: block 0 is shared. Up to 3 more tokens fill one block more each, 4 take two."""
    assert make(num_blocks=4).submit(SIX, 3, n=3)
    with pytest.raises(RequestTooLargeError, match="in 3 sequences, take up to 28 slots; the cache has 16"):
        make(num_blocks=4).submit(SIX, 4, n=3)
    assert make(num_blocks=2).submit(SIX, 1, n=9)  # they end before they write


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("beams", [False, True])
@pytest.mark.parametrize(
    "kind",
    [{}, {"cache": "contiguous"}, {"cache": "contiguous", "reserve": "grow"}, {"prefix_cache": "hash"}],
    ids=str,
)
def test_in_the_smallest_memory_that_is_not_refused_it_runs(
    kind: dict[str, Any], n: int, beams: bool
) -> None:
    options: dict[str, Any] = {"n": n, "ignore_eos": True, **({"beam_width": n} if beams else {})}
    expected = make().generate([SIX], 9, **options)
    for num_blocks in range(1, 100):
        engine = make(num_blocks, 2, **kind)
        try:
            request = engine.submit(SIX, 9, **options)
        except RequestTooLargeError:
            continue
        finish(engine)
        assert [c.token_ids for c in request.result()] == [c.token_ids for c in expected]
        slots = {"": 14 * n, "grow": 14 * (2 * n - 1), None: 6 + n * 8}
        expects = slots["grow" if "reserve" in kind else "" if "cache" in kind else None]
        assert num_blocks * 2 == expects
        return
    raise AssertionError("it is always refused")


# ---- continuous batching ---------------------------------------------------------------------------


def test_who_comes_is_served_in_the_next_step() -> None:
    """However long the others have been decoding: nobody waits for a batch to end."""
    engine = make(num_blocks=64)
    old = engine.submit(SIX, 30, ignore_eos=True)
    for _ in range(6):  # in the seventh step it needs no block, so that nothing but the newcomer is new
        engine.step()
    new = engine.submit(TWENTY, 9, ignore_eos=True)
    assert [request for request, _, _ in engine.step().tokens] == [old, new]
    finish(engine)
    assert tokens(old) == fm.greedy(SIX, 30, True)
    assert tokens(new) == fm.greedy(TWENTY, 9, True)


def test_the_prompt_of_who_comes_is_stored_in_chunks_as_large_as_the_budget() -> None:
    """A step in which nothing else changes does not go by an older plan."""
    engine = make(num_blocks=64, max_step_tokens=8)
    engine.submit(SIX, 30, ignore_eos=True)
    for _ in range(6):
        engine.step()
    engine.submit(TWENTY, 5, ignore_eos=True)
    assert [engine.step().num_tokens for _ in range(4)] == [8, 8, 7, 2]
    reports = finish(engine)
    assert {index for report in reports for _, index, _ in report.tokens} == {0}


def test_who_made_room_is_reported_once() -> None:
    engine = make(num_blocks=4)
    engine.submit([1] * 5, 11, ignore_eos=True)
    young = engine.submit([2] * 5, 11, ignore_eos=True)
    report = engine.step()
    while not report.preempted:
        report = engine.step()
    assert report.preempted == [young]
    engine.abort(young)
    assert engine.step().preempted == []


# ---- 2: resume after preemption --------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_recompute_counts_every_token(times: int) -> None:
    """Prompt 6, 3 generated: 8 stored. After preemption 9 are computed, and one more token comes."""
    engine = make()
    request = engine.submit(SIX, 7, ignore_eos=True)
    stored = [engine.step().num_tokens for _ in range(3)]
    assert stored == [6, 1, 1] and len(request.sequences[0].generated) == 3
    for time in range(times):
        engine.scheduler.preempt(request)
        assert (request.status, free(engine)) == (Status.WAITING, 16)
        report = engine.step()
        assert report.num_tokens == 9 + time
        assert len(report.tokens) == 1
    finish(engine)
    assert tokens(request) == fm.greedy(SIX, 7, ignore_eos=True)
    assert engine.metrics()["output_tokens"] == 7
    assert request.num_preemptions == times


def test_swap_computes_nothing_twice() -> None:
    engine = make(preemption="swap")
    request = engine.submit(SIX, 7, ignore_eos=True)
    for _ in range(3):
        engine.step()
    engine.scheduler.preempt(request)
    assert (request.status, free(engine)) == (Status.WAITING, 16)
    assert engine.scheduler.swap.nbytes == 8 * 2 * 2 * 2 * 8  # tokens, layers, K and V, head_dim, bytes
    other = engine.manager
    holder = BlockTable(4)
    other.allocate(holder, 4)  # so that it comes back to other blocks
    assert engine.step().num_tokens == 1
    assert request.sequences[0].table.block_ids != (0, 1, 2)
    finish(engine)
    assert tokens(request) == fm.greedy(SIX, 7, ignore_eos=True)


def test_preempted_between_chunks() -> None:
    engine = make(max_step_tokens=8)
    request = engine.submit(TWENTY, 3, ignore_eos=True)
    engine.step()
    engine.scheduler.preempt(request)
    assert [report.num_tokens for report in finish(engine)] == [8, 8, 4, 1, 1]
    assert tokens(request) == fm.greedy(TWENTY, 3, ignore_eos=True)


# ---- 3: see test_engine_inputs.py ------------------------------------------------------------------

# ---- 4: abort ----------------------------------------------------------------------------------------


def queued(engine: Engine, request: Request) -> None: ...


def between_chunks(engine: Engine, request: Request) -> None:
    engine.step()


def decoding(engine: Engine, request: Request) -> None:
    for _ in range(4):
        engine.step()
    assert request.sequences[0].generated


def preempted(engine: Engine, request: Request) -> None:
    decoding(engine, request)
    engine.scheduler.preempt(request)


MOMENTS = [queued, between_chunks, decoding, preempted]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "kind",
    [{}, {"preemption": "swap"}, {"cache": "contiguous"}, {"cache": "contiguous", "preemption": "swap"}],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 3])
def test_abort_at_any_moment(kind: dict[str, Any], moment: Callable[..., None], n: int) -> None:
    engine = make(32, max_step_tokens=8, **kind)
    whole = free(engine)
    request = engine.submit(TWENTY, 9, n=n, ignore_eos=True)
    moment(engine, request)
    for _ in range(2):
        engine.abort(request)
        assert (request.status, free(engine), engine.has_work) == (Status.CANCELLED, whole, False)
    assert request.saved is None
    with pytest.raises(RequestError, match="request A ended as cancelled") as caught:
        request.result()
    assert caught.value.status == "cancelled"
    assert engine.metrics()["cancelled"] == 1
    engine.step()
    engine.check()


def test_abort_after_the_end_changes_nothing() -> None:
    engine = make()
    request = engine.submit(SIX, 2, ignore_eos=True)
    finish(engine)
    engine.abort(request)
    assert request.status is Status.SUCCESS
    assert tokens(request) == fm.greedy(SIX, 2, ignore_eos=True)
    assert engine.metrics()["cancelled"] == 0


def test_abort_while_others_run() -> None:
    engine = make()
    requests = [engine.submit(SIX[: i + 1], 6, ignore_eos=True) for i in range(3)]
    engine.step()
    engine.abort(requests[1])
    finish(engine)
    assert tokens(requests[0]) == fm.greedy(SIX[:1], 6, ignore_eos=True)
    assert tokens(requests[2]) == fm.greedy(SIX[:3], 6, ignore_eos=True)
    assert requests[1].future.exception().completions[0].token_ids == fm.greedy(SIX[:2], 1)


def test_the_first_answer_aborts_the_others() -> None:
    """Two that end in the same step: the callback of the first aborts the second, which is about to end."""
    engine = make()
    first, second = engine.submit(SIX, 2, ignore_eos=True), engine.submit(TWENTY, 2, ignore_eos=True)
    first.future.add_done_callback(lambda _: engine.abort(second))
    finish(engine)
    assert (first.status, second.status) == (Status.SUCCESS, Status.CANCELLED)
    assert free(engine) == 16


def test_a_callback_may_submit() -> None:
    engine, asked = make(), []
    first = engine.submit(SIX, 2, ignore_eos=True)
    first.future.add_done_callback(lambda _: asked.append(engine.submit(TWENTY, 2, ignore_eos=True)))
    finish(engine)
    assert tokens(asked[0]) == fm.greedy(TWENTY, 2, ignore_eos=True)


# ---- 5: stop text ------------------------------------------------------------------------------------


def test_a_stop_string_is_found_wherever_tokens_split_it() -> None:
    plain = make().generate([SIX], 9, ignore_eos=True)[0]
    assert len(plain.text) == 9  # a letter a token
    for start in range(1, 7):
        stop = plain.text[start : start + 3]
        found = make().generate([SIX], 9, ignore_eos=True, stop=stop)[0]
        assert found.text == plain.text[: plain.text.index(stop)]
        assert found.token_ids == plain.token_ids[: plain.text.index(stop) + 3]
        assert found.finish_reason == "stop"


def test_the_first_of_several_stop_strings_cuts() -> None:
    plain = make().generate([SIX], 9, ignore_eos=True)[0].text
    found = make().generate([SIX], 9, ignore_eos=True, stop=(plain[3:5], plain[2:5]))[0]
    assert found.text == plain[:2]


def test_nothing_is_said_before_the_last_chunk() -> None:
    """20 tokens, 8 a step."""
    engine = make(max_step_tokens=8)
    engine.submit(TWENTY, 2, ignore_eos=True)
    assert [len(report.tokens) for report in finish(engine)] == [0, 0, 1, 1]


# ---- 6: chunks ---------------------------------------------------------------------------------------


def test_chunks_take_blocks_as_they_come() -> None:
    """20 tokens, chunks of 8, block size 4: the table holds 2, then 4, then 5 blocks."""
    engine = make(max_step_tokens=8)
    request = engine.submit(TWENTY, 2, ignore_eos=True)
    held = []
    for _ in range(3):
        engine.step()
        held.append(request.sequences[0].table.block_ids)
    assert held == [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4)]


def test_the_budget_goes_to_the_oldest_first() -> None:
    """8 tokens a step. A, 20 tokens, takes 8, 8, 4; what is left goes to B, 6 tokens."""
    engine = make(max_step_tokens=8)
    a, b = engine.submit(TWENTY, 4, ignore_eos=True), engine.submit(SIX, 2, ignore_eos=True)
    progress = []
    for _ in range(4):
        engine.step()
        progress.append((a.sequences[0].num_stored, b.sequences[0].num_stored))
    assert progress == [(8, 0), (16, 0), (20, 4), (21, 6)]
    finish(engine)
    assert tokens(a) == fm.greedy(TWENTY, 4, ignore_eos=True)
    assert tokens(b) == fm.greedy(SIX, 2, ignore_eos=True)


def test_continuations_that_are_yet_to_part_count_in_full() -> None:
    """max_batch_size 6: two requests of 4 continuations never run side by side, not even at their prompts."""
    engine = make(64, max_batch_size=6)
    requests = [engine.submit(SIX, 4, n=4, ignore_eos=True) for _ in range(2)]
    while engine.has_work:
        engine.step()
        assert sum(len(request.running) for request in engine.scheduler.running) <= 6
        assert len(engine.scheduler.running) <= 1
    assert all(tokens(request) == fm.greedy(SIX, 4, ignore_eos=True) for request in requests)


# ---- 7, 8: no room -----------------------------------------------------------------------------------


def test_the_last_running_request_cannot_grow() -> None:
    """4 blocks, of which somebody else takes 2. The batch becomes empty, the step returns, all goes on."""
    engine, outsider = make(num_blocks=4), BlockTable(4)
    request = engine.submit(SIX, 8, ignore_eos=True)
    engine.step()
    engine.manager.allocate(outsider, 8)
    reports = [engine.step() for _ in range(3)]
    assert [(r.num_tokens, r.preempted, r.num_running) for r in reports] == [
        (1, [], 1),
        (1, [], 1),
        (0, [request], 0),
    ]
    engine.manager.free(outsider)
    finish(engine)
    assert tokens(request) == fm.greedy(SIX, 8, ignore_eos=True)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("budget", [1, 2, 100])
def test_it_ends_when_nobody_can_make_room(budget: int, preemption: str) -> None:
    """As before, but they are never given back: the request ends as "oom", and its future says so."""
    engine, outsider = make(num_blocks=4, max_step_tokens=budget, preemption=preemption), BlockTable(4)
    engine.manager.allocate(outsider, 8)
    request = engine.submit(SIX, 8, ignore_eos=True)
    finish(engine)
    with pytest.raises(RequestError, match="oom") as caught:
        request.result()
    assert caught.value.completions[0].token_ids == fm.greedy(SIX, 3, ignore_eos=True)
    assert free(engine) == 2
    engine.manager.free(outsider)
    assert engine.generate([SIX], 8, ignore_eos=True)[0].token_ids == fm.greedy(SIX, 8, ignore_eos=True)


def test_without_room_at_all() -> None:
    engine, outsider = make(num_blocks=4), BlockTable(4)
    engine.manager.allocate(outsider, 16)
    request = engine.submit(SIX, 8)
    assert engine.step().ended == [request]
    assert (request.status, request.future.done()) == (Status.OOM, True)


def test_whoever_finds_no_room_waits() -> None:
    engine = make(num_blocks=4)
    a, b = engine.submit(TWENTY[:9], 4, ignore_eos=True), engine.submit(SIX, 4, ignore_eos=True)
    report = engine.step()
    assert (report.num_running, report.num_waiting, b.status) == (1, 1, Status.WAITING)
    finish(engine)
    assert tokens(a) == fm.greedy(TWENTY[:9], 4, ignore_eos=True)
    assert tokens(b) == fm.greedy(SIX, 4, ignore_eos=True)
    assert b.num_preemptions == 0


def test_runs_in_pieces_of_memory_get_on() -> None:
    """Contiguous: 60 slots take the 3 runs of A side by side, but not with 7 slots of B between them."""
    engine = make(1, 60, cache="contiguous")
    a, b = engine.submit(SIX[:5], 16, n=3, ignore_eos=True), engine.submit(SIX[:4], 4, ignore_eos=True)
    finish(engine)
    assert tokens(a) == fm.greedy(SIX[:5], 16, ignore_eos=True)
    assert tokens(b) == fm.greedy(SIX[:4], 4, ignore_eos=True)
    assert (a.num_preemptions, b.num_preemptions) == (1, 1)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("slots", [36, 45, 47, 55])
def test_runs_never_block_each_other_for_ever(slots: int, preemption: str) -> None:
    """Four kinds of requests in every order of two; once, some pairs took each other's room in turn."""
    kinds = [(8, 4, 4, False), (5, 5, 4, True), (2, 10, 3, False), (6, 7, 3, True)]
    for first in kinds:
        for second in kinds:
            engine = make(1, slots, cache="contiguous", max_step_tokens=5, preemption=preemption)
            for prompt, new, n, beams in (first, second):
                if n * (prompt + new - 1) <= slots:
                    engine.submit(TWENTY[:prompt], new, n=n, beam_width=n if beams else None)
            finish(engine)
            assert engine.metrics()["success"] == engine.metrics()["submitted"]


# ---- prefix caches, cases 4 and 5 ----------------------------------------------------------------------

kinds = pytest.mark.parametrize("kind", ["radix", "hash"])


@kinds
@pytest.mark.parametrize("budget", [100, 5, 3])
def test_twins_admitted_in_one_step(kind: str, budget: int) -> None:
    """The second must not take over blocks that the first has yet to compute: they were never written."""
    engine = make(prefix_cache=kind, max_step_tokens=budget)
    prompts = [[*TWENTY[:8], 5], [*TWENTY[:8], 6]]
    requests = [engine.submit(prompt, 5, ignore_eos=True) for prompt in prompts]
    finish(engine)
    for request, prompt in zip(requests, prompts, strict=True):
        assert tokens(request) == fm.greedy(prompt, 5, ignore_eos=True)
    hits = [request.num_cached_tokens for request in requests]
    assert hits == ([0, 0] if budget > 9 else [0, 8] if budget == 3 else [0, 0])
    engine.prefix_cache.clear()
    assert free(engine) == 16


@kinds
def test_resume_with_a_cached_beginning(kind: str) -> None:
    """10 tokens, preempted, 8 still cached: 2 are computed, and no position from 10 on is touched."""
    engine = make(prefix_cache=kind)
    request = engine.submit(TWENTY[:7], 6, ignore_eos=True)
    for _ in range(3):
        engine.step()
    sequence = request.sequences[0]
    assert (len(sequence.token_ids), sequence.num_stored) == (10, 9)
    engine.scheduler.preempt(request)
    plan = engine.scheduler.schedule()
    assert [(chunk.num_new, chunk.sequence.num_stored) for chunk in plan] == [(2, 8)]
    assert sequence.table.num_blocks == 3
    engine.scheduler.preempt(request)
    finish(engine)
    assert tokens(request) == fm.greedy(TWENTY[:7], 6, ignore_eos=True)
    assert request.num_cached_tokens == 0  # when it first came, nothing was


@kinds
def test_a_request_finds_what_another_left(kind: str) -> None:
    engine = make(prefix_cache=kind)
    first = engine.generate([TWENTY], 3, ignore_eos=True)[0]
    assert engine.prefix_cache.num_blocks == 5  # 22 tokens stored: 5 whole blocks
    again = engine.submit(TWENTY, 3, ignore_eos=True)
    assert engine.step().num_tokens == 4  # never the whole prompt: 4 of its 5 blocks are taken over
    finish(engine)
    assert tokens(again) == first.token_ids
    assert again.num_cached_tokens == 16
    assert engine.metrics()["hit_rate"] == 16 / 40


@kinds
def test_aborted_in_the_middle_only_what_was_computed_is_cached(kind: str) -> None:
    engine = make(prefix_cache=kind, max_step_tokens=9)
    request = engine.submit(TWENTY, 3)
    engine.step()
    engine.abort(request)
    assert engine.prefix_cache.num_blocks == 2  # 9 tokens stored
    again = engine.submit(TWENTY, 3, ignore_eos=True)
    finish(engine)
    assert (again.num_cached_tokens, tokens(again)) == (8, fm.greedy(TWENTY, 3, ignore_eos=True))


@kinds
def test_a_salt_keeps_tenants_apart(kind: str) -> None:
    engine = make(prefix_cache=kind)
    hits = [
        engine.generate([TWENTY], 1, salt=salt)[0].num_cached_tokens for salt in ("a", "b", None, "a", None)
    ]
    assert hits == [0, 0, 0, 16, 16]


# ---- what an event log is told ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"prefix_cache": "radix"},
        {"preemption": "swap"},
        {"num_blocks": 1, "block_size": 40, "cache": "contiguous", "reserve": "grow"},
    ],
    ids=str,
)
def test_the_log_of_an_engine_holds_no_violation(setting: dict[str, Any]) -> None:
    """Forks, beams, hits, preemption: replayed from the events alone, every invariant holds at every step."""
    log = EventLog()
    engine = make(**{"num_blocks": 9, "block_size": 3, "observer": log, **setting})
    prompts = [SIX, TWENTY[:7], [*SIX, 2]]
    found = engine.generate(prompts, 6, ignore_eos=True)
    engine.generate([SIX], 5, n=2, beam_width=2)
    assert [c.token_ids for c in found] == [fm.greedy(p, 6, ignore_eos=True) for p in prompts]
    assert log.violations == ()
    ops = {event["op"] for event in log}
    assert {"request", "write", "read", "token", "finish"} <= ops
    notes = [event["text"] for event in log if event["op"] == "note"]
    assert len(notes) == engine.metrics()["preempted"]
    how = setting.get("preemption", "recompute")
    assert all(f"makes room ({how}); it waits." in note for note in notes)
    assert notes or "cache" in setting
