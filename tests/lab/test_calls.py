"""The trace of calls: what really was called, by whom, and how it is shown."""

import re
import sys

import pytest

from minikv import BlockPool, KVCacheManager
from minikv.decode import DecodeLoop
from minikv.lab.calls import LANES, Call, Fold, folded, imports_torch, traced
from minikv.lab.workbench import tiny_gpt2


@pytest.fixture(scope="module")
def one_step():
    """A decode step in which a block is taken."""
    model = tiny_gpt2()
    pool = BlockPool(8, 4, model.num_layers, model.num_heads, model.head_dim, model.device)
    loop = DecodeLoop(model, KVCacheManager(8, 4, pool), pool, backend="gather")
    request = loop.start(model.tokenizer.encode("Ada has three red kites . Ada has"))
    loop.prefill(request)
    with traced() as calls:
        loop.step([request])
    return calls


def test_a_step_calls_each_layer_as_often_as_it_should(one_step):
    assert one_step.count("loop", "manager") == 3
    assert one_step.count("loop", "model") == 1
    for caller, callee, name in (("loop", "pool", "write"), ("backend", "pool", "read_layer")):
        assert one_step.count(caller, callee, name) == tiny_gpt2().num_layers
    assert one_step.by_name["BlockTable.append_block"] == 1


def test_the_lower_layers_call_nobody_above(one_step):
    assert {whom for who, whom in one_step.pairs() if who == "table"} == set()
    assert {whom for who, whom in one_step.pairs() if who == "manager"} == {"table"}
    assert {whom for who, whom in one_step.pairs() if who == "pool"} == {"table"}


def test_looking_at_a_property_is_no_call(one_step):
    assert one_step.by_name["BlockTable.capacity"] > 0
    assert not any(call.short in ("capacity", "num_blocks", "device") for call in one_step.crossing)


def test_every_layer_of_the_diagram_is_a_module_that_is_there():
    for modules in LANES.values():
        for module in modules:
            __import__(module)


def test_the_profiler_of_before_is_back_even_after_an_error():
    before = sys.getprofile()
    with pytest.raises(ZeroDivisionError), traced():
        1 / 0  # noqa: B018 - it is there to fail
    assert sys.getprofile() is before


def test_traces_may_be_nested():
    with traced() as outer:
        KVCacheManager(2, 4)
        with traced() as inner:
            KVCacheManager(2, 4)
    assert outer.by_name["KVCacheManager.__init__"] == 2
    assert inner.by_name["KVCacheManager.__init__"] == 1


def test_what_repeats_is_told_once():
    a, b, c = (Call("loop", "pool", name) for name in "abc")
    assert folded([a, b, c, b, c, b, c, a]) == [Fold((a,), 1), Fold((b, c), 3), Fold((a,), 1)]
    assert folded([a, a]) == [Fold((a,), 2)]
    assert folded([]) == []


def test_text_and_picture_tell_the_same_calls(one_step):
    diagram = one_step.diagram()
    names = re.findall(r"→ \w+ +(\S+)", repr(diagram))
    assert names[:4] == ["step", "allocate", "append_block", "copy_on_write"]
    svg = diagram.to_svg()
    assert [name for name in names if f">{name}</text>" not in svg] == []
    assert "4 times" in svg
    assert svg == one_step.diagram().to_svg()


def test_the_table_names_who_calls_whom(one_step):
    text = repr(one_step.table())
    assert re.search(r"loop +manager +allocate ×1, copy_on_write ×1, note_write ×1", text)


@pytest.mark.parametrize(("module", "answer"), [("minikv.block_table", False), ("minikv.pool", True)])
def test_who_imports_torch(module, answer):
    assert imports_torch(module) is answer


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"minikv\.nothing"):
        imports_torch("minikv.nothing")
