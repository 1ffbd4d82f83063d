"""Exercises of notebook 05: an address in the pool's tensor, the bytes of a gather, and an own gather."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minikv.lab.exercises.exercise import Exercise, Verdict, number

# ---- 05.address: where in memory does a key begin? ------------------------------------------


def _address(rng: random.Random) -> Exercise:
    layers, blocks, heads, size, dim = 2, 8, rng.choice((2, 4)), rng.choice((4, 8)), rng.choice((8, 16))
    ids = rng.sample(range(1, blocks), 3)
    layer, head, half = 1, rng.randint(1, heads - 1), rng.randint(0, 1)
    position = rng.choice([p for p in range(size, 3 * size) if p % size])
    entry, place = divmod(position, size)
    shape = (layers, blocks, 2, heads, size, dim)
    steps = [prod(shape[axis + 1 :]) for axis in range(6)]

    def at(layer: int, block: int, half: int, head: int, place: int) -> int:
        return sum(step * i for step, i in zip(steps, (layer, block, half, head, place), strict=False))

    right = at(layer, ids[entry], half, head, place)
    slips = {
        at(layer, entry, half, head, place): "the table says which block that entry is",
        at(layer, ids[entry], 1 - half, head, place): "K is 0 and V is 1 along the third dimension",
        at(0, ids[entry], half, head, place): "the layers lie one after the other; do not forget this one",
        at(layer, ids[entry], half, 0, place): "do not forget the head",
        at(
            layer, ids[entry], half, head, 0
        ): "that is where the block begins; the word has a place within it",
        (ids[entry] * size + place) * dim: "slots do not lie side by side: there is a V, and there are heads",
        4 * right: "that is in bytes; the question is in numbers",
    }
    slips.pop(right, None)
    what = ("key", "value")[half]
    sums = f"{layer} × {steps[0]} + {ids[entry]} × {steps[1]} + {half} × {steps[2]} + {head} × {steps[3]} + "
    return Exercise(
        question=f"kv has the shape {list(shape)}: layers, blocks, K and V, heads, block size, head dim. A "
        f"table lists the blocks {ids}, offset 0. In layer {layer}, at which number (counted from 0, in "
        f"numbers, not in bytes) does the {what} of position {position} begin, for head {head}?",
        judge=number(right, f"{sums}{place} × {dim} = {right}", slips),
        hints=(
            f"Position {position} is entry {entry} of the table, place {place}. Which block is that?",
            f"One step along each dimension skips all that lies within: a place skips {dim} numbers, a head "
            f"{size} × {dim}. And so on to the left.",
            f"The steps are {steps}. The indices are {layer}, {ids[entry]}, {half}, {head}, {place}, and 0.",
        ),
        solution=f"{sums}{place} × {dim} = {right}",
        right=right,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


# ---- 05.bytes: what a gather must move --------------------------------------------------------


def _bytes(rng: random.Random) -> Exercise:
    layers, heads, dim = rng.choice(((12, 12, 64), (6, 8, 64), (32, 8, 128)))
    per_number, size = rng.choice((2, 4)), 16
    stored = rng.choice([n for n in range(20, 200) if n % size])
    once = 2 * layers * heads * dim * stored * per_number
    slots = -(-stored // size) * size
    right = 2 * once
    found = (
        (
            "a factor is missing: K and V are two, read and written are two, and a number has several bytes",
            once,
        ),
        ("two factors are missing: K and V are two, read and written are two", right // 4),
        ("that is numbers, not bytes", right // per_number),
        ("that is for the newest token; a gather copies all that is stored", right // stored),
        ("that is one layer", right // layers),
        ("that copies the empty slots, too; the least does not", right // stored * slots),
    )
    slips = {value: why for why, value in reversed(found) if value != right}  # of two mistakes the first
    return Exercise(
        question=f"A model with {layers} layers keeps K and V for {heads} heads × {dim}, in numbers of "
        f"{per_number} bytes. A request has {stored} tokens stored, the newest included, in blocks of "
        f"{size}. How many bytes must the gather of one decode step move at least, in all layers: read and "
        "written together?",
        judge=number(
            right, f"2 × 2 × {layers} × {heads} × {dim} × {stored} × {per_number}: {right:,} bytes", slips
        ),
        hints=(
            "For one token a layer stores K and V, each heads × head dim numbers.",
            f"That is 2 × {heads} × {dim} × {per_number} = {2 * heads * dim * per_number:,} bytes. How many "
            "tokens and layers are copied?",
            f"{stored} tokens × {layers} layers make {once:,} bytes of K and V. They are read once and "
            "written once.",
        ),
        solution=f"2 × {once:,} = {right:,} bytes",
        right=right,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


# ---- 05.gather: the learner's own gather -------------------------------------------------------


# The solution of 05.gather, as a learner would write it; each wrong one differs in one thing.
def gather(kv, layer, block_ids, offset, length):
    """K and V of positions 0 to length - 1, side by side."""
    blocks = [kv[layer, block_id] for block_id in block_ids]  # each [2, heads, block_size, head_dim]
    row = torch.cat(blocks, dim=2)  # the places of all blocks side by side
    k, v = row[:, :, offset : offset + length]
    return k, v


def _ignores_length(kv, layer, block_ids, offset, length):
    k, v = torch.cat([kv[layer, b] for b in block_ids], dim=2)[:, :, offset:]
    return k, v


def _pads(kv, layer, block_ids, offset, length):
    row = torch.cat([kv[layer, b] for b in block_ids], dim=2)[:, :, offset:].clone()
    row[:, :, length:] = 0
    return row[0], row[1]


def _ignores_offset(kv, layer, block_ids, offset, length):
    k, v = torch.cat([kv[layer, b] for b in block_ids], dim=2)[:, :, :length]
    return k, v


def _cuts_then_shifts(kv, layer, block_ids, offset, length):
    k, v = torch.cat([kv[layer, b] for b in block_ids], dim=2)[:, :, :length][:, :, offset:]
    return k, v


def _offset_in_every_block(kv, layer, block_ids, offset, length):
    k, v = torch.cat([kv[layer, b][:, :, offset:] for b in block_ids], dim=2)[:, :, :length]
    return k, v


def _swaps(kv, layer, block_ids, offset, length):
    k, v = gather(kv, layer, block_ids, offset, length)
    return v, k


def _keys_twice(kv, layer, block_ids, offset, length):
    k, _ = gather(kv, layer, block_ids, offset, length)
    return k, k


def _forgets_permute(kv, layer, block_ids, offset, length):
    picked = kv[layer, list(block_ids)]  # [blocks, 2, heads, block_size, head_dim]
    heads, dim = picked.shape[2], picked.shape[4]
    k = picked[:, 0].reshape(heads, -1, dim)[:, offset : offset + length]
    v = picked[:, 1].reshape(heads, -1, dim)[:, offset : offset + length]
    return k, v


def _places_before_blocks(kv, layer, block_ids, offset, length):
    picked = kv[layer, list(block_ids)].permute(
        1, 2, 3, 0, 4
    )  # the first place of every block, then the second
    k, v = picked.flatten(2, 3)[:, :, offset : offset + length]
    return k, v


def _tokens_first(kv, layer, block_ids, offset, length):
    k, v = gather(kv, layer, block_ids, offset, length)
    return k.transpose(0, 1), v.transpose(0, 1)


def _whole_blocks_only(kv, layer, block_ids, offset, length):
    full = (offset + length) // kv.shape[4]
    k, v = torch.cat([kv[layer, b] for b in block_ids[:full]], dim=2)[:, :, offset:]
    return k, v


def _sorts(kv, layer, block_ids, offset, length):
    return gather(kv, layer, sorted(block_ids), offset, length)


def _straight_on(kv, layer, block_ids, offset, length):
    first = block_ids[0]
    row = torch.cat(list(kv[layer, first : first + len(block_ids)]), dim=2)
    k, v = row[:, :, offset : offset + length]
    return k, v


def _logical_ids(kv, layer, block_ids, offset, length):
    return gather(kv, layer, range(len(block_ids)), offset, length)


def _first_layer(kv, layer, block_ids, offset, length):
    return gather(kv, 0, block_ids, offset, length)


def _clears_behind_itself(kv, layer, block_ids, offset, length):
    k, v = (part.clone() for part in gather(kv, layer, block_ids, offset, length))
    kv[layer, list(block_ids)] = 0
    return k, v


def _blocks_of_four(kv, layer, block_ids, offset, length):
    places = [(block_ids[(offset + p) // 4], (offset + p) % 4) for p in range(length)]
    k, v = torch.stack([kv[layer, block, :, :, place] for block, place in places], dim=2)
    return k, v


def _two_heads_of_three(kv, layer, block_ids, offset, length):
    row = torch.cat([kv[layer, b] for b in block_ids], dim=2)[:, :2, offset : offset + length, :3]
    return row[0], row[1]


def _in_double(kv, layer, block_ids, offset, length):
    k, v = gather(kv, layer, block_ids, offset, length)
    return k.double(), v.double()


def _in_half(kv, layer, block_ids, offset, length):
    k, v = gather(kv, layer, block_ids, offset, length)
    return k.half(), v.half()


def _only_keys(kv, layer, block_ids, offset, length):
    return gather(kv, layer, block_ids, offset, length)[0]


def _untouched(kv, layer, block_ids, offset, length):
    return ...


def _gather(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write gather(kv, layer, block_ids, offset, length), as described above.",
        judge=_judge_gather,
        hints=(
            "kv[layer, block_id] is one block: [2, heads, block_size, head_dim]. Which of these dimensions "
            "counts places?",
            "Put the blocks side by side along that dimension, in the order of the table: "
            "torch.cat(…, dim=2). Now all places of the table stand in one row.",
            "Position 0 is the place `offset` in that row; cut out `length` places from there. The first "
            "dimension is K and V.",
        ),
        solution=inspect.getsource(gather),
        right=gather,
        wrong=(
            ("ignores length: what is left over comes along", _ignores_length),
            ("pads with zeros to the end of the last block", _pads),
            ("ignores the offset", _ignores_offset),
            ("cuts at length before it skips the offset", _cuts_then_shifts),
            ("skips the offset in every block", _offset_in_every_block),
            ("K and V change places", _swaps),
            ("the keys as values, too", _keys_twice),
            ("reshapes without a permute: heads and blocks get mixed", _forgets_permute),
            ("permutes in the wrong order: the places before the blocks", _places_before_blocks),
            ("tokens first, heads second", _tokens_first),
            ("full blocks only", _whole_blocks_only),
            ("sorts the blocks", _sorts),
            ("reads straight on from the first block", _straight_on),
            ("takes the entries' numbers for block ids", _logical_ids),
            ("always reads layer 0", _first_layer),
            ("changes the pool", _clears_behind_itself),
            ("knows that a block has four slots", _blocks_of_four),
            ("knows that there are two heads, with three numbers each", _two_heads_of_three),
            ("makes double precision of it", _in_double),
            ("makes half precision of it", _in_half),
            ("gives back the keys only", _only_keys),
            ("untouched starter", _untouched),
        ),
    )


WORDS = "Ada has three red kites . Bo has two gold cups .".split()
OLD = "It is late . The shop opens at noon . Tea is ready . Eva has six grey drums . Rain fell".split()
OLD += ["all", "night"]
Shape = tuple[int, int, int, int, int, int]  # layers, blocks, K and V, heads, block size, head dim
SHAPE: Shape = (2, 6, 2, 2, 4, 3)
OTHER: Shape = (2, 4, 2, 3, 6, 2)  # as many slots


class Case(NamedTuple):
    """One call of a gather."""

    layer: int
    block_ids: tuple[int, ...]
    offset: int
    length: int
    shape: Shape = SHAPE

    @property
    def slots(self) -> list[int]:
        """The flat slot of each position."""
        size = self.shape[4]
        row = [block * size + place for block in self.block_ids for place in range(size)]
        return row[self.offset : self.offset + self.length]

    def __str__(self) -> str:
        call = f"gather(kv, {self.layer}, {list(self.block_ids)}, offset={self.offset}, length={self.length})"
        return call if self.shape == SHAPE else f"{call} with blocks of {self.shape[4]} slots"


CASES = (
    Case(0, (2,), 0, 4),
    Case(0, (4, 1), 0, 8),
    Case(1, (5, 0, 3), 0, 12),
    Case(0, (4, 1, 3), 0, 10),
    Case(1, (3, 5, 0), 2, 7),
    Case(0, (1, 2), 3, 1),
    Case(1, (3, 0, 2), 5, 6, OTHER),  # block 2 is there for words to come
)


def words_of(case: Case) -> list[str]:
    """What lies in each flat slot: the request's words in the order of its table, old words elsewhere."""
    words = list(OLD[: case.shape[1] * case.shape[4]])
    for slot, word in zip(case.slots, WORDS, strict=False):
        words[slot] = word
    return words


