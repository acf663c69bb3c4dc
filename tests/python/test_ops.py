"""Cache and index operations: the worked examples of their definitions, round trips, and the way into `attend`."""

import numpy as np
import pasa
import pytest
import rig
from pasa import ops

TABLE = np.array([[10, 11, 12], [20, 21, 22]], np.int32)


def ints(*values):
    return np.array(values, np.int32)


def rows_of(lists):
    """Index lists of either form as Python lists, cut to their lengths."""
    if lists.indptr is not None:
        return [lists.indices[a:b].tolist() for a, b in zip(lists.indptr, lists.indptr[1:])]
    return [row[:n].tolist() for row, n in zip(lists.indices, lists.lengths)]


@pytest.mark.parametrize("kv_format", rig.FORMATS)
def test_written_rows_are_gathered(rng, kv_format):
    pool = rig.make_pool(rng, kv_format, 24)
    kv, dim = pool.kv.copy(), pool.keys.shape[1]
    k = rng.normal(size=(5, dim)).astype(np.float32)
    k = k.astype(np.float16) if kv_format == "f16" else rig.to_bf16(k)
    slots = np.array([3, 7, -1, 0, 99], np.int64)
    ops.cache_write(kv, k, slots, kv_format=kv_format, kv_scales=pool.scales)
    out = rig.poison((24, dim), k.dtype)
    assert ops.cache_gather(kv, out, kv_format=kv_format, kv_scales=pool.scales, slots=np.arange(24)) is out
    for row, slot in ((0, 3), (1, 7), (3, 0)):
        want = rig.values(k[row])
        np.testing.assert_allclose(rig.values(out[slot]), want, atol=np.abs(want).max() / 14)
    untouched = [slot for slot in range(24) if slot not in (0, 3, 7)]
    np.testing.assert_allclose(rig.values(out[untouched]), pool.keys[untouched], rtol=2**-8, atol=1e-6)


def test_gather_by_sequence(rng):
    pool = rig.make_pool(rng, "fp8_ds_mla", 24)
    out = rig.poison((2, 6, 512), np.uint16)
    ops.cache_gather(
        pool.kv, out, kv_format="fp8_ds_mla", seq_lens=ints(5, 2), gather_lens=ints(3, 2), block_table=ints([4, 1], [0, 9]),
        offset=1,
    )  # fmt: skip
    want = pool.keys[[18, 19, 4]]
    np.testing.assert_allclose(rig.values(out[0, 1:4]), want, rtol=2**-8, atol=1e-6)
    assert np.isnan(rig.values(out[0, [0, 4, 5]])).all() and np.isnan(rig.values(out[1, 3:])).all()


def test_whole_pages_need_a_block_size(rng):
    pool = rig.make_pool(rng, "fp8_ds_mla", 8)
    flat, k = pool.kv.reshape(2, -1).copy(), rig.to_bf16(rng.normal(size=(1, 512)))
    ops.cache_write(flat, k, ints(5), kv_format="fp8_ds_mla", block_size=4)
    ops.cache_write(pool.kv, k, ints(5), kv_format="fp8_ds_mla")
    np.testing.assert_array_equal(flat, pool.kv.reshape(2, -1))
    with pytest.raises(pasa.Error, match="range: block_size is 0"):
        ops.cache_write(flat, k, ints(5), kv_format="fp8_ds_mla")


def test_slots():
    table = ints([7, 3, 9])
    one = dict(token_to_req=ints(0, 0, 0, 0))
    assert ops.slots(ints(0, 300, 600, 768), table, 256, **one).tolist() == [1792, 812, 2392, -1]
    assert ops.slots(ints(2, 3, 299, 255), table, 64, ratio=4, **one).tolist() == [-1, 448, 202, 511]
    wide = np.empty(4, np.int64)
    assert ops.slots(ints(0, 300, 600, 768), table, 256, out=wide, **one) is wide and wide[2] == 2392


def test_token_counts():
    positions = ints(2, 3, 126, 127, 1023, 8191)
    window, compressed = ops.token_counts(positions, window=128, compress_ratio=4, topk=512)
    assert window.tolist() == [3, 4, 127, 128, 128, 128] and compressed.tolist() == [0, 1, 31, 32, 256, 512]
    assert ops.token_counts(positions, window=128, compress_ratio=128)[1].tolist() == [0, 0, 0, 1, 8, 64]


@pytest.mark.parametrize("ragged", [True, False])
def test_lists(ragged):
    dense = ops.list_dense(ints([5, 6, 7], [8, -1, 9], [1, 2, 3]), ints(2, 3, 9), num_rows=9, ragged=ragged)
    assert rows_of(dense) == [[5, 6], [8, -1, -1], [1, 2, 3]]
    topk = ops.list_topk(
        ints([0, -1, 4, -1], [5, 8, -1, -1], [2, 7, 9, -1]), TABLE, 4, token_to_req=ints(0, 1, 1),
        is_valid=np.array([True, False, True]), ragged=ragged,
    )  # fmt: skip
    assert rows_of(topk) == [[40, 44], [], [82, 87, 89]]
    window = ops.list_window(ints(5), ints([7, 3]), 4, window=4, ragged=ragged)
    assert rows_of(window) == [[30, 31, 12, 13]]
    numbers = ops.list_compressed(ints(2, 255, 511), ratio=128, width=3, ragged=ragged)
    assert rows_of(numbers) == [[], [0, 1], [0, 1, 2]]
    combined = ops.list_combine(
        np.arange(100, 150, dtype=np.int32).reshape(5, 10)[:, :4].copy(), ints(0, 3, 5), ints(6, 4), ints(5, 4), tokens=5,
        window=3, ratio=2, topk=4, rows_per_request=240, compressed_rows=200, ragged=ragged,
    )  # fmt: skip
    assert rows_of(combined) == [
        [100, 101, 200, 201, 202], [110, 111, 201, 202, 203], [120, 121, 122, 202, 203, 204], [370, 440, 441, 442],
        [380, 381, 441, 442, 443],
    ]  # fmt: skip


