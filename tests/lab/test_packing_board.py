"""What is shown of the packing game: its board, learners' code on it, games side by side, and bars."""

import base64
import html
import json
import random
import re
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from minikv.lab.exercises import check
from minikv.lab.packing import PackingGame
from minikv.lab.packing_compare import compare
from minikv.lab.packing_growth import growth_times
from minikv.lab.packing_paged import play_paged
from minikv.lab.packing_requests import PackingRequest, best_fit, first_fit, merge
from minikv.lab.packing_tryout import try_place
from minikv.lab.plots_memory import MemoryBars
from tests.lab.test_packing import small, strip

# ---- the board --------------------------------------------------------------------------------------


def act(board: Any, do: str, **more: Any) -> dict[str, Any]:
    board._action = {"serial": f"{do}{random.random()}", "do": do, **more}
    state: dict[str, Any] = json.loads(board._state)
    return state


def test_the_board_plays_by_the_games_rules() -> None:
    game = small()
    board = game.board()
    assert json.loads(board._state)["hand"] == {"name": "A", "start": 0, "size": 6, "least": 3, "most": 6}
    state = act(board, "place", name="A", start=2, size=3)
    assert state["runs"] == [
        {
            **{"name": "A", "start": 2, "size": 3, "tokens": 2, "prompt": 2, "ink": 0},
            **{"outgrown": False, "least": 3, "most": 6},
        }
    ]
    assert (state["refusal"], state["hand"]["name"], state["hand"]["size"]) == ("", "B", 4)
    state = act(board, "step", size=4)
    assert state["hand"] == {"name": "A", "start": 2, "size": 6}, "A has outgrown its slots"
    state = act(board, "step", size=4)
    assert "A has filled its 3 slots" in state["refusal"] and state["step"] == 1
    state = act(board, "move", name="A", start=6, size=4)
    assert (strip(game), state["score"]["tokens_copied"]) == ("······AAAa··", 3)
    act(board, "undo")
    state = act(board, "drop", name="A")
    assert [each["name"] for each in state["waiting"]] == ["A", "B", "C", "D"]
    state = act(board, "restart")
    assert (state["step"], state["undo"]) == (0, True)


def test_the_first_aim_is_where_it_fits_else_at_the_largest_hole() -> None:
    game = small()
    board = game.board()
    act(board, "place", name="A", start=2, size=3)
    hand = json.loads(board._state)["hand"]
    assert (hand["name"], hand["start"], hand["size"]) == ("B", 5, 4), "the hole at slot 0 has 2 slots"
    act(board, "undo")
    act(board, "place", name="A", start=2, size=6)
    hand = json.loads(board._state)["hand"]
    assert (hand["start"], hand["size"]) == (8, 7), "7 fit nowhere; the larger of the holes is at slot 8"


@pytest.mark.parametrize(
    ("a", "b", "aim"),
    [
        ((0, 3), (8, 4), 0),  # it can grow where it is
        ((0, 3), (3, 5), 0),  # 6 slots are nowhere
        ((0, 3), (3, 4), 0),
    ],
)
def test_who_has_outgrown_its_slots_is_aimed_where_it_fits(
    a: tuple[int, int], b: tuple[int, int], aim: int
) -> None:
    game = small()
    game.place("A", *a)
    game.place("B", *b)
    game.step()
    assert json.loads(game.board()._state)["hand"] == {"name": "A", "start": aim, "size": 6}


def test_who_has_outgrown_its_slots_is_aimed_elsewhere_if_it_cannot_grow() -> None:
    game = PackingGame(num_slots=40, requests=(PackingRequest("A", 2, 9), PackingRequest("B", 2, 9)))
    game.place("A", 0, 3)
    game.place("B", 3, 20)
    game.step()
    assert json.loads(game.board()._state)["hand"] == {"name": "A", "start": 23, "size": 6}


@pytest.mark.parametrize(
    "action",
    [
        {"do": "fly"},
        {"do": "place"},
        {"do": "place", "name": "A", "start": 0.5, "size": 4},
        {"do": "place", "name": "A", "start": 11, "size": 4},
        {"do": "move", "name": "A", "start": 0, "size": 4},
        {"do": "undo"},
        {},
    ],
)
def test_the_board_answers_every_wrong_move(action: dict[str, Any]) -> None:
    game = small()
    board = game.board()
    before = game._state
    board._action = {"serial": "1", **action}
    state = json.loads(board._state)
    assert game._state is before
    assert state["answered"] == "1" and state["refusal"]


def test_two_boards_show_one_game_and_a_closed_one_no_longer() -> None:
    game = small()
    one, two = game.board(), game.board()
    act(one, "place", name="A", start=0, size=4)
    assert json.loads(two._state)["runs"][0]["name"] == "A"
    two.close()
    before = two._state
    game.step()
    assert two._state == before != one._state


