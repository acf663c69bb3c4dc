"""The operator on NumPy arrays against a float64 reference: formats, lists, two sources, options, plans, partials."""

import threading

import numpy as np
import pasa
import pytest
import rig
from hypothesis import given, settings
from hypothesis import strategies as st

KERNELS = [kernel.name for kernel in pasa.kernels() if kernel.device == "cpu" and kernel.available]


def attend_poisoned(case, **options):
    """attend() into memory full of NaN."""
    q = case.arguments["q"]
    tokens, heads = q.shape[:2]
    outputs = {
        "out": rig.poison((tokens, heads, 512), q.dtype),
        "lse": rig.poison((tokens, heads), np.float32),
        "max_logits": rig.poison((tokens, heads), np.float32),
    }
    results = pasa.attend(**case.arguments, **outputs, **options)
    assert all(got is given for got, given in zip(results, outputs.values()))
    return results


@pytest.mark.parametrize("form", ["full", "lengths", "ragged"])
@pytest.mark.parametrize("kv_format", rig.FORMATS)
def test_format_and_list_form(rng, kv_format, form):
    case = rig.make_case(rng, kv_format, form=form, fp16=kv_format == "f16")
    rig.assert_matches(case, *attend_poisoned(case))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_format", rig.FORMATS)
def test_every_kernel(rng, kernel, kv_format):
    case = rig.make_case(rng, kv_format, tokens=2, heads=17, width=70, fp16=kv_format == "f16")
    refusals = {k.name: k.reason for k in pasa.kernels(**case.arguments, kernel=kernel)}
    if refusals[kernel]:
        pytest.skip(refusals[kernel])
    rig.assert_matches(case, *attend_poisoned(case, kernel=kernel))


@pytest.mark.parametrize(
    "forms", [("full", "ragged"), ("ragged", "lengths"), ("lengths", "full"), ("ragged", "ragged")]
)
@pytest.mark.parametrize(
    "formats",
    [("fp8_ds_mla", "fp8_ds_mla"), ("packed_bf16", "fp8_ds_mla"), ("bf16", "bf16"), ("fp8_e4m3fn", "fp8_e4m3fnuz"),
     ("fp8_v32", "bf16")],
)  # fmt: skip
def test_two_sources(rng, formats, forms):
    case = rig.make_case(rng, formats[0], extra_format=formats[1], form=forms[0], extra_form=forms[1])
    rig.assert_matches(case, *attend_poisoned(case))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    kv_format=st.sampled_from(rig.FORMATS),
    tokens=st.integers(0, 4),
    heads=st.integers(1, 20),
    width=st.sampled_from([0, 1, 2, 15, 16, 17, 63, 64, 65]),
    slots=st.integers(0, 80),
    page=st.sampled_from([1, 2, 7, 64]),
    form=st.sampled_from(["full", "lengths", "ragged"]),
    two=st.booleans(),
    sink=st.booleans(),
    scale=st.sampled_from([None, 0.0, 0.02, -0.03]),
    splits=st.sampled_from([None, 1, 2, 7, 256]),
)
def test_random_problems(seed, kv_format, tokens, heads, width, slots, page, form, two, sink, scale, splits):
    if slots == 0 and kv_format not in rig.FLAT:
        slots = 1  # a paged pool of no pages is tested below
    case = rig.make_case(
        np.random.default_rng(seed),
        kv_format,
        tokens=tokens,
        heads=heads,
        width=width,
        slots=slots,
        page=page,
        form=form,
        extra_format=kv_format if two else None,
        sink=sink,
        scale=scale,
        fp16=kv_format == "f16",
    )
    rig.assert_matches(case, *attend_poisoned(case, splits=splits))


