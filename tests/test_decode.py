"""The decode loop: blocks taken and given back, tokens that do not depend on where they are stored."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from minikv import decode
from minikv.assets import ledger
from minikv.decode import DecodeLoop, Request, generate
from minikv.errors import OutOfBlocksError, UnknownWordError
from minikv.gpt2 import GPT2
from minikv.lab.event_log import EventLog
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2.from_pretrained()


class Loop(DecodeLoop):
    """A decode loop with a manager, a pool full of NaN and, if wanted, an event log of its own."""

    manager: KVCacheManager

    def __init__(
        self, model: GPT2, num_blocks: int = 64, block_size: int = 4, log: EventLog | None = None, **more: Any
    ) -> None:
        pool = BlockPool(num_blocks, block_size, model.num_layers, model.num_heads, model.head_dim)
        pool.kv.fill_(float("nan"))
        manager = KVCacheManager(num_blocks, block_size, pool, observer=log)
        super().__init__(model, manager, pool, observer=log, **more)

    def run(self, request: Request, steps: int) -> list[int]:
        for _ in range(steps):
            self.step([request])
        return request.generated


def make_prompt(model: GPT2, tokens: int, seed: int = 0) -> list[int]:
    """A ledger and questions about it, cut at so many tokens."""
    rng = random.Random(seed)
    words: list[str] = []
    facts = ledger.make_ledger(rng, 4)
    words = [word for fact in facts for word in fact.words]
    while len(words) < tokens:
        fact = rng.choice(facts)
        words += ledger.question(fact) + ledger.answer(fact)
    return model.tokenizer.encode(" ".join(words[:tokens]))


def dense_logits(model: GPT2, token_ids: list[int], dropped: dict[int, int] | None = None) -> Tensor:
    """Logits [length, vocab] without a cache. dropped[i]: token i does not see the first so many."""
    length = len(token_ids)
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    for token, count in (dropped or {}).items():
        visible[token, :count] = False

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2)

    return model(torch.tensor([token_ids]), torch.arange(length)[None], attend)[0]


def dense_greedy(model: GPT2, token_ids: list[int], count: int) -> list[int]:
    ids = list(token_ids)
    for _ in range(count):
        ids.append(int(dense_logits(model, ids)[-1].argmax()))
    return ids[len(token_ids) :]


# ---- what it says ----------------------------------------------------------------------------------


def test_it_recalls_a_fact_through_the_cache(model: GPT2) -> None:
    text = "Ada has three red kites. Bo has two gold cups. What does Ada have? Ada has"
    assert generate(model, [text], 4, block_size=3) == ["three red kites ."]


def test_many_texts_at_once(model: GPT2) -> None:
    texts = ["Ada has three red kites. Ada has", "Bo has two gold cups. Kai has four blue hats. Bo has"]
    assert generate(model, texts, 4) == ["three red kites .", "two gold cups ."]
    assert generate(model, [], 4) == []
    assert generate(model, texts, 0) == ["", ""]


def test_text_generation_makes_room_for_exactly_these_requests(
    model: GPT2, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["Ada has three red kites. Ada has", "Bo has"]  # 8 and 2 tokens, and 3 of the 4 new ones
    with pytest.raises(OutOfBlocksError):
        generate(model, texts, 4, block_size=1, num_blocks=15)
    made: list[int] = []

    def pool(num_blocks: int, *shape: Any) -> BlockPool:
        made.append(num_blocks)
        return BlockPool(num_blocks, *shape)

    monkeypatch.setattr(decode, "BlockPool", pool)
    assert generate(model, texts, 4, block_size=1) == generate(model, texts, 4, block_size=1, num_blocks=16)
    assert made == [16, 16]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_repetition_change_nothing(model: GPT2, threads: int) -> None:
    prompts = [make_prompt(model, n, seed=n) for n in (5, 30)]
    expected = [dense_greedy(model, prompt, 3) for prompt in prompts]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert Loop(model).generate(prompts, 3) == Loop(model).generate(prompts, 3) == expected
    finally:
        torch.set_num_threads(before)


# ---- blocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 12])
@pytest.mark.parametrize("new", [1, 2, 4, 5])
def test_blocks_used_and_given_back(model: GPT2, prompt: int, new: int, block_size: int) -> None:
    """The K and V of the last token are never stored, so P prompt and N new tokens fill P + N - 1 slots."""
    loop = Loop(model, 20, block_size)
    [said] = loop.generate([make_prompt(model, prompt)], new)
    assert len(said) == new
    assert loop.manager.max_allocated == -(-(prompt + new - 1) // block_size)
    assert loop.manager.num_free_blocks == 20
    loop.manager.check()


def test_step_by_step_is_generate(model: GPT2) -> None:
    prompt, loop = make_prompt(model, 10), Loop(model)
    request = loop.start(prompt)
    assert (request.name, request.table.num_blocks, request.num_stored) == ("A", 0, 0)
    assert loop.prefill(request) == request.generated[-1]
    assert (request.table.num_blocks, request.num_stored) == (3, 10)
    assert loop.run(request, 3) == Loop(model).generate([prompt], 4)[0]
    assert (request.num_stored, len(request.token_ids)) == (13, 14)
    loop.finish(request)
    assert loop.manager.num_free_blocks == 64
    assert loop.start(prompt).name == "B"


def test_a_pool_too_small_gives_every_block_back(model: GPT2) -> None:
    loop = Loop(model, num_blocks=5)
    prompts = [make_prompt(model, 12), make_prompt(model, 12, seed=1)]
    said = r"12 tokens take 3 blocks of 4; the request holds 0, .*too few are free\. Finish a request"
    with pytest.raises(OutOfBlocksError, match=said):
        loop.generate(prompts, 2)  # the second finds no room for its prompt
    assert loop.manager.num_free_blocks == 5
    loop.manager.check()
    with pytest.raises(OutOfBlocksError, match="13 tokens take 4 blocks of 4; the request holds 3"):
        Loop(model, num_blocks=3).generate(prompts[:1], 2)  # room for the prompt, none for the new token
    assert loop.generate(prompts[:1], 2) == [dense_greedy(model, prompts[0], 2)]  # and it can go on


def test_a_request_named_twice_in_a_step_is_refused_and_moves_nobody_on(model: GPT2) -> None:
    """It would move two tokens on where one was chosen."""
    loop = Loop(model)
    first, second = (loop.start(make_prompt(model, 9, seed)) for seed in (1, 2))
    for request in (first, second):
        loop.prefill(request)
    before = [list(request.token_ids) for request in (first, second)]
    with pytest.raises(ValueError, match="A, B, A: one table is there twice"):
        loop.step([first, second, first])
    twin = Request(list(first.token_ids), first.table, num_stored=9)  # another request, but the same table
    with pytest.raises(ValueError, match="one table is there twice"):
        loop.step([first, twin])
    assert [request.token_ids for request in (first, second)] == before
    assert [request.num_stored for request in (first, second)] == [9, 9]
    alike = loop.start(list(first.token_ids[:9]))  # the same tokens, but a request of its own
    loop.prefill(alike)
    assert alike.token_ids == first.token_ids
    loop.step([first, second, alike])


def test_a_step_without_room_moves_nobody_on(model: GPT2) -> None:
    """Two requests at the end of their blocks, one free block: the step fails whole, and can be repeated."""
    log = EventLog()
    loop = Loop(model, num_blocks=5, log=log)
    prompts = [make_prompt(model, 8), make_prompt(model, 8, seed=1)]
    requests = [loop.start(prompt) for prompt in prompts]
    for request in requests:
        loop.prefill(request)
    writes = [event for event in log if event["op"] == "write"]
    with pytest.raises(OutOfBlocksError):
        loop.step(requests)
    assert [request.num_stored for request in requests] == [8, 8]
    assert [event for event in log if event["op"] == "write"] == writes
    loop.manager.check()
    assert requests[0].generated == dense_greedy(model, prompts[0], 1)
    loop.finish(requests.pop())
    loop.step(requests)
    assert requests[0].generated == dense_greedy(model, prompts[0], 2)
    assert log.violations == ()


def test_one_bad_prompt_stops_all_before_a_block_is_taken(model: GPT2) -> None:
    loop = Loop(model)
    for bad in ([], [-1], [model.vocab_size], [0] * 600):
        with pytest.raises(ValueError):
            loop.generate([make_prompt(model, 5), bad], 2)
    assert loop.manager.max_allocated == 0


def test_a_failure_in_the_model_gives_every_block_back(model: GPT2) -> None:
    calls = []

    def fails_late(q: Tensor, *rest: Any) -> Tensor:
        calls.append(q)
        if len(calls) > 2 * model.num_layers:
            raise RuntimeError("no more")
        return q

    log = EventLog()
    loop = Loop(model, backend=fails_late, log=log)
    with pytest.raises(RuntimeError, match="no more"):
        loop.generate([make_prompt(model, 5), make_prompt(model, 9)], 4)
    assert loop.manager.num_free_blocks == 64
    assert [event["reason"] for event in log if event["op"] == "finish"] == ["error", "error"]


# ---- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "new", "error", "said"),
    [
        ([], 1, ValueError, "the prompt is empty"),
        ([1, 2], -1, ValueError, "max_new_tokens is -1"),
        ([1, 2], 1.5, TypeError, "integer"),
        ([216], 1, ValueError, "token id 216 is outside the vocabulary of 216"),
        ([3, -1], 1, ValueError, "token id -1 is outside"),
        ([1.0], 1, TypeError, "a prompt is a list of token ids"),
        ("Ada has", 1, TypeError, "model.tokenizer.encode makes it"),
        ([1] * 513, 0, ValueError, "513 tokens exceed the model's context of 512"),
        ([1] * 513, 1, ValueError, "513 tokens exceed"),
        ([1] * 512, 2, ValueError, "513 tokens exceed"),
        ([1], 513, ValueError, "513 tokens exceed"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_input(model: GPT2, prompt: Any, new: Any, error: type[Exception], said: str) -> None:
    loop = Loop(model, num_blocks=200)
    with pytest.raises(error, match=said):
        loop.generate([prompt], new)
    assert loop.manager.max_allocated == 0


def test_no_new_tokens(model: GPT2) -> None:
    loop = Loop(model)
    assert loop.generate([[1, 2], [3]], 0) == [[], []]
    assert loop.generate([], 5) == []
    assert loop.step([]) == []
    assert loop.manager.max_allocated == 0


@pytest.mark.parametrize(("prompt", "new"), [(512, 1), (510, 3)])
def test_the_context_may_be_filled_to_the_last_place(model: GPT2, prompt: int, new: int) -> None:
    ids = make_prompt(model, prompt)
    assert Loop(model, 32, 16).generate([ids], new) == [dense_greedy(model, ids, new)]


def test_a_step_beyond_the_context(model: GPT2) -> None:
    loop = Loop(model, 40, 16)
    request = loop.start(make_prompt(model, 512))
    loop.prefill(request)
    with pytest.raises(ValueError, match="513 tokens exceed"):
        loop.step([request])
    assert request.num_stored == 512
    loop.finish(request)
    assert loop.manager.num_free_blocks == 40


@pytest.mark.parametrize(
    ("texts", "more", "error", "said"),
    [
        (["Ada hass"], {}, UnknownWordError, "near it are"),
        ([""], {}, ValueError, "the prompt is empty"),
        (["Ada has"], {"block_size": 0}, ValueError, "block_size is 0"),
        (["Ada has"], {"block_size": -3}, ValueError, "block_size is -3"),
        (["Ada has"], {"num_blocks": 0}, ValueError, "num_blocks is 0"),
        (["Ada has"], {"max_new_tokens": -1}, ValueError, "max_new_tokens is -1"),
    ],
)
def test_texts(
    model: GPT2, texts: list[str], more: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        generate(model, texts, **{"max_new_tokens": 2, **more})


# ---- fork, window, order ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [7, 8])
def test_a_fork_goes_its_own_way(model: GPT2, prompt: int) -> None:
    """Two continuations over shared blocks equal two separate runs; the shared last block is copied once."""
    log = EventLog()
    loop = Loop(model, log=log)
    first = loop.start(make_prompt(model, prompt))
    loop.prefill(first)
    second = Request(first.token_ids, loop.manager.fork(first.table, "B"), "B", first.num_stored)
    assert loop.manager.allocated_blocks == 2
    second.token_ids[-1] = model.tokenizer.encode("Zoe")[0]
    starts = [list(first.token_ids), list(second.token_ids)]
    for _ in range(6):
        loop.step([first, second])
    for start, request in zip(starts, (first, second), strict=True):
        assert request.token_ids == start + dense_greedy(model, start, 6)
    copies = [event for event in log if event["op"] == "copy"]
    assert len(copies) == (1 if prompt % 4 else 0)
    loop.manager.check()
    assert log.violations == ()
    for request in (first, second):
        loop.finish(request)
    assert loop.manager.num_free_blocks == 64


def test_a_whole_prompt_over_shared_blocks_copies_each_block_it_writes(model: GPT2) -> None:
    """A chunk that begins in a shared block and ends two blocks on."""
    loop = Loop(model)
    first = loop.start(make_prompt(model, 6))
    loop.prefill(first)
    longer = make_prompt(model, 13)
    second = Request(longer, loop.manager.fork(first.table), "B", num_stored=6)
    assert loop.prefill(second) == dense_greedy(model, longer, 1)[0]
    assert loop.run(first, 3) == dense_greedy(model, first.token_ids[:6], 4)
    assert first.table.block_ids[0] == second.table.block_ids[0]
    assert not set(first.table.block_ids[1:]) & set(second.table.block_ids[1:])


@pytest.mark.parametrize("drop", [1, 3, 4, 6, 9])
@pytest.mark.parametrize("backend", ["gather", "reference"])
def test_tokens_let_go_are_not_seen(model: GPT2, drop: int, backend: str) -> None:
    """After drop_front, each step equals plain attention with these positions masked."""
    log = EventLog()
    loop = Loop(model, log=log, backend=backend)
    request = loop.start(make_prompt(model, 10, seed=3))
    loop.prefill(request)
    loop.manager.drop_front(request.table, drop)
    request.num_dropped = drop
    loop.run(request, 6)
    ids = request.token_ids
    logits = dense_logits(model, ids, dropped=dict.fromkeys(range(10, len(ids)), drop))
    assert ids[11:] == logits[10:-1].argmax(-1).tolist()
    assert request.num_stored == 16
    assert request.table.num_blocks == -(-16 // 4) - drop // 4
    loop.manager.check()
    assert log.violations == ()


def test_letting_tokens_go_matters(model: GPT2) -> None:
    """The window test could pass if nothing were dropped; here what is dropped is the answer."""
    ids = model.tokenizer.encode("Ada has three red kites . Bo has two gold cups . Ada")
    words = []
    for drop in (0, 6):
        loop = Loop(model, block_size=6)
        request = loop.start(ids)
        loop.prefill(request)
        loop.manager.drop_front(request.table, drop)
        request.num_dropped = drop
        loop.run(request, 4)
        words.append(" ".join(model.tokenizer.word(token) for token in request.generated[:4]))
    assert words[0] == "has three red kites"
    assert words[1] != words[0]


def test_the_order_of_full_blocks_in_a_table_changes_nothing(model: GPT2) -> None:
    """Attention sums over what it reads: the positions are in the keys, not in the table."""
    prompt = make_prompt(model, 11)
    said, logits = [], []

    def listen(token_ids: Tensor, positions: Tensor, attend: Any) -> Tensor:
        logits.append(GPT2.__call__(model, token_ids, positions, attend)[:, -1])
        return logits[-1][:, None]

    for swapped in (False, True):
        loop = Loop(model)
        request = loop.start(prompt)
        loop.prefill(request)
        if swapped:
            first, second, _ = request.table.block_ids
            request.table.replace_block(0, second)
            request.table.replace_block(1, first)
        heard = Listening(model, listen)
        loop.model = heard
        said.append(loop.run(request, 3))
    assert said[0] == said[1]
    plain, moved = torch.cat(logits[:3]), torch.cat(logits[3:])
    assert (plain - moved).abs().max() < 1e-5


class Listening(GPT2):
    """A model whose calls go through a function."""

    def __init__(self, model: GPT2, call: Any) -> None:
        self.__dict__.update(model.__dict__)
        self._call = call

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Any) -> Tensor:
        logits: Tensor = self._call(token_ids, positions, attend)
        return logits


# ---- what observers hear ----------------------------------------------------------------------------------


def test_the_event_log_accepts_a_run_and_finds_nothing_wrong(model: GPT2) -> None:
    log = EventLog()
    prompts = [make_prompt(model, 6), make_prompt(model, 9, seed=1)]
    said = Loop(model, num_blocks=8, log=log).generate(prompts, 4)
    assert log.violations == ()
    assert [event["text"] for event in log if event["op"] == "request"] == [
        model.tokenizer.decode(prompt) for prompt in prompts
    ]
    for name, prompt, ids in zip("AB", prompts, said, strict=True):
        mine = [event for event in log if event.get("request") == name]
        stored = [word for event in mine if event["op"] == "write" for word in event["words"]]
        assert stored == [model.tokenizer.word(token) for token in (prompt + ids)[:-1]]
        chosen = [(event["position"], event["word"]) for event in mine if event["op"] == "token"]
        assert chosen == [(len(prompt) + i, model.tokenizer.word(token)) for i, token in enumerate(ids)]
        assert [event["length"] for event in mine if event["op"] == "read"] == [
            len(prompt) + i for i in range(4)
        ]
        assert [event["reason"] for event in mine if event["op"] == "finish"] == ["length"]


def test_an_observer_needs_no_tokenizer(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model, log = GPT2.from_pretrained(tmp_path), EventLog()
    [said] = Loop(model, log=log).generate([[1, 10, 3]], 2)
    assert [event["words"] for event in log if event["op"] == "write"] == [["1", "10", "3"], [str(said[0])]]
    assert [event["text"] for event in log if event["op"] == "request"] == ["1 10 3"]
    assert log.violations == ()


def test_observed_or_not_it_says_the_same(model: GPT2) -> None:
    prompts = [make_prompt(model, 6), make_prompt(model, 9, seed=1)]
    assert Loop(model).generate(prompts, 4) == Loop(model, log=EventLog()).generate(prompts, 4)