def test_the_text_frame() -> None:
    game = small()
    game.place("A", 0, 6)
    game.place("B", 6, 5)
    game.step(wanted=2)
    assert game.board().to_text() == (
        """\
Step 1 of 6: 2 requests write a token each; 7 slots hold tokens.

Memory (A: a token of A, a: reserved for A, ·: free):
     0  A A A a a a B B B B b ·

Running (tokens of slots): A 3 of 6 at 0, B 4 of 5 at 6
Waiting: C (prompt 1), D (prompt 2)
Holes: 1 at 11. With 3 slots, C fits nowhere: only 1 is free.

Now: 7 tokens, 4 not yet known, 1 free
So far: 0 served, 0 tokens copied, dropped 0×; mean: 58.3 % tokens, 33.3 % not yet known, 8.3 % free"""
    )


def test_the_text_of_a_finished_game_has_the_paged_one_beside_it() -> None:
    game = PackingGame(8)
    game.play("max")
    text = game.board().to_text()
    assert "The same requests, paged, block size 4: 24 steps:" in text
    assert text.count("\n     0  ") == 2
    assert game.board().paged is not None and small().board().paged is None


@pytest.mark.parametrize("steps", [0, 1, 9, 24])
def test_svg_is_whole_and_says_what_the_board_says(steps: int) -> None:
    game = PackingGame(8, num_steps=max(1, steps))
    if steps:
        game.play("double")
    picture = game.board().to_svg()
    root = ElementTree.fromstring(picture)
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert game.sentence.split()[0] in " ".join(texts)
    assert "external fragmentation" in texts
    assert len(picture) < 120_000
    cells = [text for text in texts if text == game.runs[0].name] if game.runs else []
    assert len(cells) >= (game.runs[0].tokens if game.runs else 0)


def test_an_aim_is_marked_in_the_picture() -> None:
    def marks(picture: str) -> int:
        boxes = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}rect")
        return sum(box.get("data-stroke") == "warn" for box in boxes)

    assert marks(small().board().to_svg()) == 0
    assert marks(small().board(start=3, size=4).to_svg()) == 1


def test_the_mimebundle_is_stable() -> None:
    game = PackingGame(8)
    game.play("max")
    board = game.board()
    assert repr(board) == "PackingBoard(PackingGame(seed 8, 96 slots, step 24 of 24))"
    bundle, _ = board._repr_mimebundle_()
    assert bundle["text/plain"] == board.to_text()
    picture = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"])
    assert picture is not None and base64.b64decode(picture[1]).decode() == board.to_svg()
    assert html.escape(board.to_text()) in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert len(bundle["text/html"]) < 120_000
    assert " at 0x" not in bundle["text/html"] + repr(game)


# ---- a learner's own place and merge --------------------------------------------------------------


def greedy(holes: list[tuple[int, int]], size: int) -> Any:
    return holes[0][0] if sum(room for _, room in holes) >= size else None


def test_a_right_place_plays_to_the_end() -> None:
    tried = try_place(lambda holes, size: next((s for s, room in holes if room >= size), None), merge)
    assert repr(tried).startswith("With <lambda> the game was played to its end, every place the right one.")
    assert tried.game.is_over and tried.board().paged is not None


def test_the_first_divergence_is_named_and_drawn() -> None:
    tried = try_place(greedy)
    assert "First divergence, before step " in tried.said
    assert re.search(r"I1, conservation: \w holds slot \d+, and it would be handed out again", tried.said)
    assert not tried.game.is_over
    assert json.loads(tried.board()._state)["aim"] is not None
    assert 'stroke-width="2.5"' in tried.board().to_svg()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (lambda holes, size: None, "The request waits, though it fits"),
        (lambda holes, size: best_fit(holes, size), "It fits there, but first fit takes slot"),
        (lambda holes, size: 95, "I5, capacity: the memory has slots 0 to 95"),
        (lambda holes, size: "here", "An answer is the first slot to take, a whole number, or None"),
        (lambda holes, size: False, "An answer is the first slot to take, a whole number, or None"),
        (lambda holes, size: holes[99][0], "the game stops with IndexError"),
        (lambda holes, size: ..., "<lambda> is not written yet."),
    ],
)
def test_each_way_to_go_wrong_is_told(place: Any, says: str) -> None:
    assert says in repr(try_place(place))


@pytest.mark.parametrize(
    ("joiner", "says"),
    [
        (list, "holes that touch are still apart"),
        (lambda holes: [], "I1, conservation: slot 0 would be lost"),
        (lambda holes: [*holes, *holes], "I1, conservation: a slot would be free twice"),
        (lambda holes: [(0, 200)], "would be free and held"),
        (lambda holes: 7, "An answer is a list of (start, size)"),
        (lambda holes: ..., "is not written yet"),
    ],
)
def test_a_wrong_merge_is_told(joiner: Any, says: str) -> None:
    assert says in repr(try_place(first_fit, joiner))


