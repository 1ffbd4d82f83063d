"""The packing game: its rules, by hand, by chance, and against the simulator's arena."""

import random
import re
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from minikv.lab.packing import PackingError, PackingGame
from minikv.lab.packing_paged import play_paged
from minikv.lab.packing_requests import PackingRequest, best_fit, first_fit, merge, seeded_requests
from minikv.lab.packing_split import Held, Moment, Split, mean, split
from minikv.lab.packing_text import slots_of
from minikv.sim.arena import Arena

A, B, C, D = (
    PackingRequest("A", 2, 2),
    PackingRequest("B", 3, 4),
    PackingRequest("C", 1, 3),
    PackingRequest("D", 2, 1),
)


def small(num_slots: int = 12, num_steps: int = 6) -> PackingGame:
    """Four requests, 12 slots: small enough to be worked by hand."""
    return PackingGame(num_slots=num_slots, num_steps=num_steps, max_new_tokens=4, requests=(A, B, C, D))


def strip(game: PackingGame) -> str:
    """One sign a slot: A written, a reserved, · free."""
    return "".join("·" if s is None else s[0] if s[1] else s[0].lower() for s in slots_of(game))


# ---- a game worked by hand ------------------------------------------------------------------------


def test_a_game_by_hand_slot_by_slot() -> None:
    game = small()
    game.place("A", 0, 6)
    game.place("B", 6, 4)
    assert strip(game) == "AAaaaaBBBb··"
    assert game.sentence == "B gets slots 6 to 9: 3 hold its prompt, 1 are reserved for its answer."
    game.step()
    assert strip(game) == "AAAaaaBBBB··"
    assert (
        game.sentence
        == "2 requests write a token each; 7 slots hold tokens. B has filled the last reserved slot."
    )
    with pytest.raises(
        PackingError, match="B has filled its 4 slots and goes on: let it grow, move it or drop it"
    ):
        game.step()
    game.move("B", 6, 6)
    assert strip(game) == "AAAaaaBBBBbb"
    assert game.sentence == "B grows where it is, to 6 slots; nothing is copied."
    game.step()
    assert strip(game) == "······BBBBBb"
    assert game.sentence.endswith("A has ended after 2 tokens: 2 of its 6 slots were never used.")
    game.place("C", 3, 2)
    game.step()
    assert strip(game) == "···CC·BBBBBB"
    assert [run.name for run in game.outgrown] == ["B", "C"]
    game.move("C", 0, 3)
    assert (strip(game), game.score.tokens_copied) == ("CCc···BBBBBB", 2)
    assert game.sentence == "C moves to slots 0 to 2; 2 tokens had to be copied there."
    game.drop("B")
    assert (strip(game), game.served) == ("CCc·········", ("A",))


def test_growing_in_place_needs_the_slots_behind() -> None:
    game = small()
    game.place("A", 0, 3)
    game.place("B", 3, 5)
    game.step()
    with pytest.raises(PackingError, match="slot 3 is taken: B holds slots 3 to 7"):
        game.move("A", 0, 4)
    with pytest.raises(PackingError, match="slots 9 to 12 reach outside the memory"):
        game.move("A", 9, 4)
    with pytest.raises(PackingError, match="slot 2 is A's own, and its tokens must be copied out first"):
        game.move("A", 2, 4)
    assert (strip(game), game.score.tokens_copied) == ("AAABBBBb····", 0)
    game.move("A", 8, 4)
    assert (strip(game), game.score.tokens_copied) == ("···BBBBbAAAa", 3)


def test_shrinking_gives_slots_back() -> None:
    game = small()
    game.place("A", 0, 6)
    game.move("A", 0, 3)
    assert (strip(game), game.holes) == ("AAa·········", [(3, 9)])
    assert "shrinks" in game.sentence
    game.move("A", 0, 3)
    assert "stays where it is" in game.sentence


