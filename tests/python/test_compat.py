"""The calls of FlashMLA and aiter: names, argument order, result shapes and conventions, on every size they refuse."""

import inspect
import itertools
import subprocess
import sys

import numpy as np
import pasa
import pytest
import rig

torch = pytest.importorskip("torch")
from pasa.compat import aiter, flash_mla  # noqa: E402
from test_torch import DEVICES, to_torch  # noqa: E402

INF = float("inf")


def numbers(tensor):
    return tensor.float().cpu().numpy()


def cached_case(rng, batch, s_q, heads, dim, topk, extra):
    """A decode problem, and its arguments in FlashMLA's shapes: everything strided, lengths per sequence."""
    fmt = {512: "fp8_ds_mla", 576: "fp8_v32"}[dim]
    case = rig.make_case(
        rng, fmt, tokens=batch * s_q, heads=heads, width=topk, form="full", extra_format=fmt if extra else None, page=7
    )
    lengths = rng.integers(0, topk + 1, (2, batch)).astype(np.int32)
    for source, rows in enumerate(case.rows):
        case.rows[source] = [row[: lengths[source][t // s_q]] for t, row in enumerate(rows)]
    return case, lengths


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim, extra", [(512, False), (512, True), (576, False)])
@pytest.mark.parametrize("batch, s_q, heads, topk", [(3, 2, 5, 19), (1, 1, 64, 64), (4, 1, 3, 1), (2, 3, 1, 70)])
def test_flash_mla_decode(rng, batch, s_q, heads, topk, dim, extra, device):
    case, lengths = cached_case(rng, batch, s_q, heads, dim, topk, extra)
    a = to_torch(case.arguments, device, typed_fp8=True)
    lengths = torch.from_numpy(lengths).to(device)
    wide = torch.zeros(batch, s_q + 1, heads + 1, dim + 8, dtype=torch.bfloat16, device=device)
    q = wide[:, :s_q, :heads, :dim]
    q.copy_(a["q"].view(batch, s_q, heads, dim))
    wide_lists = torch.zeros(batch, s_q + 1, topk + 3, dtype=torch.int32, device=device)
    lists = wide_lists[:, :s_q, :topk]
    lists.copy_(a["kv_indices"].view(batch, s_q, topk))
    meta, none = flash_mla.get_mla_metadata()
    assert none is None
    extras = (a["extra_kv"].unsqueeze(2), a["extra_indices"].view(batch, s_q, topk)) if extra else (None, None)
    for _ in range(2):  # the object is reused
        out, lse = flash_mla.flash_mla_with_kvcache(
            q, a["kv"].unsqueeze(2), None, None, 512, meta, None, None, False, True, lists, a["attn_sink"], *extras,
            lengths[0], lengths[1] if extra else None,
        )  # fmt: skip
    assert out.shape == (batch, s_q, heads, 512) and out.dtype == torch.bfloat16
    assert lse.shape == (batch, heads, s_q) and lse.dtype == torch.float32
    rows = numbers(lse.transpose(1, 2).reshape(batch * s_q, heads))
    empty = np.isneginf(case.reference()[1])
    assert (np.isposinf(rows) == empty).all()
    rig.assert_matches(case, numbers(out).reshape(batch * s_q, heads, 512), np.where(empty, -np.inf, rows))


def test_flash_mla_out(rng):
    """out= is written in place, whatever its strides."""
    case, _ = cached_case(rng, 2, 3, 4, 512, 9, False)
    a = to_torch(case.arguments)
    q, lists = a["q"].view(2, 3, 4, 512), a["kv_indices"].view(2, 3, 9)
    arguments = (q, a["kv"].unsqueeze(2), None, None, 512, flash_mla.get_mla_metadata()[0])
    options = dict(is_fp8_kvcache=True, indices=lists)
    want, _ = flash_mla.flash_mla_with_kvcache(*arguments, **options)
    for memory in (torch.empty(2, 3, 4, 512), torch.empty(2, 4, 5, 520)):
        out = memory.bfloat16()[:2, :3, :4, :512]
        got, _ = flash_mla.flash_mla_with_kvcache(*arguments, **options, out=out)
        assert got is out and torch.equal(out, want)


def test_flash_mla_bf16_cache(rng):
    case = rig.make_case(rng, "packed_bf16", tokens=2, form="full")
    a = to_torch(case.arguments)
    out, _ = flash_mla.flash_mla_with_kvcache(
        a["q"].unsqueeze(1), a["kv"].unsqueeze(2), None, None, 512, flash_mla.get_mla_metadata()[0],
        indices=a["kv_indices"].unsqueeze(1), attn_sink=a["attn_sink"],
    )  # fmt: skip
    rig.assert_matches(case, numbers(out[:, 0]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [512, 576])
@pytest.mark.parametrize("tokens, heads, topk, with_lengths", [(3, 5, 19, True), (1, 64, 128, False), (6, 2, 65, True)])
def test_flash_mla_prefill(rng, tokens, heads, topk, with_lengths, dim, device):
    form = "lengths" if with_lengths else "full"
    case = rig.make_case(rng, "bf16", tokens=tokens, heads=heads, width=topk, form=form, dim=dim, scale=0.05)
    case.arguments["attn_sink"][0] = INF
    a = to_torch(case.arguments, device)
    out, top, lse = flash_mla.flash_mla_sparse_fwd(
        a["q"], a["kv"].unsqueeze(1), a["kv_indices"].unsqueeze(1), 0.05, attn_sink=a["attn_sink"],
        topk_length=a.get("kv_lengths"),
    )  # fmt: skip
    lse, want = numbers(lse), case.reference()[1]
    assert (np.isposinf(lse) == np.isneginf(want)).all()
    rig.assert_matches(case, numbers(out), np.where(np.isposinf(lse), -np.inf, lse), numbers(top))


def decode_arguments(**changes):
    case, _ = cached_case(np.random.default_rng(1), 2, 1, 4, 512, 9, False)
    a = to_torch(case.arguments)
    arguments = dict(
        q=a["q"].view(2, 1, 4, 512), k_cache=a["kv"].unsqueeze(2), block_table=None, cache_seqlens=None, head_dim_v=512,
        tile_scheduler_metadata=flash_mla.get_mla_metadata()[0], is_fp8_kvcache=True, indices=a["kv_indices"].view(2, 1, 9),
    )  # fmt: skip
    return {**arguments, **changes}


@pytest.mark.parametrize(
    "category, name, change",
    [
        ("dtype", "q", lambda a: {"q": a["q"].half()}),
        ("rank", "q", lambda a: {"q": a["q"][0]}),
        ("shape", "q", lambda a: {"q": a["q"][..., :448]}),
        ("shape", "k_cache", lambda a: {"k_cache": a["k_cache"][..., :576]}),
        ("shape", "k_cache", lambda a: {"k_cache": a["k_cache"].expand(-1, -1, 2, -1)}),
        ("rank", "k_cache", lambda a: {"k_cache": a["k_cache"].squeeze(2)}),
        ("dtype", "k_cache", lambda a: {"k_cache": a["k_cache"].int()}),
        ("range", "head_dim_v", lambda a: {"head_dim_v": 256}),
        ("combination", "causal", lambda a: {"causal": True}),
        ("combination", "is_fp8_kvcache", lambda a: {"is_fp8_kvcache": False}),
        ("combination", "num_splits", lambda a: {"num_splits": torch.zeros(1)}),
        ("combination", "block_table", lambda a: {"block_table": torch.zeros(2, 2, dtype=torch.int32)}),
        ("unsupported", "indices", lambda a: {"indices": None}),
        ("dtype", "indices", lambda a: {"indices": a["indices"].long()}),
        ("shape", "indices", lambda a: {"indices": a["indices"][:1]}),
        ("stride", "indices", lambda a: {"indices": a["indices"].repeat_interleave(2, 2)[..., ::2]}),
        ("shape", "topk_length", lambda a: {"topk_length": torch.zeros(3, dtype=torch.int32)}),
        ("dtype", "topk_length", lambda a: {"topk_length": torch.zeros(2, dtype=torch.int64)}),
        ("combination", "extra_indices_in_kvcache", lambda a: {"extra_k_cache": a["k_cache"]}),
        ("combination", "extra_indices_in_kvcache", lambda a: {"extra_indices_in_kvcache": a["indices"]}),
        ("combination", "extra_topk_length", lambda a: {"extra_topk_length": torch.zeros(2, dtype=torch.int32)}),
        ("shape", "attn_sink", lambda a: {"attn_sink": torch.zeros(5)}),
        ("combination", "tile_scheduler_metadata", lambda a: {"tile_scheduler_metadata": None}),
        ("shape", "out", lambda a: {"out": torch.zeros(2, 1, 4, 448).bfloat16()}),
    ],
)
def test_flash_mla_refuses(category, name, change):
    arguments = decode_arguments()
    with pytest.raises(pasa.Error) as error:
        flash_mla.flash_mla_with_kvcache(**{**arguments, **change(arguments)})
    assert str(error.value).startswith(f"{category}: {name} "), error.value


def test_flash_mla_metadata_of_other_shapes():
    arguments = decode_arguments()
    flash_mla.flash_mla_with_kvcache(**arguments)
    with pytest.raises(pasa.Error, match="tile_scheduler_metadata"):
        flash_mla.flash_mla_with_kvcache(**{**arguments, "indices": arguments["indices"][..., :5]})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("kv_format", rig.FORMATS)
@pytest.mark.parametrize("extra", [False, True])
def test_aiter_decode(rng, kv_format, extra, typed, device):
    if kv_format == "fp8_e4m3fnuz":
        typed = True  # bytes are taken for OCP
    case = rig.make_case(
        rng, kv_format, extra_format=kv_format if extra else None, extra_form="ragged", fp16=kv_format == "f16"
    )
    a = to_torch(case.arguments, device, typed)
    extras = dict(extra_cache=a["extra_kv"], extra_indices=a["extra_indices"], extra_indptr=a["extra_indptr"],
                  extra_scales=a.get("extra_kv_scales")) if extra else {}  # fmt: skip
    scale = a["q"].shape[-1] ** -0.5
    out = aiter.pa_decode_sparse(
        a["q"],
        a["kv"],
        a["kv_indices"],
        a["kv_indptr"],
        a["attn_sink"],
        scale,
        a.get("kv_scales"),
        16,
        3,
        True,
        **extras,
    )
    assert out.dtype == a["q"].dtype
    rig.assert_matches(case, numbers(out))
    result = aiter.pa_decode_sparse(
        a["q"], a["kv"], a["kv_indices"], a["kv_indptr"], a["attn_sink"], scale, a.get("kv_scales"), kv_splits=3,
        skip_reduce=True, has_invalid=False, **extras,
    )  # fmt: skip
    assert isinstance(result, tuple)
    acc, m, l = result
    assert acc.shape == (3, 3, 5, 512) and m.shape == l.shape == (3, 3, 5)
    rig.assert_matches(case, numbers(pasa.reduce(acc, m, l, attn_sink=a["attn_sink"])))


def test_aiter_pages_at_odd_addresses(rng):
    """aiter's own tests stretch the page stride to any even number."""
    case = rig.make_case(rng, "fp8_ds_mla")
    a = to_torch(case.arguments)
    blocks, page, record = a["kv"].shape
    pitch = page * record + 2
    cache = torch.zeros(blocks * pitch, dtype=torch.uint8).as_strided((blocks, page, record), (pitch, record, 1))
    cache.copy_(a["kv"])
    out = aiter.pa_decode_sparse(a["q"], cache, a["kv_indices"], a["kv_indptr"], a["attn_sink"], None)
    rig.assert_matches(case, numbers(out))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv_format", ["bf16", "f16"])
@pytest.mark.parametrize("extend", [False, True])
def test_aiter_prefill(rng, kv_format, extend, device):
    fp16 = kv_format == "f16"
    case = rig.make_case(
        rng, kv_format, extra_format=kv_format if extend else None, extra_form="ragged", fp16=fp16, sink=extend
    )
    a = to_torch(case.arguments, device)
    out = aiter.pa_prefill_sparse(
        a["q"], a["kv"], a["kv_indices"], a["kv_indptr"], a.get("extra_kv"), a.get("extra_indices"), a.get("extra_indptr"),
        a.get("attn_sink"), 512**-0.5,
    )  # fmt: skip
    rig.assert_matches(case, numbers(out))


def test_aiter_refuses(rng):
    a = to_torch(rig.make_case(rng, "bf16").arguments)
    first = (a["q"], a["kv"], a["kv_indices"], a["kv_indptr"])
    for match, call in (
        ("dtype: kv_indices is i64", lambda: aiter.pa_decode_sparse(*first[:2], first[2].long(), first[3], None, 1.0)),
        ("combination: kv_indptr", lambda: aiter.pa_decode_sparse(*first[:3], None, None, 1.0)),
        ("range: kv_splits", lambda: aiter.pa_decode_sparse(*first, None, 1.0, kv_splits=0)),
        ("range: block_h", lambda: aiter.pa_decode_sparse(*first, None, 1.0, block_h=-16)),
        ("combination: extra_cache|combination: extra_indices", lambda: aiter.pa_decode_sparse(
            *first, None, 1.0, extra_indices=first[2], extra_indptr=first[3])),
        ("dtype: unified_kv is f16", lambda: aiter.pa_decode_sparse(first[0], first[1].half(), *first[2:], None, 1.0)),
        ("combination: kv_indices_extend", lambda: aiter.pa_prefill_sparse(*first, first[1], None, first[3], None, 1.0)),
        ("dtype: kv_indices_extend", lambda: aiter.pa_prefill_sparse(
            *first, first[1], first[2].long(), first[3], None, 1.0)),
        ("dtype: kv_indices_prefix", lambda: aiter.pa_prefill_sparse(
            *first[:2], first[2].long(), first[3], None, None, None, None, 1.0)),
    ):  # fmt: skip
        with pytest.raises(pasa.Error, match=match):
            call()


def mla_problem(rng, q_len, heads, device, kv_format="bf16"):
    """Dense MLA decode of four sequences (one empty, one shorter than q_len), and its float64 result."""
    slots, lengths, width = 50, np.array([7, 0, 12, 1], np.int32), 15
    pool = rig.make_pool(rng, kv_format, slots, dim=576)
    q = rng.normal(size=(4, q_len, heads, 576))
    q = q.astype(np.float16) if kv_format == "f16" else rig.to_bf16(q)
    table = rng.integers(0, slots, (4, width)).astype(np.int32)
    kv_scale = 0.004 if kv_format.startswith("fp8") else 1.0
    arguments = {"kv": pool.kv, "q": q, "table": table, "lengths": lengths, "kv_format": kv_format}
    t = {**to_torch(arguments, device, typed_fp8=True), "kv_scale": kv_scale}
    return t, *mla_reference(t, pool.keys)


def mla_reference(t, keys):
    keys, queries = t["kv_scale"] * keys.astype(np.float64), numbers(t["q"]).astype(np.float64)
    table, lengths = t["table"].cpu().numpy(), t["lengths"].tolist()
    batch, q_len, heads = queries.shape[:3]
    out, lse = np.zeros((batch, q_len, heads, 512)), np.full((batch, q_len, heads), -np.inf)
    for b in range(batch):
        for p in range(q_len):
            seen = keys[table[b, : max(lengths[b] - q_len + p + 1, 0)]]
            if len(seen):
                weights = np.exp(0.04 * queries[b, p] @ seen.T)
                out[b, p] = weights @ seen[:, :512] / weights.sum(axis=1, keepdims=True)
                lse[b, p] = np.log(weights.sum(axis=1))
    return out, lse


def list_view(table, lengths):
    lists = torch.cat([row[:n] for row, n in zip(table, lengths.tolist())])
    return lists, torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).int()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("two_d", [True, False])
@pytest.mark.parametrize("q_len, heads", [(1, 16), (1, 3), (2, 128), (5, 12), (17, 16)])
def test_mla(rng, q_len, heads, two_d, device):
    t, want, want_lse = mla_problem(rng, q_len, heads, device)
    q_nope, q_pe = t["q"][..., :512], t["q"][..., 512:]
    table, info = t["table"], t["lengths"]
    if not two_d:
        table, info = list_view(table, info)
    if q_len == 1:  # the plain form has no q_len dimension
        q_nope, q_pe, want, want_lse = q_nope[:, 0], q_pe[:, 0], want[:, 0], want_lse[:, 0]
    o = torch.full(q_nope.shape, float("nan"), dtype=torch.bfloat16, device=device)
    got, lse = aiter.mla_gluon(
        q_nope, q_pe, t["kv"], o, table, info, 0.04, use_2d_view=two_d, min_kv_seq_len=99, return_lse=True
    )
    assert got is o
    np.testing.assert_allclose(numbers(o), want, rig.ATOL, rig.RTOL)
    np.testing.assert_allclose(numbers(lse), want_lse, atol=1e-3)
    _, none = aiter.mla_gluon(q_nope, q_pe, t["kv"], o, table, info, 0.08, use_2d_view=two_d, kv_scale=0.5)
    assert none is None
    np.testing.assert_allclose(numbers(o), want * 0.5, rig.ATOL, rig.RTOL)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("two_d", [True, False])
@pytest.mark.parametrize(
    "kv_format, pieces",
    [*itertools.product(rig.FLAT, ["whole", "k_pe", "inside", "behind"]), ("fp8_e4m3fn", "bytes")],
)
def test_mla_pools(rng, kv_format, pieces, two_d, device):
    """Every flat format, the RoPE part in the rows or apart, both views of the lists, three queries a sequence."""
    t, want, want_lse = mla_problem(rng, 3, 12, device, kv_format)
    kv, options = t["kv"], {}
    if pieces == "k_pe":
        kv, options = kv[:, :512].contiguous(), {"k_pe": kv[:, 512:]}
    elif pieces == "inside":  # the value starts at column 0 whatever the offset: these 64 components count twice
        pool = kv.view(torch.uint8 if kv.element_size() == 1 else torch.int16)
        pool[:, 512:] = pool[:, 128:192]
        expected = mla_reference(t, numbers(kv))
        pool[:, 512:] = 0
        kv, options, (want, want_lse) = pool.view(kv.dtype), {"kv_pe_offset": 128}, expected
    elif pieces == "behind":
        options = {"kv_pe_offset": 512}
    elif pieces == "bytes":
        kv = kv.view(torch.uint8)
    table, info = (t["table"], t["lengths"]) if two_d else list_view(t["table"], t["lengths"])
    wide = torch.full((4, 5, 12, 512), float("nan"), dtype=t["q"].dtype, device=device)
    o = wide[:, :3]  # its rows are no single stride apart
    got, lse = aiter.mla_gluon(
        t["q"][..., :512], t["q"][..., 512:], kv, o, table, info, 0.04, use_2d_view=two_d, kv_scale=t["kv_scale"],
        return_lse=True, **options,
    )  # fmt: skip
    assert got is o and wide[:, 3:].isnan().all() and lse.shape == (4, 3, 12)
    np.testing.assert_allclose(numbers(o), want, rig.ATOL, rig.RTOL)
    np.testing.assert_allclose(numbers(lse), want_lse, atol=1e-3)


def test_mla_without_pe(rng):
    case = rig.make_case(rng, "bf16")
    a = to_torch(case.arguments)
    o = torch.empty(3, 5, 512, dtype=torch.bfloat16)
    aiter.mla_gluon(
        a["q"], None, a["kv"], o, a["kv_indices"], a["kv_indptr"], 512**-0.5, has_pe=False, attn_sink=a["attn_sink"]
    )
    rig.assert_matches(case, numbers(o))


def test_mla_refuses(rng):
    t, _, _ = mla_problem(rng, 1, 4, "cpu")
    q_nope, q_pe, o = t["q"][:, 0, :, :512], t["q"][:, 0, :, 512:], torch.empty(4, 4, 512).bfloat16()
    first = (q_nope, q_pe, t["kv"], o, t["table"], t["lengths"], 0.04)
    narrow, pe = t["kv"][:, :512], t["kv"][:, 512:]
    bad = torch.full_like(t["lengths"], 1)
    for match, arguments, options in (
        ("rank: q_nope has rank 2", (q_nope[0], *first[1:]), {}),
        ("shape: q_nope", (q_pe, *first[1:]), {}),
        ("shape: q_pe", (first[0], None, *first[2:]), {}),
        ("dtype: q_pe", (first[0], q_pe.half(), *first[2:]), {}),
        ("rank: kv_c", (*first[:2], t["kv"][:, None], *first[3:]), {}),
        ("shape: kv_c", (*first[:2], narrow, *first[3:]), {}),
        ("shape: kv_c", first, {"k_pe": pe}),
        ("dtype: kv_c", (*first[:2], t["kv"].half(), *first[3:]), {}),
        ("dtype: k_pe", (*first[:2], narrow, *first[3:]), {"k_pe": pe.half()}),
        ("shape: k_pe", (*first[:2], narrow, *first[3:]), {"k_pe": pe[:, :32]}),
        ("range: kv_pe_offset is 513", first, {"kv_pe_offset": 513}),
        ("range: kv_pe_offset is -1", first, {"kv_pe_offset": -1}),
        ("range: kv_scale", first, {"kv_scale": float("nan")}),
        ("range: sm_scale", (*first[:6], float("inf")), {}),
        ("shape: o is", (*first[:3], o[:2], *first[4:]), {}),
        ("dtype: o is f32", (*first[:3], o.float(), *first[4:]), {}),
        ("rank: page_table has rank 2", first, {"use_2d_view": False}),
        ("rank: page_table has rank 1", (*first[:4], t["table"][0], *first[5:]), {}),
        ("dtype: page_table", (*first[:4], t["table"].long(), *first[5:]), {}),
        ("shape: page_table", (*first[:4], t["table"][:2], *first[5:]), {}),
        ("dtype: seq_info", (*first[:5], t["lengths"].long(), 0.04), {}),
        ("shape: seq_info", (*first[:5], t["lengths"][:3], 0.04), {}),
        ("shape: seq_info", (*first[:4], bad, bad, 0.04), {"use_2d_view": False}),
        ("unsupported: kv_c", (q_nope, None, narrow.to(torch.float8_e4m3fn), o, bad, bad, 0.04), {"has_pe": False}),
    ):
        with pytest.raises(pasa.Error, match=match):
            aiter.mla_gluon(*arguments, **options)


def test_compiled(rng):
    a = to_torch(rig.make_case(rng, "fp8_ds_mla").arguments)
    b = to_torch(rig.make_case(rng, "bf16", form="lengths").arguments)
    meta, _ = flash_mla.get_mla_metadata()
    lists, lengths = b["kv_indices"], b["kv_lengths"]
    mla = mla_problem(rng, 2, 16, "cpu", "fp8_e4m3fn")[0]
    mla_queries = mla["q"][..., :512], mla["q"][..., 512:]
    decode, records = (a["q"][:, None], a["kv"].unsqueeze(2), None, None, 512, meta), lists[:, None]
    for call in (
        lambda: aiter.pa_decode_sparse(a["q"], a["kv"], a["kv_indices"], a["kv_indptr"], a["attn_sink"], None),
        lambda: flash_mla.flash_mla_with_kvcache(*decode, is_fp8_kvcache=True, indices=records, topk_length=lengths),
        lambda: aiter.mla_gluon(
            *mla_queries,
            mla["kv"][:, :512],
            torch.empty_like(mla_queries[0]),
            mla["table"],
            mla["lengths"],
            0.04,
            mla["kv"][:, 512:],
            kv_scale=0.004,
            return_lse=True,
        ),
        lambda: flash_mla.flash_mla_sparse_fwd(b["q"], b["kv"].unsqueeze(1), records, 0.05, topk_length=lengths),
    ):
        torch.testing.assert_close(torch.compile(call, fullgraph=True)(), call())


def test_signatures():
    """The argument order callers rely on."""
    decode = list(inspect.signature(flash_mla.flash_mla_with_kvcache).parameters)
    assert (
        decode
        == (
            "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits softmax_scale causal "
            "is_fp8_kvcache indices attn_sink extra_k_cache extra_indices_in_kvcache topk_length extra_topk_length out"
        ).split()
    )
    prefill = list(inspect.signature(flash_mla.flash_mla_sparse_fwd).parameters)
    assert prefill == "q kv indices sm_scale d_v attn_sink topk_length".split()


def test_install():
    code = """
import sys, pasa.compat
pasa.compat.install()
import flash_mla
from flash_mla.flash_mla_interface import flash_mla_sparse_fwd
from aiter.ops.triton.attention.pa_decode_sparse import pa_decode_sparse
from aiter.ops.triton.attention.pa_prefill_sparse import pa_prefill_sparse
from aiter.ops.triton.gluon.mla_gluon import mla_gluon
import aiter.ops.triton.attention.pa_decode_sparse as module
assert flash_mla.flash_mla_with_kvcache.__module__ == "pasa.compat.flash_mla"
assert module.pa_decode_sparse is pa_decode_sparse
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
