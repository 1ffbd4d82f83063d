"""The engine for asyncio: many callers, one model.

The engine's steps run in a thread of their own, and so does everything else that touches the engine, one
after the other: callers never wait for a lock, and the engine never meets two of them at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from minikv.engine.engine import Engine
from minikv.engine.request import Completion, Request
from minikv.engine.text import safe_text

T = TypeVar("T")


class Piece(NamedTuple):
    """What has come since the piece before: tokens, and the text they make certain.

    Text may lag behind tokens: what could be the beginning of a stop string waits until it is decided.
    """

    continuation: int  # its index, for n > 1
    token_ids: list[int]
    text: str


class AsyncEngine:
    """Runs an Engine for coroutines. Use it as `async with AsyncEngine(engine) as served:`.

    Nobody else may use the engine meanwhile. At the end of the block, requests that still run are aborted.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._thread: ThreadPoolExecutor | None = None
        self._driver: asyncio.Task[None] | None = None
        self._live: dict[Request, None] = {}  # submitted, and somebody waits

    async def __aenter__(self) -> AsyncEngine:
        if self._driver is not None:
            raise RuntimeError("this AsyncEngine is running already")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="minikv-engine")
        self._work = asyncio.Event()  # there may be something to do
        self._stepped = asyncio.Event()  # set after the step that runs now
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver, thread, self._driver = self._driver, self._thread, None  # from now on nobody may submit
        if driver is None or thread is None:
            return
        driver.cancel()
        try:
            await asyncio.gather(driver, return_exceptions=True)
        finally:
            thread.submit(self._abort_all)
            thread.shutdown()
            self._thread = None
            self._announce()

    async def generate(
        self, prompt: str | list[int], max_new_tokens: int, **options: Any
    ) -> list[Completion]:
        """The completions of one prompt. Arguments and errors as `Engine.submit`, and RequestError.

        Whoever cancels the task that waits aborts the request.
        """
        request = await self._submit(prompt, max_new_tokens, options)
        try:
            await self._until(request.future.done)
        finally:
            self._leave(request)
        return request.result()

    async def stream(
        self, prompt: str | list[int], max_new_tokens: int, **options: Any
    ) -> AsyncIterator[Piece]:
        """Pieces of the texts as they come. Whoever closes it early aborts the request.

        Raises:
            ValueError: beam search, whose texts are known only at its end. Else as `generate`.
        """
        if options.get("beam_width") is not None:
            raise ValueError("beam search knows its texts only at the end; use generate")
        request = await self._submit(prompt, max_new_tokens, options)
        sent: dict[int, tuple[int, int]] = {}  # of each continuation: tokens and characters
        try:
            done = False
            while not done:
                await self._until(lambda: request.future.done() or self._pieces(request, sent, False))
                done = request.future.done()
                for piece in self._pieces(request, sent, done):
                    tokens, characters = sent.get(piece.continuation, (0, 0))
                    sent[piece.continuation] = tokens + len(piece.token_ids), characters + len(piece.text)
                    yield piece
        finally:
            self._leave(request)
        request.result()  # raises what ended it otherwise

    def _pieces(self, request: Request, sent: dict[int, tuple[int, int]], done: bool) -> list[Piece]:
        """What has come beyond what was sent."""
        found = []
        for index, sequence in enumerate(request.sequences):
            tokens, characters = sent.get(index, (0, 0))
            final = done or sequence.finish_reason is not None  # asked first, for a step may be running
            generated = sequence.generated
            if len(generated) > tokens or done:
                text = safe_text(self.engine.model, generated, request.params.stop, final)
                if len(generated) > tokens or len(text) > characters:
                    found.append(Piece(index, generated[tokens:], text[characters:]))
        return found

    # ---- the one thread that touches the engine ------------------------------------------------

    async def _drive(self) -> None:
        """Step while there is work. What a step raises ends all requests, and their callers hear of it."""
        while True:
            await self._work.wait()
            if not self.engine.has_work:
                self._work.clear()
                continue
            await asyncio.wrap_future(self._alone(self._step))
            self._announce()

    def _step(self) -> None:
        try:
            self.engine.step()
        except Exception as error:  # an observer's: each caller gets it as the cause of RequestError
            with suppress(Exception):  # a manager's: then the next step ends the others
                self.engine.fail_all(error)

    def _alone(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Call a function in the engine's thread, after all others that were to be called there."""
        if self._driver is None or self._thread is None:
            raise RuntimeError("the engine is not running: use it inside `async with AsyncEngine(engine)`")
        return self._thread.submit(function, *args)

    async def _submit(self, prompt: str | list[int], max_new_tokens: int, options: dict[str, Any]) -> Request:
        submitting = self._alone(self._enter, partial(self.engine.submit, prompt, max_new_tokens, **options))
        try:
            request = await asyncio.wrap_future(submitting)
        except asyncio.CancelledError:  # it may be queued by now, and nobody waits for it
            if self._driver is not None:
                self._alone(self._abort_entered, submitting)
            raise
        self._work.set()
        return request

    def _enter(self, submit: Callable[[], Request]) -> Request:
        request = submit()
        self._live[request] = None
        return request

    def _abort_entered(self, submitting: Future[Request]) -> None:
        if not submitting.cancelled() and submitting.exception() is None:
            self._abort(submitting.result())

    def _abort_all(self) -> None:
        for request in list(self._live):
            self._abort(request)

    def _abort(self, request: Request) -> None:
        self._live.pop(request, None)
        with suppress(Exception):  # an observer's: it is aborted all the same, and its caller hears of that
            self.engine.abort(request)

    def _leave(self, request: Request) -> None:
        """Nobody waits for it any longer. Does not wait, for whoever is cancelled may be so twice."""
        if request.future.done():
            self._live.pop(request, None)
        elif self._driver is not None:  # else it is about to be aborted with all others
            self._alone(self._abort, request)

    async def _until(self, reached: Callable[[], object]) -> None:
        while not reached():
            await self._stepped.wait()

    def _announce(self) -> None:
        """Wake all who wait for the end of a step."""
        stepped, self._stepped = self._stepped, asyncio.Event()
        stepped.set()
