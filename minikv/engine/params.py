"""How to continue a prompt, and what is refused. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from numbers import Real
from random import SystemRandom
from typing import Any

from minikv.checks import whole_number
from minikv.errors import CacheValueError


@dataclass(frozen=True)
class Params:
    """How to continue a prompt; `Engine.submit` says what each is."""

    max_new_tokens: int
    temperature: float = 0.0
    n: int = 1
    stop: tuple[str, ...] = ()
    seed: int = 0
    beam_width: int | None = None
    ignore_eos: bool = False
    salt: str | None = None

    @property
    def width(self) -> int:
        """Sequences that run side by side."""
        return self.beam_width or self.n


def checked_params(
    max_new_tokens: int,
    temperature: float,
    n: int,
    stop: str | Many[str] | None,
    seed: int | None,
    beam_width: int | None,
    ignore_eos: bool,
    salt: str | None,
) -> Params:
    """Params of values that a user gave; a seed is drawn for None.

    Raises:
        ValueError: a value outside its limits. TypeError: one of another kind.
    """
    max_new_tokens = at_least("max_new_tokens", max_new_tokens, 0)
    n = at_least("n", n, 1)
    if not 0 <= number("temperature", temperature) < float("inf"):
        raise ValueError(f"temperature is {temperature}; it must be 0 (greedy) or a number above it")
    strings = stop_strings(stop)
    if beam_width is not None:
        beam_width = at_least("beam_width", beam_width, 1)
        if n > beam_width:
            raise ValueError(
                f"n is {n} and beam_width {beam_width}; {beam_width} beams end as that many texts"
            )
        if temperature or strings:
            raise ValueError(
                f"temperature is {temperature} and stop {strings}, but beam search draws nothing and ends "
                "at no string; leave both out"
            )
    if salt is not None and not isinstance(salt, str):
        raise TypeError(f"salt is {salt!r}; it must be a string or None")
    seed = SystemRandom().getrandbits(63) if seed is None else whole_number("seed", seed)
    return Params(max_new_tokens, temperature, n, strings, seed, beam_width, bool(ignore_eos), salt)


def stop_strings(stop: object) -> tuple[str, ...]:
    """One string, several or none; ValueError for an empty one, TypeError for what is none."""
    if stop is None:
        return ()
    if not isinstance(stop, Iterable):
        raise TypeError(f"stop is {stop!r}; it must be a string, several, or None")
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop holds {string!r}; it must be strings")
        if not string:
            raise ValueError("stop holds ''; a stop string has at least 1 character")
    return strings


def number(name: str, value: Any) -> float:
    """A number, whole or not; TypeError names the value."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    return float(value)


def at_least(name: str, value: int, least: int) -> int:
    """An integer of at least `least`; ValueError or TypeError names the value."""
    whole = whole_number(name, value)
    if whole < least:
        raise CacheValueError(f"{name} is {whole}; it must be at least {least}")
    return whole


def one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    """ValueError, naming the choices, for a value that is none of them."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, known))}")