def test_a_dropped_request_comes_back_first_and_starts_again() -> None:
    game = small()
    game.place("A", 0, 6)
    game.place("B", 6, 6)
    game.step(), game.step()
    game.drop("B")
    assert strip(game) == "············"
    assert [each.name for each in game.waiting] == ["B", "C", "D"]
    assert (game.score.dropped, game.score.tokens_lost) == (1, 2)
    game.place("B", 0, 7)
    assert strip(game) == "BBBbbbb·····"


def test_what_a_dropped_request_has_shown_is_remembered() -> None:
    game = PackingGame(num_slots=30, num_steps=9, requests=(PackingRequest("A", 2, 20), B))
    game.place("A", 0, 4)
    game.step(), game.step()
    assert game.seen("A") == 0
    game.drop("A")
    assert (game.seen("A"), game.wanted) == (4, 8), "not 4 again: that was too little"
    game.place("A", 0, 26)
    assert game.wanted == 27, "B gets as much room as A was given, and never was dropped"
    game.drop("A")
    assert game.seen("A") == 4, "dropped at once, with 2 tokens: nothing new"
    game.undo(), game.undo(), game.undo()
    assert game.seen("A") == 0


def test_who_played_to_the_end() -> None:
    game = small(num_steps=2)
    assert game.player == "You"
    game.play("max", steps=1)
    assert game.player == "You", "it is not over"
    game.play("double")
    assert game.player == "double"
    game.undo()
    assert game.player == "You"
    game.step()
    assert game.is_over and game.player == "You"


def test_every_token_of_an_answer_that_is_written_counts() -> None:
    game = small()
    game.place("A", 0, 6)
    game.step()
    game.place("B", 6, 6)
    game.step()
    assert game.score.tokens_written == 3
    game.drop("B")
    assert (game.score.tokens_written, game.score.tokens_lost) == (3, 1)
    assert play_paged(game, block_size=2).score.tokens_written == 6, "A, B and C in both steps"


def test_holes_and_what_fits() -> None:
    game = small()
    game.place("A", 0, 5)
    game.place("B", 5, 4)
    game.step(), game.move("B", 5, 5), game.step()  # A ends
    assert (game.holes, game.free_slots, game.largest_hole) == ([(0, 5), (10, 2)], 7, 5)
    assert game.now(wanted=5) == Split(5, 0, 0, 0, 0, 7)
    assert game.now(wanted=6) == Split(5, 0, 0, 0, 7, 0), "7 are free, 6 are wanted, no hole has 6"
    assert game.now(wanted=8) == Split(5, 0, 0, 0, 0, 7), "8 are not even free"


def test_what_is_reserved_is_split_when_it_is_known() -> None:
    game = small()
    game.place("A", 0, 6)
    game.place("B", 6, 6)
    assert game.now() == Split(5, 0, 0, 7, 0, 0)
    game.step(wanted=2)
    assert game.splits == [Split(7, 0, 0, 5, 0, 0)]
    game.step(wanted=2)  # A ends with 4 of 6 slots used; B is still at it
    assert game.splits == [Split(7, 1, 2, 2, 0, 0), Split(9, 0, 2, 1, 0, 0)]
    game.step(wanted=9)  # 6 free in one hole: too few, but not scattered
    assert game.splits[2] == Split(6, 0, 0, 0, 0, 6)
    assert game.is_over is False
    for left in (game.splits[0], game.now()):
        assert sum(left) == left.slots == 12


def test_at_the_end_the_truth_comes_out() -> None:
    game = small(num_steps=1)
    game.place("A", 0, 6)
    game.place("B", 6, 5)
    game.step()
    assert game.is_over
    assert game.splits == [Split(7, 2, 2, 0, 0, 1)], "B would have written 3 more, 1 of them in its slots"
    assert game.score.split == Split(*(100 * part / 12 for part in (7, 2, 2, 0, 0, 1)))
    with pytest.raises(PackingError, match=r"the game is over after 1 steps; restart\(\) begins again"):
        game.place("C", 11, 1)


