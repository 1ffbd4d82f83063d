"""From the chapter's theory to our code: found by name at run time, so that no line number is typed in.

theory_to_code()            # the table, with links
theory_to_code(calls)       # and how often each was called in a trace (minikv.lab.calls)
code_of(DecodeLoop.step)    # its source, as it is in the file
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from minikv.lab.calls import Calls
from minikv.lab.guide import Table

_ROOT = Path(__file__).parents[2]  # where minikv/ and notebooks/ lie side by side


class Mechanism(NamedTuple):
    """One mechanism of the chapter and the function of ours that does it."""

    theory: str
    section: str  # of the chapter
    module: str
    name: str  # as in "KVCacheManager.allocate"


class Place(NamedTuple):
    """Where a function is written."""

    file: str  # relative to the folder that holds minikv/
    line: int  # its first one, from 1
    first: str  # what that line says


MECHANISMS = (
    Mechanism("blocks of a fixed size, built up front", "2.1", "minikv.manager", "KVCacheManager.__init__"),
    Mechanism("as many blocks as are needed, no more", "2.1", "minikv.manager", "KVCacheManager.allocate"),
    Mechanism("growth appends a block", "2.1", "minikv.block_table", "BlockTable.append_block"),
    Mechanism("logical to physical", "2.2", "minikv.block_table", "BlockTable.slot"),
    Mechanism("the same for a run of positions", "2.2", "minikv.block_table", "BlockTable.slots"),
    Mechanism("the capacity formula", "2.2", "minikv.block_table", "BlockTable.capacity"),
    Mechanism("one more holder", "2.4", "minikv.manager", "KVCacheManager.inc_ref"),
    Mechanism("one holder less", "2.4", "minikv.manager", "KVCacheManager.dec_ref"),
    Mechanism("a request ends", "2.4", "minikv.manager", "KVCacheManager.free"),
    Mechanism("memory appears at the first write", "4.2", "minikv.pool", "BlockPool.write"),
    Mechanism("the read that is not contiguous (gather)", "2.5", "minikv.pool", "BlockPool.read_layer"),
    Mechanism("sharing with copy-on-write", "3.1", "minikv.manager", "KVCacheManager.copy_on_write"),
    Mechanism("prefill", "4", "minikv.decode", "DecodeLoop.prefill"),
    Mechanism("decode, one token a step", "4", "minikv.decode", "DecodeLoop.step"),
)


def resolve(mechanism: Mechanism) -> Callable[..., Any]:
    """The function itself; of a property, its getter.

    Raises:
        AttributeError: our code has no such name.
    """
    found: Any = import_module(mechanism.module)
    for part in mechanism.name.split("."):
        found = getattr(found, part)
    return getattr(found, "fget", found)  # type: ignore[no-any-return]  # what a name is, only running tells


def place_of(function: Callable[..., Any]) -> Place:
    """File and first line of a function of ours."""
    function = inspect.unwrap(function)
    file = Path(inspect.getsourcefile(function) or "").resolve().relative_to(_ROOT)
    lines, number = inspect.getsourcelines(function)
    while lines[0].lstrip().startswith("@"):  # what counts is the line that has the name
        lines, number = lines[1:], number + 1
    return Place(file.as_posix(), number, lines[0].strip())


def theory_to_code(calls: Calls | None = None, notebooks: str = "notebooks") -> Table:
    """The table, with links relative to the folder of the notebooks.

    Args:
        calls: a trace; adds a column with how often each was called in it.
        notebooks: that folder, relative to the one that holds minikv/.
    """
    up = "/".join(".." for _ in Path(notebooks).parts)
    rows = []
    for mechanism in MECHANISMS:
        place = place_of(resolve(mechanism))
        where = f"[`{mechanism.name}`]({up}/{place.file}#L{place.line})"
        row = (mechanism.theory, f"§{mechanism.section}", where, f"{place.file}, line {place.line}")
        rows.append(row if calls is None else (*row, str(calls.by_name[mechanism.name])))
    heading = ("theory", "chapter", "in minikv", "where")
    return Table(heading if calls is None else (*heading, "called"), rows)


class Code:
    """A piece of source, shown as code."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}\n```"

    def __repr__(self) -> str:
        return self.text


def code_of(*functions: Callable[..., Any], docstrings: bool = True) -> Code:
    """The source of some functions, read from their files.

    Args:
        docstrings: False leaves them out.
    """
    texts = []
    for function in functions:
        text = inspect.cleandoc("\n" + inspect.getsource(function).rstrip())
        docstring = inspect.getdoc(function)
        if docstring and not docstrings:
            head, _, rest = text.partition('"""')
            text = head.rstrip() + rest.partition('"""')[2]
        texts.append(text)
    return Code("\n\n".join(texts))
