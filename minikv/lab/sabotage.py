"""Break one invariant on purpose, see what the model then says, and put it back.

    with sabotage("ignored-offset", bench):
        bench.finish_sentence(request)      # the reader begins at the wrong slot

Each switch replaces one part of a workbench through the same door that a learner's own code uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minikv.lab.switches import (
    books,
    contiguous,
    counts,
    experiment_ends,
    kernel,
    loop,
    moves,
    reading,
    sharing,
    storage,
)
from minikv.lab.switches.switch import Switch
from minikv.lab.workbench import Workbench

SWITCHES: dict[str, Switch] = {
    **reading.SWITCHES,
    **contiguous.SWITCHES,
    **books.SWITCHES,
    **counts.SWITCHES,
    **loop.SWITCHES,
    **storage.SWITCHES,
    **kernel.SWITCHES,
    **experiment_ends.SWITCHES,
    **sharing.SWITCHES,
    **moves.SWITCHES,
}


@contextmanager
def sabotage(name: str, bench: Workbench, **options: Any) -> Iterator[Switch]:
    """Break `bench` as `name` says, for the length of a with block.

    Raises:
        ValueError: there is no such switch. TypeError: an option that the switch does not take.
    """
    if name not in SWITCHES:
        raise ValueError(f"there is no sabotage {name!r}; there are {', '.join(SWITCHES)}")
    switch = SWITCHES[name]
    undo = switch.install(bench, **options)
    bench.log({"op": "note", "text": f"Sabotage on: {switch.says}"})
    try:
        yield switch
    finally:
        undo()
        bench.log({"op": "note", "text": f"Sabotage off: {name} is put back."})
