"""The log: what it remembers, what it refuses, what each event does to the state."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minikv.lab.event_log import EventLog
from minikv.lab.events import EventError
from minikv.lab.patches import play
from tests.lab.logs import (
    Event,
    allocate,
    copy,
    count,
    drop,
    pool,
    read,
    release,
    share,
    story,
    story_log,
    token,
    write,
)

# ---- remembering -----------------------------------------------------------------------------------


def test_events_get_their_step_and_are_copies() -> None:
    event = pool()
    log = EventLog([event])
    assert "step" not in event
    assert log[0] == {"step": 0, **event} == log[-1] == next(iter(log))
    log[0]["num_blocks"] = 99
    assert log[0]["num_blocks"] == 4
    assert [each["op"] for each in story_log()[1:3]] == ["request", "allocate"]


def test_save_and_load_give_the_same_log(tmp_path: Path) -> None:
    log = EventLog([*story(), pool(), write("Ä", 0, [], ""), {"op": "note", "text": "a\nb\u2028c “é”"}])
    log.save(tmp_path / "log.jsonl")
    again = EventLog.load(tmp_path / "log.jsonl")
    assert list(again) == list(log)
    assert again.state(len(log) - 1) == log.state(len(log) - 1)


def test_repr_is_stable() -> None:
    assert repr(EventLog()) == "EventLog(empty)"
    assert repr(story_log()) == "EventLog(24 events, 6×2 slots, 2 requests, 0 violations)"


def test_followers_hear_of_each_event_until_they_stop() -> None:
    log, heard = EventLog(), []
    stop = log.follow(lambda: heard.append(len(log)))
    log(pool())
    log({"op": "note", "text": "x"})
    stop()
    stop()
    log({"op": "note", "text": "y"})
    assert heard == [1, 2]


# ---- refusing ---------------------------------------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    ({"op": "alocate"}, "unknown op 'alocate'"),
    ({}, "unknown op None"),
    ({"op": ["pool"]}, "unknown op ['pool']"),
    ("pool", "not 'pool'"),
    ({"op": "release"}, "'block_id' is missing"),
    ({**release(0), "blok": 1}, "unknown key 'blok'"),
    (release(9), "block 9 is outside the pool of 4 blocks"),
    (count("inc_ref", 0, True), "ref_count is True"),
    ({**release(0), "block_id": -1}, "block_id is -1"),
    (write("A", 0, [8], "x"), "slot 8 is outside the pool of 8 slots"),
    (write("A", 0, [0, 1], "x"), "2 slots, but 1 words"),
    ({**write("A", 0, [0], "x"), "words": [1]}, "words is [1]"),
    ({"op": "offset", "request": "A", "offset": 2}, "2 is not below the block size, 2"),
    ({"op": "reset", "block_ids": [0, 4]}, "block 4 is outside"),
    ({"op": "request", "request": "A"}, "there is a request 'A' already"),
    ({"op": "finish", "request": "", "reason": "stop"}, "request is ''"),
    (allocate("A", 2, 1), "index is 2, but the next entry of request 'A' is 1"),
    (allocate("B", 1, 1), "index is 1, but the next entry of request 'B' is 0"),
    (drop("A", 1, 0, 0), "entry 1 of request 'A' is not block 0"),
    (drop("B", 0, 0, 0), "entry 0 of request 'B' is not block 0"),
    (copy("A", 0, 2, 1, 1), "entry 0 of request 'A' is not block 2"),
    ({**release(0), "step": 7}, "step is 7, but this event is number 2"),
    (pool(0), "num_blocks is 0"),
]


@pytest.mark.parametrize(("event", "named"), WRONG, ids=[named for _, named in WRONG])
def test_wrong_events_are_refused_and_change_nothing(event: Any, named: str) -> None:
    log = EventLog([pool(), allocate("A", 0, 0)])
    before = list(log), log.state(1), log.raw_frames()
    with pytest.raises(EventError) as refused:
        log(event)
    assert named in str(refused.value)
    assert (list(log), log.state(1), log.raw_frames()) == before
    log(allocate("A", 1, 1))
    assert log.state(2).tables == {"A": (0, 1)}


def test_a_log_starts_with_a_pool() -> None:
    with pytest.raises(EventError, match="the first event of a log is 'pool'"):
        EventLog([release(0)])


def test_steps_outside_the_log_are_named() -> None:
    log = story_log()
    for step in (-1, 24):
        with pytest.raises(IndexError, match=f"step {step} is outside this log of 24 events"):
            log.state(step)
    with pytest.raises(IndexError, match="event 24"):
        log[24]
    with pytest.raises(TypeError, match=r"1\.0"):
        log.frame(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"op": "pool"', "line 2 is not JSON"),
        ("", "line 2 is not JSON"),
        ("[]", "line 2: an event is a dict, not []"),
        ('{"op": "release", "block_id": 7}', "line 2: release: block 7"),
    ],
)
def test_a_corrupt_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{json.dumps(pool())}\n{line}\n{json.dumps(release(0))}\n", encoding="utf-8")
    with pytest.raises(EventError) as refused:
        EventLog.load(path)
    assert named in str(refused.value)


def test_a_file_cut_off_in_its_last_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{json.dumps(pool())}\n{{"op": "rel', encoding="utf-8")
    with pytest.raises(EventError, match="line 2 is not JSON"):
        EventLog.load(path)


# ---- what events do ----------------------------------------------------------------------------------


def state_after(*events: Event) -> Any:
    log = EventLog(events)
    return log.state(len(log) - 1)


def test_the_story_step_by_step() -> None:
    log = story_log()
    assert not log.violations
    assert log.state(4).text_of("A") == ("Ada", "has", "kites")
    assert log.state(8).text_of("B") == ("Ada", "has", "kites")
    assert log.state(10).tables == {"A": (0, 1), "B": (0, 2)}
    assert log.state(11).text_of("A") == ("Ada", "has", "kites", ".")
    assert log.state(11).text_of("B") == ("Ada", "has", "kites", "!")
    assert log.state(12).ref_counts == (3, 1, 1, 0, 0, 0)
    assert log.state(13).text_of("A") == ("has", "kites", ".")
    assert log.state(14).requests["A"].next_word == "Bo"
    assert log.state(17).text_of("A") == ("kites", ".")
    assert log.state(19).free_queue == (3, 4, 5, 1)
    assert log.state(20).requests["A"].status == "finished"
    assert log.state(23).free_queue == (3, 4, 5, 1, 0, 2)
    assert log.state(23).ref_counts == (0,) * 6
    assert log.state(23).tables == {"A": (), "B": ()}


def test_memory_splits_into_tokens_unused_before_offset_and_free() -> None:
    log = story_log()
    parts = {"tokens": 3, "unused": 1, "before": 0, "free": 8}
    assert log.state(4).memory == {**parts, "lost": 0, "held": 2, "peak": 2, "saved": 0}
    assert log.state(8).memory["saved"] == 2
    # A's offset does not make a slot dead that B still reads.
    assert log.state(13).memory["before"] == 0
    alone = state_after(pool(), allocate("A", 0, 0), write("A", 0, [0, 1], "x y"), offset("A", 1))
    assert (alone.memory["tokens"], alone.memory["before"]) == (1, 1)
    for step in range(len(log)):
        memory = log.state(step).memory
        assert sum(memory[part] for part in parts) == 12


def offset(request: str, value: int) -> Event:
    return {"op": "offset", "request": request, "offset": value}


def test_an_allocated_block_starts_unwritten_and_a_shared_one_keeps_its_words() -> None:
    events = [pool(1, 2), allocate("A", 0, 0), write("A", 0, [0, 1], "x y"), drop("A", 0, 0, 0), release(0)]
    assert state_after(*events).words_in(0) == ("x", "y")
    assert state_after(*events, allocate("B", 0, 0)).words_in(0) == (None, None)
    shared = state_after(*events[:3], share("B", 0, 0, 2))
    assert shared.text_of("B") == ("x", "y")


def test_a_fork_starts_where_its_parents_table_starts() -> None:
    start = [pool(), allocate("A", 0, 0), write("A", 0, [0, 1], "x y"), offset("A", 1)]
    assert state_after(*start, share("B", 0, 0, 2, "A")).text_of("B") == ("y",)


def test_statuses() -> None:
    events = [pool(), {"op": "request", "request": "A", "text": "x"}]
    seen = []
    for event in [
        allocate("A", 0, 0),
        write("A", 0, [0], "x"),
        token("A", 1, "y"),
        drop("A", 0, 0, 0),
        release(0),
        {"op": "finish", "request": "A", "reason": "stop"},
    ]:
        events.append(event)
        seen.append(state_after(*events).requests["A"].status)
    assert seen == ["holding", "prefill", "decoding", "waiting", "waiting", "finished"]


def test_a_table_that_was_never_announced_is_freed_with_its_last_block() -> None:
    events = [pool(), allocate("T", 0, 0), drop("T", 0, 0, 0), release(0)]
    assert state_after(*events).requests["T"].status == "freed"
    assert state_after(*events, allocate("T", 0, 1)).requests["T"].status == "holding"


def test_a_second_pool_starts_afresh() -> None:
    log = EventLog([*story(), drop_nothing := pool(3, 4)])
    state = log.state(24)
    assert drop_nothing["num_blocks"] == state.num_blocks == 3
    assert (state.block_size, state.tables, state.free_queue) == (4, {}, (0, 1, 2))
    assert state.memory["peak"] == 0


def test_a_block_taken_from_the_middle_of_the_queue() -> None:
    log = EventLog([pool(), allocate("A", 0, 2), allocate("A", 1, 0)])
    assert log.state(1).free_queue == (0, 1, 3)
    assert log.state(2).free_queue == (1, 3)
    assert "Block 2 was third in the free queue" in log.frame(1).sentence
    assert "Block 0 was first in the free queue" in log.frame(2).sentence


def test_every_op_has_its_sentence() -> None:
    log = story_log()
    sentences = [log.frame(step).sentence for step in range(len(log))]
    assert len(set(sentences)) == len(sentences)
    assert sentences[9] == (
        "Copy-on-write: request B gets its own copy of block 1, in block 2, as L1. "
        "Block 1's ref count is now 1."
    )
    assert sentences[10] == "Request B writes “!” into block 2, slot 1."
    assert sentences[19] == "Block 1 is free: it joins the end of the free queue as #4."
    assert sentences[22] == "Now everything goes."


# ---- patches ----------------------------------------------------------------------------------------


def tiny_player(patches: list[list[Any]]) -> dict[str, Any]:
    """A patch player in ten lines, apart from ours: what JavaScript does."""
    state: Any = {}
    for patch in json.loads(json.dumps(patches)):
        for path, value in patch:
            at = state
            for key in path[:-1]:
                at = at[key]
            if isinstance(at, list) and path[-1] == len(at):
                at.append(value)
            else:
                at[path[-1]] = value
    return dict(state)


def test_patches_alone_give_every_state() -> None:
    log = story_log()
    patches = [frame["patch"] for frame in log.raw_frames()]
    for step in range(len(log)):
        assert tiny_player(patches[: step + 1]) == log.state(step).data
    assert play(patches) == play(patches), "patches can be played twice"


def test_a_patch_is_as_small_as_its_event() -> None:
    log = EventLog([pool(10_000, 16)])
    for index in range(50):
        log(allocate("A", index, index))
    sizes = [len(json.dumps(frame)) for frame in log.raw_frames(1)]
    assert max(sizes) < 1000


# ---- invariants -------------------------------------------------------------------------------------

GOOD = [pool(), allocate("A", 0, 0), allocate("A", 1, 1), write("A", 0, [0, 1, 2], "x y z")]

BROKEN: dict[str, tuple[list[Event], str, int | None, int]] = {
    "I1 lost": ([drop("A", 1, 1, 0), {"op": "note", "text": "no release"}], "I1", 1, 5),
    "I1 free and held": ([release(1)], "I1", 1, 4),
    "I1 queued twice": ([drop("A", 1, 1, 0), release(1), release(1)], "I1", 1, 6),
    "I2 share not counted": ([share("B", 0, 0, 1, "A")], "I2", 0, 4),
    "I2 count too high": ([count("inc_ref", 0, 3)], "I2", 0, 4),
    "I2 given back by nobody": ([count("dec_ref", 0, 0), release(0)], "I2", 0, 4),
    "I3 a block twice": ([share("A", 2, 0, 2)], "I3", 0, 4),
    "I4 written while shared": ([share("B", 0, 0, 2, "A"), write("B", 1, [1], "q")], "I4", 0, 5),
    "I4 written while free": ([write("A", 2, [6], "q")], "I4", 3, 4),
    "I5 wrong slot": ([write("A", 3, [2], "q")], "I5", 1, 4),
    "I5 beyond the table": ([write("A", 4, [4], "q")], "I5", 1, 4),
    "I6 unwritten": ([read("A", 4)], "I6", 1, 4),
    "I5 its own words in another order": ([read("A", 2, slots=[1, 0])], "I5", 0, 4),
    "I6 a slot that is not its own": (
        [allocate("B", 0, 2), write("B", 0, [4], "q"), read("A", 2, slots=[0, 4])],
        "I6",
        2,
        6,
    ),
    "I6 beyond the table": ([read("A", 5)], "I6", 1, 4),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_flagged_with_its_block_and_step(name: str) -> None:
    events, invariant, block, step = BROKEN[name]
    log = EventLog([*GOOD, *events])
    assert log.state(3).violations == ()
    found = [each for each in log.violations if each.invariant == invariant]
    assert [(each.block_id, each.step) for each in found] == [(block, step)]
    assert found[0] in log.state(step).violations
    assert log.raw_frames(step)[0]["mark"] == log.violations[0].invariant
    assert found[0].sentence.endswith(".")


RIGHT: dict[str, list[Event]] = {
    "I1": [drop("A", 1, 1, 0), release(1)],
    "I2": [share("B", 0, 0, 2, "A"), count("inc_ref", 0, 3), count("dec_ref", 0, 2), drop("B", 0, 0, 1)],
    "I3": [allocate("A", 2, 2), drop("A", 2, 2, 0), release(2)],
    "I4": [share("B", 0, 0, 2, "A"), copy("B", 0, 0, 2, 1), write("B", 1, [5], "q")],
    "I5": [write("A", 3, [3], "q"), drop("A", 0, 0, 0), release(0), write("A", 1, [3], "r")],
    "I6": [read("A", 3), read("A", 3, slots=[0, 1, 2]), read("A", 0)],
}


@pytest.mark.parametrize("invariant", RIGHT)
def test_a_kept_invariant_is_not_flagged(invariant: str) -> None:
    assert EventLog([*GOOD, *RIGHT[invariant]]).violations == ()


def test_structural_faults_end_when_mended_others_stay() -> None:
    mended = EventLog([*GOOD, count("inc_ref", 0, 5), count("dec_ref", 0, 1)])
    assert [each.invariant for each in mended.state(4).violations] == ["I2"]
    assert mended.state(5).violations == ()
    assert len(mended.violations) == 1
    stays = EventLog([*GOOD, read("A", 4), write("A", 3, [3], "q"), read("A", 4)])
    assert [(each.invariant, each.step) for each in stays.state(6).violations] == [("I6", 4)]


def test_a_standing_fault_is_reported_once() -> None:
    log = EventLog([*GOOD, *[read("A", 4) for _ in range(5)]])
    assert len(log.violations) == 1


@pytest.mark.parametrize("change", [dict.copy, lambda event: dict(reversed(event.items()))])
def test_key_order_does_not_matter(change: Callable[[Event], Event]) -> None:
    log = EventLog([change(event) for event in story()])
    assert log.state(23) == story_log().state(23)
