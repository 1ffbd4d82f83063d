"""Scenes in both kinds of memory: counts by hand, equal answers, and what is worth comparing."""

import pytest

from minikv.lab.exercises import check, get
from minikv.lab.modes_map import HEAD as MAP_HEAD
from minikv.lab.modes_map import _places, compared, modes_map
from minikv.lab.modes_reads import WAYS, ReadBoth, beside_slices, read_times
from minikv.lab.modes_scene import HEAD, MEMORIES, DifferentAnswers, TwoModes, asked, serve

SHORT = asked(requests=24, slots=256, limit=40)


def test_counts_of_equal_requests_are_those_worked_by_hand():
    # 12 questions of 11 tokens; answers of 6. Paged: 1 block of 16 each, and 16 blocks: all at once.
    # Contiguous: 11 + 40 - 1 = 50 slots each, 5 at once: three rounds of 6 steps. Growing: 27, 9 at once.
    modes = TwoModes(asked(requests=12, slots=256, limit=40, people=1))
    paged, longest, grow = modes.served.values()
    assert (paged.steps, longest.steps, grow.steps) == (6, 18, 12)
    assert (paged.outcome.most_running, longest.outcome.most_running) == (12, 5)
    assert (paged.ttft, paged.tpot, longest.tpot) == (1, 1, 1)
    assert longest.ttft == (5 * 1 + 5 * 7 + 2 * 13) / 12
    assert modes.same


def test_a_run_that_grows_reserves_headroom():
    # "grow" reserves 11 + 16 = 27 slots, "max" 50; paged memory takes three blocks of 4 for the prompt.
    modes = TwoModes(asked(requests=12, slots=108, limit=40, people=1, block_size=4))
    paged, longest, grow = modes.served.values()
    assert (longest.outcome.most_running, grow.outcome.most_running) == (2, 4)
    assert paged.outcome.most_running == 108 // 12


def test_all_say_the_same_and_the_row_has_a_cell_for_each_head():
    modes = TwoModes(SHORT)
    texts = [each.outcome.texts for each in modes.served.values()]
    assert texts[0] == texts[1] == texts[2] and all(text.endswith(" .") for text in texts[0])
    assert list(modes.served) == list(MEMORIES)
    assert all(len(each.row) == len(HEAD) for each in modes.served.values())
    assert "contiguous, max" in repr(modes) and modes._repr_markdown_()


def test_times_are_there_and_add_up():
    served = serve(asked(requests=3, slots=256, limit=8, gap=4))
    assert 0 < served.tpot_ms < served.ttft_ms + 1000 * served.seconds
    assert served.times[3] * served.steps == pytest.approx(1000 * served.seconds)
    assert served.ttft == 1


def test_preempted_requests_wait_longer_for_a_token():
    paged = serve(asked(requests=24, slots=256, limit=24, stop=False))
    longest = serve(asked(requests=24, slots=256, limit=24, stop=False), "contiguous, max")
    assert paged.outcome.counts["preempted"] > 0 == longest.outcome.counts["preempted"]
    assert paged.tpot > 1 == longest.tpot and paged.ttft < longest.ttft


def test_a_gap_spreads_the_requests():
    served = serve(asked(requests=5, slots=256, limit=40, gap=10))
    assert served.outcome.most_running == 1 and served.ttft == 1 and served.steps == 30


def test_different_answers_are_an_error(monkeypatch):
    from minikv.lab import modes_scene

    honest = modes_scene.serve

    def lying(scene, memory, *rest):
        served = honest(scene, memory, *rest)
        if memory != "paged":
            object.__setattr__(served.outcome, "texts", ("a lie",) * len(served.outcome.texts))
        return served

    monkeypatch.setattr(modes_scene, "serve", lying)
    with pytest.raises(DifferentAnswers, match="a lie"):
        TwoModes(asked(requests=2, slots=128, limit=8))


@pytest.mark.parametrize(
    "wrong", [{"requests": 0}, {"slots": 100}, {"limit": 5}, {"people": 0}, {"gap": -1}, {"block_size": 2.5}]
)
def test_scenes_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="whole number"):
        asked(**wrong)


def test_a_limit_below_an_answer_says_why():
    with pytest.raises(ValueError, match=r"limit is 4; .* at least 6 \(an answer has 6 tokens\)"):
        asked(limit=4)


def test_no_such_memory():
    with pytest.raises(ValueError, match="there is no memory 'virtual'"):
        serve(SHORT, "virtual")


# ---- the exercises -----------------------------------------------------------------------------


