"""The engine for asyncio: many callers, who come, wait, listen, and lose patience."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from torch import Tensor

from minikv.engine.async_engine import AsyncEngine, Piece
from minikv.engine.engine import Engine
from minikv.errors import RequestError, RequestTooLargeError
from minikv.gpt2 import GPT2, Attend
from tests.engine import fingerprint_model as fm

SIX = [7, 3, 9, 1, 4, 8]
LIMIT = 20  # seconds, after which a test that hangs fails


class Slow(fm.FingerprintModel):
    """Stops in the middle of a step until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.inside = threading.Event(), threading.Event()
        self.go.set()

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        self.inside.set()
        assert self.go.wait(LIMIT)
        return super().__call__(token_ids, positions, attend, wanted)


def make(model: GPT2 | None = None, **setting: Any) -> Engine:
    memory = {"num_blocks": 32, "block_size": 4, "attention": fm.read}
    return Engine(model or fm.FingerprintModel(), **{**memory, **setting})


def run(body: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(body, LIMIT))


async def until(reached: Callable[[], Any]) -> None:
    while not reached():
        await asyncio.sleep(0.001)


def assert_empty(engine: Engine) -> None:
    assert not engine.has_work
    engine.check()
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    assert engine.manager.allocated_blocks == 0


def gather(pieces: list[Piece], continuation: int = 0) -> tuple[list[int], str]:
    own = [piece for piece in pieces if piece.continuation == continuation]
    return [token for piece in own for token in piece.token_ids], "".join(piece.text for piece in own)


# ---- generate ----------------------------------------------------------------------------------------


def test_generate() -> None:
    engine = make()

    async def body() -> None:
        async with AsyncEngine(engine) as served:
            found = await served.generate(SIX, 5, n=2, ignore_eos=True)
            assert [c.token_ids for c in found] == [fm.greedy(SIX, 5, ignore_eos=True)] * 2
            assert await served.generate(SIX, 0) == [([], "", "length", None, 0)]
            beams = await served.generate("abc", 3, beam_width=2, n=2)
            assert len(beams) == 2

    run(body())
    assert_empty(engine)


def test_many_callers_at_once() -> None:
    """200 of them, in memory for five; some come late, some are refused, some are out of time at once."""
    engine = make(num_blocks=20, prefix_cache="radix", max_step_tokens=16)

    async def caller(served: AsyncEngine, number: int) -> str:
        rng = random.Random(number)
        await asyncio.sleep(rng.random() * 0.05)
        prompt = [*SIX, *(rng.randint(1, 26) for _ in range(rng.randint(0, 6)))]
        kind = rng.choice(("generate", "generate", "stream", "late", "large"))
        if kind == "large":
            with pytest.raises(RequestTooLargeError):
                await served.generate(prompt * 6, 50)
        elif kind == "late":
            with pytest.raises(RequestError, match="timeout"):
                await served.generate(prompt, 5, timeout=0)
        elif kind == "stream":
            pieces = [piece async for piece in served.stream(prompt, 8, ignore_eos=True)]
            assert gather(pieces)[0] == fm.greedy(prompt, 8, ignore_eos=True)
        else:
            (found,) = await served.generate(prompt, 8)
            assert found.token_ids == fm.greedy(prompt, 8)
        return kind

    async def body() -> list[str]:
        async with AsyncEngine(engine) as served:
            return await asyncio.gather(*(caller(served, number) for number in range(200)))

    kinds = run(body())
    figures = engine.metrics()
    assert figures["submitted"] == 200
    assert figures["success"] == kinds.count("generate") + kinds.count("stream")
    assert (figures["timeout"], figures["oom"]) == (kinds.count("late"), kinds.count("large"))
    assert figures["preempted"] > 0 and figures["hit_rate"] > 0
    assert_empty(engine)


def test_bad_values_reach_their_caller_only() -> None:
    engine = make()

    async def body() -> None:
        async with AsyncEngine(engine) as served:
            good = asyncio.create_task(served.generate(SIX, 5))
            with pytest.raises(ValueError, match="n is 0"):
                await served.generate(SIX, 5, n=0)
            with pytest.raises(TypeError, match="wrong"):
                await served.generate(SIX, 5, wrong=1)
            with pytest.raises(ValueError, match="use generate"):
                await anext(served.stream(SIX, 5, beam_width=2))
            assert (await good)[0].token_ids == fm.greedy(SIX, 5)

    run(body())
    assert_empty(engine)


