"""Count the bytes that a read of the cache moves, instead of believing it.

Counted is what torch's own operations copy or fill, in bytes of floating point. What compiled code or NumPy
does with the same memory is not seen: 0 says that torch copied nothing, not that nothing was read.

with counted_reads(bench.pool) as reads:
    bench.step(request)
print(reads)                            # what read_layer moved, layer by layer

moved = bytes_moved(lambda: paged_attention(…))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minikv.pool import BlockPool, ReadTable

_EMPTY = re.compile("(new_)?empty")  # operations that reserve memory and put nothing there
_FILLED = re.compile("new_|(zeros|ones|full)_like")  # that take from a tensor its kind, but no number


class Moved(NamedTuple):
    """Bytes of keys and values that were moved from one place in memory to another."""

    read: int
    written: int

    def __add__(self, other: Any) -> Moved:
        return Moved(self.read + other[0], self.written + other[1])


class Reads:
    """What `read_layer` moved while it was watched.

    Attributes:
        layers: what each call moved, in order.
        least: what no gather can do without: all that it hands back must be read once and written once.
        tokens: tokens handed back per call.
    """

    def __init__(self) -> None:
        self.layers: list[Moved] = []
        self.tokens: list[int] = []
        self.least = Moved(0, 0)

    @property
    def moved(self) -> Moved:
        """All calls together."""
        return sum(self.layers, Moved(0, 0))

    def __repr__(self) -> str:
        lines = [
            f"{name:6} {moved.read:10,} bytes read {moved.written:10,} bytes written"
            for name, moved in (("least", self.least), ("ours", self.moved))
        ]
        return "\n".join([f"{len(self.layers)} calls of read_layer", *lines])


@contextmanager
def counted_reads(pool: BlockPool) -> Iterator[Reads]:
    """Watch `pool.read_layer` for the length of a with block."""
    honest, reads = pool.read_layer, Reads()

    def read_layer(layer: int, tables: Sequence[ReadTable], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        with _Counter() as counter:
            k, v = honest(layer, tables, lengths)
        tokens, of_one = sum(lengths), 2 * k.element_size() * k.shape[1] * k.shape[3]
        reads.layers.append(counter.moved)
        reads.tokens.append(tokens)
        reads.least += Moved(tokens * of_one, tokens * of_one)
        return k, v

    watched: Any = pool
    watched.read_layer = read_layer
    try:
        yield reads
    finally:
        del watched.read_layer  # the method of its class shows again


def bytes_moved(call: Callable[[], Any]) -> Moved:
    """The bytes that torch moves in `call`; made for code that moves numbers and does not compute with them.

    Code that is not torch's, such as a compiled kernel or NumPy, is not seen: of such a call this counts what
    is copied for it and what is made of its result, not what it reads.
    """
    with _Counter() as counter:
        call()
    return counter.moved


class _Counter(TorchDispatchMode):
    """Adds up, for each operation that makes numbers of floating point or changes them, the bytes it moves.

    What moves numbers reads as many bytes as it writes; what fills memory reads none; a view moves nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved = Moved(0, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name, given = func._schema.name.removeprefix("aten::"), list(_floats((args, kwargs or {})))
        places = {each.untyped_storage().data_ptr() for each in given}
        for made in _floats(out):
            if func._schema.is_mutable:  # given[0] is changed, and is what comes out
                self._add(args[2].nbytes if name == "index_put_" else made.nbytes, reads=len(given) > 1)
            elif made.untyped_storage().data_ptr() not in places and not _EMPTY.match(name):
                self._add(made.nbytes, reads=bool(given) and not _FILLED.match(name))
        return out

    def _add(self, size: int, reads: bool) -> None:
        self.moved += Moved(size if reads else 0, size)


def _floats(value: Any) -> Iterator[Tensor]:
    """The tensors of floating point in any nest of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        yield from _floats(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _floats(each)
