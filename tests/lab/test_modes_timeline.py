"""Runs on one scale, and the share of empty slots that no token ever came to."""

import pytest

from minikv.lab.experiment_run import Held, Moment
from minikv.lab.modes_scene import asked, serve
from minikv.lab.modes_timeline import never_filled, timeline_to


def test_one_request_by_hand():
    # 11 tokens, limit 40, ends after 6: it holds 50 slots in 6 steps, and has 11, 12 … 16 tokens stored.
    outcome = serve(asked(requests=1, people=1), "contiguous, max").outcome
    empty = sum(50 - tokens for tokens in range(11, 17))
    assert never_filled(outcome) == 6 * (50 - 16) / empty
    # One block of 16 is filled to its last slot: what is empty meanwhile is held for what comes.
    assert never_filled(serve(asked(requests=1, people=1)).outcome) == 0


def test_nothing_empty_is_nothing_wasted():
    outcome = serve(asked(requests=1, people=1)).outcome
    full = (Moment(1, (Held(0, 4, 4),), 0, 0, 0, 0),)
    object.__setattr__(outcome, "moments", full)
    assert never_filled(outcome) == 0
    object.__setattr__(outcome, "moments", ())
    assert never_filled(outcome) == 0


def test_both_axes_end_where_they_are_told_to():
    outcome = serve(asked(requests=1, people=1)).outcome
    drawing = timeline_to(20, outcome, "One alone")
    assert [axes.get_xlim() for axes in drawing.figure.axes] == [(0.5, 20.5)] * 2
    assert repr(drawing).startswith("One alone")
    with pytest.raises(ValueError, match="axis ends at step 5, the run at step 6"):
        timeline_to(5, outcome)
