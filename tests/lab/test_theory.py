"""Every name of the theory → code table is there, and its file and line are its own."""

import re
from pathlib import Path

import pytest

import minikv
from minikv.decode import DecodeLoop
from minikv.lab.calls import traced
from minikv.lab.theory import MECHANISMS, Mechanism, code_of, place_of, resolve, theory_to_code
from minikv.manager import KVCacheManager

REPOSITORY = Path(minikv.__file__).parents[1]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.name)
def test_every_name_resolves_to_the_line_that_defines_it(mechanism):
    place = place_of(resolve(mechanism))
    line = (REPOSITORY / place.file).read_text(encoding="utf-8").splitlines()[place.line - 1]
    assert line.strip() == place.first
    assert place.first.startswith(f"def {mechanism.name.rpartition('.')[2]}(")


def test_the_chapters_own_rows_are_all_there():
    """§4.3 has six: blocks, mapping, capacity, allocation on demand, ref counts, the read."""
    names = {mechanism.name for mechanism in MECHANISMS}
    assert {"KVCacheManager.__init__", "BlockTable.slot", "BlockTable.capacity"} <= names
    assert {"KVCacheManager.allocate", "KVCacheManager.dec_ref", "BlockPool.read_layer"} <= names
    assert len(names) == len(MECHANISMS)


def test_links_lead_from_the_notebooks_to_the_files():
    links = re.findall(r"\]\((.+?)#L(\d+)\)", theory_to_code()._repr_markdown_())
    assert len(links) == len(MECHANISMS)
    for link, line in links:
        target = (REPOSITORY / "notebooks" / link).resolve()
        assert target.is_file()
        assert 0 < int(line) <= len(target.read_text(encoding="utf-8").splitlines())


def test_a_trace_adds_how_often_each_was_called():
    with traced() as calls:
        KVCacheManager(4, 4)
    table = theory_to_code(calls)
    assert table.heading[-1] == "called"
    assert {row[-1] for row in table.rows if "__init__" in row[2]} == {"1"}


def test_a_name_that_is_not_there_is_not_shown():
    with pytest.raises(AttributeError, match="nothing"):
        resolve(Mechanism("", "", "minikv.manager", "KVCacheManager.nothing"))


def test_source_is_the_files_own_without_its_docstring():
    whole, short = repr(code_of(DecodeLoop.prefill)), repr(code_of(DecodeLoop.prefill, docstrings=False))
    assert whole.startswith("def prefill(self")
    assert '"""' in whole
    assert '"""' not in short
    assert whole.splitlines()[-1] == short.splitlines()[-1]
    both = repr(code_of(DecodeLoop.prefill, DecodeLoop.step, docstrings=False))
    compile(both, "both", "exec")
