"""`python -m minikv.benchmarks kv_cache`: every number against a second count, made without the engine."""

from __future__ import annotations

import json
from collections import deque
from math import ceil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minikv.benchmarks import kv_cache
from minikv.benchmarks.__main__ import main, names
from minikv.lab.experiment_run import Ask, Outcome, Scene, run
from minikv.lab.experiment_scenes import SCENES, SIX, questions
from minikv.lab.workbench import tiny_gpt2

STEP = 0.1  # seconds


def words(prompt: str) -> int:
    """Tokens of a prompt: the language has one for each word."""
    return len(prompt.split())


class Count:
    """A scene once more, with nothing but whole numbers: first come first served, the youngest makes room.

    Answers go on to their limits. A request is [number, tokens stored, tokens generated].
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.ends: dict[int, str] = {}
        self.held: list[int] = []  # blocks, by step
        self.stored: list[int] = []  # tokens, by step
        self.first: dict[int, int] = {}  # step of the first token
        self.preempted = 0
        self.peak = 0  # blocks, after each taking: the youngest may make room later in the same step
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.said = [0] * len(scene.asks)
        self.kept = [0] * len(scene.asks)
        for number, ask in enumerate(scene.asks):
            longest = words(ask.prompt) + ask.limit - 1
            if self.blocks(longest) > scene.num_blocks:
                self.ends[number] = "oom"
            else:
                self.waiting.append(number)
        self.play()

    def blocks(self, tokens: int) -> int:
        return ceil(tokens / self.scene.block_size)

    def goal(self, number: int) -> int:
        """Tokens that it has stored at the end of this step."""
        return words(self.scene.asks[number].prompt) + self.said[number]

    def in_use(self) -> int:
        return sum(self.blocks(self.kept[number]) for number in self.running)

    def fits(self, number: int) -> bool:
        free = self.scene.num_blocks - self.in_use()
        return self.blocks(self.goal(number)) - self.blocks(self.kept[number]) <= free

    def take(self, number: int) -> None:
        self.kept[number] = self.goal(number)
        self.peak = max(self.peak, self.in_use())

    def play(self) -> None:
        step = 0
        while self.waiting or self.running:
            if self.scene.timeout is not None and step >= round(self.scene.timeout / STEP):
                for number in (*self.running, *self.waiting):
                    self.ends[number] = "timeout"
                return
            step += 1
            self.one(step)

    def one(self, step: int) -> None:
        somebody_left = False
        for number in list(self.running):
            while number in self.running and not self.fits(number):
                out = self.running.pop()
                self.kept[out] = 0
                self.waiting.appendleft(out)
                self.preempted += 1
                somebody_left = True
            if number in self.running:
                self.take(number)
        while self.waiting and not somebody_left and self.fits(self.waiting[0]):
            number = self.waiting.popleft()
            self.running.append(number)
            self.take(number)
        self.held.append(self.in_use())
        self.stored.append(sum(self.kept[number] for number in self.running))
        for number in list(self.running):
            self.said[number] += 1
            self.first.setdefault(number, step)
            if self.said[number] == self.scene.asks[number].limit:
                self.running.remove(number)
                self.kept[number] = 0
                self.ends[number] = "success"


def as_counted(outcome: Outcome, count: Count) -> bool:
    """Whether the engine came to what was counted."""
    ends = list(count.ends.values())
    slots = outcome.scene.num_blocks * outcome.scene.block_size
    assert [m.slots // outcome.unit for m in outcome.moments] == count.held
    assert [m.tokens for m in outcome.moments] == count.stored
    for how in ("success", "oom", "timeout"):
        assert outcome.counts[how] == ends.count(how), how
    assert outcome.counts["preempted"] == count.preempted
    assert outcome.max_allocated == count.peak
    assert outcome.free == outcome.total == outcome.scene.num_blocks
    if count.held:
        mean = sum(count.held) / len(count.held)
        assert outcome.mean_held == pytest.approx(mean / outcome.total)
        assert outcome.mean_tokens == pytest.approx(sum(count.stored) / len(count.stored) / slots)
        assert outcome.ttft == pytest.approx(STEP * sum(count.first.values()) / len(count.first))
    return True


# ---- the four scenes -----------------------------------------------------------------------------

#: success, oom, timeout, preempted, peak, free at the end
KNOWN = {
    "too large": (2, 1, 0, 1, 6, 6),
    "reuse": (6, 0, 0, 5, 16, 16),
    "far larger": (6, 0, 0, 0, 33, 64),
    "time-outs": (3, 0, 3, 4, 16, 16),
}


def test_it_is_a_benchmark() -> None:
    assert "kv_cache" in names()


def test_prompts_are_as_long_as_the_second_count_takes_them_to_be() -> None:
    encode = tiny_gpt2().tokenizer.encode
    for ask in (*SIX, *SCENES["too large"].asks, *questions(20, 9)):
        assert len(encode(ask.prompt)) == words(ask.prompt)
    assert [words(ask.prompt) for ask in SIX] == [11, 17, 6, 5, 4, 24]
    assert [ask.limit for ask in SIX] == [12, 20, 16, 24, 10, 18]


@pytest.mark.parametrize("name", SCENES)
def test_the_four_scenes(name: str) -> None:
    outcome = run(SCENES[name])
    how = (*(outcome.counts[h] for h in ("success", "oom", "timeout", "preempted")), outcome.max_allocated)
    assert (*how, outcome.free) == KNOWN[name]
    assert as_counted(outcome, Count(SCENES[name]))


@pytest.mark.parametrize("blocks", [4, 5, 6, 9, 10, 11, 12, 15, 17, 23, 31, 32, 33, 40])
@pytest.mark.parametrize("timeout", [None, 0.5, 1.7])
def test_other_pools_and_other_patience(blocks: int, timeout: float | None) -> None:
    scene = Scene("other", SIX, blocks, timeout=timeout)
    assert as_counted(run(scene), Count(scene))


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_other_block_sizes(block_size: int) -> None:
    scene = Scene("other", SIX, ceil(64 / block_size), block_size)
    assert as_counted(run(scene), Count(scene))


def test_the_row_says_what_the_outcome_says() -> None:
    outcome = run(SCENES["far larger"])
    row = dict(zip(kv_cache.SCENE_HEAD, kv_cache.scene_row(outcome), strict=True))
    assert row["blocks"] == 64
    assert row["peak"] == 33
    assert row["held, peak %"] == "51.6"  # 33 of 64
    assert row["free at the end"] == 64
    assert row["ttft, s"] == "0.10"


def test_a_scene_in_which_nobody_gets_a_token_has_no_ttft() -> None:
    refused = run(Scene("refused", (Ask("Tea is ready .", 9),), num_blocks=2))
    assert refused.counts["oom"] == 1
    assert refused.max_allocated == 0
    assert kv_cache.scene_row(refused)[-1] == "–"


# ---- demand: paged against contiguous ------------------------------------------------------------


@pytest.mark.parametrize("load", [1, 3, 8])
def test_what_is_held_follows_from_the_lengths(load: int) -> None:
    rows = kv_cache.demand_rows((load,))
    prompts = [words(ask.prompt) for ask in questions(load, limit=32)]
    stored = sum(prompt + 5 for prompt in prompts)  # the last of 6 tokens is never stored
    held = {
        "paged": sum(4 * ceil((prompt + 5) / 4) for prompt in prompts),
        "contiguous, max": sum(prompt + 31 for prompt in prompts),
        "contiguous, grow": sum(prompt + 16 for prompt in prompts),
    }
    for load_, cache, tokens, slots, share, out in rows:
        assert (load_, tokens, slots, out) == (load, stored, held[str(cache)], 6 * load)
        assert share == f"{100 * stored / held[str(cache)]:.1f}"


def test_unequal_answers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene("one", questions(1, 9), 20)
    other = run(Scene("one", (Ask("Tea is ready .", 3),), 20))
    honest = kv_cache.run
    monkeypatch.setattr(
        kv_cache, "run", lambda scene, **options: other if options["cache"] == "contiguous" else honest(scene)
    )
    with pytest.raises(kv_cache.Unequal, match="contiguous, max"):
        kv_cache.same_requests(scene)


@pytest.mark.parametrize("limit", [6, 24, 96])
def test_the_concurrency_limits_follow_from_the_lengths(limit: int) -> None:
    ((found_limit, paged, most, grow, ratio),) = kv_cache.limit_rows((limit,))
    prompts = [words(ask.prompt) for ask in questions(48, limit)]

    def first(room: int, needs: list[int]) -> int:
        """How many of them, in order, fit together."""
        return next(n for n in range(len(needs)) if sum(needs[: n + 1]) > room)

    assert found_limit == limit
    assert paged == first(128, [ceil((prompt + 5) / 4) for prompt in prompts])
    assert most == first(512, [prompt + limit - 1 for prompt in prompts])
    assert grow == first(512, [prompt + min(16, limit - 1) for prompt in prompts])
    assert ratio == f"{int(str(paged)) / int(str(most)):.2f}"


# ---- a trace -------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests at once, 16 tokens in and 1 out, and one that is too long."""
    path = tmp_path / "tiny.csv"
    line = "2023-11-16 18:15:46.68,{},1\n"
    heading = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    path.write_text(heading + line.format(16) * 3 + line.format(99), encoding="utf-8")
    return path