# ---- stream ------------------------------------------------------------------------------------------


def test_pieces_join_to_the_text() -> None:
    engine = make()
    whole = make().generate([SIX], 12, n=3, temperature=1.0, seed=5, ignore_eos=True)

    async def body() -> list[Piece]:
        async with AsyncEngine(engine) as served:
            options: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 5, "ignore_eos": True}
            return [piece async for piece in served.stream(SIX, 12, **options)]

    pieces = run(body())
    for index, completion in enumerate(whole):
        assert gather(pieces, index) == (completion.token_ids, completion.text)
    assert len(pieces) > 12  # they came as they were made


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_nothing_of_a_stop_string_leaks(length: int) -> None:
    """Every stop string that the text holds, one letter a token: what comes is always the text before it."""
    plain = make().generate([SIX], 12, ignore_eos=True)[0].text

    async def body() -> None:
        async with AsyncEngine(make()) as served:
            for start in range(len(plain) - length + 1):
                stop = plain[start : start + length]
                wanted, text = plain[: plain.index(stop)], ""
                async for piece in served.stream(SIX, 12, ignore_eos=True, stop=[stop, "never"]):
                    text += piece.text
                    assert wanted.startswith(text)
                assert text == wanted

    run(body())


def test_what_only_looked_like_a_stop_string_is_told_in_the_end() -> None:
    plain = make().generate([SIX], 6, ignore_eos=True)[0].text

    async def body() -> list[Piece]:
        async with AsyncEngine(make()) as served:
            return [piece async for piece in served.stream(SIX, 6, ignore_eos=True, stop=plain[-2:] + "!")]

    pieces = run(body())
    assert gather(pieces)[1] == plain
    assert pieces[-1].text == plain[-2:]


class Bytes(fm.Letters):
    """Each token is half a character, or a word with the space before it, as in GPT-2's own tokenizer."""

    def decode(self, token_ids: Any) -> str:
        parts = [bytes([195]) if t % 2 else bytes([160 + t]) if t % 4 else b" w" for t in token_ids]
        return b"".join(parts).decode(errors="replace")

    def word(self, token_id: int) -> str:
        return self.decode([token_id]).strip()


def test_half_characters_and_leading_spaces() -> None:
    """Only what no further token can change is told, so all pieces join to the text."""
    model = fm.FingerprintModel()
    model._tokenizer = Bytes()  # type: ignore[assignment]

    async def body() -> None:
        async with AsyncEngine(make(model)) as served:
            for first in range(1, 26):
                whole = (await served.generate([first], 12, ignore_eos=True))[0]
                assert whole.text == Bytes().decode(
                    whole.token_ids[: -1 if whole.token_ids[-1] == 0 else None]
                )
                pieces = [piece async for piece in served.stream([first], 12, ignore_eos=True)]
                assert gather(pieces) == (whole.token_ids, whole.text)

    run(body())


# ---- cancellation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["at once", "submitting", "queued", "running", "in a step"])
@pytest.mark.parametrize("how", ["generate", "stream"])
def test_who_loses_patience_aborts_the_request(moment: str, how: str) -> None:
    """All memory comes back, and the others are served. To be cancelled twice changes nothing."""
    model = Slow()
    engine = make(model, max_batch_size=1)

    async def impatient(served: AsyncEngine) -> None:
        if how == "generate":
            await served.generate(SIX, 100, ignore_eos=True)
        else:
            async for _ in served.stream(SIX, 100, ignore_eos=True):
                pass

    async def body() -> None:
        async with AsyncEngine(engine) as served:
            first = None
            if moment in ("queued", "submitting"):
                first = asyncio.create_task(served.generate(SIX, 40, ignore_eos=True))
                await until(lambda: engine.scheduler.running)
            if moment == "submitting":  # the engine's thread is busy: the request waits in front of it
                model.inside.clear()
                model.go.clear()
                await until(model.inside.is_set)
            victim = asyncio.create_task(impatient(served))
            if moment == "submitting":
                await asyncio.sleep(0.01)
            if moment == "queued":
                await until(lambda: engine.scheduler.waiting)
            if moment in ("running", "in a step"):
                await until(lambda: engine.scheduler.running)
            if moment == "in a step":
                model.inside.clear()
                model.go.clear()
                await until(model.inside.is_set)
            victim.cancel()
            await asyncio.sleep(0)
            victim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await victim
            model.go.set()
            if first is not None:
                assert (await first)[0].token_ids == fm.greedy(SIX, 40, ignore_eos=True)
            assert (await served.generate([5], 3))[0].token_ids == fm.greedy([5], 3)
            await until(lambda: not engine.has_work)

    run(body())
    figures = engine.metrics()
    assert figures["submitted"] == figures["success"] + figures["cancelled"]
    assert figures["cancelled"] == (moment in ("queued", "running", "in a step"))  # else it never came in
    assert_empty(engine)


