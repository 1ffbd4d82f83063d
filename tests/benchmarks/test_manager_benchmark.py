"""`python -m minikv.benchmarks manager`, in small: the schemes keep the same books."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minikv.benchmarks import manager
from minikv.benchmarks.manager import BLOCKS, Deque, List, Minikv


def test_a_small_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(manager, "SIZES", (512, 1024))
    manager.main(["--rounds", "2", "--requests", "8", "--json", str(tmp_path / "rows.json")])
    assert "a million blocks" in capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {(row["num_blocks"], row["scheme"]) for row in rows} >= {
        (size, name) for size in (512, 1024) for name in ("minikv", "deque", "list")
    }
    assert all(row[op] > 0 for row in rows for op in ("allocate", "append", "free", "hit"))


@pytest.mark.parametrize("make", [Deque, List])
def test_the_schemes_hand_out_the_same_blocks_as_the_manager(make: type[Deque]) -> None:
    """First in, first out, and freed last block first: block ids, one by one."""
    ours, theirs = Minikv(40), make(40)
    requests = [(ours.allocate(), theirs.allocate()) for _ in range(3)]
    for table, ids in requests[:2]:
        ours.append(table)
        theirs.append(ids)
        assert list(table.block_ids) == ids and len(ids) == BLOCKS + 1
    ours.free(requests[0][0])
    theirs.free(requests[0][1])
    for _ in range(2):
        assert list(ours.allocate().block_ids) == theirs.allocate()


@pytest.mark.parametrize("make", [Minikv, Deque, List])
def test_a_parked_prefix_is_hit_and_nothing_leaks(make: type[Minikv] | type[Deque]) -> None:
    scheme = make(32)
    request = scheme.allocate()
    ids = list(getattr(request, "block_ids", request))
    scheme.park(request)
    hit = scheme.hit(request)
    assert list(getattr(hit, "block_ids", hit)) == ids
    scheme.free(hit)
    scheme.evict(request)
    free = scheme.manager.num_free_blocks if isinstance(scheme, Minikv) else len(scheme.free_ids)
    assert free == 32
