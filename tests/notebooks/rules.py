"""The rules for a notebook, each as a function from a notebook to the list of its faults (empty: it is fine).

nbval compares stored outputs with fresh ones, and says nothing of a cell that was never run, of an output
that only this machine can give, or of metadata. These rules fill that gap.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
MAX_BYTES = 300_000
# A cell with one of these tags has an output that may vary; nbval does not compare it either.
VARIES = {"nbval-ignore-output", "nbval-skip"}

_FOLDERS = "|".join(["home", "root", "tmp", "usr", "opt", "var", "work", "private", "Users"])
NOT_IN_OUTPUTS = {
    "a memory address": re.compile(r"\b0x[0-9a-fA-F]{6,}"),
    "an absolute path": re.compile(rf"(?<![\w.:/<-])/(?:{_FOLDERS})/\w|\b[A-Z]:\\+Users"),
    "a time stamp": re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d"),
    "a kernel's temporary file": re.compile(r"ipykernel_"),
}
NOT_IN_CELLS = {
    "sys.path": re.compile(r"\bsys\.path\b"),
    "%pip": re.compile(r"^\s*[%!]\s*(?:pip|conda)\b", re.MULTILINE),
}
_EMBEDDED_IMAGE = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]+")


def notebook_paths() -> list[Path]:
    """Every notebook, labs included, in reading order."""
    found = (ROOT / "notebooks").rglob("*.ipynb")
    return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)


def name(path: Path) -> str:
    """A notebook's path below notebooks/, as the name of its test."""
    return path.relative_to(ROOT / "notebooks").as_posix()


def load(path: Path) -> dict[str, Any]:
    """The notebook as plain JSON: what is in the file, with nothing added or mended."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def source(cell: dict[str, Any]) -> str:
    """A cell's text; the file format allows a string or a list of lines."""
    return "".join(cell["source"])


def tags(cell: dict[str, Any]) -> set[str]:
    """A cell's tags."""
    return set(cell["metadata"].get("tags", []))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The code cells that hold code."""
    return [c for c in notebook["cells"] if c["cell_type"] == "code" and source(c).strip()]


def output_texts(cell: dict[str, Any]) -> Iterator[str]:
    """The text of a cell's outputs, in every form but images. A stream is one text, however it is cut."""
    streams: dict[str, str] = {}
    for output in cell.get("outputs", []):
        if "text" in output:
            streams[output["name"]] = streams.get(output["name"], "") + "".join(output["text"])
    yield from streams.values()
    for output in cell.get("outputs", []):
        yield from output.get("traceback", [])
        for kind, data in output.get("data", {}).items():
            if not kind.startswith("image/") or kind == "image/svg+xml":
                yield _EMBEDDED_IMAGE.sub("", data if isinstance(data, str) else "".join(map(str, data)))


def execution_faults(notebook: dict[str, Any]) -> list[str]:
    """Every code cell was run once, from top to bottom, in one kernel."""
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    expected = list(range(1, len(counts) + 1))
    return [] if counts == expected else [f"execution counts are {counts}, and should be {expected}"]


def output_faults(notebook: dict[str, Any]) -> list[str]:
    """No output names this machine or this moment."""
    faults = []
    for cell in code_cells(notebook):
        for text in output_texts(cell):
            for what, needle in NOT_IN_OUTPUTS.items():
                if hit := needle.search(text):
                    faults.append(f"cell {cell['id']}: an output holds {what}: {hit.group()}")
    return faults


def source_faults(notebook: dict[str, Any]) -> list[str]:
    """Cells do not mend the environment: the set-up does."""
    return [
        f"cell {cell['id']}: {what}"
        for cell in code_cells(notebook)
        for what, needle in NOT_IN_CELLS.items()
        if needle.search(source(cell))
    ]


def format_faults(notebook: dict[str, Any]) -> list[str]:
    """Format 4.5 or newer; every cell has an id of its own; no cell stores when it ran."""
    faults = []
    if (notebook["nbformat"], notebook["nbformat_minor"]) < (4, 5):
        faults.append("the file format is older than 4.5, which has no cell ids")
    ids = Counter(cell.get("id") for cell in notebook["cells"])
    faults += [f"cell id {cell_id!r} occurs {n} times" for cell_id, n in ids.items() if n > 1 or not cell_id]
    timed = [cell.get("id") for cell in notebook["cells"] if "execution" in cell["metadata"]]
    faults += [f"cell {cell_id}: metadata.execution stores time stamps" for cell_id in timed]
    return faults
