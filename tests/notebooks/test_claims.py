"""Each claim of the source chapter has one home: one cell with the tag `claim:NN`.

The table says which notebook is home to which claims. A notebook that is there must hold all of its own and
none of another's; a claim whose notebook is still to be written is listed, not failed.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import rules


def numbers(*parts: int | range) -> set[str]:
    """Claim numbers as they stand in tags: two digits."""
    return {f"{n:02d}" for part in parts for n in ([part] if isinstance(part, int) else part)}


HOMES: dict[str, set[str]] = {
    "00_start_here": set(),
    "01_contiguous_waste": numbers(range(1, 6)) | {"E1", "E2", "E8"},
    "02_blocks_and_tables": numbers(range(6, 11)),
    "03_manager": numbers(range(11, 14), 19, 20, range(31, 34), 36) | {"E3", "E4", "Q1"},
    "04_ref_counts": numbers(range(14, 19), 35) | {"Q2"},
    "05_pool_and_gather": numbers(range(21, 24), 34),
    "06_decode_loop": numbers(29, 30, 37),
    "07_paged_attention": numbers(24, 25, 27, 44) | {"Q3", "E7"},
    "08_sharing": numbers(26, 51) | {"E5"},
    "09_two_modes": numbers(28),
    "10_experiment": numbers(range(38, 44), 50),
    "11_token_level_and_quantised": numbers(range(45, 48)),
    "12_sparse": numbers(48),
    "13_across_machines": numbers(49),
    "14_questions": set(),  # takes up Q1 to Q3 again; their homes are above
}
SERIES = [path for path in rules.notebook_paths() if path.parent.name == "notebooks"]


def claims(notebook: dict[str, Any]) -> list[str]:
    """The claims that a notebook's cells are tagged with, in order, repeats included."""
    return [
        tag.removeprefix("claim:")
        for cell in notebook["cells"]
        for tag in sorted(rules.tags(cell))
        if tag.startswith("claim:")
    ]


def test_the_table_covers_every_claim_once() -> None:
    listed = [claim for home in HOMES.values() for claim in home]
    assert len(listed) == len(set(listed))
    assert {claim for claim in listed if claim.isdigit()} == numbers(range(1, 52))


@pytest.mark.parametrize("path", SERIES, ids=rules.name)
def test_a_notebook_is_home_to_exactly_its_claims(path: Path) -> None:
    assert sorted(claims(rules.load(path))) == sorted(HOMES[path.stem])


def test_list_the_claims_without_a_cell() -> None:
    """Shown with `pytest -s`; complete once every notebook of the table is there."""
    homeless = sorted(set().union(*HOMES.values()) - {c for path in SERIES for c in claims(rules.load(path))})
    print("\nclaims without a cell:", ", ".join(homeless) or "none")
    waiting = set().union(*(HOMES[stem] for stem in HOMES.keys() - {path.stem for path in SERIES}))
    assert set(homeless) <= waiting