@pytest.mark.parametrize("pe", ["whole", "apart", "before"])
@pytest.mark.parametrize("form", ["full", "lengths", "ragged"])
@pytest.mark.parametrize("kv_format", rig.FLAT)
def test_mla(rng, kv_format, form, pe):
    case = rig.make_mla_case(rng, kv_format, queries=4, pe=pe, form=form)
    rig.assert_matches(case, *attend_poisoned(case))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    kv_format=st.sampled_from(rig.FLAT),
    lists=st.integers(0, 3),
    queries=st.sampled_from([1, 2, 3, 8, 17]),
    heads=st.integers(1, 20),
    width=st.sampled_from([0, 1, 2, 7, 16, 65]),
    slots=st.integers(0, 80),
    form=st.sampled_from(["full", "lengths", "ragged"]),
    pe=st.sampled_from(["whole", "apart", "before"]),
    kv_scale=st.sampled_from([None, 0.003, -0.002]),
    sink=st.booleans(),
    splits=st.sampled_from([None, 1, 2, 7, 256]),
)
def test_random_mla_problems(seed, kv_format, lists, queries, heads, width, slots, form, pe, kv_scale, sink, splits):
    case = rig.make_mla_case(
        np.random.default_rng(seed), kv_format, lists=lists, queries=queries, pe=pe, kv_scale=kv_scale, heads=heads,
        width=width, slots=slots, form=form, sink=sink,
    )  # fmt: skip
    rig.assert_matches(case, *attend_poisoned(case, splits=splits))


def test_kv_scale_reaches_partials(rng):
    case = rig.make_mla_case(rng, "fp8_e4m3fn", queries=2, kv_scale=0.002, form="full", pe="apart")
    acc, m, l = pasa.attend(**case.arguments, splits=3, skip_reduce=True)
    out, lse = pasa.reduce(acc, m, l, attn_sink=case.arguments["attn_sink"], return_lse=True)
    np.testing.assert_allclose(out, case.reference()[0], rig.ATOL, rig.RTOL)
    np.testing.assert_allclose(lse, case.reference()[1], atol=1e-3, rtol=1e-3)


def test_a_plan_of_mla(rng):
    case = rig.make_mla_case(rng, "bf16", queries=2, pe="apart", kv_scale=0.5)
    plan = pasa.plan(**case.arguments)
    np.testing.assert_array_equal(plan.run(), pasa.attend(**case.arguments))
    np.testing.assert_array_equal(plan.run(kv_pe=case.arguments["kv_pe"].copy()), pasa.attend(**case.arguments))
    assert "serves it" in pasa.explain(**case.arguments)
    assert pasa.validate(**case.arguments) >= 0


def test_a_pool_of_no_pages(rng):
    case = rig.make_case(rng, "fp8_ds_mla", slots=4)
    case.arguments["kv"] = case.arguments["kv"][:0]
    out, lse = pasa.attend(**case.arguments, return_lse=True)
    assert (rig.values(out) == 0).all() and np.isneginf(lse).all()


def test_what_is_returned(rng):
    case = rig.make_case(rng, "bf16")
    out = pasa.attend(**case.arguments)
    assert isinstance(out, np.ndarray) and out.shape == (3, 5, 512) and out.dtype == np.uint16
    out, lse = pasa.attend(**case.arguments, return_lse=True)
    assert lse.shape == (3, 5) and lse.dtype == np.float32
    top = np.empty((3, 5), np.float32)
    assert len(pasa.attend(**case.arguments, max_logits=top)) == 2
    case = rig.make_case(rng, "fp8_ds_mla", fp16=True)
    assert pasa.attend(**case.arguments).dtype == np.float16


