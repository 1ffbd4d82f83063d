"""Which calls change with the read; and our parts beside vLLM's, looked up by name."""

import re

from minikv import BlockPool, KVCacheManager
from minikv.decode import DecodeLoop
from minikv.gpt2 import GPT2
from minikv.lab.beside_vllm import PAIRS, beside_vllm
from minikv.lab.calls import traced
from minikv.lab.calls_compare import different_calls
from minikv.lab.theory import _ROOT


def one_step(backend):
    model = GPT2.from_pretrained(device="cpu")
    pool = BlockPool(4, 4, model.num_layers, model.num_heads, model.head_dim)
    loop = DecodeLoop(model, KVCacheManager(4, 4, pool), pool, backend=backend)
    request = loop.start(model.tokenizer.encode("Ada has three red kites . Ada has"))
    loop.prefill(request)
    with traced() as calls:
        loop.step([request])
    return calls


def test_only_the_read_changes():
    gather, kernel = one_step("gather"), one_step("cpu")
    changed = different_calls(gather, kernel, ("gather", "cpu"))
    assert {(call.caller, call.callee, call.short, *times) for call, *times in changed.rows} == {
        ("backend", "pool", "read_layer", 4, 0),
        ("pool", "table", "slots", 4, 0),
        ("backend", "pool", "marks", 0, 4),
    }
    assert changed.callers == {"backend", "pool"}
    assert changed.same == len(gather.crossing) - 8
    assert repr(changed).splitlines()[0].split() == ["who", "calls", "what", "gather", "cpu"]


def test_a_trace_is_not_different_from_itself():
    calls = one_step("gather")
    same = different_calls(calls, calls)
    assert same.rows == [] and same.callers == set() and same.same == len(calls.crossing)


def test_every_part_of_ours_is_there_and_linked_to_its_line():
    rows = beside_vllm().rows
    assert len(rows) == len(PAIRS)
    for row, pair in zip(rows, PAIRS, strict=True):
        link = re.search(r"\]\(\.\./(.+)#L(\d+)\)", row[1])
        lines = (_ROOT / link[1]).read_text(encoding="utf-8").splitlines()
        assert re.search(rf"\b{pair.ours.rpartition('.')[2]}\b", lines[int(link[2]) - 1])
        assert pair.file.startswith("v1/") and pair.file.endswith(".py")
