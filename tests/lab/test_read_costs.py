"""Measuring reads: the scene is right, the ruler is sound; how fast anything is, is not tested."""

import pytest
import torch

from minikv import KVCacheManager
from minikv.attention import paged_attention
from minikv.lab import code_size, lazy_memory, read_costs
from minikv.lab.bytes_moved import bytes_moved
from minikv.lab.code_size import lines_of_code
from minikv.lab.lazy_memory import reserve, reserve_and_write, resident_bytes
from minikv.lab.read_costs import (
    Layouts,
    ReadScene,
    ReadTimes,
    fastest,
    fastest_in_turns,
    head_major,
    one_thread,
    runs,
    time_layouts,
    time_reads,
)

# ---- the scene and the clock -----------------------------------------------------------------


def test_all_ways_of_reading_a_scene_agree():
    scene = ReadScene(64)
    assert sorted(scene.table.block_ids) == [0, 1, 2, 3] != list(scene.table.block_ids)
    reference = paged_attention(scene.q, scene.pool, 0, [scene.table], [64], backend="reference")
    for backend in ("gather", "cpu"):
        torch.testing.assert_close(scene.attend(backend), reference)
    k, v = scene.gather()
    assert k.shape == v.shape == (1, 12, 64, 64)
    torch.testing.assert_close(scene.attend_rows(k, v), reference)


def test_the_lean_gather_gives_the_same_rows_and_moves_no_byte_too_many():
    scene = ReadScene(64)
    assert all(map(torch.equal, scene.lean_gather(), scene.gather()))
    least = 2 * 12 * 64 * 64 * 4
    assert bytes_moved(scene.lean_gather) == (least, least)
    assert bytes_moved(scene.gather).read > least


def test_reads_are_compared_by_the_kernels_time():
    assert all(time > 0 for time in time_reads(ReadScene(64)))
    times = ReadTimes(gather=10.0, lean=4.0, kernel=2.0, rows=1.0)
    assert times.taken_back == pytest.approx(2 / 3)
    assert repr(times).splitlines() == [
        "our gather, then attention      5.0 times the kernel's time",
        "a lean gather, then attention   2.0 times the kernel's time",
        "the kernel, block by block      1.0 times the kernel's time",
        "attention, all side by side     0.5 times the kernel's time",
    ]


def test_writing_one_token_leaves_the_others_alone():
    scene = ReadScene(32)
    before = scene.gather()[0].clone()
    scene.write_one()
    after = scene.gather()[0]
    assert after[:, :, :31].equal(before[:, :, :31])
    assert not after[:, :, 31].equal(before[:, :, 31])


@pytest.mark.parametrize("tokens", [0, -16, 8, 17])
def test_a_scene_has_full_blocks(tokens):
    with pytest.raises(ValueError, match=f"tokens is {tokens}; take a multiple of 16"):
        ReadScene(tokens)


def test_calls_take_turns_and_torch_gets_its_threads_back():
    before, order = torch.get_num_threads(), []
    times = fastest_in_turns(lambda: order.append("a"), lambda: order.append("b"), rounds=3)
    assert order == ["a", "b"] * 3
    assert len(times) == 2 and all(time > 0 for time in times)
    assert fastest(lambda: order.append("c"), rounds=2) > 0
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError), one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == before


# ---- layouts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "count"),
    [
        (torch.empty(2, 3, 4), 1),
        (torch.empty(4, 4)[:, :2], 4),
        (torch.empty(4, 4)[:2], 1),
        (torch.empty(4, 4).T, 1),
        (torch.empty(4, 4)[:, 1], 4),
        (torch.empty(2, 5, 3)[:, 2], 2),
        (torch.empty(1, 7, 1), 1),
        (torch.empty(7), 1),
    ],
)
def test_runs_are_counted(part, count):
    assert runs(part) == count


def test_runs_agree_with_the_addresses():
    for part in (head_major(ReadScene(32).pool.kv)[0, :, :, 1], torch.empty(3, 4, 5)[:, 1:3, :2]):
        addresses = torch.arange(10**6).as_strided(part.shape, part.stride(), part.storage_offset())
        ordered = addresses.flatten().sort().values
        assert runs(part) == 1 + int((ordered.diff() != 1).sum())


