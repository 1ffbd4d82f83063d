"""The bar shows itself on stderr only, and changes nothing."""

from __future__ import annotations

import sys

import pytest

from minikv.sim.progress import watched
from minikv.sim.reservation import Paged
from minikv.sim.simulate import simulate
from minikv.sim.workload import ALPACA, lognormal


def test_a_bar_is_on_stderr_and_the_result_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    plain, shown = (simulate(lognormal(ALPACA, 9, 20), Paged(99), progress=show) for show in (False, True))
    printed = capsys.readouterr()
    assert plain == shown
    assert printed.out == "" and "paged (block 16): 20it" in printed.err


def test_no_bar_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    items = [1, 2]
    assert watched(items, "label", show=False) is items
    assert capsys.readouterr().err == ""


def test_without_tqdm_there_is_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(watched([1, 2], "label", total=2)) == [1, 2]
    assert capsys.readouterr().err == ""
