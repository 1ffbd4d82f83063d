"""A frame as plain text: what the block map shows, where nothing can be drawn."""

from __future__ import annotations

from minikv.invariants import INVARIANTS
from minikv.lab.frame import Frame, PoolState, RequestView
from minikv.lab.sentences import counted, shown

MANY_BLOCKS = 64  # above it, free blocks are counted instead of listed
QUEUE_SHOWN = 16  # blocks at the head of the free queue that are listed
_COLUMNS = 4
UNWRITTEN, DEAD = "_", "–"


def frame_text(frame: Frame) -> str:
    """The whole frame, line by line, without trailing spaces."""
    state = frame.state
    sections = [
        [f"Step {frame.step} of {frame.last}: {frame.sentence}"],
        _logical(state),
        _physical(state),
        [queue_line(state), memory_line(state), invariant_line(state)]
        + [f"  ✗ {found.name}, step {found.step}: {found.sentence}" for found in state.violations],
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in section) for section in sections)


def request_line(request: RequestView) -> str:
    """Status and token count: "decoding, 9 tokens"."""
    facts = [request.status, counted(request.length, "token")]
    if request.offset:
        facts.append(f"offset {request.offset}")
    return ", ".join(facts)


def is_shown(request: RequestView) -> bool:
    """Requests that are over and hold nothing are not drawn any more."""
    return bool(request.block_ids) or request.status not in ("finished", "freed")


def queue_line(state: PoolState) -> str:
    """The free queue, its head first."""
    queue = state.free_queue
    text = " › ".join(f"P{block}" for block in queue[:QUEUE_SHOWN]) or "empty"
    return f"Free queue: {text}" + (f" › … ({len(queue)} in all)" if len(queue) > QUEUE_SHOWN else "")


def memory_line(state: PoolState) -> str:
    """The memory split in slots, and the blocks held."""
    memory = state.memory
    slots = f"{memory['tokens']} tokens, {memory['unused']} unused, {memory['before']} before offset"
    lost = f", {memory['lost']} lost" if memory["lost"] else ""
    return f"Memory: {slots}{lost}, {memory['free']} free · {blocks_line(state)}"


def blocks_line(state: PoolState) -> str:
    """Blocks held, their peak, and what sharing saves."""
    memory = state.memory
    saves = f" · sharing saves {memory['saved']}" if memory["saved"] else ""
    return f"{memory['held']} of {state.num_blocks} blocks held · peak {memory['peak']}{saves}"


def invariant_line(state: PoolState) -> str:
    """Every invariant with its verdict."""
    broken = {found.invariant for found in state.violations}
    return "Invariants: " + "  ".join(
        f"{short} {name} {'✗' if short in broken else '✓'}" for short, name in INVARIANTS.items()
    )


def gone_line(state: PoolState) -> str:
    """The requests that are not drawn any more, "Finished: A. Freed: B."; or an empty string."""
    gone = [request for request in state.requests.values() if not is_shown(request)]
    lines = []
    for status in ("finished", "freed"):
        names = [request.name for request in gone if request.status == status]
        if names:
            lines.append(f"{status.capitalize()}: {', '.join(names)}.")
    return " ".join(lines)


def slot_texts(state: PoolState, request: RequestView, index: int) -> list[str]:
    """One table entry's slots as signs: a word, `_` unwritten, `–` before the offset, `(word)` chosen."""
    size = state.block_size
    texts = []
    for place, word in enumerate(state.words_in(request.block_ids[index])):
        at = index * size + place
        if at < request.offset:
            texts.append(DEAD)
        elif word is None and request.next_word is not None and at == request.offset + request.length:
            texts.append(f"({shown(request.next_word)})")
        else:
            texts.append(UNWRITTEN if word is None else shown(word))
    return texts


def _logical(state: PoolState) -> list[str]:
    signs = f"{UNWRITTEN} unwritten, {DEAD} before the offset, (…) chosen, not stored"
    lines = [f"Logical, block size {state.block_size} ({signs}):"]
    for request in filter(is_shown, state.requests.values()):
        lines.append(f"  Request {request.name}: {request_line(request)}")
        lines += [_entry(state, request, index) for index in range(len(request.block_ids))]
        at_end = request.offset + request.length == len(request.block_ids) * state.block_size
        if request.next_word is not None and at_end:
            lines.append(f"    no slot yet    ({shown(request.next_word)})")
    if len(lines) == 1:
        lines.append("  no request holds a block")
    gone = gone_line(state)
    return [*lines, f"  {gone}"] if gone else lines


def _entry(state: PoolState, request: RequestView, index: int) -> str:
    block = request.block_ids[index]
    count = state.ref_counts[block]
    shared = f"×{count}" if count > 1 else ""
    return f"    L{index} → P{block:<4} {shared:<3} {' '.join(slot_texts(state, request, index))}"


def _physical(state: PoolState) -> list[str]:
    places = {block: place for place, block in enumerate(state.free_queue, 1)}
    blocks = range(state.num_blocks)
    listed = [block for block in blocks if state.num_blocks <= MANY_BLOCKS or state.ref_counts[block] > 0]
    cells = [_cell(state, block, places.get(block)) for block in listed]
    width = max(map(len, cells), default=0) + 3
    lines = ["Physical (ref count: holders; #n: place in the free queue):"]
    for start in range(0, len(cells), _COLUMNS):
        lines.append("  " + "".join(cell.ljust(width) for cell in cells[start : start + _COLUMNS]))
    if len(listed) < state.num_blocks:
        lines.append(f"  and {counted(state.num_blocks - len(listed), 'free block')}")
    return lines


def _cell(state: PoolState, block: int, place: int | None) -> str:
    parts = [f"P{block}"]
    if state.ref_counts[block] or place is None:
        owners = [*state.owners(block), *["cache"] * (state.cache_refs[block] > 0)]
        parts.append(f"{state.ref_counts[block]}: {' '.join(owners) or 'nobody'}")
    if place is not None:
        parts.append(f"#{place}")
    return " ".join(parts)
