"""A picture of contiguous memory: whose slots, which words, which of them are wrong; and the small bench."""

import re

import pytest

from minikv.lab.memory_words import NOTHING
from minikv.lab.modes_bench import RunBench
from minikv.lab.modes_picture import COLUMNS, MemoryPicture, Span

A = Span("A", 3, 5, ("Bo", "has", "two"))
C = Span("C", 20, 4, ("Tea", "is"))


def words(**at):
    row = [NOTHING] * 40
    for place, word in at.items():
        row[int(place[1:])] = word
    return row


RIGHT = words(s3="Bo", s4="has", s5="two", s10="late", s20="Tea", s21="is")


def test_holes_and_runs_are_all_of_the_memory():
    picture = MemoryPicture(40, [C, A], RIGHT)
    assert picture.holes == [(0, 3), (8, 12), (24, 16)]
    covered = sum(size for _, size in picture.holes) + sum(span.size for span in picture.spans)
    assert covered == 40 and picture.wrong == []


def test_the_text_has_a_line_for_each_run_and_hole():
    assert repr(MemoryPicture(40, [C, A], RIGHT, "Now", aim=(8, 6))).split("\n") == [
        "Now",
        "  slots  0 to  2  hole of 3",
        "  slots  3 to  7  A: 3 tokens, 2 reserved: Bo has two",
        "  slots  8 to 19  hole of 12; left over: · · late",
        "  slots 20 to 23  C: 2 tokens, 2 reserved: Tea is",
        "  slots 24 to 39  hole of 16",
        "  marked: slots 8 to 13",
    ]


def test_a_word_that_is_not_its_owners_is_named_and_framed():
    picture = MemoryPicture(40, [A, C], words(s3="Bo", s4="has", s5="nine", s20="Tea", s21="is"))
    assert picture.wrong == [(5, "A", "two", "nine")]
    assert "slot 5: A stored “two”, in memory lies “nine”" in repr(picture)
    assert picture.to_svg().count('data-stroke="warn" stroke-width') == 1
    assert MemoryPicture(40, [A, C], RIGHT, aim=(0, 3)).to_svg().count('"warn" stroke-width') == 3


def test_every_word_is_drawn_but_what_lies_in_reserved_slots():
    row = list(RIGHT)
    row[6] = "gold"  # reserved by A, left over
    drawn = re.findall(r'<text x="[\d.]+" y="[\d.]+">(\w+)</text>', MemoryPicture(40, [A, C], row).to_svg())
    assert sorted(drawn) == sorted(["Bo", "has", "two", "late", "Tea", "is"])


def test_a_request_keeps_its_colour_when_another_ends():
    def colour(spans):
        return re.search(r'data-fill="(ink-\d)"[^>]*>C<', MemoryPicture(40, spans, RIGHT).to_svg())[1]

    assert colour([A, C]) == colour([C])


@pytest.mark.parametrize("start", [0, COLUMNS - 1, COLUMNS, 2 * COLUMNS])
def test_a_run_is_cut_where_a_line_ends(start):
    size = min(20, 40 - start)
    svg = MemoryPicture(40, [Span("A", start, size, ("x",) * size)], ["x"] * 40).to_svg()
    lines = (start + size - 1) // COLUMNS - start // COLUMNS + 1
    boxes = re.findall(r'height="30"[^>]*data-fill="tint-\w+"', svg)
    assert len(boxes) == lines


@pytest.mark.parametrize(
    ("spans", "row"),
    [([A, Span("B", 7, 3, ())], RIGHT), ([Span("B", 38, 3, ())], RIGHT), ([A], RIGHT[:-1])],
)
def test_what_cannot_be_is_refused(spans, row):
    with pytest.raises(ValueError, match=r"taken or outside|give one for each"):
        MemoryPicture(40, spans, row)


# ---- the bench ---------------------------------------------------------------------------------


def test_a_request_waits_though_enough_slots_are_free():
    bench = RunBench(64)
    bench.submit("Ada has three red kites . What does Ada have ?", 12)
    bench.submit("It is late . Bo has", 5)
    c = bench.submit("Bo has two gold cups . What does Bo have ?", 12)
    bench.step(5)
    d = bench.submit("Eva has six grey drums . What does Eva have ?", 6)
    bench.step()
    picture = bench.picture()
    assert [(span.name, span.start, span.size) for span in picture.spans] == [("A", 0, 22), ("C", 32, 22)]
    assert picture.holes == bench.manager.holes == [(22, 10), (54, 10)]
    assert d.status == "waiting" and not picture.wrong
    assert c.sequences[0].table.slot(7) == 39
    bench.run()
    assert bench.said(d) == "Eva has six grey drums ."


def test_words_of_a_request_that_ended_lie_in_the_hole():
    bench = RunBench(32)
    bench.submit("It is late .", 1)
    bench.submit("Tea is ready .", 9)
    bench.step()
    assert bench.picture().words[:8] == ("It", "is", "late", ".", "Tea", "is", "ready", ".")
    assert bench.picture().holes[0] == (0, 4)


@pytest.mark.parametrize("attention", ["gather", "contiguous", "reference"])
def test_growth_moves_the_words_and_the_answer_stays(attention):
    bench = RunBench(48, "grow", headroom=1, attention=attention)
    bench.submit("Bo has nine black horses . It is late . Tea is ready .", 1)
    b = bench.submit("Bo has two gold cups . Tell me what Bo has .", 8, stop=" .")
    bench.submit("The road is long . It is late .", 12)
    bench.step(2)
    assert b.sequences[0].table.offset == 14 and bench.manager.tokens_moved == 0
    bench.step()
    assert b.sequences[0].table.offset == 0 and bench.manager.tokens_moved == 13
    assert not bench.picture().wrong
    bench.step(100)  # more than there are
    assert bench.said(b) == "Bo has two gold cups ."
    assert not bench.log.violations
