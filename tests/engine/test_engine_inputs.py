"""Values that cannot be: each is refused by name, value and limit, and nothing else has changed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minikv.engine.engine import Engine
from minikv.engine.request import Status
from minikv.errors import RequestTooLargeError, UnknownWordError
from minikv.gpt2 import GPT2
from tests.engine import fingerprint_model as fm
from tests.test_gpt2 import save_random

MODEL = fm.FingerprintModel()


def make(**setting: Any) -> Engine:
    return Engine(MODEL, **{"num_blocks": 8, "block_size": 4, "attention": fm.read, **setting})


# ---- the engine --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "error", "says"),
    [
        ({"num_blocks": 0}, ValueError, "num_blocks is 0; it must be at least 1"),
        ({"num_blocks": -3}, ValueError, "num_blocks is -3; it must be at least 1"),
        ({"num_blocks": 2.0}, TypeError, "num_blocks is 2.0; it must be an integer"),
        ({"block_size": 0}, ValueError, "block_size is 0; it must be at least 1"),
        ({"block_size": "16"}, TypeError, "block_size is '16'; it must be an integer"),
        ({"max_batch_size": 0}, ValueError, "max_batch_size is 0; it must be at least 1"),
        ({"max_step_tokens": 0}, ValueError, "max_step_tokens is 0; it must be at least 1"),
        ({"max_step_tokens": None}, TypeError, "max_step_tokens is None; it must be an integer"),
        ({"cache": "page"}, ValueError, "cache is 'page'; it must be one of 'paged', 'contiguous'"),
        ({"prefix_cache": True}, ValueError, "prefix_cache is True; it must be one of 'radix', 'hash', None"),
        ({"preemption": None}, ValueError, "preemption is None; it must be one of 'recompute', 'swap'"),
        ({"reserve": "all"}, ValueError, "reserve is 'all'; it must be one of 'max', 'grow'"),
        ({"reserve": "grow"}, ValueError, "reserve is 'grow' .* cache=\"contiguous\""),
        ({"attention": "flash"}, ValueError, "attention is 'flash'; it must be one of 'auto', 'reference'"),
        ({"attention": None}, ValueError, "attention is None; it must be one of"),
        ({"attention": "contiguous"}, ValueError, "attention 'contiguous', .* need cache=\"contiguous\""),
        ({"cache": "contiguous", "prefix_cache": "hash"}, ValueError, "prefix_cache is 'hash', but contig"),
    ],
    ids=str,
)
def test_engines_that_cannot_be(setting: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make(**setting)


def test_integers_of_other_libraries_are_welcome() -> None:
    engine = make(num_blocks=np.int64(8), max_batch_size=np.int32(2))
    assert engine.generate([np.array([1, 2, 3])], np.int64(2), ignore_eos=True)[0].token_ids == fm.greedy(
        [1, 2, 3], 2, ignore_eos=True
    )
    assert engine.generate([torch.tensor([1, 2, 3])], 1)[0].token_ids == fm.greedy([1, 2, 3], 1)


# ---- requests ----------------------------------------------------------------------------------------

BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([], {}, ValueError, "the prompt is empty; it needs at least 1 token"),
    ("", {}, ValueError, "the prompt is empty"),
    ([3, 99], {}, ValueError, "token id 99 is outside the vocabulary of 27"),
    ([3, -1], {}, ValueError, "token id -1 is outside the vocabulary of 27"),
    ([3, 1.5], {}, TypeError, "a prompt is a list of token ids"),
    ([[3, 1]], {}, TypeError, "a prompt is a list of token ids"),
    (7, {}, TypeError, "prompt is 7; it must be a string or a list of token ids"),
    (None, {}, TypeError, "prompt is None; it must be a string or a list of token ids"),
    ([1] * 300, {}, ValueError, "302 tokens exceed the model's context of 256"),
    ([1], {"max_new_tokens": 999}, ValueError, "999 tokens exceed the model's context of 256"),
    ([1], {"max_new_tokens": -1}, ValueError, "max_new_tokens is -1; it must be at least 0"),
    ([1], {"max_new_tokens": 2.0}, TypeError, "max_new_tokens is 2.0; it must be an integer"),
    ([1], {"max_new_tokens": "9"}, TypeError, "max_new_tokens is '9'; it must be an integer"),
    ([1], {"max_new_tokens": None}, TypeError, "max_new_tokens is None; it must be an integer"),
    ([1], {"temperature": -0.1}, ValueError, "temperature is -0.1; it must be 0"),
    ([1], {"temperature": math.nan}, ValueError, "temperature is nan; it must be 0"),
    ([1], {"temperature": math.inf}, ValueError, "temperature is inf; it must be 0"),
    ([1], {"temperature": "hot"}, TypeError, "temperature is 'hot'; it must be a number"),
    ([1], {"temperature": None}, TypeError, "temperature is None; it must be a number"),
    ([1], {"n": 0}, ValueError, "n is 0; it must be at least 1"),
    ([1], {"n": True}, TypeError, "n is True; it must be an integer"),
    ([1], {"n": 5}, ValueError, "asks for 5 sequences side by side, and this engine runs at most 4"),
    ([1], {"stop": ""}, ValueError, "stop holds ''; a stop string has at least 1 character"),
    ([1], {"stop": ["a", ""]}, ValueError, "stop holds ''; a stop string has at least 1 character"),
    ([1], {"stop": [3]}, TypeError, "stop holds 3; it must be strings"),
    ([1], {"stop": 3}, TypeError, "stop is 3; it must be a string, several, or None"),
    ([1], {"seed": 1.5}, TypeError, "seed is 1.5; it must be an integer"),
    ([1], {"seed": "x"}, TypeError, "seed is 'x'; it must be an integer"),
    ([1], {"timeout": -1}, ValueError, "timeout is -1; it must be 0 seconds or more, or None"),
    ([1], {"timeout": math.nan}, ValueError, "timeout is nan; it must be 0 seconds or more, or None"),
    ([1], {"timeout": "1"}, TypeError, "timeout is '1'; it must be a number"),
    ([1], {"beam_width": 0}, ValueError, "beam_width is 0; it must be at least 1"),
    ([1], {"beam_width": 2, "n": 3}, ValueError, "n is 3 and beam_width 2"),
    ([1], {"beam_width": 2, "temperature": 1.0}, ValueError, "temperature is 1.0 and stop .*beam search"),
    ([1], {"beam_width": 2, "stop": "x"}, ValueError, r"stop \('x',\), but beam search"),
    ([1], {"beam_width": 4}, ValueError, "asks for 4 sequences .* at most 3"),
    ([1], {"salt": 3}, TypeError, "salt is 3; it must be a string or None"),
    ([1] * 31, {}, RequestTooLargeError, "31 tokens and 3 new ones.* 36 slots; the cache has 32"),
]


@pytest.mark.parametrize(("prompt", "options", "error", "says"), BAD, ids=str)
@pytest.mark.parametrize("how", ["submit", "generate"])
def test_requests_that_cannot_be(
    prompt: Any, options: dict[str, Any], error: type[Exception], says: str, how: str
) -> None:
    """Nothing is queued, no block is taken, and who was there goes on."""
    engine = make(max_batch_size=4, max_step_tokens=3)
    other = engine.submit([5, 6, 7, 8], 4, ignore_eos=True)
    engine.step()
    free, before = engine.manager.num_free_blocks, engine.metrics()
    options = {"max_new_tokens": 3, **options}
    with pytest.raises(error, match=says):
        if how == "submit":
            engine.submit(prompt, **options)
        else:
            engine.generate([prompt], **options)
    assert (len(engine.scheduler.waiting), engine.manager.num_free_blocks) == (0, free)
    refused = error is RequestTooLargeError
    after = engine.metrics()
    assert after["submitted"] - before["submitted"] == after["oom"] == refused
    while engine.has_work:
        engine.step()
    assert other.result()[0].token_ids == fm.greedy([5, 6, 7, 8], 4, ignore_eos=True)
    assert engine.manager.allocated_blocks == 0


def test_of_several_prompts_a_bad_one_stops_all_before_anything_runs() -> None:
    engine = make()
    with pytest.raises(ValueError, match="token id 99"):
        engine.generate([[1, 2], [99]], 3)
    assert not engine.has_work
    assert engine.metrics()["cancelled"] == 1


def test_a_string_is_no_list_of_prompts() -> None:
    with pytest.raises(TypeError, match="prompts is the string 'abc'; give a list of prompts"):
        make().generate("abc", 3)  # type: ignore[arg-type]
    assert make().generate([], 3) == []


def test_a_word_that_the_model_does_not_know() -> None:
    engine = Engine(GPT2.from_pretrained(), 8)
    with pytest.raises(UnknownWordError, match="xylophone"):
        engine.submit("Ada has two xylophone", 3)
    assert not engine.has_work


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1] * 200])
@pytest.mark.parametrize("n", [1, 3])
def test_no_new_tokens_are_an_empty_completion_at_once(prompt: list[int], n: int) -> None:
    """Even of a prompt for which there is no room: nothing of it is stored."""
    engine = make()
    request = engine.submit(prompt, 0, n=n)
    assert (request.status, engine.has_work) == (Status.SUCCESS, False)
    assert [(c.token_ids, c.text, c.finish_reason) for c in request.result()] == [([], "", "length")] * n
    assert engine.metrics()["success"] == 1
    assert engine.manager.max_allocated == 0


def test_a_result_is_asked_for_too_early() -> None:
    engine = make()
    request = engine.submit([1, 2], 2)
    with pytest.raises(RuntimeError, match=r"request A is waiting; call engine.step\(\) until it is done"):
        request.result()


def test_without_a_tokenizer_texts_are_ids(tmp_path: Path) -> None:
    engine = Engine(GPT2.from_pretrained(save_random(tmp_path / "random")), 8)
    found = engine.generate([[1, 2, 3]], 3, ignore_eos=True)[0]
    assert found.text == " ".join(map(str, found.token_ids))


class Gap(fm.Letters):
    """Does not know one of the model's tokens, as where a vocabulary was padded."""

    unknown: int

    def word(self, token_id: int) -> str:
        if token_id == self.unknown:
            raise ValueError(f"token id {token_id} is outside the vocabulary")
        return super().word(token_id)

    def decode(self, token_ids: Any) -> str:
        return "".join(self.word(token_id) for token_id in token_ids)


def test_a_token_without_a_text_fails_its_request_only() -> None:
    model = fm.FingerprintModel()
    gap = model._tokenizer = Gap()  # type: ignore[assignment]
    gap.unknown = fm.greedy([5, 6], 3, ignore_eos=True)[1]
    others = [p for p in ([1], [2], [3], [4]) if gap.unknown not in fm.greedy(p, 3, ignore_eos=True)]
    engine = Engine(model, 8, 4, attention=fm.read)
    bad = engine.submit([5, 6], 3, ignore_eos=True)
    good = [engine.submit(prompt, 3, ignore_eos=True) for prompt in others]
    while engine.has_work:
        engine.step()
    assert bad.status is Status.FAILED
    assert "outside the vocabulary" in str(bad.future.exception().__cause__)
    assert [r.result()[0].token_ids for r in good] == [fm.greedy(p, 3, ignore_eos=True) for p in others]
    figures = engine.metrics()
    assert (figures["failed"], figures["success"]) == (1, len(others))
