"""The map without a browser: traits, deliveries, and its frames as text and as SVG."""

import asyncio
import base64
import html
import json
import re
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from traitlets import TraitError

from minikv.lab.block_map import BlockMap
from minikv.lab.event_log import EventLog
from tests.lab.logs import Event, allocate, count, drop, pool, release, story, story_log, token, write

ALL_HOLD = (
    "Invariants: I1 conservation ✓  I2 ref-count ✓  I3 no-repeat ✓  "
    "I4 no-shared-write ✓  I5 capacity ✓  I6 written-first ✓"
)

# ---- what it accepts ------------------------------------------------------------------------------


def test_it_takes_a_log_or_whatever_has_one_as_observer() -> None:
    log = story_log()
    for source in (log, SimpleNamespace(observer=log)):
        shown = BlockMap(source)
        assert (shown.event_log, shown.step) == (log, 23)
        shown.close()


@pytest.mark.parametrize(
    "source", [None, 3, [pool()], SimpleNamespace(observer=None), SimpleNamespace(observer=print)]
)
def test_anything_else_is_refused(source: object) -> None:
    with pytest.raises(TypeError, match="BlockMap needs an EventLog"):
        BlockMap(source)


def test_steps_and_blocks_outside_are_refused_and_change_nothing() -> None:
    shown = BlockMap(story_log(), step=3)
    for wrong in (-1, 24):
        with pytest.raises(TraitError, match=f"step {wrong} is outside this log of 24 events"):
            shown.step = wrong
    with pytest.raises(TraitError, match="block 6 is outside the pool of 6 blocks"):
        shown.highlight = [0, 6]
    with pytest.raises(TraitError, match="step 24"):
        BlockMap(story_log(), step=24)
    assert (shown.step, shown.highlight) == (3, [])


def test_an_empty_log_has_a_frame_too() -> None:
    shown = BlockMap(EventLog())
    assert (shown.step, shown.frame, shown.to_text()) == (-1, None, "No events yet.")
    assert "No events yet." in shown.to_svg()
    shown.event_log(pool())
    assert shown.step == 0


def test_no_repr_has_a_memory_address() -> None:
    shown = BlockMap(story_log())
    assert repr(shown) == "BlockMap(step 23 of EventLog(24 events, 6×2 slots, 2 requests, 0 violations))"
    bundle, _ = shown._repr_mimebundle_()
    assert bundle["text/plain"] == shown.to_text()
    picture = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"])
    assert picture is not None
    assert base64.b64decode(picture[1]).decode() == shown.to_svg()
    assert html.escape(shown.to_text()) in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    for text in (bundle["text/plain"], shown.to_svg(), repr(shown.frame), repr(shown.event_log.state(3))):
        assert " at 0x" not in text


# ---- following a log ------------------------------------------------------------------------------


def frames_in(shown: BlockMap) -> list[dict[str, Any]]:
    return [frame for chunk in shown._chunks for frame in json.loads(chunk)]


def deliveries(shown: BlockMap) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    shown.observe(lambda change: seen.append(change["new"]), "_delta")
    return seen


def test_it_follows_from_the_end_and_stays_elsewhere() -> None:
    log = EventLog(story()[:5])
    at_end, behind = BlockMap(log), BlockMap(log, step=2)
    for event in story()[5:]:
        log(event)
    assert (at_end.step, behind.step) == (23, 2)
    assert frames_in(at_end) == frames_in(behind) == log.raw_frames()


def test_a_long_run_is_delivered_in_few_parts() -> None:
    log = EventLog([pool(100, 4)])
    shown = BlockMap(log)
    seen = deliveries(shown)

    async def run() -> None:
        for step in range(1000):
            log({"op": "note", "text": str(step)})
        at_once = len(seen)
        await asyncio.sleep(0.25)
        assert at_once < 100
        assert len(seen) <= at_once + 1

    asyncio.run(run())
    assert sum(len(json.loads(delta["chunk"])) for delta in seen) == 1000
    assert [delta["start"] for delta in seen] == sorted({delta["start"] for delta in seen})
    assert frames_in(shown) == log.raw_frames()


def test_following_sends_no_step_but_tells_observers() -> None:
    log = EventLog([pool()])
    shown = BlockMap(log)
    steps: list[int] = []
    shown.observe(lambda change: steps.append(change["new"]), "step")
    log(allocate("A", 0, 0))
    log(allocate("A", 1, 1))
    assert steps == [1, 2]


def test_a_closed_map_no_longer_follows() -> None:
    log = EventLog([pool()])
    shown = BlockMap(log)
    shown.close()
    log(allocate("A", 0, 0))
    assert shown.step == 0


# ---- the same frame as text -----------------------------------------------------------------------


def test_text_frame_of_a_short_log() -> None:
    log = EventLog([pool(4, 2), allocate("A", 0, 0), write("A", 0, [0, 1], "Ada has"), token("A", 2, " red")])
    assert (
        BlockMap(log).to_text()
        == f"""\
Step 3 of 3: The model chooses “red” for position 2 of request A; its K and V are not stored yet.

Logical, block size 2 (_ unwritten, – before the offset, (…) chosen, not stored):
  Request A: decoding, 2 tokens
    L0 → P0        Ada has
    no slot yet    (red)

Physical (ref count: holders; #n: place in the free queue):
  P0 1: A   P1 #1     P2 #2     P3 #3

Free queue: P1 › P2 › P3
Memory: 2 tokens, 0 unused, 0 before offset, 6 free · 1 of 4 blocks held · peak 1
{ALL_HOLD}"""
    )


