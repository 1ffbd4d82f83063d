"""The time line and the explorers: what they show is what came out."""

from xml.etree import ElementTree

import pytest

from minikv.lab.experiment_explorers import FittingExplorer, SceneExplorer
from minikv.lab.experiment_limit import fitting
from minikv.lab.experiment_run import Ask, Scene, run
from minikv.lab.experiment_scenes import SCENES, SIX
from minikv.lab.experiment_timeline import ROWS, Drawing, table, timeline
from minikv.lab.plots import lines

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", SCENES)
def test_the_table_has_the_moments(name):
    outcome = run(SCENES[name])
    heading, *rows = table(outcome).split("\n")
    assert heading.split("  ")[0].strip() == "step"
    by_step = {moment.step: moment for moment in outcome.moments}
    shown = [[int(cell) for cell in row.split()] for row in rows]
    assert shown[0][0] == 1
    assert shown[-1][0] == outcome.steps
    assert {m.step for m in outcome.moments if m.preempted} <= {row[0] for row in shown}
    assert len(shown) <= ROWS + 2 + outcome.counts["preempted"]
    for step, blocks, tokens, running, waiting, made_room in shown:
        moment = by_step[step]
        assert (4 * blocks, tokens, running) == (moment.slots, moment.tokens, len(moment.held))
        assert (waiting, made_room) == (moment.waiting, moment.preempted)


def test_contiguous_memory_is_counted_in_slots():
    assert "slots held" in table(run(SCENES["reuse"], cache="contiguous"))


@pytest.mark.parametrize("name", SCENES)
def test_the_picture_is_small_and_says_what_it_shows(name):
    plot = timeline(run(SCENES[name]))
    svg = plot.to_svg()
    texts = " ".join(ElementTree.fromstring(svg).itertext())
    for words in ("all there are", "held, empty", "with a token", "running", "waiting", SCENES[name].name):
        assert words in texts
    assert ("one made room" in texts) == (run(SCENES[name]).counts["preempted"] > 0)
    assert len(svg) < 40_000
    assert "\n" not in svg
    assert set(plot._repr_mimebundle_()) == {"text/html", "text/plain"}
    assert timeline(run(SCENES[name])).to_svg() == svg  # the same every time


def test_a_run_without_a_step_has_a_picture():
    outcome = run(Scene("refused", (Ask("Tea is ready .", 9),), 2))
    ElementTree.fromstring(timeline(outcome).to_svg())
    assert table(outcome).count("\n") == 0


def test_other_plots_can_be_drawn_lean():
    plot = Drawing(lines("Squares", ("n", [1, 2, 3]), "n²", {"square": [1, 4, 9]}))
    assert set(plot._repr_mimebundle_()) == {"text/html", "text/plain"}
    assert "Squares" in repr(plot)
    ElementTree.fromstring(plot.to_svg())


def test_the_scene_explorer_runs_the_scene_again():
    explorer = SceneExplorer(SIX)
    assert explorer.outcome.counts == run(SCENES["reuse"]).counts
    before = explorer.picture.value
    explorer.timeout.value = "2 s"
    assert explorer.outcome.counts == run(SCENES["time-outs"]).counts
    explorer.blocks.value = 8
    assert explorer.outcome.total == 8
    assert explorer.outcome.counts["oom"] == 2
    assert explorer.picture.value != before
    assert "8 blocks, time-out 2 s" in explorer.picture.value
    assert repr(explorer).startswith("time-out 2 s; paged, 8 blocks:")
    data = explorer._repr_mimebundle_()
    assert data["text/plain"] == repr(explorer)
    assert data["text/html"].startswith("<p>time-out 2 s")
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize(
    ("prompt", "limit", "answer", "size"), [(200, 400, 50, 16), (1, 1, 1, 1), (2000, 2000, 100, 256)]
)
def test_the_fitting_explorer_shows_what_fits(prompt, limit, answer, size):
    explorer = FittingExplorer()
    explorer.prompt.value, explorer.limit.value = prompt, limit
    explorer.answer.value, explorer.block_size.value = answer, size
    tokens = max(1, round(limit * answer / 100))
    expected = fitting(prompt, tokens, limit, 16384, size)
    assert explorer.fits == expected
    assert repr(explorer).endswith(
        f"paged {expected.paged}, contiguous {expected.contiguous}, {expected.ratio:.2f} times"
    )
    root = ElementTree.fromstring(explorer.picture.value)
    width = float(root.get("viewBox").split()[2])
    assert all(float(box.get("x", 0)) + float(box.get("width")) <= width for box in root.iter(f"{SVG}rect"))
    texts = "".join(root.itertext())
    assert str(expected.paged) in texts
    assert str(expected.contiguous) in texts


def test_the_fitting_explorer_without_a_kernel():
    data = FittingExplorer()._repr_mimebundle_()
    assert data["text/html"].startswith('<img alt="16,384 slots')
    assert "paged 40, contiguous 27, 1.48 times" in data["text/plain"]


@pytest.mark.parametrize(("timeout", "served"), [("3.8 s", 5), ("3.9 s", 6)])
def test_the_time_out_that_notebook_10_names(timeout, served):
    explorer = SceneExplorer(SIX)
    explorer.timeout.value = timeout
    assert explorer.outcome.counts["success"] == served
    assert explorer.outcome.counts["timeout"] == 6 - served
