"""A reader that walks one entry of the block table too far, when the last block is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minikv.attention.tables import TableArray, as_arrays, as_tables
from minikv.lab.switches.storage import Believed, read_beyond
from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool


def reach(length: int, offset: int, block_size: int) -> tuple[int, int]:
    """Entries that the broken reader walks, and the tokens that it believes are there.

    Two lines that look right by themselves: the last block has `length % block_size` tokens, or all if that
    is 0; and the entries before it are `length // block_size`. Together they are one block too many if the
    last block is full.
    """
    stop = offset + length
    in_last = stop % block_size or block_size
    before = stop // block_size
    return before + 1, before * block_size + in_last - offset


def _walk_too_far(bench: Workbench) -> Undo:
    """Let every read walk the rows of an array of tables, padded with 0, one entry too far where the last
    block is full; and tell the log which slots were read."""

    def one_entry_more(pool: BlockPool, tables: Sequence[Any], lengths: Sequence[int]) -> Believed:
        ids, offsets, _ = as_arrays(tables, lengths, pool)
        padded = np.zeros((len(ids), pool.num_blocks + 1), dtype=np.int32)  # as wide as a table can become
        padded[:, : ids.shape[1]] = ids
        ends = [
            reach(length, int(offset), pool.block_size)[1]
            for length, offset in zip(lengths, offsets, strict=True)
        ]
        return as_tables(TableArray(padded, offsets), pool), ends

    return read_beyond(bench, one_entry_more)


SWITCHES: dict[str, Switch] = {
    "one-entry-more": Switch(
        "I6 written-first",
        "the reader walks one entry too far when the last block is full: into the zeros behind the table",
        _walk_too_far,
    ),
}