def test_of_an_events_blocks_the_marked_one_is_linked() -> None:
    # B copies block 1 to block 2: its entry now leads to 2, A's still to 1.
    plain, marked, other = (BlockMap(story_log(), step=9, highlight=mark).to_svg() for mark in ([], [1], [5]))
    path = re.compile(r'<path d="(M[^"]*)" fill="none" stroke-width="2"')
    assert len(path.findall(plain)) == 1 and path.findall(other) == path.findall(plain)
    assert path.findall(marked) != path.findall(plain)


def test_text_frame_with_sharing_an_offset_and_a_mark() -> None:
    shown = BlockMap(story_log(), step=14, highlight=[2], caption="copied")
    assert (
        shown.to_text()
        == f"""\
Step 14 of 23: The model chooses “Bo” for position 3 of request A; its K and V are not stored yet.

Logical, block size 2 (_ unwritten, – before the offset, (…) chosen, not stored):
  Request A: decoding, 3 tokens, offset 1
    L0 → P0    ×3  – has
    L1 → P1        kites .
    no slot yet    (Bo)
  Request B: prefill, 4 tokens
    L0 → P0    ×3  Ada has
    L1 → P2        kites !

Physical (ref count: holders; #n: place in the free queue):
  P0 3: A B cache   P1 1: A           P2 1: B           P3 #1
  P4 #2             P5 #3

Free queue: P3 › P4 › P5
Memory: 6 tokens, 0 unused, 0 before offset, 6 free · 3 of 6 blocks held · peak 3 · sharing saves 1
{ALL_HOLD}

Marked: P2 copied"""
    )


def test_text_names_requests_that_are_gone() -> None:
    events = [pool(), allocate("T", 0, 0), drop("T", 0, 0, 0), release(0)]
    text = BlockMap(EventLog([*story()[:21], {"op": "note", "text": ""}])).to_text()
    assert "Finished: A." in text and "Request A" not in text
    assert "Freed: T." in BlockMap(EventLog(events)).to_text()


def test_text_names_what_is_broken() -> None:
    text = BlockMap(EventLog([pool(), allocate("A", 0, 0), count("inc_ref", 0, 5)])).to_text()
    assert "I2 ref-count ✗" in text
    expected = (
        "✗ I2 ref-count, step 2: Block 0's ref count is 5, but it has 2 holders: request A and a cache."
    )
    assert expected in text


def test_a_big_pool_is_cut_short() -> None:
    log = EventLog([pool(1000, 16), *[allocate("A", index, index) for index in range(3)]])
    text = BlockMap(log).to_text()
    assert "and 997 free blocks" in text
    assert "› … (997 in all)" in text
    assert len(text) < 2000


# ---- the same frame as SVG ------------------------------------------------------------------------


def svg_texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("}text")]


def big_log() -> EventLog:
    events: list[Event] = [pool(1000, 16)]
    events += [allocate(f"R{block // 100}", block % 100, block) for block in range(600)]
    return EventLog(events)


@pytest.mark.parametrize("step", range(24))
def test_svg_is_whole_and_says_what_the_frame_says(step: int) -> None:
    shown = BlockMap(story_log(), step=step)
    svg = shown.to_svg()
    root = ElementTree.fromstring(svg)
    named = {child.tag.split("}")[1]: child.text for child in root}
    assert named["title"] == f"Step {step} of 23"
    assert named["desc"] == shown.frame.sentence
    assert "<script" not in svg
    used = set(re.findall(r"url\(#([\w-]+)\)", svg))
    assert used <= {each.get("id") for each in root.iter()}
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))


def test_svg_shows_words_owners_and_marks() -> None:
    shown = BlockMap(story_log(), step=14, highlight=[2], caption="copied")
    texts = svg_texts(shown.to_svg())
    for text in ("Request A", "kites", "×3", "cache", "#1", "◆ P2: copied", "✓ I4 no-shared-write"):
        assert text in texts
    assert "“Bo” is chosen and has no slot yet" in texts


def test_svg_colours_have_a_plain_light_fallback() -> None:
    svg = BlockMap(story_log()).to_svg()
    painted = re.findall(r'<(?:rect|text|circle|path)[^>]*data-fill="[^>]*>', svg)
    assert painted
    assert all(re.search(r'fill="#[0-9a-f]{6}"', element) for element in painted)


def test_svg_of_a_big_pool_stays_small() -> None:
    svg = BlockMap(big_log()).to_svg()
    ElementTree.fromstring(svg)
    assert len(svg) < 300_000


def test_svg_escapes_what_the_words_hold() -> None:
    events = [pool(), allocate("<A&>", 0, 0), write("<A&>", 0, [0, 1], "<b> &amp;")]
    assert "<b>" in svg_texts(BlockMap(EventLog(events)).to_svg())