def fingerprints(shape: Shape = SHAPE) -> Tensor:
    """A pool in which every number is its own address, counted from 1, and so tells where it came from."""
    return torch.arange(1, prod(shape) + 1, dtype=torch.float32).reshape(shape)


class Origin(NamedTuple):
    """Where a fingerprint lies."""

    layer: int
    block: int
    half: int  # 0 key, 1 value
    head: int
    place: int
    dim: int


def _judge_gather(answer: Any) -> Verdict:
    if not callable(answer) or isinstance(answer, type):
        return Verdict(False, f"the answer is a function, not {kind(answer)}")
    for case in CASES:
        kv = fingerprints(case.shape)
        try:
            said = answer(kv, case.layer, list(case.block_ids), case.offset, case.length)
        except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
            return Verdict(False, f"{case} raised {type(error).__name__}: {error}")
        if said is ...:
            return Verdict(False, "not answered yet: the function still returns ...")
        if not kv.equal(fingerprints(case.shape)):
            return Verdict(False, f"{case} has changed the pool; a read leaves it as it was")
        verdict = _judge_pair(said, case)
        if verdict is not None:
            return verdict
    return Verdict(True, f"every number comes from where it should, in {len(CASES)} gathers")


def _judge_pair(said: Any, case: Case) -> Verdict | None:
    """What is wrong with a pair k, v; None if nothing is."""
    pair = as_pair(said)
    if pair is None:
        return Verdict(False, f"{case} gives {kind(said)}; it should be a pair: k, v")
    heads, dim = case.shape[3], case.shape[5]
    for name, part, half in zip("KV", pair, (0, 1), strict=True):
        if not isinstance(part, Tensor):
            return Verdict(False, f"{case}: {name} is {kind(part)}; it should be a tensor")
        if part.ndim != 3 or (part.shape[0], part.shape[2]) != (heads, dim):
            return Verdict(
                False,
                f"{case}: {name} has the shape {list(part.shape)}; it should be heads, length, head dim: "
                f"{[heads, case.length, dim]}",
            )
        if part.dtype != torch.float32:
            return Verdict(
                False,
                f"{case}: {name} is of {part.dtype}; the pool's numbers are of torch.float32, keep them so",
            )
        verdict = _first_difference(name, part, half, case)
        if verdict is not None:
            return verdict
    return None