def test_bfloat16_of_ml_dtypes(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = rig.make_case(rng, "bf16")
    typed = {**case.arguments, "q": case.arguments["q"].view(ml_dtypes.bfloat16)}
    typed["kv"] = case.arguments["kv"].view(ml_dtypes.bfloat16)
    out = pasa.attend(**typed)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(out.view(np.uint16), pasa.attend(**case.arguments))
    fp8 = rig.make_case(rng, "fp8_e4m3fnuz")
    typed = {**fp8.arguments, "kv": fp8.arguments["kv"].view(ml_dtypes.float8_e4m3fnuz)}
    np.testing.assert_array_equal(pasa.attend(**typed), pasa.attend(**fp8.arguments))


def test_strided_tensors(rng):
    """Padded pools, rows and lists, and an out with gaps that must stay as they were."""
    case = rig.make_case(rng, "fp8_ds_mla", form="lengths")
    want = pasa.attend(**case.arguments)
    blocks, page, record = case.arguments["kv"].shape
    wide_pool = np.zeros((blocks, page * record + 64), np.uint8)
    wide_pool[:, : page * record] = case.arguments["kv"].reshape(blocks, -1)
    strides = (wide_pool.strides[0], record, 1)
    kv = np.lib.stride_tricks.as_strided(wide_pool, (blocks, page, record), strides)
    wide_q, wide_lists = rig.poison((6, 5, 600), np.uint16), np.full((3, 40), 5, np.int32)
    q, lists = wide_q[::2, :, 8:520], wide_lists[:, : case.arguments["kv_indices"].shape[1]]
    q[...], lists[...] = case.arguments["q"], case.arguments["kv_indices"]
    wide_out = np.full((3, 7, 520), 0x1234, np.uint16)
    pasa.attend(**{**case.arguments, "q": q, "kv": kv, "kv_indices": lists}, out=wide_out[:, 1:6, :512])
    np.testing.assert_array_equal(wide_out[:, 1:6, :512], want)
    wide_out[:, 1:6, :512] = 0x1234
    assert (wide_out == 0x1234).all()


def test_one_kv_head_dimension(rng):
    for kv_format, axis in (("bf16", 1), ("fp8_ds_mla", 2)):
        case = rig.make_case(rng, kv_format)
        headed = {**case.arguments, "kv": np.expand_dims(case.arguments["kv"], axis)}
        np.testing.assert_array_equal(pasa.attend(**headed), pasa.attend(**case.arguments))


def test_wide_keys(rng):
    case = rig.make_case(rng, "bf16", dim=576)
    rig.assert_matches(case, *attend_poisoned(case))


def test_sinks_and_empty_rows(rng):
    case = rig.make_case(rng, "bf16", heads=4, form="full")
    case.arguments["kv_lengths"] = np.array([19, 0, 19], np.int32)
    case.rows[0][1] = case.rows[0][1][:0]
    plain = pasa.attend(**{**case.arguments, "attn_sink": None})
    sinks = np.array([-np.inf, np.inf, np.nan, 0], np.float32)
    out, lse = pasa.attend(**{**case.arguments, "attn_sink": sinks}, return_lse=True)
    np.testing.assert_array_equal(out[:, 0], plain[:, 0])
    assert (out[:, 1] == 0).all()
    assert np.isnan(rig.values(out)[[0, 2], 2]).all() and (out[1] == 0).all()
    np.testing.assert_allclose(lse, case.reference()[1], atol=1e-3)


def test_nan(rng):
    case = rig.make_case(rng, "bf16", tokens=1, width=8, form="full")
    slot = case.arguments["kv_indices"][0, 0] = 3
    case.arguments["kv"] = case.arguments["kv"].copy()
    case.arguments["kv"][slot, 7] = 0x7FC0
    assert np.isnan(rig.values(pasa.attend(**case.arguments))).any()
    assert np.isfinite(rig.values(pasa.attend(**case.arguments, nan_to_zero=True))).all()
    case.arguments["kv_indices"][case.arguments["kv_indices"] == 3] = -1  # now nobody selects it
    assert np.isfinite(rig.values(pasa.attend(**case.arguments))).all()


def test_hints_change_nothing(rng):
    case = rig.make_case(rng, "fp8_ds_mla")
    want = pasa.attend(**case.arguments)
    for hint in ({"no_invalid": True}, {"block_h": 7}):
        np.testing.assert_allclose(rig.values(pasa.attend(**case.arguments, **hint)), rig.values(want), 1e-2, 1e-2)


@pytest.mark.parametrize("splits", [2, 3, 16])
def test_partials_and_reduce(rng, splits):
    case = rig.make_case(rng, "fp8_ds_mla", extra_format="packed_bf16")
    sink = case.arguments["attn_sink"]
    partials = pasa.attend(**case.arguments, splits=splits, skip_reduce=True)
    assert isinstance(partials, pasa.Partials)
    assert [part.shape for part in partials] == [(3, splits, 5, 512), (3, splits, 5), (3, splits, 5)]
    out, lse = pasa.reduce(*partials, attn_sink=sink, return_lse=True)
    assert out.dtype == np.float32
    rig.assert_matches(case, out, lse)
    out = pasa.reduce(*partials, attn_sink=sink, dtype=np.uint16)
    rig.assert_matches(case, out)
    into = rig.poison((3, 5, 512), np.float16)
    assert pasa.reduce(*partials, attn_sink=sink, out=into) is into
    rig.assert_matches(case, into)


def test_one_split_has_no_partials(rng):
    case = rig.make_case(rng, "bf16")
    out = pasa.attend(**case.arguments, splits=1, skip_reduce=True)
    rig.assert_matches(case, out)


def test_plan(rng):
    case = rig.make_case(rng, "fp8_ds_mla", extra_format="fp8_ds_mla")
    plan = pasa.plan(**case.arguments, return_lse=True)
    assert plan.kernel in [k.name for k in pasa.kernels()] and plan.kernel in plan.summary
    out, lse = plan.run()
    rig.assert_matches(case, out, lse)
    # The next layer: other contents, other sizes of pools and lists, own output.
    other = rig.make_case(rng, "fp8_ds_mla", extra_format="fp8_ds_mla", slots=90)
    tensors = {name: value for name, value in other.arguments.items() if isinstance(value, np.ndarray)}
    mine = rig.poison(out.shape, out.dtype)
    got, lse = plan.run(**tensors, out=mine)
    assert got is mine
    rig.assert_matches(other, got, lse)
    # Unbinding: without a sink, without lse.
    other.arguments["attn_sink"] = None
    rig.assert_matches(other, plan.run(attn_sink=None, lse=None))


def test_plan_refuses_another_shape(rng):
    plan = pasa.plan(**rig.make_case(rng, "bf16").arguments)
    with pytest.raises(pasa.Error, match="plan was made for") as error:
        plan.run(**{k: v for k, v in rig.make_case(rng, "bf16", tokens=4).arguments.items() if k == "q" or "ind" in k},
                 out=np.zeros((4, 5, 512), np.uint16))  # fmt: skip
    assert error.value.category == "combination"
    with pytest.raises(TypeError, match="kw_indices"):
        plan.run(kw_indices=np.zeros(3, np.int32))


def test_workspace_of_the_caller(rng):
    case = rig.make_case(rng, "fp8_ds_mla")
    plan = pasa.plan(**case.arguments)
    memory = np.full(plan.workspace_bytes + 512, 0xA5, np.uint8)
    start = -memory.ctypes.data % 256
    workspace = memory[start : start + plan.workspace_bytes]
    rig.assert_matches(case, pasa.attend(**case.arguments, workspace=workspace))
    assert (memory[start + plan.workspace_bytes :] == 0xA5).all() and (memory[:start] == 0xA5).all()
    if plan.workspace_bytes:
        with pytest.raises(pasa.Error, match="workspace") as error:
            pasa.attend(**case.arguments, workspace=workspace[:-1])
        assert error.value.category == "memory"


def test_threads(rng):
    """Eight threads at once, each its own problem; the structs are per thread, the plans shared."""
    cases = [rig.make_case(rng, rig.FORMATS[i % 7], fp16=i % 7 == 1) for i in range(8)]
    wants = [pasa.attend(**case.arguments, threads=1) for case in cases]
    differences = []

    def work(case, want):
        for _ in range(20):
            if not np.array_equal(pasa.attend(**case.arguments, threads=1), want):
                differences.append(case)

    workers = [threading.Thread(target=work, args=pair) for pair in zip(cases, wants)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not differences


def test_kernels_and_explain(rng):
    case = rig.make_case(rng, "f16", fp16=True)
    everything = pasa.kernels()
    assert everything[-1].name == "reference" and everything[-1].available
    answers = pasa.kernels(**case.arguments)
    assert [kernel.name for kernel in answers] == [kernel.name for kernel in everything]
    assert all(kernel.accepts == (kernel.reason == "") for kernel in answers)
    text = pasa.explain(**case.arguments)
    assert text.startswith(pasa.plan(**case.arguments).summary)
    assert all(kernel.name in text for kernel in everything)
    forced = pasa.explain(**case.arguments, kernel="reference")
    assert forced.startswith("reference")


def test_validate(rng):
    case = rig.make_case(rng, "bf16", form="ragged")
    skipped = sum(int(((row < 0) | (row >= 60)).sum()) for row in case.rows[0])
    assert pasa.validate(**case.arguments) == skipped
    broken = {**case.arguments, "kv_indptr": case.arguments["kv_indptr"] + np.int32(1)}
    with pytest.raises(pasa.Error, match="kv_indptr") as error:
        pasa.validate(**broken)
    assert error.value.category == "value"
    pasa.attend(**broken)  # memory-safe: clamped
