"""Workloads: drawn ones have the means they claim, traces are read as they are, broken lines are named."""

from __future__ import annotations

import re
import time
from itertools import islice, pairwise
from math import log
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from minikv.sim.workload import ALPACA, SHAREGPT, Lengths, Request, lognormal, read_azure, read_mooncake

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def write(folder: Path, *lines: str, end: str = "\n") -> Path:
    path = folder / "trace"
    path.write_text("".join(line + end for line in lines), encoding="utf-8", newline="")
    return path


# ---- drawn -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [SHAREGPT, ALPACA])
def test_means_are_the_published_ones(lengths: Lengths) -> None:
    requests = list(lognormal(lengths, rate=2, count=40_000))
    assert fmean(r.input_tokens for r in requests) == pytest.approx(lengths.input_mean, rel=0.03)
    assert fmean(r.output_tokens for r in requests) == pytest.approx(lengths.output_mean, rel=0.03)


def test_sigma_is_the_shape() -> None:
    requests = list(lognormal(Lengths("", 200, 200, 0.5, 0.25), 1, 5000, max_length=100_000))
    assert pstdev(log(r.input_tokens) for r in requests) == pytest.approx(0.5, rel=0.05)
    assert pstdev(log(r.output_tokens) for r in requests) == pytest.approx(0.25, rel=0.05)


def test_arrivals_begin_at_zero_and_come_at_the_rate() -> None:
    arrivals = [r.arrival for r in lognormal(ALPACA, rate=5, count=5000)]
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert arrivals[0] == 0 and min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.2, rel=0.1)  # as large as the mean: arrivals are independent


def test_no_request_is_longer_than_the_model_allows() -> None:
    for max_length in (2, 3, 100, 2048):
        requests = list(lognormal(SHAREGPT, 2, 3000, max_length=max_length))
        assert max(r.input_tokens + r.output_tokens for r in requests) == max_length
        assert min(min(r.input_tokens, r.output_tokens) for r in requests) >= 1


def test_a_seed_is_a_workload() -> None:
    first, again, other = (list(lognormal(SHAREGPT, 2, 50, seed)) for seed in (7, 7, 8))
    assert first == again != other
    assert list(lognormal(SHAREGPT, 2, 10, 7)) == first[:10]


def test_a_million_are_drawn_one_at_a_time() -> None:
    assert len(list(islice(lognormal(ALPACA, 1, 10**12), 3))) == 3


def test_the_last_token_takes_no_slot() -> None:
    assert Request(0, 3, 2).slots == 4


def test_what_is_assumed_is_said() -> None:
    assert "ShareGPT-like lengths are log-normal" in SHAREGPT.assumption
    assert "means of 161.31 and 337.99 tokens" in SHAREGPT.assumption
    assert "sigma = 1.2 and 0.75" in SHAREGPT.assumption


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"rate": 0}, ValueError, "rate is 0; it must be above 0 requests per second"),
        ({"rate": float("nan")}, ValueError, "rate is nan"),
        ({"rate": float("inf")}, ValueError, "rate is inf"),
        ({"count": -1}, ValueError, "count is -1; it must be 0 or more"),
        ({"count": 1.5}, TypeError, "count is 1.5; it must be an integer"),
        ({"max_length": 1}, ValueError, "max_length is 1; it must be at least 2"),
        ({"lengths": SHAREGPT._replace(input_mean=0)}, ValueError, "means of at least 1 token"),
        ({"lengths": SHAREGPT._replace(output_sigma=-1)}, ValueError, "sigmas of at least 0"),
        ({"seed": "1"}, TypeError, "seed is '1'; it must be an integer"),
    ],
)
def test_impossible_workloads_are_refused_at_once(
    options: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=re.escape(said)):
        lognormal(**{"lengths": SHAREGPT, "rate": 2, "count": 5, **options})  # type: ignore[arg-type]


# ---- read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_azure_lines_become_requests(tmp_path: Path, end: str) -> None:
    path = write(
        tmp_path,
        AZURE,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
        "2023-11-17 18:15:46.6805900,1,1",
        end=end,
    )
    requests = [Request(0.0, 374, 44), Request(4.314579, 396, 109), Request(86_400.0, 1, 1)]
    assert list(read_azure(path)) == list(read_azure(str(path))) == requests


def test_azure_times_with_a_zone_and_without_a_fraction(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE, "2024-05-10 00:00:00+00:00,2,3", "2024-05-10 01:00:01+01:00,2,3")
    assert [r.arrival for r in read_azure(path)] == [0, 1]


def test_times_are_not_the_readers_local_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Berlin, 2 to 3 o'clock did not exist on that day; in the trace it does."""
    path = write(tmp_path, AZURE, "2023-03-26 01:30:00,2,3", "2023-03-26 03:30:00,2,3")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    if hasattr(time, "tzset"):
        time.tzset()
    try:
        assert [r.arrival for r in read_azure(path)] == [0, 7200]
    finally:
        monkeypatch.undo()
        if hasattr(time, "tzset"):
            time.tzset()


def test_mooncake_lines_become_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}',
        "",
        '{"timestamp": 3027, "input_length": 12, "output_length": 1}',
    )
    assert list(read_mooncake(path)) == [Request(0.0, 6758, 500), Request(0.027, 12, 1)]


def test_an_empty_trace_has_no_requests(tmp_path: Path) -> None:
    assert list(read_azure(write(tmp_path, AZURE))) == []
    assert list(read_mooncake(write(tmp_path))) == []


GOOD = "2023-11-16 18:15:46,1,1"


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["time,in,out"], 1),
        ([AZURE, "2023-11-16 18:15:46,374"], 2),
        ([AZURE, GOOD, "2023-11-16 18:15:46,374,44,5"], 3),
        ([AZURE, GOOD, "yesterday,374,44"], 3),
        ([AZURE, GOOD, "", "2023-11-16 18:15:46,3.5,44"], 4),
        ([AZURE, "2023-11-16 18:15:46,0,44"], 2),
        ([AZURE, "2023-11-16 18:15:46,4,-1"], 2),
    ],
)
def test_a_broken_azure_line_is_named(tmp_path: Path, lines: list[str], number: int) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(ValueError, match=re.escape(f"{path}, line {number}: ")):
        list(read_azure(path))


FINE = '{"timestamp": 0, "input_length": 1, "output_length": 1}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Expecting"),
        ("[1, 2]", "no JSON object"),
        ("null", "no JSON object"),
        ('{"timestamp": 0, "input_length": 1}', "no field 'output_length'"),
        ('{"timestamp": 0, "input_length": "1", "output_length": 1}', "input_length is '1'"),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}', "input_length is True"),
        ('{"timestamp": 0, "input_length": 1.5, "output_length": 1}', "input_length is 1.5"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 0}', "1 tokens in and 0 out"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "the time is nan"),
        ('{"timestamp": [], "input_length": 1, "output_length": 1}', "float() argument"),
    ],
)
def test_a_broken_mooncake_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = write(tmp_path, FINE, line)
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 2: ")) as caught:
        list(read_mooncake(path))
    assert said in str(caught.value)


def test_lines_before_a_broken_one_are_given(tmp_path: Path) -> None:
    """It is read as it is needed: nothing is kept, so nothing is checked in advance."""
    stream = read_mooncake(write(tmp_path, FINE, "{"))
    assert next(stream) == Request(0, 1, 1)
    with pytest.raises(ValueError, match="line 2"):
        next(stream)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_azure(tmp_path / "nothing"))