def _first_difference(name: str, part: Tensor, half: int, case: Case) -> Verdict | None:
    """The first position that is not what it should be, with its word; None if there is none."""
    words, slots = words_of(case), case.slots
    for position in range(max(part.shape[1], case.length)):
        now = f"{case}: the first difference in {name} is at position {position}: "
        if position >= part.shape[1]:
            return Verdict(False, f"{now}{words[slots[position]]!r} is missing")
        if position >= case.length:
            extra = _origin(part[0, position, 0], case.shape)
            why = f"length is {case.length}, and here follows {_named(extra, case)}"
            return Verdict(False, now + why, _broken(extra, case))
        if odd := _odd(part[:, position], half, case, slots[position]):
            return Verdict(False, now + odd.message, odd.invariant)
    return None


def _odd(found: Tensor, half: int, case: Case, slot: int) -> Verdict | None:
    """What is wrong with one word's numbers [heads, head_dim]; None if they are the right ones."""
    block, place = divmod(slot, case.shape[4])
    right = fingerprints(case.shape)[case.layer, block, half, :, place]
    if torch.equal(found, right):
        return None
    head = next(h for h in range(len(right)) if not torch.equal(found[h], right[h]))
    goal = f"{words_of(case)[slot]!r} (block {block}, place {place})"
    origin = _origin(found[head, 0], case.shape)
    if origin is None:
        return Verdict(False, f"{goal} should stand there; what stands there lies nowhere in the pool")
    if _slot(origin, case) != slot:
        why = f"{goal} should stand there, but it is {_named(origin, case)}"
        return Verdict(False, why, _broken(origin, case))
    halves = ("key", "value")
    if origin.half != half:
        return Verdict(False, f"it is the {halves[origin.half]} of {goal}, and should be its {halves[half]}")
    if origin.layer != case.layer:
        return Verdict(False, f"it is {goal}, but of layer {origin.layer} and not of layer {case.layer}")
    return Verdict(
        False, f"it is {goal}, but head {head} has numbers of head {origin.head}: see what is permuted"
    )