def test_what_a_learner_returns_may_be_lists_and_its_name_is_told() -> None:
    def my_merge(holes: Any) -> Any:
        return [list(hole) for hole in merge(holes)]

    def mine(holes: Any, size: int) -> Any:
        return -1

    assert "every place the right one" in repr(try_place(first_fit, my_merge))
    assert check("01.merge", my_merge).ok
    assert (
        "mine([], 1) is -1, should be None; where nothing fits the answer is None"
        in check("01.place", mine).message
    )


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        ("01.waste", "55 %", "✓"),
        ("01.waste", "55", "✓"),
        ("01.waste", 0.55, "✗ that is the fraction; 0.55 of all slots is how many per cent?"),
        ("01.waste", "half", "✗ the answer is a number"),
        ("01.kinds", [5, 29], "✓"),
        ("01.kinds", [29, 5], "✗ the other way round"),
        ("01.kinds", [[5], 29], "✗ ([5], 29) is not right"),
        ("01.copied", 112, "✗ a move is missing: the reservation of 128 was full once, too"),
        ("01.place", lambda holes, size: 10.0, "a slot has a whole number"),
    ],
)
def test_what_is_said_of_an_answer(exercise: str, answer: Any, says: str) -> None:
    verdict = repr(check(exercise, answer))
    assert verdict.startswith(says) if says[0] in "✓✗" else says in verdict


def test_only_functions_are_tried() -> None:
    with pytest.raises(TypeError, match="try_place takes functions, not 3; leave off the brackets"):
        try_place(3)  # type: ignore[arg-type]


# ---- side by side -----------------------------------------------------------------------------------


def test_games_side_by_side_with_the_paged_one() -> None:
    games = {"you": PackingGame(8), "max": PackingGame(8), "least": PackingGame(8)}
    games["max"].play("max"), games["least"].play("least")
    compared = compare(games)
    assert list(compared.scores) == ["max", "least", "paged"], "who has not begun is left out"
    lines = repr(compared).split("\n")
    assert lines[0].split() == (
        "tokens % reserved % internal % external % free % served written copied dropped lost".split()
    )
    assert lines[-1].split()[:2] == ["paged", f"{play_paged(games['max']).score.split.tokens:.1f}"]
    assert list(compared.bars().bars) == ["max", "least", "paged"]


def test_only_like_is_compared_with_like() -> None:
    with pytest.raises(ValueError, match="no game has begun"):
        compare({"you": PackingGame(8)})
    one, other = PackingGame(8), PackingGame(9)
    one.play("max"), other.play("max")
    with pytest.raises(ValueError, match="have not the same requests and memory"):
        compare({"one": one, "other": other})


def test_bars_as_text_and_picture() -> None:
    bars = MemoryBars(
        "Use",
        {"a": {"tokens": 20.0, "internal": 80.0}, "b": {"tokens": 96.3}},
        source="Somebody 2023, Fig. 2",
    )
    assert repr(bars) == (
        "Use, per cent\n"
        "   tokens  internal fragmentation\n"
        "a    20.0                    80.0\n"
        "b    96.3                       –\n"
        "Source: Somebody 2023, Fig. 2"
    )
    texts = [node.text for node in ElementTree.fromstring(bars.to_svg()).iter() if node.text]
    for word in ("20.0", "96.3", "internal fragmentation", "Source: Somebody 2023, Fig. 2"):
        assert word in texts
    assert "external fragmentation" not in texts, "only the kinds that there are"
    assert bars._repr_mimebundle_()["text/plain"] == repr(bars)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"waste": 3.0}, "a: there is no kind 'waste'"),
        ({"tokens": 60.0, "free": 41.0}, "the parts make 101.0 %"),
    ],
)
def test_bars_that_cannot_be_are_refused(parts: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MemoryBars("Use", {"a": parts})


def test_growing_takes_time_for_every_token_and_a_block_does_not() -> None:
    def grow(kv: Any, room: int) -> Any:
        return torch.cat([kv, kv.new_empty(room, kv.shape[1])])

    found = growth_times(grow, (512, 8192))
    assert [row.tokens for row in found.rows] == [512, 8192]
    assert [row.mebibytes for row in found.rows] == [2, 32]
    assert [(row.copied, row.moved) for row in found.rows] == [(512, 0), (8192, 0)]
    assert found.grow_ratio > 3 > 0 < found.append_ratio
    assert re.search(r"^   512     512     2 .+       0 .+$", repr(found), re.MULTILINE)
