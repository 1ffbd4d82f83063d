"""The same simulation the slow way, by step, by token, by slot: the oracle for the fast one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minikv.sim.policy import Books
from minikv.sim.reservation import Orca, Paged
from minikv.sim.simulate import Event, StepTime
from minikv.sim.split import Split
from minikv.sim.workload import Request


class Stored(NamedTuple):
    """A running request and the tokens it has stored."""

    request: Request
    tokens: int


def slot_by_slot(policy: Books, running: Mapping[int, Stored], waiting: bool) -> Split:
    """Mark every slot with its state, going by where the policy has put the requests, and count the marks."""
    slots = ["waste" if waiting and policy.contiguous else "free"] * policy.num_slots
    for key, (request, tokens) in running.items():
        places, usable = _places(policy, key, request)
        for number, slot in enumerate(places):
            assert slots[slot] in ("free", "waste"), f"slot {slot} is held twice"
            if number < tokens:
                slots[slot] = "token"
            elif number >= usable:
                slots[slot] = "rounded up"
            else:
                slots[slot] = "reserved" if number < request.slots else "internal"
        assert tokens <= usable, f"request {key} has stored {tokens} tokens in {usable} slots"
    count = slots.count
    external = count("rounded up") + count("waste")
    return Split(count("token"), count("reserved"), count("internal"), external, count("free"))


def _places(policy: Books, key: int, request: Request) -> tuple[list[int], int]:
    """The slots of a request in order, and how many of them it may use."""
    if isinstance(policy, Paged):
        size = policy.manager.block_size
        table = policy.tables[key]
        return [block * size + i for block in table.block_ids for i in range(size)], table.capacity
    start, size = policy.arena.spans[key]  # type: ignore[attr-defined]
    usable = policy.reservation(request) if isinstance(policy, Orca) else size
    return list(range(start, start + size)), usable


class Outcome(NamedTuple):
    """What the slow way gives."""

    events: list[Event]
    mean: Split
    mean_batch: float
    peak_batch: int
    peak_tokens: int
    splits: list[tuple[float, int, Split]]  # seconds, batch and split of every step


class _Run:
    def __init__(self, key: int, request: Request, done: int) -> None:
        self.key, self.request = key, request
        self.done = done  # tokens generated
        self.stored = request.input_tokens + done


def reference(requests: Sequence[Request], policy: Books, step_time: StepTime) -> Outcome:
    """Run all of it."""
    coming = [(key, request, 0) for key, request in enumerate(requests)]
    waiting: list[tuple[int, Request, int]] = []
    running: list[_Run] = []
    events: list[Event] = []
    splits = []
    now, step, busy = (round(requests[0].arrival * 1e6) if requests else 0), 0, 0
    base, per_request = round(step_time.base * 1e6), round(step_time.per_request * 1e6)
    sums, batches = [0.0] * 5, 0

    def tell(kind: str, key: int, request: Request) -> None:
        events.append(Event(now / 1e6, step, kind, key, request))  # type: ignore[arg-type]

    while coming or waiting or running:
        if not running and not waiting:
            now = max(now, round(coming[0][1].arrival * 1e6))
        while coming and round(coming[0][1].arrival * 1e6) <= now:
            waiting.append(coming.pop(0))
        for run in [run for run in running if run.done == run.request.output_tokens]:
            policy.finish(run.key)
            running.remove(run)
            tell("finish", run.key, run.request)
        preempted = False
        for run in list(running):
            while run in running and not policy.append(run.key):
                newest = running.pop()
                policy.finish(newest.key)
                waiting.insert(0, (newest.key, newest.request, newest.done))
                tell("preempt", newest.key, newest.request)
                preempted = True
            if run in running:
                run.stored += 1
        closed = preempted and bool(running)
        while waiting and not closed:
            key, request, done = waiting[0]
            if request.slots > policy.longest:
                tell("too large", key, request)
            elif policy.admit(key, request, done):
                running.append(_Run(key, request, done))
                tell("admit", key, request)
            else:
                break
            waiting.pop(0)
        if running:
            held = {run.key: Stored(run.request, run.stored) for run in running}
            split = slot_by_slot(policy, held, bool(waiting))
            assert split == policy.split(bool(waiting))
            time = base + per_request * len(running)
            splits.append((now / 1e6, len(running), split))
            for run in running:
                run.done += 1
            sums = [total + time * slots for total, slots in zip(sums, split, strict=True)]
            batches += time * len(running)
            busy, now, step = busy + time, now + time, step + 1
    mean = Split(*(total / busy if busy else 0.0 for total in sums))
    return Outcome(
        events,
        mean,
        batches / busy if busy else 0.0,
        max((batch for _, batch, _ in splits), default=0),
        max((int(split.tokens) for _, _, split in splits), default=0),
        splits,
    )