# ---- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (lambda g: g.place("C", 6, 4), "'C' cannot be placed now: next is B"),
        (lambda g: g.place("A", 6, 4), "'A' cannot be placed now: next is B"),
        (
            lambda g: g.place("B", 6, 3),
            "B has 3 tokens and will write at least one more: reserve 4 slots or more",
        ),
        (lambda g: g.place("B", 6, 8), "B can never fill more than 7 slots: reserve at most that, not 8"),
        (lambda g: g.place("B", 8, 5), "slots 8 to 12 reach outside the memory, slots 0 to 11"),
        (lambda g: g.place("B", -1, 5), "slots -1 to 3 reach outside the memory"),
        (lambda g: g.place("B", 3, 4), "slot 3 is taken: A holds slots 0 to 4"),
        (lambda g: g.move("B", 6, 4), "'B' is not running; running are A"),
        (lambda g: g.move("A", 6, 2), "A has 2 tokens and will write at least one more"),
        (lambda g: g.drop("Z"), "'Z' is not running; running are A"),
        (lambda g: g.drop("B"), "'B' is not running"),
    ],
)
def test_a_move_that_is_not_allowed_says_why_and_changes_nothing(move: Any, says: str) -> None:
    game = small()
    game.place("A", 0, 5)
    told: list[int] = []
    game.follow(lambda: told.append(1))
    before = (game._state, len(game._history))
    with pytest.raises(PackingError, match=re.escape(says)):
        move(game)
    assert (game._state, len(game._history)) == before
    assert told == []


@pytest.mark.parametrize("value", [1.5, "4", None, True])
def test_slots_are_integers(value: Any) -> None:
    game = small()
    with pytest.raises(TypeError, match="start is"):
        game.place("A", value, 4)
    with pytest.raises(TypeError, match="size is"):
        game.place("A", 0, value)
    assert strip(game) == "·" * 12


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_slots": 0}, "num_slots is 0; it must be at least 1"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        (
            {"num_slots": 20},
            r"request \w+ may need \d \+ 24 slots, but the memory has 20; make num_slots larger",
        ),
        ({"requests": [PackingRequest("A", 0, 3)]}, "a prompt has at least 1 token"),
        ({"requests": [PackingRequest("A", 2, 25)]}, "an answer 1 to 24"),
    ],
)
def test_a_game_that_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PackingGame(**wrong)


def test_an_empty_queue_is_a_game_that_is_over() -> None:
    game = PackingGame(requests=())
    assert game.is_over
    assert game.score.split.free == 100
    assert "Nobody waits" in game.board().to_text()


# ---- undo, restart, followers -----------------------------------------------------------------------


def test_every_move_can_be_taken_back() -> None:
    game = small()
    with pytest.raises(PackingError, match="there is nothing to take back"):
        game.undo()
    seen = [game._state]
    for move in (
        lambda: game.place("A", 0, 3),
        game.step,
        lambda: game.move("A", 4, 6),
        lambda: game.drop("A"),
        game.restart,
    ):
        move()
        seen.append(game._state)
    while game.can_undo:
        assert game._state == seen.pop()
        game.undo()
    assert game._state == seen.pop()


def test_followers_hear_of_every_change_until_they_leave() -> None:
    game, told = small(), []
    unfollow = game.follow(lambda: told.append(strip(game)))
    game.place("A", 0, 3)
    game.undo()
    unfollow(), unfollow()
    game.place("A", 0, 3)
    assert told == ["AAa·········", "············"]


# ---- by chance ------------------------------------------------------------------------------------


def check_books(game: PackingGame) -> None:
    """Every slot is free or held by one request; the kinds add up; the holes are the free slots."""
    held = [slot for run in game.runs for slot in range(run.start, run.stop)]
    free = [slot for start, size in game.pieces for slot in range(start, start + size)]
    assert sorted(held + free) == list(range(game.num_slots))
    assert game.holes == merge(game.pieces)
    assert all(a + n < b for (a, n), (b, _) in pairwise(game.holes))
    for found in (*game.splits, game.now()):
        assert sum(found) == game.num_slots and min(found) >= 0
    for run in game.runs:
        assert run.request.prompt <= run.tokens <= run.size


