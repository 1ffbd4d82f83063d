"""Who asks for how much, and when: drawn at random, or read from a trace of a real service.

Everything here is a generator: a million requests pass by one at a time, and none is kept.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from minikv.checks import whole_number
from minikv.sim.published import FIG_11


class Request(NamedTuple):
    """One request; how long its output becomes is known here, but not to a server before it is done."""

    arrival: float  # seconds after the first request
    input_tokens: int  # the prompt
    output_tokens: int  # generated, at least 1

    @property
    def slots(self) -> int:
        """Token slots it fills in the end. The last token is never fed back, so its KV is never stored."""
        return self.input_tokens + self.output_tokens - 1


class Lengths(NamedTuple):
    """Two log-normal distributions, of the input and of the output tokens of a request.

    A log-normal length is exp of a normal one: many short requests, few very long ones. Means of real
    services are published; the shape sigma, the standard deviation of the logarithm, is an assumption.
    """

    name: str
    input_mean: float  # tokens
    output_mean: float  # tokens
    input_sigma: float
    output_sigma: float

    @property
    def possible(self) -> bool:
        """False if there is no such distribution of whole tokens."""
        return min(self.input_mean, self.output_mean) >= 1 and min(self.input_sigma, self.output_sigma) >= 0

    @property
    def assumption(self) -> str:
        """To print beside every result."""
        return (
            f"{self.name} lengths are log-normal, input and output independent, with means of "
            f"{self.input_mean:g} and {self.output_mean:g} tokens and shapes of "
            f"sigma = {self.input_sigma:g} and {self.output_sigma:g}"
        )


# Means: published.py says where. Shapes: assumed; paper.py says how they were chosen.
SHAREGPT = Lengths("ShareGPT-like", *FIG_11["ShareGPT"], input_sigma=1.2, output_sigma=0.75)
ALPACA = Lengths("Alpaca-like", *FIG_11["Alpaca"], input_sigma=0.5, output_sigma=0.8)


def lognormal(
    lengths: Lengths, rate: float, count: int, seed: int = 0, max_length: int = 2048
) -> Iterator[Request]:
    """`count` requests with log-normal lengths that arrive at random, independently of each other (Poisson).

    Args:
        lengths: the distributions: SHAREGPT, ALPACA or your own, as in SHAREGPT._replace(output_sigma=1.0).
        rate: mean arrivals per second, above 0.
        count: requests, 0 or more.
        seed: the same seed gives the same requests.
        max_length: input and output together are cut to this many tokens, at least 2; the model's limit.

    Raises:
        ValueError: a number outside its range. TypeError: count, seed or max_length is not an integer.
    """
    count, max_length = whole_number("count", count), whole_number("max_length", max_length)
    for name, value, ok, limit in (
        ("rate", rate, 0 < rate < math.inf, "above 0 requests per second"),
        ("count", count, count >= 0, "0 or more"),
        ("max_length", max_length, max_length >= 2, "at least 2, one token in and one out"),
        ("lengths", lengths, lengths.possible, "means of at least 1 token and sigmas of at least 0"),
    ):
        if not ok:
            raise ValueError(f"{name} is {value!r}; it must be {limit}")
    return _draw(lengths, rate, count, random.Random(whole_number("seed", seed)), max_length)


def _draw(
    lengths: Lengths, rate: float, count: int, rng: random.Random, max_length: int
) -> Iterator[Request]:
    arrival = 0.0
    for _ in range(count):
        inputs = min(_length(rng, lengths.input_mean, lengths.input_sigma), max_length - 1)
        outputs = min(_length(rng, lengths.output_mean, lengths.output_sigma), max_length - inputs)
        yield Request(arrival, inputs, outputs)
        arrival += rng.expovariate(rate)


def _length(rng: random.Random, mean: float, sigma: float) -> int:
    """A log-normal number of tokens, at least 1. exp(mu + sigma²/2) is the mean, and that gives mu."""
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))


def read_azure(path: str | Path) -> Iterator[Request]:
    """The requests of an Azure LLM inference trace: CSV of TIMESTAMP,ContextTokens,GeneratedTokens.

    The traces are public (Patel et al., ISCA 2024; github.com/Azure/AzurePublicDataset, CC-BY).

    Raises:
        OSError: the file cannot be read. ValueError: a broken line, named by path and line number.
    """
    return _read(Path(path), _azure_request, heading="TIMESTAMP,ContextTokens,GeneratedTokens")


def read_mooncake(path: str | Path) -> Iterator[Request]:
    """The requests of a Mooncake trace: JSON lines with timestamp (ms), input_length and output_length.

    The traces are public (Qin et al., FAST 2025; github.com/kvcache-ai/Mooncake, Apache-2.0). Their
    hash_ids, which say what prompts have in common, are not looked at here.

    Raises:
        OSError: the file cannot be read. ValueError: a broken line, named by path and line number.
    """
    return _read(Path(path), _mooncake_request)


def _read(path: Path, parse: Callable[[str], Request], heading: str | None = None) -> Iterator[Request]:
    """One request a line, its arrival counted from the first one's. Blank lines are passed over."""
    first: float | None = None
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1 and heading is not None:
                if line.strip() != heading:
                    raise ValueError(f"{path}, line 1: found {line.strip()!r}; the heading is {heading!r}")
            elif line.strip():
                try:
                    request = _checked(parse(line))
                except (ValueError, TypeError, KeyError, OverflowError) as error:
                    raise ValueError(
                        f"{path}, line {number}: {_reason(error)}; found {line.strip()!r:.200}"
                    ) from error
                first = request.arrival if first is None else first
                yield request._replace(arrival=round(request.arrival - first, 6))


def _reason(error: Exception) -> str:
    return f"no field {error}" if isinstance(error, KeyError) else str(error)


def _azure_request(line: str) -> Request:
    """2023-11-16 18:15:46.6805900,374,44"""
    time, inputs, outputs = line.split(",")
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is None:  # not the reader's local time, in which an hour may be missing
        moment = moment.replace(tzinfo=UTC)
    return Request(moment.timestamp(), int(inputs), int(outputs))


def _mooncake_request(line: str) -> Request:
    """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}"""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    inputs = whole_number("input_length", fields["input_length"])
    outputs = whole_number("output_length", fields["output_length"])
    return Request(float(fields["timestamp"]) / 1000, inputs, outputs)


def _checked(request: Request) -> Request:
    """A request as a trace may hold it: a time, and at least one token in and one out."""
    if not math.isfinite(request.arrival):
        raise ValueError(f"the time is {request.arrival}")
    if request.input_tokens < 1 or request.output_tokens < 1:
        raise ValueError(
            f"{request.input_tokens} tokens in and {request.output_tokens} out; both must be at least 1"
        )
    return request
