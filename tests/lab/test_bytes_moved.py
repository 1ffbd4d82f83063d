"""Bytes are counted as they are moved, and a view moves none."""

import pytest
import torch

from minikv import BlockPool, BlockTable
from minikv.attention import paged_attention
from minikv.errors import UnwrittenSlotError
from minikv.lab import Workbench
from minikv.lab.bytes_moved import Moved, bytes_moved, counted_reads

X = torch.ones(8, 16)  # 512 bytes


@pytest.mark.parametrize(
    ("call", "read", "written"),
    [
        (lambda: X.clone(), 512, 512),
        (lambda: X[:, :4], 0, 0),
        (lambda: X.t().flatten(0, 1), 512, 512),
        (lambda: X.view(16, 8).transpose(0, 1), 0, 0),
        (lambda: torch.cat([X, X]), 1024, 1024),
        (lambda: X[torch.tensor([3, 1])], 128, 128),
        (lambda: X.index_select(0, torch.tensor([3])), 64, 64),
        (lambda: torch.empty(4, 4), 0, 0),
        (lambda: torch.empty_like(X), 0, 0),
        (lambda: torch.zeros(4, 4), 0, 64),
        (lambda: torch.zeros_like(X), 0, 512),
        (lambda: X.new_zeros(4, 4), 0, 64),
        (lambda: X.clone().zero_(), 512, 1024),
        (lambda: torch.arange(9), 0, 0),  # no keys and values: integers
    ],
)
def test_what_an_operation_moves(call, read, written):
    assert bytes_moved(call) == (read, written)


def pool_with(tokens):
    pool, table = BlockPool(4, 4, 2, 3, 8), BlockTable(4)
    for block_id in (2, 0, 3):
        table.append_block(block_id)
    kv = torch.ones(tokens, 3, 8)
    for layer in range(2):
        pool.write(layer, table.slots(0, tokens), kv, kv)
    return pool, table


def test_a_write_moves_what_is_new_whatever_the_pool_holds():
    pool, _ = pool_with(9)
    kv = torch.ones(1, 3, 8)
    assert bytes_moved(lambda: pool.write(0, [11], kv, kv)) == (192, 192)


def test_reads_are_counted_call_by_call():
    pool, table = pool_with(9)
    with counted_reads(pool) as reads:
        for layer in range(2):
            k, _ = pool.read_layer(layer, [table], [9])
    assert k.shape == (1, 3, 9, 8)
    assert reads.tokens == [9, 9]
    assert reads.least == Moved(2 * 9 * 192, 2 * 9 * 192)
    assert reads.moved == reads.layers[0] + reads.layers[1]
    assert reads.moved.read >= reads.least.read and reads.moved.written >= reads.least.written
    assert "2 calls of read_layer" in repr(reads)
    assert "3,456 bytes read" in repr(reads)


def test_the_pool_reads_as_before_afterwards_even_after_an_error():
    pool, table = pool_with(9)
    with pytest.raises(UnwrittenSlotError), counted_reads(pool) as reads:
        pool.read_layer(0, [table], [10])
    assert reads.layers == []
    assert "read_layer" not in vars(pool)
    pool.read_layer(0, [table], [9])
    assert reads.layers == []


def test_a_decode_step_reads_every_layer_once():
    bench = Workbench(num_blocks=4, block_size=4)
    request = bench.start("Ada has three red kites .", "A")
    bench.prefill(request)
    with counted_reads(bench.pool) as reads:
        bench.step(request)
    assert reads.tokens == [7] * bench.model.num_layers


def test_what_numpy_copies_is_not_seen():
    pool, _ = pool_with(9)
    assert bytes_moved(lambda: pool.kv.numpy().copy()) == (0, 0)


def test_the_kernel_has_nothing_copied_for_it():
    pool, table = pool_with(9)
    q = torch.ones(1, 3, 8)
    assert bytes_moved(lambda: paged_attention(q, pool, 0, [table], [9], backend="cpu")) == (0, 0)