def test_a_stream_that_is_left_early_aborts_the_request() -> None:
    engine = make()

    async def body() -> None:
        async with AsyncEngine(engine) as served:
            stream = served.stream(SIX, 100, ignore_eos=True)
            async for piece in stream:
                assert piece.token_ids == fm.greedy(SIX, len(piece.token_ids), ignore_eos=True)
                break
            await stream.aclose()  # type: ignore[attr-defined]
            await until(lambda: not engine.has_work)

    run(body())
    assert engine.metrics()["cancelled"] == 1
    assert_empty(engine)


def test_a_timeout_of_the_caller() -> None:
    engine = make()

    async def body() -> None:
        async with AsyncEngine(engine) as served:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    while True:
                        await served.generate(SIX, 100, ignore_eos=True)
            await until(lambda: not engine.has_work)

    run(body())
    assert_empty(engine)


def test_random_callers_who_lose_patience() -> None:
    engine = make(num_blocks=16, preemption="swap", max_batch_size=4)

    async def caller(served: AsyncEngine, number: int) -> bool:
        rng = random.Random(number)
        try:
            async with asyncio.timeout(rng.choice((0, 0.001, 0.01, 0.1, LIMIT))):
                await asyncio.sleep(rng.random() * 0.1)
                found = await served.generate(
                    SIX[: rng.randint(1, 6)], rng.randint(1, 12), n=rng.randint(1, 2)
                )
                assert found
                return True
        except TimeoutError:
            return False

    async def body() -> list[bool]:
        async with AsyncEngine(engine) as served:
            served_all = await asyncio.gather(*(caller(served, number) for number in range(150)))
            await until(lambda: not engine.has_work)
            return served_all

    served = run(body())
    assert 20 < sum(served) < 150
    assert_empty(engine)


# ---- closing -----------------------------------------------------------------------------------------


def test_closing_ends_what_still_runs() -> None:
    """Requests that run, wait, are about to be submitted, or come too late: every caller hears of it."""
    model = Slow()
    engine = make(model, max_batch_size=1)

    async def body() -> list[Any]:
        async with AsyncEngine(engine) as served:
            tasks = [asyncio.create_task(served.generate(SIX, 90, ignore_eos=True)) for _ in range(3)]
            await until(lambda: len(engine.scheduler.waiting) == 2)
            model.inside.clear()
            model.go.clear()
            await until(model.inside.is_set)
            tasks.append(asyncio.create_task(served.generate(SIX, 90)))  # stands before the engine's thread
            await asyncio.sleep(0.01)
            tasks.append(asyncio.create_task(served.generate(SIX, 90)))  # has not begun
            asyncio.get_running_loop().call_later(0.05, model.go.set)
            threading.Timer(0.05, model.go.set).start()
        return await asyncio.gather(*tasks, return_exceptions=True)

    *others, last = run(body())
    assert all(isinstance(error, RequestError) and error.status == "cancelled" for error in others), others
    assert isinstance(last, RuntimeError | RequestError), last
    assert_empty(engine)


def test_closing_because_of_an_error() -> None:
    engine = make()

    async def body() -> None:
        with pytest.raises(ZeroDivisionError):
            async with AsyncEngine(engine) as served:
                task = asyncio.create_task(served.generate(SIX, 90, ignore_eos=True))
                await until(lambda: engine.scheduler.running)
                raise ZeroDivisionError
        with pytest.raises(RequestError, match="cancelled"):
            await task

    run(body())
    assert_empty(engine)


