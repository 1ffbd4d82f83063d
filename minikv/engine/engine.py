"""The engine: requests come and go while the model runs.

One step gives every running request its turn:

    expire     requests whose time is up end
    schedule   who stores which tokens, and in which blocks      scheduler.py
    run        the model, once, for all of them                  runner.py
    choose     the next token where all tokens are stored        choose.py
    end        requests that are complete give their blocks back
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from contextlib import ExitStack, suppress
from typing import Any, Literal, NamedTuple

from minikv.attention import BACKENDS, Read
from minikv.block_table import BlockTable
from minikv.checks import whole_number
from minikv.engine.choose import Chooser, Chosen
from minikv.engine.contiguous import ContiguousManager, Run
from minikv.engine.hash_cache import HashCache
from minikv.engine.metrics import Metrics
from minikv.engine.params import at_least, checked_params, number, one_of
from minikv.engine.prefix_cache import PrefixCache
from minikv.engine.radix_cache import RadixCache
from minikv.engine.request import Completion, Request, Sequence, Status, most_slots
from minikv.engine.runner import Runner
from minikv.engine.scheduler import Scheduler
from minikv.engine.swap import CPUSwap
from minikv.engine.telling import Telling
from minikv.engine.text import completions
from minikv.errors import RequestError, RequestTooLargeError
from minikv.gpt2 import GPT2
from minikv.manager import KVCacheManager, letters
from minikv.pool import BlockPool
from minikv.protocols import Observer


class StepReport(NamedTuple):
    """What one step did.

    Attributes:
        step: its number, from 1.
        num_tokens: tokens whose K and V were stored.
        tokens: (request, index of its sequence, token chosen), in the order of the batch.
        preempted, ended: requests.
        num_running, num_waiting: requests, afterwards.
    """

    step: int
    num_tokens: int
    tokens: list[Chosen]
    preempted: list[Request]
    ended: list[Request]
    num_running: int
    num_waiting: int


class Engine:
    """Serves many requests from one model and one cache.

    Args:
        num_blocks, block_size: of the cache. Contiguous memory has num_blocks * block_size slots.
        cache: "paged", or "contiguous": the tokens of a request lie side by side. (chapter §3.2)
        attention: how the cache is read, see `paged_attention`.
        prefix_cache: "radix", "hash", or None. Paged memory only.
        preemption: what becomes of the KV of a request that must make room: "recompute" or "swap".
        reserve: contiguous memory only: "max" reserves all that a request may become, "grow" grows and moves.
        max_batch_size: sequences that run side by side.
        max_step_tokens: tokens stored in one step; longer prompts are stored in chunks.
        observer: told of every change, as a manager's is. What it raises is raised when the step is over.
        clock: seconds, for timeouts and metrics.

    Raises:
        ValueError, TypeError: a value that cannot be, naming it and its limits.
    """

    def __init__(
        self,
        model: GPT2,
        num_blocks: int = 1024,
        block_size: int = 16,
        cache: Literal["paged", "contiguous"] = "paged",
        attention: str | Read = "auto",
        prefix_cache: Literal["radix", "hash"] | None = None,
        preemption: Literal["recompute", "swap"] = "recompute",
        reserve: Literal["max", "grow"] = "max",
        max_batch_size: int = 64,
        max_step_tokens: int = 1024,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        num_blocks, block_size = at_least("num_blocks", num_blocks, 1), at_least("block_size", block_size, 1)
        max_batch_size = at_least("max_batch_size", max_batch_size, 1)
        max_step_tokens = at_least("max_step_tokens", max_step_tokens, 1)
        one_of("cache", cache, ("paged", "contiguous"))
        one_of("prefix_cache", prefix_cache, ("radix", "hash", None))
        one_of("preemption", preemption, ("recompute", "swap"))
        one_of("reserve", reserve, ("max", "grow"))
        if not callable(attention):
            one_of("attention", attention, ("auto", *BACKENDS))
        if cache == "contiguous" and prefix_cache:
            raise ValueError(
                f'prefix_cache is {prefix_cache!r}, but contiguous memory cannot be shared; use cache="paged"'
            )
        if cache == "paged" and (reserve != "max" or attention == "contiguous"):
            raise ValueError(
                f'reserve is {reserve!r} and attention {attention!r}, but reserve="grow" and '
                'attention="contiguous" need cache="contiguous"'
            )
        self.model, self.cache, self.clock = model, cache, clock
        self._telling = Telling(model, observer)
        told = None if observer is None else self._telling
        num_slots = num_blocks * block_size
        shape = (num_blocks, block_size) if cache == "paged" else (1, num_slots)
        self.pool = BlockPool(
            *shape, model.num_layers, model.num_heads, model.head_dim, model.device, model.dtype
        )
        self.manager: Any = (
            KVCacheManager(num_blocks, block_size, self.pool, told)
            if cache == "paged"
            else ContiguousManager(num_slots, reserve, pool=self.pool, observer=told)
        )
        kinds = {"radix": RadixCache, "hash": HashCache}
        self.prefix_cache: PrefixCache | None = kinds[prefix_cache](self.manager) if prefix_cache else None
        self.scheduler = Scheduler(
            self.manager,
            self._new_table,
            self.prefix_cache,
            CPUSwap(self.pool) if preemption == "swap" else None,
            max_batch_size,
            max_step_tokens,
            None if told is None else self._telling.words,
        )
        self._runner = Runner(model, self.pool, attention)
        self._chooser = Chooser(model, self.scheduler, self._telling, clock)
        self._metrics = Metrics()
        self._submitted = self._steps = 0

    # ---- requests ----------------------------------------------------------------------------

    def generate(
        self,
        prompts: Many[str | Many[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        n: int = 1,
        stop: str | Many[str] | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> list[Completion]:
        """Continue some prompts, and wait for all of them.

        Args: as `submit`. Prompt i has the seed `seed + i`.

        Returns:
            n completions for each prompt, in the order of the prompts.

        Raises:
            What `submit` raises, before anything has run; RequestError for a request that did not end well.
        """
        if isinstance(prompts, str):
            raise TypeError(f"prompts is the string {prompts!r:.40}; give a list of prompts")
        requests: list[Request] = []
        try:
            for i, prompt in enumerate(prompts):
                own = None if seed is None else whole_number("seed", seed) + i
                requests.append(self.submit(prompt, max_new_tokens, temperature, n, stop, own, **options))
            while not all(request.done for request in requests):
                self.step()
        finally:
            with ExitStack() as stack:  # goes on to the last one, even if an observer raises
                for request in requests:
                    stack.callback(self.abort, request)
        return [completion for request in requests for completion in request.result()]

    def submit(
        self,
        prompt: str | Many[int],
        max_new_tokens: int,
        temperature: float = 0.0,
        n: int = 1,
        stop: str | Many[str] | None = None,
        seed: int | None = None,
        timeout: float | None = None,
        beam_width: int | None = None,
        ignore_eos: bool = False,
        salt: str | None = None,
    ) -> Request:
        """Queue a request; `step` runs it, and raises what an observer raised meanwhile.

        Args:
            prompt: text, or token ids; at least one token.
            max_new_tokens: tokens to generate at most; 0 gives an empty completion at once.
            temperature: 0 is greedy; above it, tokens are drawn.
            n: continuations of the prompt, which share its blocks.
            stop: a string that ends the text, or several; the text is cut before it.
            seed: of the drawing; None draws one.
            timeout: seconds from now after which the request is given up.
            beam_width: beam search with so many beams; the n best are returned.
            ignore_eos: go on after the token that ends a text.
            salt: of the prefix cache: requests with another salt share nothing with this one.

        Raises:
            RequestTooLargeError: it could not run even alone. It is counted as "oom".
            ValueError, TypeError: a value outside its limits, naming both. UnknownWordError: a word in the
                prompt. Nothing is queued or counted then.
        """
        params = checked_params(max_new_tokens, temperature, n, stop, seed, beam_width, ignore_eos, salt)
        if timeout is not None and not number("timeout", timeout) >= 0:
            raise ValueError(f"timeout is {timeout}; it must be 0 seconds or more, or None")
        if not hasattr(prompt, "__len__"):
            raise TypeError(f"prompt is {prompt!r}; it must be a string or a list of token ids")
        token_ids = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        token_ids = self.model.check_prompt(token_ids, params.max_new_tokens)
        now = self.clock()
        deadline = None if timeout is None else now + timeout
        request = Request(letters(self._submitted), token_ids, params, now, deadline)
        if params.max_new_tokens:
            self._check_size(request)
        self._submitted += 1
        self._metrics.counts["submitted"] += 1
        request.future.set_running_or_notify_cancel()  # from now on only the engine ends it
        if params.max_new_tokens == 0:
            self._resolve(request, Status.SUCCESS)
        else:
            self._telling.request(request, request.sequences[0])
            self.scheduler.waiting.append(request)
        return request

    def abort(self, request: Request) -> None:
        """Give a request up, wherever it is; its blocks come back. Nothing happens if it is done."""
        if not request.done:
            self._end(request, Status.CANCELLED)
            self._telling.raise_error()

    def fail_all(self, error: Exception) -> None:
        """End every request as failed, because of `error`. What observers raise meanwhile is dropped."""
        self._end_all((*self.scheduler.running, *self.scheduler.waiting), Status.FAILED, error)
        with suppress(Exception):
            self._telling.raise_error()

    def step(self) -> StepReport:
        """Run the model once, for all requests that have a turn."""
        start = self.clock()
        ended = self._expire(start)
        chosen: list[Chosen] = []
        plan = self.scheduler.schedule()
        for request in self.scheduler.preempted:
            self._telling.preempt(request, "recompute" if request.saved is None else "swap")
        try:
            if plan:
                chosen = self._chooser.choose(plan, self._runner.run(plan))
        except Exception as error:  # of the model: nobody knows for whom, so all of the batch hear of it
            ended += self._end_all((chunk.request for chunk in plan), Status.FAILED, error)
        ended += self._end_all((r for r, _, _ in chosen if not r.running), Status.SUCCESS)
        if self.scheduler.stuck is not None:
            ended += self._end_all([self.scheduler.stuck], Status.OOM)
        return self._report(start, sum(chunk.num_new for chunk in plan), chosen, ended)

    @property
    def has_work(self) -> bool:
        """Some request is not done."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    # ---- what there is to see ------------------------------------------------------------------

    @property
    def observer(self) -> Observer | None:
        """Who is told: for instance the EventLog that `BlockMap` looks for."""
        return self._telling.observer

    def metrics(self) -> dict[str, Any]:
        """Requests by how they ended, ttft and tpot in seconds, hit rate, the manager's snapshot."""
        return {**self._metrics.report(), "kv_cache": self.manager.snapshot()}

    def check(self) -> None:
        """Count everything again; InvariantError names what is broken, and the block."""
        self.manager.check()

    def __repr__(self) -> str:
        scheduler = self.scheduler
        return f"Engine({self.cache}, {len(scheduler.running)} running, {len(scheduler.waiting)} waiting)"

    # ---- how a request ends ----------------------------------------------------------------------

    def _expire(self, now: float) -> list[Request]:
        queued = (*self.scheduler.running, *self.scheduler.waiting)
        late = [r for r in queued if r.deadline is not None and now >= r.deadline]
        return self._end_all(late, Status.TIMEOUT)

    def _end_all(
        self, requests: Iterable[Request], status: Status, error: Exception | None = None
    ) -> list[Request]:
        """Returns those that this ended: a callback of one may have aborted others."""
        ended = []
        for request in dict.fromkeys(requests):
            if not request.done:
                self._end(request, status, error)
                ended.append(request)
        return ended

    def _end(self, request: Request, status: Status, error: Exception | None = None) -> None:
        """Take the request's blocks back, and resolve its future."""
        for sequence in request.running:
            self._telling.finish(sequence, str(status))
        try:
            self.scheduler.remove(request)
        finally:  # whatever a manager raises: somebody waits for this future
            self._resolve(request, status, error)

    def _resolve(self, request: Request, status: Status, error: Exception | None = None) -> None:
        request.status, request.ended_at = status, self.clock()
        try:
            texts = completions(self.model, request)
        except Exception as no_text:  # of a token that the tokenizer does not have
            request.status = status = Status.FAILED
            error, texts = error or no_text, []
        self._metrics.ended(request, texts)
        if status is Status.SUCCESS:
            request.future.set_result(texts)
        else:
            failure = RequestError(request.name, str(status), texts)
            failure.__cause__ = error
            request.future.set_exception(failure)

    # ---- plumbing --------------------------------------------------------------------------------

    def _new_table(self, request: Request, sequence: Sequence) -> BlockTable:
        if self.cache == "paged":
            return BlockTable(self.manager.block_size, name=sequence.name)
        return Run(self.manager.block_size, sequence.name, self._longest(request))

    def _check_size(self, request: Request) -> None:
        """RequestTooLargeError, counted as "oom", for what could not run even alone."""
        params, limit = request.params, self.scheduler.max_batch_size
        if params.beam_width:  # which choose together: a step stores a token of each
            limit = min(limit, self.scheduler.max_step_tokens)
        if params.width > limit:
            raise ValueError(
                f"the request asks for {params.width} sequences side by side, and this engine runs at most "
                f"{limit}; make max_batch_size{' and max_step_tokens' if params.beam_width else ''} larger"
            )
        slots, room = self._most_slots(request), self.pool.num_blocks * self.pool.block_size
        if slots > room:
            self._metrics.counts["submitted"] += 1
            self._metrics.counts[Status.OOM] += 1
            raise RequestTooLargeError(
                f"{len(request.prompt)} tokens and {params.max_new_tokens} new ones, in {params.width} "
                f"sequences, take up to {slots} slots; the cache has {room}. Ask for fewer tokens, or make "
                "num_blocks larger"
            )

    def _most_slots(self, request: Request) -> int:
        """Slots with which it is sure to come to its end, if it has them for itself."""
        if self.cache == "paged":
            return most_slots(len(request.prompt), request.params, self.manager.block_size)
        runs = request.params.width if request.params.max_new_tokens > 1 else 1
        # Where runs grow, there may be a hole beside each that is too small for any.
        return self._longest(request) * (runs if self.manager.reserve == "max" else 2 * runs - 1)

    def _longest(self, request: Request) -> int:
        """Tokens that a sequence stores at most: the last one's KV is never needed."""
        return len(request.prompt) + request.params.max_new_tokens - 1

    def _report(
        self, start: float, num_tokens: int, chosen: list[Chosen], ended: list[Request]
    ) -> StepReport:
        scheduler = self.scheduler
        self._steps += 1
        self._metrics.seconds += self.clock() - start
        self._metrics.counts["preempted"] += len(scheduler.preempted)
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        report = StepReport(self._steps, num_tokens, chosen, scheduler.preempted, ended, running, waiting)
        self._telling.raise_error()
        return report
