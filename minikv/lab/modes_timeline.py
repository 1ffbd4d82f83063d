"""Several runs over time on one scale, and how much of what they held was never filled."""

from __future__ import annotations

from minikv.lab.experiment_run import Outcome
from minikv.lab.experiment_timeline import Drawing, timeline


def timeline_to(steps: int, outcome: Outcome, title: str | None = None) -> Drawing:
    """As `timeline`, but the axis goes to `steps`: pictures that are to be compared have one scale.

    Raises:
        ValueError: the run is longer than that.
    """
    if steps < outcome.steps:
        raise ValueError(f"the axis ends at step {steps}, the run at step {outcome.steps}; take more steps")
    drawing = timeline(outcome, title)
    drawing.figure.axes[0].set_xlim(0.5, steps + 0.5)  # the lower axis is shared
    return drawing


def never_filled(outcome: Outcome) -> float:
    """Of the slots held and empty, over all steps: the share in which no token ever came, in [0, 1].

    The others were held for tokens that came later. 0 if none was empty. It counts on a request that keeps
    its slots until it ends: of one that was preempted, the tokens before and after count as one.
    """
    final: dict[int, int] = {}
    for moment in outcome.moments:
        for held in moment.held:
            final[held.request] = max(held.tokens, final.get(held.request, 0))
    empty = sum(moment.slots - moment.tokens for moment in outcome.moments)
    never = sum(
        max(0, held.slots - final[held.request]) for moment in outcome.moments for held in moment.held
    )
    return never / empty if empty else 0.0
