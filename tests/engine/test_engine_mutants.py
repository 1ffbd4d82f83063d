"""Would the tests notice? Engines that are wrong in one point each; the walk, or a case, must catch it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from minikv.attention.tables import TableArray
from minikv.engine import async_engine, choose, runner, text
from minikv.engine.choose import Chooser
from minikv.engine.engine import Engine
from minikv.engine.metrics import Metrics
from minikv.engine.request import Chunk, Request, Sequence, Status
from minikv.engine.scheduler import Scheduler
from minikv.engine.swap import Copy, CPUSwap
from tests.engine import test_async_engine, test_engine_cases
from tests.engine.engine_walk import CONTIGUOUS, PAGED, EngineWalk, Setting, Solo

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(change: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """A function that breaks the engine. Its name says how."""
    MUTANTS[change.__name__] = change
    return change


def around(patch: Patch, kind: Any, name: str, broken: Callable[..., Any]) -> None:
    """Let `broken(real, self, *args)` stand in for a method or function."""
    real = getattr(kind, name)
    patch.setattr(kind, name, lambda *args: broken(real, *args))


# ---- who goes, and who comes back ----------------------------------------------------------------------


@mutant
def a_preempted_request_loses_a_token(patch: Patch) -> None:
    def preempt(real: Any, scheduler: Scheduler, request: Request) -> None:
        real(scheduler, request)
        for sequence in request.running:
            if sequence.generated:
                sequence.token_ids.pop()

    around(patch, Scheduler, "preempt", preempt)


@mutant
def recompute_believes_that_its_kv_is_still_there(patch: Patch) -> None:
    def drop(real: Any, scheduler: Scheduler, sequence: Sequence) -> None:
        stored = sequence.num_stored
        real(scheduler, sequence)
        sequence.num_stored = stored

    around(patch, Scheduler, "_drop", drop)


@mutant
def a_resumed_request_counts_as_new(patch: Patch) -> None:
    """Its tokens are returned twice over: once as they were, once as it is asked to go on."""

    def preempt(real: Any, scheduler: Scheduler, request: Request) -> None:
        real(scheduler, request)
        for sequence in request.running:
            sequence.prompt_length = len(sequence.token_ids)

    around(patch, Scheduler, "preempt", preempt)


@mutant
def the_oldest_makes_room_for_the_youngest(patch: Patch) -> None:
    def preempt(real: Any, scheduler: Scheduler, request: Request) -> None:
        real(scheduler, scheduler.running[0])

    around(patch, Scheduler, "preempt", preempt)


@mutant
def a_preempted_request_is_forgotten(patch: Patch) -> None:
    def preempt(real: Any, scheduler: Scheduler, request: Request) -> None:
        real(scheduler, request)
        scheduler.waiting.popleft()

    around(patch, Scheduler, "preempt", preempt)


@mutant
def abort_keeps_the_blocks(patch: Patch) -> None:
    def remove(real: Any, scheduler: Scheduler, request: Request) -> None:
        (scheduler.running if request.status is Status.RUNNING else scheduler.waiting).remove(request)

    around(patch, Scheduler, "remove", remove)


@mutant
def an_end_keeps_the_copy_of_its_kv(patch: Patch) -> None:
    def remove(real: Any, scheduler: Scheduler, request: Request) -> None:
        saved = request.saved
        real(scheduler, request)
        request.saved = saved

    around(patch, Scheduler, "remove", remove)


@mutant
def timeouts_are_ignored(patch: Patch) -> None:
    around(patch, Engine, "_expire", lambda real, engine, now: [])


@mutant
def timeouts_of_waiting_requests_are_ignored(patch: Patch) -> None:
    def expire(real: Any, engine: Engine, now: float) -> list[Request]:
        late = [r for r in engine.scheduler.running if r.deadline is not None and now >= r.deadline]
        return engine._end_all(late, Status.TIMEOUT)

    around(patch, Engine, "_expire", expire)


@mutant
def a_finished_continuation_keeps_its_blocks_until_all_are(patch: Patch) -> None:
    around(patch, Scheduler, "retire", lambda real, scheduler, request, sequence: None)


@mutant
def who_runs_beside_it_is_not_counted_in_full(patch: Patch) -> None:
    patch.setattr(Request, "seats", property(lambda request: len(request.running)))


# ---- what is planned -----------------------------------------------------------------------------------


@mutant
def the_budget_is_ignored(patch: Patch) -> None:
    around(
        patch, Scheduler, "_chunks", lambda real, scheduler, request, budget: real(scheduler, request, 999)
    )


@mutant
def forks_write_without_a_copy(patch: Patch) -> None:
    """As if the manager did not look: I4 is not noticed, only the text is wrong."""
    patch.setattr(Scheduler, "_own", lambda scheduler, table, position: True)
    patch.setattr(Scheduler, "_note_write", lambda scheduler, sequence, num_new: None)


@mutant
def the_parent_of_a_fork_writes_without_a_copy(patch: Patch) -> None:
    def fork(real: Any, scheduler: Scheduler, request: Request, parent: Sequence, child: Sequence) -> None:
        writable = parent.writable
        real(scheduler, request, parent, child)
        parent.writable = writable

    around(patch, Scheduler, "fork", fork)


@mutant
def a_fork_believes_it_has_a_token_more(patch: Patch) -> None:
    def fork(real: Any, scheduler: Scheduler, request: Request, parent: Sequence, child: Sequence) -> None:
        real(scheduler, request, parent, child)
        child.num_stored = min(child.num_stored + 1, len(child.token_ids) - 1)

    around(patch, Scheduler, "fork", fork)


@mutant
def published_before_computed(patch: Patch) -> None:
    def admit(real: Any, scheduler: Scheduler, request: Request, budget: int) -> list[Chunk]:
        chunks: list[Chunk] = real(scheduler, request, budget)
        for _, sequence, num_new in chunks:
            sequence.num_stored += num_new
            scheduler.publish(request, sequence)
            sequence.num_stored -= num_new
        return chunks

    around(patch, Scheduler, "_admit", admit)


@mutant
def published_with_tokens_that_are_not_stored(patch: Patch) -> None:
    def publish(real: Any, scheduler: Scheduler, request: Request, sequence: Sequence) -> None:
        if scheduler.prefix_cache is not None and sequence.table is not None:
            tokens = sequence.token_ids[: sequence.table.capacity]
            scheduler.prefix_cache.insert(tokens, sequence.table, request.params.salt)

    around(patch, Scheduler, "publish", publish)


@mutant
def the_salt_is_forgotten(patch: Patch) -> None:
    """No text is wrong by it, as the model is the same for all tenants; a case sees it."""

    def begin(real: Any, scheduler: Scheduler, request: Request) -> None:
        cache = scheduler.prefix_cache
        if cache is None:
            return real(scheduler, request)
        first = request.running[0]
        first.table, first.num_stored = cache.acquire(first.token_ids, None, first.name)

    around(patch, Scheduler, "_begin", begin)
    around(
        patch,
        Scheduler,
        "publish",
        lambda real, scheduler, request, sequence: (
            scheduler.prefix_cache
            and sequence.table
            and scheduler.prefix_cache.insert(sequence.token_ids[: sequence.num_stored], sequence.table)
        ),
    )


@mutant
def sequences_that_have_parted_take_over_more_than_they_share(patch: Patch) -> None:
    patch.setattr("minikv.engine.scheduler.common_prefix", lambda sequences: len(sequences[0].token_ids) - 1)


# ---- whether the last plan goes on ---------------------------------------------------------------------


@mutant
def a_plan_goes_on_while_somebody_waits(patch: Patch) -> None:
    """No text is wrong by it, but the newcomer stands at the door; a case sees it."""

    def goes_on(real: Any, scheduler: Scheduler) -> bool:
        waiting, scheduler.waiting = scheduler.waiting, deque()
        try:
            return bool(real(scheduler))
        finally:
            scheduler.waiting = waiting

    around(patch, Scheduler, "_goes_on", goes_on)


@mutant
def a_plan_goes_on_without_room(patch: Patch) -> None:
    around(patch, Scheduler, "_goes_on", lambda real, scheduler: bool(scheduler._steady))


@mutant
def a_plan_goes_on_while_one_of_it_has_room(patch: Patch) -> None:
    def goes_on(real: Any, scheduler: Scheduler) -> bool:
        return any(s.num_stored < s.writable for _, s, _ in scheduler._steady) and not scheduler.waiting

    around(patch, Scheduler, "_goes_on", goes_on)


@mutant
def a_plan_of_prompts_goes_on(patch: Patch) -> None:
    def schedule(real: Any, scheduler: Scheduler) -> list[Chunk]:
        scheduler._steady = plan = real(scheduler)
        return plan

    around(patch, Scheduler, "schedule", schedule)


@mutant
def a_plan_of_beams_goes_on_in_the_old_order(patch: Patch) -> None:
    def schedule(real: Any, scheduler: Scheduler) -> list[Chunk]:
        plan: list[Chunk] = real(scheduler)
        if all(chunk.sequence.pending == 1 for chunk in plan):
            scheduler._steady = plan
        return plan

    around(patch, Scheduler, "schedule", schedule)


# ---- what is run ---------------------------------------------------------------------------------------


@mutant
def who_decodes_beside_prompts_gets_their_rows(patch: Patch) -> None:
    def run(real: Any, its: Any, chunks: list[Chunk]) -> Tensor:
        logits: Tensor = real(its, chunks)
        mixed = len({chunk.num_new == 1 for chunk in chunks}) == 2
        return logits.flip(0) if mixed else logits

    around(patch, runner.Runner, "run", run)


@mutant
def rows_of_a_batch_go_stale(patch: Patch) -> None:
    def of(real: Any, rows: Any, sequences: list[Sequence]) -> TableArray:
        if sequences == rows._sequences:
            rows._versions = [sequence.version for sequence in sequences]
        return real(rows, sequences)

    around(patch, runner._Rows, "of", of)


@mutant
def positions_count_from_the_chunk(patch: Patch) -> None:
    def inputs(real: Any, its: Any, sequences: list[Sequence], num_new: int) -> Tensor:
        given: Tensor = real(its, sequences, num_new).clone()
        if num_new > 1:
            given[1] -= given[1].min()
        return given

    around(patch, runner.Runner, "_inputs", inputs)


@mutant
def logits_of_the_first_token_of_a_chunk(patch: Patch) -> None:
    def run_alike(real: Any, its: Any, sequences: list[Sequence], num_new: int) -> Tensor:
        model = its.model
        its.model = lambda tokens, positions, attend, last: model(tokens, positions, attend)[:, :1]
        try:
            return real(its, sequences, num_new)
        finally:
            its.model = model

    around(patch, runner.Runner, "_run_alike", run_alike)


@mutant
def what_was_swapped_out_comes_back_one_place_late(patch: Patch) -> None:
    def load(real: Any, swap: CPUSwap, saved: Copy, table: Any, start: int, stop: int) -> None:
        real(swap, saved, table, start, stop)
        if stop - start > 1:
            real(swap, Copy(start, saved.kv.roll(1, dims=2)), table, start, stop)

    around(patch, CPUSwap, "load", load)


@mutant
def what_was_swapped_out_of_a_fork_comes_back_as_its_siblings(patch: Patch) -> None:
    def swap_in(real: Any, scheduler: Scheduler, request: Request, saved: Any, swap: Any) -> bool:
        first = saved.parts[0][2]
        parts = [
            (sequence, stop, copy if copy.kv.shape != first.kv[:, :, saved.shared :].shape else
             Copy(copy.start, first.kv[:, :, saved.shared :]))
            for sequence, stop, copy in saved.parts
        ]  # fmt: skip
        return bool(real(scheduler, request, saved._replace(parts=parts), swap))

    around(patch, Scheduler, "_swap_in", swap_in)


# ---- what is chosen ------------------------------------------------------------------------------------


@mutant
def a_token_is_chosen_before_the_last_chunk(patch: Patch) -> None:
    def choose_tokens(real: Any, chooser: Chooser, plan: list[Chunk], logits: Tensor) -> Any:
        for chunk in plan:
            if chunk.sequence.pending > chunk.num_new and not chunk.sequence.generated:
                del chunk.sequence.token_ids[chunk.sequence.num_stored + chunk.num_new :]
        return real(chooser, plan, logits)

    around(patch, Chooser, "choose", choose_tokens)


@mutant
def beams_are_not_forked(patch: Patch) -> None:
    """Where two go on from one parent, the second goes on from its own."""

    def next_beams(real: Any, chooser: Chooser, request: Request, beams: Any, going: Any) -> list[Sequence]:
        following = list(beams) + [chooser._fork(request, beams[0]) for _ in going[len(beams) :]]
        request.sequences = following[: len(going)]
        return request.sequences

    around(patch, Chooser, "_next_beams", next_beams)


@mutant
def beams_keep_scores_of_their_places(patch: Patch) -> None:
    def choose_beams(real: Any, chooser: Chooser, request: Request, logits: Tensor) -> Any:
        for sequence in request.running:
            sequence.score = 0.0
        return real(chooser, request, logits)

    around(patch, Chooser, "_choose_beams", choose_beams)


@mutant
def all_continuations_draw_the_same(patch: Patch) -> None:
    def fork(real: Any, chooser: Chooser, request: Request, parent: Sequence) -> Sequence:
        child: Sequence = real(chooser, request, parent)
        child.random.setstate(parent.random.getstate())
        return child

    around(patch, Chooser, "_fork", fork)


@mutant
def chance_is_shared_by_the_batch(patch: Patch) -> None:
    from random import Random

    shared = Random(0)
    around(patch, choose, "sample", lambda real, logits, temperature, own: real(logits, temperature, shared))


@mutant
def the_end_of_a_text_is_ignored(patch: Patch) -> None:
    def reason(real: Any, chooser: Chooser, params: Any, sequence: Sequence, token: int) -> str | None:
        found: str | None = real(chooser, params, sequence, token)
        return None if found == "eos" and len(sequence.generated) < params.max_new_tokens else found

    around(patch, Chooser, "_reason", reason)


@mutant
def the_stop_string_stays_in_the_text(patch: Patch) -> None:
    around(patch, text, "text_of", lambda real, model, token_ids, stop: real(model, token_ids, ()))


@mutant
def a_stop_string_is_looked_for_in_the_newest_token_only(patch: Patch) -> None:
    def reason(real: Any, chooser: Chooser, params: Any, sequence: Sequence, token: int) -> str | None:
        if len(sequence.generated) < params.max_new_tokens and token:
            last = chooser.model.tokenizer.decode([token])
            return "stop" if any(string in last for string in params.stop) else None
        return real(chooser, params, sequence, token)  # type: ignore[no-any-return]

    around(patch, Chooser, "_reason", reason)


@mutant
def tokens_are_counted_when_they_are_computed_again(patch: Patch) -> None:
    def ended(real: Any, metrics: Metrics, request: Request, completions: Any) -> None:
        real(metrics, request, completions)
        metrics.output_tokens += request.num_preemptions

    around(patch, Metrics, "ended", ended)


# ---- what callers of the asyncio engine get ------------------------------------------------------------


@mutant
def a_stream_tells_all_it_has(patch: Patch) -> None:
    """The beginning of a stop string, too."""
    around(
        patch,
        async_engine,
        "safe_text",
        lambda real, model, tokens, stop, final: real(model, tokens, stop, True),
    )


@mutant
def who_leaves_is_served_to_the_end(patch: Patch) -> None:
    around(patch, async_engine.AsyncEngine, "_leave", lambda real, served, request: None)


# ---- who notices -----------------------------------------------------------------------------------------


SOLO = Solo()


def by_walk(settings: list[Setting], observed: bool = False) -> Callable[[], None]:
    def walk() -> None:
        for setting in settings:
            for seed in range(3):
                EngineWalk(setting, seed, SOLO, observed=observed).random_steps(120)

    return walk


WALK = by_walk(PAGED + CONTIGUOUS)


def case(name: str, *args: Any) -> Callable[[], None]:
    """A test of the cases or of the asyncio engine."""
    module = test_engine_cases if hasattr(test_engine_cases, name) else test_async_engine
    return lambda: getattr(module, name)(*args)


OTHERS = {  # what the walk does not see, or sees only as something that does not come to an end
    "a_stop_string_is_looked_for_in_the_newest_token_only": case(
        "test_a_stop_string_is_found_wherever_tokens_split_it"
    ),
    "a_plan_goes_on_while_somebody_waits": case("test_who_comes_is_served_in_the_next_step"),
    "a_plan_of_beams_goes_on_in_the_old_order": case(
        "test_in_the_smallest_memory_that_is_not_refused_it_runs", {}, 3, True
    ),
    "the_salt_is_forgotten": case("test_a_salt_keeps_tenants_apart", "hash"),
    "tokens_are_counted_when_they_are_computed_again": case("test_recompute_counts_every_token", 2),
    "a_stream_tells_all_it_has": case("test_nothing_of_a_stop_string_leaks", 3),
    "who_leaves_is_served_to_the_end": case(
        "test_who_loses_patience_aborts_the_request", "running", "generate"
    ),
}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_async_engine, "LIMIT", 2)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check = OTHERS.get(name, WALK)
    fill_solo()
    MUTANTS[name](monkeypatch)
    with pytest.raises(Exception) as caught:
        check()
    print(f"{name}: {type(caught.value).__name__}: {str(caught.value)[:100]}")
    assert not isinstance(caught.value, asyncio.CancelledError)


def fill_solo() -> None:
    """What requests say alone is asked before the engine is broken; the same walks, so the same requests."""
    if not SOLO._known:
        WALK()


@pytest.mark.parametrize("name", OTHERS)
def test_what_catches_them_passes_otherwise(name: str) -> None:
    OTHERS[name]()


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 30
