"""What the packing game says: a sentence for each move, and the reason why one is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.lab.packing_split import KINDS
from minikv.lab.sentences import counted, listed

if TYPE_CHECKING:
    from minikv.lab.packing import Run, Score
    from minikv.lab.packing_requests import PackingRequest


def opening(num_slots: int, requests: Sequence[PackingRequest]) -> str:
    """Before the first move."""
    if not requests:
        return f"{num_slots} slots, all free. Nobody waits."
    head = requests[0]
    return (
        f"{num_slots} slots, all free. {head.name} is next: its prompt has {counted(head.prompt, 'token')}, "
        "and nobody knows how long its answer will get."
    )


def placed(run: Run) -> str:
    """A request got its reservation."""
    prompt = run.request.prompt
    return (
        f"{run.name} gets {slots(run.start, run.size)}: {prompt} hold its prompt, "
        f"{run.size - prompt} are reserved for its answer."
    )


def moved(run: Run, after: Run, copied: int) -> str:
    """A running request got other slots."""
    if copied:
        return (
            f"{run.name} moves to {slots(after.start, after.size)}; "
            f"{counted(copied, 'token')} had to be copied there."
        )
    verb = "grows" if after.size > run.size else "shrinks" if after.size < run.size else "stays"
    return f"{run.name} {verb} where it is, to {counted(after.size, 'slot')}; nothing is copied."


def dropped(run: Run, lost: int) -> str:
    """A running request lost its slots."""
    return (
        f"{run.name} is dropped: it goes back to the head of the queue, "
        f"and the {counted(lost, 'token')} of its answer are lost."
    )


def stepped(runs: Sequence[Run], ended: Sequence[Run]) -> str:
    """A step has passed. `runs` are as they stand after it, those that ended included."""
    if not runs:
        return "Nobody runs, so nothing is written."
    wrote = (
        f"{runs[0].name} writes a token"
        if len(runs) == 1
        else f"{counted(len(runs), 'request')} write a token each"
    )
    parts = [f"{wrote}; {sum(run.tokens for run in runs)} slots hold tokens."]
    parts += [_ending(run) for run in ended]
    full = [run.name for run in runs if run.is_outgrown and run not in ended]
    if full:
        parts.append(f"{listed(full)} {'has' if len(full) == 1 else 'have'} filled the last reserved slot.")
    return " ".join(parts)


def _ending(run: Run) -> str:
    unused = run.size - run.tokens
    rest = f"{unused} of its {run.size} slots were never used" if unused else "all its slots were used"
    return f"{run.name} has ended after {counted(run.request.answer, 'token')}: {rest}."


def must_decide(outgrown: Sequence[Run]) -> str:
    """Why there is no step now."""
    run = outgrown[0]
    return (
        f"{run.name} has filled its {run.size} slots and goes on: let it grow, move it or drop it "
        "before the next step"
    )


def size_fault(name: str, size: int, least: int, most: int) -> str | None:
    """What is wrong with a reservation of this size, or None."""
    if size < least:
        held = f"{name} has {counted(least - 1, 'token')} and will write at least one more"
        return f"{held}: reserve {least} slots or more, not {size}"
    if size > most:
        return f"{name} can never fill more than {most} slots: reserve at most that, not {size}"
    return None


def taken(name: str, slot: int, run: Run) -> str:
    """Why slots cannot be had: one of them belongs to `run`."""
    where = f"{run.name} holds {slots(run.start, run.size)}"
    if name == run.name:
        return (
            f"slot {slot} is {name}'s own, and its tokens must be copied out first: choose slots outside "
            f"{run.start} to {run.stop - 1}, or begin at slot {run.start} to let it grow where it is"
        )
    return f"slot {slot} is taken: {where}"


def fits_nowhere(name: str, size: int, free: int, largest: int) -> str:
    """Why a request waits."""
    reason = f"{free} are free, but the largest hole has {largest}"
    if free < size:
        reason = f"only {free} {'is' if free == 1 else 'are'} free"
    return f"With {counted(size, 'slot')}, {name} fits nowhere: {reason}."


def slots(start: int, size: int) -> str:
    """ "slots 4 to 9", or "slot 4"."""
    return f"slots {start} to {start + size - 1}" if size > 1 else f"slot {start}"


def names_of(runs: Sequence[Run]) -> str:
    """ "A, B and C", or "none"."""
    return ", ".join(run.name for run in runs) or "none"


def score_text(score: Score) -> str:
    """Two lines: what was served at what cost, and what the memory was used for."""
    parts = zip(KINDS.values(), score.split, strict=True)
    used = ", ".join(f"{kind} {share:.1f} %" for kind, share in parts if share)
    lost = f", losing {counted(score.tokens_lost, 'token')}" if score.tokens_lost else ""
    return (
        f"{counted(score.steps, 'step')}: {counted(score.served, 'request')} served, "
        f"{counted(score.tokens_copied, 'token')} copied, dropped {score.dropped}×{lost}\n{used}"
    )