def test_into_the_callers_lists():
    mine = ops.Lists(np.full((1, 6), 77, np.int32), None, np.zeros(1, np.int32))
    assert ops.list_window(ints(5), ints([7, 3]), 4, window=4, lists=mine) is mine
    assert mine.indices.tolist() == [[30, 31, 12, 13, -1, -1]] and mine.lengths.tolist() == [4]
    small = ops.Lists(np.zeros((1, 3), np.int32), None, None)
    with pytest.raises(pasa.Error, match="shape: lists.indices"):
        ops.list_window(ints(5), ints([7, 3]), 4, window=4, lists=small)


def test_a_decode_step(rng):
    """Window and compressed lists straight into the operator equal the same slots picked by hand."""
    pool = rig.make_pool(rng, "fp8_ds_mla", 200)
    table, positions = ints([4, 1, 30], [7, 9, 11]), ints(9, 5)
    window = ops.list_window(positions, table, 4, window=6)
    picked = ops.list_compressed(positions, ratio=4, width=8, block_table=table, block_size=2, ragged=False)
    q = rig.to_bf16(rng.normal(size=(2, 3, 512)))
    out = pasa.attend(
        q, pool.kv, window.indices, kv_indptr=window.indptr, kv_format="fp8_ds_mla", extra_kv=pool.kv,
        extra_indices=picked.indices, extra_lengths=picked.lengths,
    )  # fmt: skip
    by_hand = [[[4, 5, 6, 7, 120, 121], [28, 29, 30, 31, 36, 37]], [[8, 9], [14]]]
    rows = [[np.array(row) for row in source] for source in by_hand]
    case = rig.Case({"q": q}, rows, [pool, pool])
    rig.assert_matches(case, out)


def test_merge(rng):
    """Attending to two sources equals merging two attentions."""
    case = rig.make_case(rng, "bf16", extra_format="bf16")
    a = case.arguments
    both, lse = pasa.attend(**a, return_lse=True)
    first = pasa.attend(a["q"], a["kv"], a["kv_indices"], kv_indptr=a["kv_indptr"], kv_format="bf16", return_lse=True)
    second = pasa.attend(a["q"], a["extra_kv"], a["extra_indices"], kv_format="bf16", return_lse=True)
    out, merged = ops.merge(*first, *second, attn_sink=a["attn_sink"])
    np.testing.assert_allclose(rig.values(out), rig.values(both), 1e-2, 1e-2)
    np.testing.assert_allclose(merged, lse, atol=1e-4)
    into = ops.merge(*first, *second, attn_sink=a["attn_sink"], out=first[0], lse=first[1])
    assert into[0] is first[0] and np.array_equal(into[0], out)


def test_refusals(rng):
    kv, k = np.zeros((2, 4, 584), np.uint8), np.zeros((3, 512), np.uint16)
    for match, call in (
        ("dtype: k is f32", lambda: ops.cache_write(kv, k.astype(np.float32), ints(0), kv_format="fp8_ds_mla")),
        ("dtype: slot_mapping is f32", lambda: ops.cache_write(kv, k, np.zeros(3, np.float32), kv_format="fp8_ds_mla")),
        ("shape: slot_mapping", lambda: ops.cache_write(kv, k, ints(0, 1, 2, 3), kv_format="fp8_ds_mla")),
        ("range: kv_format", lambda: ops.cache_write(kv, k, ints(0), kv_format="fp8")),
        ("dtype: block_table is i64", lambda: ops.slots(ints(0), TABLE.astype(np.int64), 4)),
        ("stride: block_table", lambda: ops.slots(ints(0, 0), np.repeat(TABLE, 2, axis=1)[:, ::2], 4)),
        ("range: block_size", lambda: ops.slots(ints(0, 0), TABLE, 0)),
        ("range: paging.block_size", lambda: ops.slots(ints(0, 0), TABLE, 2**70)),
        ("range: compress_ratio", lambda: ops.token_counts(ints(0), window=1, compress_ratio=3)),
        ("rank: indices has rank 0", lambda: ops.list_dense(np.array(3, np.int32), ints(1))),
        ("dtype: positions is list", lambda: ops.list_window([5], TABLE, 4, window=4)),
    ):
        with pytest.raises(pasa.Error, match=match):
            call()
    kv.flags.writeable = False
    with pytest.raises(pasa.Error, match="kv is read-only"):
        ops.cache_write(kv, k, ints(0), kv_format="fp8_ds_mla")