def _broken(origin: Origin | None, case: Case) -> str | None:
    """The invariant that reading this slot in another's place breaks: I5 if it is the request's own."""
    if origin is None:
        return None
    return "I5" if _slot(origin, case) in case.slots else "I6"


def _slot(origin: Origin, case: Case) -> int:
    return origin.block * case.shape[4] + origin.place


def _named(origin: Origin | None, case: Case) -> str:
    """The word that lies there, and where that is."""
    if origin is None:
        return "what lies nowhere in the pool"
    return f"{words_of(case)[_slot(origin, case)]!r} (block {origin.block}, place {origin.place})"


def _origin(number: Tensor, shape: Shape) -> Origin | None:
    """Where a fingerprint comes from; None for a number that is none."""
    value = float(number) - 1
    if not 0 <= value < prod(shape) or value != int(value):  # NaN fails the first
        return None
    place = int(value)
    indices = []
    for size in reversed(shape):
        place, index = divmod(place, size)
        indices.append(index)
    return Origin(*reversed(indices))


def as_pair(said: Any) -> tuple[Any, Any] | None:
    """k and v as a gather gave them back: two things, or one tensor whose first dimension is K and V."""
    if isinstance(said, Tensor):
        return (said[0], said[1]) if said.ndim == 4 and len(said) == 2 else None
    return (said[0], said[1]) if isinstance(said, tuple | list) and len(said) == 2 else None


def kind(value: Any) -> str:
    """What sort of thing a value is, in a few words, however large it is."""
    if isinstance(value, Tensor):
        return f"one tensor {list(value.shape)} of {value.dtype}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, int | float | str):
        return repr(value)
    return f"a {type(value).__name__}"


EXERCISES: dict[str, Callable[[random.Random], Exercise]] = {
    "05.address": _address,
    "05.bytes": _bytes,
    "05.gather": _gather,
}
WITH_VARIANTS = ("05.address", "05.bytes")