def test_a_trace_by_hand(trace: Path) -> None:
    """64 slots. 32 reserved for each: two, then one. 16 for each, or a block: all three. With 64 slots of
    headroom: one after the other."""
    found = kv_cache.trace_table(trace, num_blocks=4, max_length=32, scale=1)
    two, one = 40.6, 40.3  # ms, of a step with so many
    assert found.left_out == 1
    assert [result.finished for result in found.results] == [3, 3, 3, 3]
    batches = [result.mean_batch for result in found.results]
    assert batches == pytest.approx([(2 * two + one) / (two + one), 3, 1, 3])
    assert found.column("tokens, peak %") == pytest.approx([50, 75, 25, 75])  # 32, 48 and 16 of 64
    assert found.ratio(3, 0) == pytest.approx(batches[3] / batches[0])
    assert "1 of 4" in repr(found)


def test_lengths_can_be_scaled(trace: Path) -> None:
    found = kv_cache.trace_table(trace, num_blocks=4, max_length=64, scale=0.5)
    assert found.left_out == 0
    assert "lengths times 0.5: 18 tokens in and 1 out, on average" in repr(found)  # 8, 8, 8 and 50


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_and_writes(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kv_cache, "demand_rows", lambda: [(1, "paged", 34, 36, "94.4", 6)])
    monkeypatch.setattr(kv_cache, "limit_rows", lambda: [(6, 13, 14, 14, "0.93")])
    out, plots = tmp_path / "rows.json", tmp_path / "plots"
    asked = ["--trace", str(trace), "--blocks", "4", "--max-length", "32", "--scale", "1"]
    main(["kv_cache", *asked, "--json", str(out), "--plot", str(plots)])
    printed = capsys.readouterr().out
    for expected in ("scenes", "demand", "side by side", "tiny.csv: 4 requests", "pool full, then reuse"):
        assert expected in printed
    facts = json.loads(out.read_text(encoding="utf-8"))
    assert [row["peak"] for row in facts["scenes"]] == [6, 16, 33, 16]
    assert facts["demand"][0]["held, peak"] == 36
    assert facts["side by side"][0]["paged / max"] == "0.93"
    assert [row["success"] for row in facts["trace"]] == [3, 3, 3, 3]
    drawn = sorted(plots.iterdir())
    assert len(drawn) == 4
    for path in drawn:
        ElementTree.fromstring(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--trace", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--blocks", "0"], "0 is not a whole number of at least 1"),
        (["--max-length", "1.5"], "1.5 is not a whole number of at least 1"),
        (["--scale", "-1"], "-1 is not a number above 0"),
        (["--scale", "much"], "much is not a number above 0"),
        (["--scale", "inf"], "inf is not a number above 0"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        kv_cache.main(argv)
    assert said in capsys.readouterr().err