@pytest.mark.parametrize("seed", range(20))
def test_random_moves_keep_the_books(seed: int) -> None:
    rng = random.Random(seed)
    game = PackingGame(seed, num_slots=48, num_steps=20)
    refused = 0
    for _ in range(250):
        before = game._state
        names = [run.name for run in game.runs] + [each.name for each in game.waiting[:2]]
        name, start, size = rng.choice(names), rng.randint(-2, 47), rng.randint(1, 30)
        move = rng.choice([game.place, game.move, game.place, game.step, game.drop, game.undo])
        arguments = (name, start, size) if move in (game.place, game.move) else ()
        if move == game.drop:
            arguments = (name,) if rng.random() < 0.2 else ("nobody",)
        try:
            move(*arguments)
        except PackingError:
            refused += 1
            assert game._state is before
        check_books(game)
    assert 0 < refused < 250


# ---- played by rule -------------------------------------------------------------------------------


def arena_game(game: PackingGame, rule: str) -> tuple[int, int, int, dict[Any, tuple[int, int]]]:
    """The same policy on the simulator's Arena: served, copied, dropped, and who holds what at the end."""
    arena, waiting, running = Arena(game.num_slots), list(game.requests), {}
    served = copied = dropped = 0

    def size(request: PackingRequest, tokens: int) -> int:
        most = request.prompt + game.max_new_tokens
        return {"max": most, "double": min(2 * tokens, most), "oracle": request.total, "least": tokens + 1}[
            rule
        ]

    for _ in range(game.num_steps):
        for name, (request, tokens) in list(running.items()):
            if tokens == arena.spans[name][1]:
                growth = arena.grow(name, size(request, tokens))
                if growth is None:
                    arena.free(name)
                    waiting.insert(0, running.pop(name)[0])
                    dropped += 1
                else:
                    copied += growth.tokens_copied
        while arena.allocate(waiting[0].name, size(waiting[0], waiting[0].prompt)) is not None:
            request = waiting.pop(0)
            running[request.name] = (request, request.prompt)
        running = {name: (request, tokens + 1) for name, (request, tokens) in running.items()}
        for name in [name for name, (request, tokens) in running.items() if tokens == request.total]:
            arena.free(name)
            del running[name]
            served += 1
    return served, copied, dropped, arena.spans


@pytest.mark.parametrize("rule", ["max", "double", "least", "oracle"])
@pytest.mark.parametrize("seed", range(12))
def test_played_by_rule_it_is_the_simulators_arena(seed: int, rule: str) -> None:
    game = PackingGame(seed)
    score = game.play(rule)
    served, copied, dropped, spans = arena_game(game, rule)
    assert (score.served, score.tokens_copied, score.dropped) == (served, copied, dropped)
    assert {run.name: (run.start, run.size) for run in game.runs} == spans
    check_books(game)


def test_the_same_seed_is_the_same_game() -> None:
    scores = [repr(PackingGame(seed).play("double")) for seed in (3, 3, 4)]
    assert scores[0] == scores[1] != scores[2]


def test_rules_and_places_may_be_functions() -> None:
    by_name, by_function = PackingGame(8), PackingGame(8)
    by_name.play("max", "best")
    by_function.play(lambda request, tokens, most: request.prompt + most, best_fit)
    assert (by_name.player, by_function.player) == ("max", "Your rule")
    assert (by_name.runs, by_name.splits) == (by_function.runs, by_function.splits)
    for wrong in ({"reserve": "guess"}, {"place": "worst"}):
        with pytest.raises(ValueError, match=r"there is no rule '(guess|worst)'; there are"):
            PackingGame(8).play(**wrong)