def test_a_scene_is_run_and_its_counts_are_told():
    assert "paged 18 steps" in check("09.paged_wins", SHORT).message
    known = asked(requests=24, slots=192, limit=6, people=2)
    assert "contiguous 18 steps" in check("09.contiguous_wins", known).message
    assert not check("09.paged_wins", known).ok and not check("09.contiguous_wins", SHORT).ok


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("one request alone: a draw", "a draw"),
        ("somebody is refused", "somebody is refused"),
        ("too large to be run here", "take 1 to"),
        ("better in TPOT, worse in steps", "worse in steps"),
    ],
)
def test_why_a_scene_is_not_the_answer(mistake, said):
    assert said in check("09.contiguous_wins", dict(get("09.contiguous_wins").wrong)[mistake]).message


@pytest.mark.parametrize(("id", "limit"), [("09.contiguous_wins", 40), ("09.paged_wins", 60)])
def test_a_pool_of_few_blocks_is_no_paged_memory(id, limit):
    for size, told in ((256, "blocks of 256 are 1"), (128, "blocks of 128 are 2")):
        verdict = check(id, asked(24, 256, limit, block_size=size))
        assert not verdict.ok and told in verdict.message and "no paged memory" in verdict.message


def test_by_how_much_paged_memory_is_better_and_under_which_limit():
    assert "not by a factor of 4: paged 18 steps" in check("09.paged_wins", SHORT).message
    for scene in (asked(16, limit=80), asked(24, limit=96)):  # the second is too large to be run, besides
        assert "take a limit of at most 60" in check("09.paged_wins", scene).message


@pytest.mark.parametrize("id", ["09.paged_wins", "09.contiguous_wins"])
def test_what_ran_a_scene_is_not_the_scene(id):
    message = check(id, TwoModes(asked(requests=1))).message
    assert message == "the answer is the scene itself, asked(…), not the TwoModes that ran it"


@pytest.mark.parametrize("seed", range(40))
def test_offset_and_slot_are_the_engines(seed):
    import re

    from minikv.engine.contiguous import ContiguousManager, Run

    exercise = get(f"09.slot#{seed}")
    slots = int(re.search(r"of (\d+) slots", exercise.question)[1])
    pairs = re.findall(r"\((\d+) tokens, (\d+) new ones", exercise.question)
    sizes = [int(prompt) + int(limit) - 1 for prompt, limit in pairs]
    position = int(re.search(r"its position (\d+)", exercise.question)[1])
    manager = ContiguousManager(slots)
    runs = [Run(slots, max_length=size) for size in sizes]
    for run in runs[:3]:
        assert manager.allocate(run, 1)
    manager.free(runs[1])
    assert manager.allocate(runs[3], 1)
    assert exercise.right == (runs[3].offset, runs[3].slot(position))


# ---- the map and the reads -----------------------------------------------------------------------


def test_the_map_is_relative_to_paged_memory():
    found = [TwoModes(asked(requests=1, slots=256, name="one")), TwoModes(SHORT)]
    assert _places(found, "contiguous, max") == {(1.0, 1.0): "1", (0.5, 2.46): "2"}
    table = compared(found)
    assert table.head == MAP_HEAD and len(table.rows) == 6
    assert [row[2] for row in table.rows] == [1, 1, 1, 1, 0.5, 0.75]
    plot = modes_map("Map", found)
    assert plot.to_svg() == modes_map("Map", found).to_svg() and repr(plot).startswith("Map\n")
    told = [line.split() for line in repr(plot).splitlines()]
    assert [line[-2:] for line in told if "max" in line] == [["1.00", "1.00"], ["0.50", "2.46"]]
    assert "TPOT" not in repr(plot)  # that, and memory, are the table's


def test_points_that_meet_share_a_label():
    twice = [TwoModes(asked(requests=1, slots=256)), TwoModes(asked(requests=2, slots=512))]
    assert _places(twice, "contiguous, grow") == {(1.0, 1.0): "1, 2"}


def test_all_ways_read_the_same():
    both = ReadBoth(48)
    expected = both.attend(WAYS[0])
    for way in WAYS:
        assert (both.attend(way) - expected).abs().max() < 1e-5


def test_ratios_are_drawn_over_the_tokens():
    times = read_times(32, rounds=1)
    assert list(times) == list(WAYS) and min(times.values()) > 0
    plot = beside_slices("Reads", (32, 64), [times, times])
    assert "contiguous, slices" in repr(plot)
    with pytest.raises(ValueError, match="multiple of 16"):
        ReadBoth(40)