def test_outside_its_block_it_says_so() -> None:
    served = AsyncEngine(make())

    async def refused(call: Awaitable[Any]) -> None:
        with pytest.raises(RuntimeError, match=r"use it inside `async with AsyncEngine\(engine\)`"):
            await call

    async def body() -> None:
        await refused(served.generate(SIX, 3))
        async with served:
            await served.generate(SIX, 3)
            with pytest.raises(RuntimeError, match="running already"):
                await served.__aenter__()
        await refused(served.generate(SIX, 3))
        await refused(anext(served.stream(SIX, 3)))
        async with served:  # and again
            assert (await served.generate(SIX, 3))[0].token_ids == fm.greedy(SIX, 3)

    run(body())


# ---- observers and models that raise -------------------------------------------------------------------


class Observer:
    """Raises at events of one kind."""

    def __init__(self, op: str) -> None:
        self.op: str | None = op

    def __call__(self, event: dict[str, Any]) -> None:
        if event["op"] == self.op:
            raise ZeroDivisionError(self.op)


@pytest.mark.parametrize("op", ["request", "allocate", "write", "token", "read", "finish", "release"])
def test_an_observer_that_raises(op: str) -> None:
    """Whoever waits hears of it, or gets the text; afterwards all is as before."""
    observer = Observer(op)
    engine = make(observer=observer)

    async def body() -> None:
        async with AsyncEngine(engine) as served:
            calls = [served.generate(SIX, 4, ignore_eos=True) for _ in range(3)]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, RequestError):
                    assert outcome.status == "failed" and isinstance(outcome.__cause__, ZeroDivisionError)
                else:
                    assert op in ("finish", "release")  # told when it was complete
                    assert outcome[0].token_ids == fm.greedy(SIX, 4, ignore_eos=True)
            victim = asyncio.create_task(served.generate(SIX, 90, ignore_eos=True))
            await asyncio.sleep(0.005)
            victim.cancel()
            await asyncio.gather(victim, return_exceptions=True)
            observer.op = None
            await until(lambda: not engine.has_work)
            assert (await served.generate(SIX, 4))[0].token_ids == fm.greedy(SIX, 4)
            observer.op = op
            left = asyncio.create_task(served.generate(SIX, 90, ignore_eos=True))
            await asyncio.sleep(0.005)
        (outcome,) = await asyncio.gather(left, return_exceptions=True)
        assert isinstance(outcome, RequestError) or op in ("finish", "release")

    run(body())
    assert_empty(engine)


def test_a_manager_that_raises_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()

    def free(table: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine.manager, "free", free)

    async def body() -> list[Any]:
        async with AsyncEngine(engine) as served:
            calls = [served.generate(SIX, 4 + i, ignore_eos=True) for i in range(4)]
            return await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(error.__cause__, ZeroDivisionError) for error in run(body()))


def test_a_model_that_raises_fails_its_batch_and_no_other() -> None:
    class Failing(fm.FingerprintModel):
        def __call__(
            self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
        ) -> Tensor:
            if 26 in token_ids:
                raise ZeroDivisionError
            return super().__call__(token_ids, positions, attend, wanted)

    engine = make(Failing(), max_batch_size=1)

    async def body() -> None:
        async with AsyncEngine(engine) as served:
            good = asyncio.create_task(served.generate([1], 3))
            with pytest.raises(RequestError, match="failed") as caught:
                await served.generate([26], 3)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert (await good)[0].token_ids == fm.greedy([1], 3)

    run(body())
    assert_empty(engine)


def test_the_loop_is_free_while_the_model_runs() -> None:
    """A coroutine beside it gets its turns although a step takes 50 ms."""

    class Sleepy(fm.FingerprintModel):
        def __call__(
            self, token_ids: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
        ) -> Tensor:
            time.sleep(0.05)
            return super().__call__(token_ids, positions, attend, wanted)

    async def body() -> int:
        turns = 0
        async with AsyncEngine(make(Sleepy())) as served:
            task = asyncio.create_task(served.generate(SIX, 3, ignore_eos=True))
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
        return turns

    assert run(body()) > 10  # three steps alone would give it three