def test_a_rule_that_chooses_what_is_not_allowed_is_told_so() -> None:
    with pytest.raises(PackingError, match="slot 0 is taken: A holds"):
        PackingGame(8).play("max", lambda holes, size: 0)
    with pytest.raises(PackingError, match="reserve 5 slots or more, not 1"):
        PackingGame(8).play(lambda request, tokens, most: 1)


@pytest.mark.parametrize("seed", range(30))
def test_fits_and_merge_against_slots_counted_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    taken = [rng.random() < 0.4 for _ in range(40)]
    pieces = [(slot, 1) for slot in range(40) if not taken[slot]]
    holes = merge(pieces)
    assert [slot for start, size in holes for slot in range(start, start + size)] == [s for s, _ in pieces]
    assert all(a + n < b for (a, n), (b, _) in pairwise(holes))
    for size in range(1, 12):
        starts = [s for s in range(41 - size) if not any(taken[s : s + size])]
        assert first_fit(holes, size) == (starts[0] if starts else None)
        best = best_fit(holes, size)
        if starts:
            rooms = {start: room for start, room in holes}
            assert rooms[best] == min(room for room in rooms.values() if room >= size)
        else:
            assert best is None


def test_requests_are_mostly_short() -> None:
    answers = sorted(each.answer for each in seeded_requests(1, 1000, 24))
    assert answers[0] >= 1 and answers[-1] == 24
    assert 4 <= answers[500] <= 8
    assert all(3 <= each.prompt <= 8 for each in seeded_requests(1, 1000, 24))


# ---- the same, paged ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_paged_serves_more_and_wastes_less(seed: int) -> None:
    game = PackingGame(seed)
    reserved, paged = game.play("max"), play_paged(game)
    assert paged.score.served > reserved.served
    assert paged.score.split.tokens > 80 > 45 > reserved.split.tokens
    assert paged.score.split.external == 0 == paged.score.tokens_copied
    for found in paged.splits:
        assert sum(found) == game.num_slots
    blocks = [paged.slots[i : i + 4] for i in range(0, 96, 4)]
    assert all(len({slot and slot[0] for slot in block}) == 1 for block in blocks)


def test_paged_by_hand() -> None:
    game = small(num_steps=2)
    game.place("A", 0, 6)
    game.step(), game.step()
    paged = play_paged(game, block_size=2)
    # Of 6 blocks A takes 2, B 2, C 1; D waits. B grows into the last, so C is dropped, and comes back.
    assert paged.splits[0] == Split(9, 1, 0, 0, 0, 2)
    assert paged.score.served == 1
    assert [slot and slot[0] for slot in paged.slots] == list("AAAABBBBCCBB")


@pytest.mark.parametrize(("block_size", "says"), [(5, "12 slots cannot be cut into blocks of 5")])
def test_paged_needs_whole_blocks(block_size: int, says: str) -> None:
    game = small()
    game.step()
    with pytest.raises(ValueError, match=says):
        play_paged(game, block_size)


def test_paged_needs_a_step_to_compare() -> None:
    with pytest.raises(ValueError, match="no step has passed yet"):
        play_paged(small())


# ---- the kinds -------------------------------------------------------------------------------------


def test_kinds_of_one_moment() -> None:
    moment = Moment((Held(0, 10, 4), Held(1, 6, 6), Held(2, 8, 3)), external=5, free=0)
    assert split(moment, {}) == Split(13, 0, 0, 11, 5, 0)
    assert split(moment, {0: 7}) == Split(13, 3, 3, 5, 5, 0)
    assert split(moment, {0: 7, 1: 9, 2: 8}) == Split(13, 8, 3, 0, 5, 0)
    assert mean([Split(1, 2, 3, 4, 5, 6), Split(3, 2, 1, 0, 1, 2)]) == Split(2, 2, 2, 2, 3, 4)


def test_the_rules_need_neither_torch_nor_widgets() -> None:
    code = (
        "import sys, minikv.lab.packing as p; p.PackingGame(8).play('max'); "
        "print([m for m in ('torch', 'ipywidgets', 'anywidget') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