def test_both_layouts_hold_the_same_block():
    kv = ReadScene(64).pool.kv
    assert head_major(kv)[0, :, :, 3].equal(kv[0, 3])
    assert (runs(kv[0, 3]), runs(head_major(kv)[0, :, :, 3])) == (1, 24)


def test_layouts_are_compared_and_a_draw_is_called_one():
    assert all(ratio > 0 for ratio in time_layouts(ReadScene(64)))
    said = repr(Layouts(block_by_block=1.9, all_at_once=1.1)).splitlines()
    assert said[0].endswith("1.90 times as long: block-major wins")
    assert said[1].endswith("1.10 times as long: no clear winner on this machine")
    assert "head-major wins" in repr(Layouts(0.5, 0.5))


# ---- memory ----------------------------------------------------------------------------------


def test_what_was_written_is_what_the_process_grew_by():
    found = reserve_and_write(num_blocks=2048, blocks_written=100)
    assert found.num_blocks == found.asked_for == 2048
    assert "refused" not in repr(found)
    assert found.reserved == 2048 * 12 * 98_304
    assert found.written == 100 * 12 * 98_304
    assert found.measured == (resident_bytes() is not None)
    if found.measured:
        assert found.grown_by_reserving < 0.05 * found.reserved
        assert 0.7 < found.grown_by_writing / found.written < 1.3
        assert "/proc/self/statm" in repr(found)


def test_without_proc_it_says_that_nothing_was_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(lazy_memory, "_STATM", tmp_path / "none")
    assert resident_bytes() is None
    found = reserve_and_write(num_blocks=8, blocks_written=2)
    assert (found.grown_by_reserving, found.grown_by_writing, found.measured) == (None, None, False)
    assert found.written == 2 * 12 * 98_304, "which the pool counts by itself"
    assert repr(found).count("the process grew by (not measured)") == 2
    assert f"this system has no {(tmp_path / 'none').as_posix()} to measure it with" in repr(found)


@pytest.mark.parametrize("content", ["", "12", "1 x 2", "1 0 0"])
def test_a_statm_that_tells_nothing_counts_as_none(monkeypatch, tmp_path, content):
    statm = tmp_path / "statm"
    statm.write_text(content)
    monkeypatch.setattr(lazy_memory, "_STATM", statm)
    assert resident_bytes() is None


def test_a_machine_that_refuses_gets_a_smaller_pool(monkeypatch):
    honest, asked = lazy_memory.BlockPool, []

    def stingy(num_blocks, *shape):
        asked.append(num_blocks)
        if num_blocks > 4:
            raise RuntimeError("not enough memory")
        return honest(num_blocks, *shape)

    monkeypatch.setattr(lazy_memory, "BlockPool", stingy)
    assert reserve(16).num_blocks == 4
    assert asked == [16, 8, 4]
    found = reserve_and_write(num_blocks=16, blocks_written=8)
    assert (found.asked_for, found.num_blocks, found.written) == (16, 4, 4 * 12 * 98_304)
    assert "4 blocks: the machine refused 16, so the pool was halved until it did not" in repr(found)


def test_not_even_one_block(monkeypatch):
    def refuse(*shape):
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(lazy_memory, "BlockPool", refuse)
    with pytest.raises(RuntimeError, match="not enough memory"):
        reserve(4)


@pytest.mark.parametrize("written", [0, 9])
def test_blocks_that_are_not_there_cannot_be_written(written):
    with pytest.raises(ValueError, match=rf"blocks_written is {written}; it must be in \[1, 8\]"):
        reserve_and_write(num_blocks=8, blocks_written=written)


# ---- lines -----------------------------------------------------------------------------------


def function_with_a_docstring():
    """Which is no code.

    Nor is this.
    """
    # nor this
    first = [
        1,
        2,
    ]

    return first


class OnlyADocstring:
    """Nothing else."""


def test_lines_of_code_are_statements():
    assert lines_of_code(function_with_a_docstring) == 3
    assert lines_of_code(OnlyADocstring) == 2  # a body there must be
    assert lines_of_code(function_with_a_docstring, OnlyADocstring) == 5
    assert lines_of_code(KVCacheManager) > 100
    assert lines_of_code(code_size) < lines_of_code(read_costs)
