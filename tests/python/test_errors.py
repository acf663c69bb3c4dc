"""Bad arguments: an exception that names the argument and its category, before any output byte changes."""

import pickle

import numpy as np
import pasa
import pytest
import rig


def problem(kv_format="bf16", **options):
    return rig.make_case(np.random.default_rng(1), kv_format, **options).arguments


def refused(category, words, arguments, **options):
    q = arguments["q"]
    out = options.get("out", np.full((*np.shape(q)[:2], 512), 0x1234, getattr(q, "dtype", np.uint16)))
    before = np.array(out, copy=True)
    with pytest.raises(pasa.Error) as error:
        pasa.attend(**{**arguments, "out": out, **options})
    assert error.value.category == category, error.value
    assert str(error.value).startswith(f"{category}: {words}"), error.value
    assert isinstance(error.value, RuntimeError) and error.value.status == pasa.Status[category.upper()]
    np.testing.assert_array_equal(out, before)


WRONG = {
    # name: (category, start of the text, changes to a bf16 problem with rectangular lists)
    "q f32": ("dtype", "q", lambda a: {"q": rig.from_bf16(a["q"])}),
    "q f64": ("dtype", "q is float64", lambda a: {"q": a["q"].astype(np.float64)}),
    "q f16": ("dtype", "kv", lambda a: {"q": a["q"].view(np.float16)}),
    "q list": ("dtype", "q is list", lambda a: {"q": a["q"].tolist(), "out": None}),
    "q 2-D": ("rank", "q", lambda a: {"q": a["q"][0]}),
    "q width": ("shape", "q", lambda a: {"q": a["q"][..., :448].copy()}),
    "q strided": ("stride", "q", lambda a: {"q": np.repeat(a["q"], 2, axis=2)[..., ::2]}),
    "q scalar": ("rank", "q has rank 0", lambda a: {"q": np.array(1, np.uint16), "out": None}),
    "kv rank": ("rank", "kv", lambda a: {"kv": a["kv"].reshape(-1)}),
    "kv width": ("shape", "kv", lambda a: {"kv": a["kv"][:, :448].copy()}),
    "kv strided": ("stride", "kv", lambda a: {"kv": np.repeat(a["kv"], 2, axis=1)[:, ::2]}),
    "kv None": ("combination", "kv", lambda a: {"kv": None}),
    "kv of five dimensions": ("rank", "kv has rank 5", lambda a: {"kv": a["kv"][None, None, None]}),
    "format": ("range", "kv_format is 'fp4'", lambda a: {"kv_format": "fp4"}),
    "format None": ("range", "kv_format", lambda a: {"kv_format": None}),
    "indices i64": ("dtype", "kv_indices is i64", lambda a: {"kv_indices": a["kv_indices"].astype(np.int64)}),
    "indices u32": ("dtype", "kv_indices is uint32", lambda a: {"kv_indices": a["kv_indices"].view(np.uint32)}),
    "indices float": ("dtype", "kv_indices", lambda a: {"kv_indices": a["kv_indices"].astype(np.float32)}),
    "indices strided": ("stride", "kv_indices", lambda a: {"kv_indices": np.repeat(a["kv_indices"], 2, axis=1)[:, ::2]}),
    "indices big-endian": ("dtype", "kv_indices", lambda a: {"kv_indices": a["kv_indices"].astype(">i4")}),
    "indices rows": ("shape", "kv_indices", lambda a: {"kv_indices": a["kv_indices"][:2]}),
    "indices None": ("combination", "kv_indices", lambda a: {"kv_indices": None}),
    "ragged without indptr": ("combination", "kv_indptr", lambda a: {"kv_indices": a["kv_indices"].reshape(-1)}),
    "indptr with rectangular": ("combination", "kv_indptr", lambda a: {"kv_indptr": np.zeros(4, np.int32)}),
    "lengths i64": ("dtype", "kv_lengths", lambda a: {"kv_lengths": np.zeros(3, np.int64)}),
    "lengths shape": ("shape", "kv_lengths", lambda a: {"kv_lengths": np.zeros(4, np.int32)}),
    "scales with bf16": ("combination", "kv_scales", lambda a: {"kv_scales": np.zeros((60, 8), np.float32)}),
    "sink f64": ("dtype", "attn_sink", lambda a: {"attn_sink": np.zeros(5)}),
    "sink shape": ("shape", "attn_sink", lambda a: {"attn_sink": np.zeros(6, np.float32)}),
    "sink strided": ("stride", "attn_sink", lambda a: {"attn_sink": np.zeros(10, np.float32)[::2]}),
    "extra kv alone": ("combination", "extra_indices", lambda a: {"extra_kv": a["kv"]}),
    "extra indices alone": ("combination", "extra_indices", lambda a: {"extra_indices": a["kv_indices"]}),
    "extra format alone": ("combination", "extra_kv_format", lambda a: {"extra_kv_format": "bf16"}),
    "extra lengths alone": ("combination", "extra_lengths", lambda a: {"extra_lengths": np.zeros(3, np.int32)}),
    "scale nan": ("range", "softmax_scale", lambda a: {"softmax_scale": float("nan")}),
    "scale inf": ("range", "softmax_scale", lambda a: {"softmax_scale": float("inf")}),
    "splits 0": ("range", "splits", lambda a: {"splits": 0}),
    "splits 257": ("range", "kv_splits", lambda a: {"splits": 257}),
    "splits huge": ("range", "splits", lambda a: {"splits": 2**40}),
    "block_h": ("range", "block_h", lambda a: {"block_h": 0}),
    "threads": ("range", "threads", lambda a: {"threads": -1}),
    "kernel": ("unsupported", "kernel is 'gpu'", lambda a: {"kernel": "gpu"}),
    "out dtype": ("dtype", "out", lambda a: {"out": np.zeros((3, 5, 512), np.float32)}),
    "out shape": ("shape", "out", lambda a: {"out": np.zeros((3, 5, 448), np.uint16)}),
    "out strided": ("stride", "out", lambda a: {"out": np.zeros((3, 5, 1024), np.uint16)[..., ::2]}),
    "out overlaps q": ("combination", "out overlaps q", lambda a: {"out": a["q"]}),
    "lse dtype": ("dtype", "lse", lambda a: {"lse": np.zeros((3, 5))}),
    "lse shape": ("shape", "lse", lambda a: {"lse": np.zeros((5, 3), np.float32)}),
    "max_logits shape": ("shape", "max_logits", lambda a: {"max_logits": np.zeros((5, 3), np.float32)}),
    "odd strides": ("stride", "lse has strides", lambda a: {"lse": np.zeros((3, 21), np.uint8)[:, :20].view(np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    category, words, change = WRONG[name]
    arguments = problem(form="full")
    refused(category, words, arguments, **change(arguments))


MLA_WRONG = {
    "pe dtype": ("dtype", "kv_pe is f16", lambda a: {"kv_pe": a["kv_pe"].view(np.float16)}),
    "pe rank": ("rank", "kv_pe has rank 1", lambda a: {"kv_pe": a["kv_pe"][0]}),
    "pe width": ("shape", "kv_pe is [60, 32]", lambda a: {"kv_pe": a["kv_pe"][:, :32]}),
    "pe slots": ("shape", "kv_pe is [59, 64]", lambda a: {"kv_pe": a["kv_pe"][1:]}),
    "pe strided": ("stride", "kv_pe", lambda a: {"kv_pe": np.repeat(a["kv_pe"], 2, axis=1)[:, ::2]}),
    "pe missing": ("shape", "kv is [60, 512]", lambda a: {"kv_pe": None}),
    "pe twice": ("shape", "kv is [60, 576]", lambda a: {"kv": np.zeros((60, 576), np.uint16)}),
    "extra pe alone": ("combination", "extra_kv_pe", lambda a: {"extra_kv_pe": a["kv_pe"]}),
    "out overlaps pe": ("combination", "out overlaps kv_pe", lambda a: {"kv_pe": a["out"].reshape(-1)[:3840].reshape(60, 64)}),
    "kv_scale 0": ("range", "kv_scale is 0", lambda a: {"kv_scale": 0.0}),
    "kv_scale nan": ("range", "kv_scale", lambda a: {"kv_scale": float("nan")}),
    "kv_scale inf": ("range", "kv_scale", lambda a: {"kv_scale": float("-inf")}),
    "queries 0": ("range", "queries_per_list is 0", lambda a: {"queries_per_list": 0}),
    "queries": ("shape", "q is [6, 5, 576]", lambda a: {"queries_per_list": 4}),
    "lists": ("shape", "kv_indices is [3, 19]", lambda a: {"queries_per_list": 6, "kv_lengths": None}),
    "lengths": ("shape", "kv_lengths is [6]", lambda a: {"kv_lengths": np.zeros(6, np.int32)}),
    "queries and extra": ("combination", "queries_per_list is 2", lambda a: {
        "extra_kv": a["kv"], "extra_kv_pe": a["kv_pe"], "extra_indices": a["kv_indices"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", MLA_WRONG)
def test_wrong_mla(name):
    category, words, change = MLA_WRONG[name]
    arguments = rig.make_mla_case(np.random.default_rng(1), "bf16", queries=2, pe="apart", form="lengths").arguments
    out = np.full((6, 5, 512), 0x1234, np.uint16)
    refused(category, words, arguments, out=out, **change({**arguments, "out": out}))


def test_pe_needs_flat_keys_of_576():
    pe = np.zeros((60, 64), np.uint16)
    refused("combination", "kv_pe is given", problem("bf16"), kv_pe=pe)
    refused("combination", "kv_pe is given", problem("fp8_v32"), kv_pe=pe.view(np.uint8)[:, :64])


@pytest.mark.parametrize("kv_format", ["fp8_ds_mla", "fp8_v32", "packed_bf16"])
def test_record_size(kv_format):
    arguments = problem(kv_format)
    refused("shape", "kv is", arguments, kv=np.ascontiguousarray(arguments["kv"][..., :-8]))
    refused("rank", "kv has", arguments, kv=arguments["kv"].reshape(len(arguments["kv"]), -1))


def test_fp8():
    arguments = problem("fp8_e4m3fn")
    refused("combination", "kv_scales is absent", arguments, kv_scales=None)
    refused("shape", "kv_scales is [60, 4]", arguments, kv_scales=np.zeros((60, 4), np.float32))
    refused("dtype", "kv_scales", arguments, kv_scales=np.zeros((60, 8)))
    aligned = np.zeros(4 * 4 * 584 + 1, np.uint8)
    refused("alignment", "kv is at address", problem("fp8_ds_mla"), kv=aligned[1:].reshape(4, 4, 584))


def test_read_only_output():
    arguments = problem()
    out = np.zeros((3, 5, 512), np.uint16)
    out.flags.writeable = False
    refused("combination", "out is read-only", arguments, out=out)
    plan = pasa.plan(**arguments)
    with pytest.raises(pasa.Error, match="out is read-only"):
        plan.run(out=out)
    arguments["kv"].flags.writeable = False  # inputs may be read-only
    pasa.attend(**arguments)


def test_partials_exclude_outputs():
    refused("combination", "out is given", problem("bf16"), splits=4, skip_reduce=True)


def test_errors_travel_between_processes():
    with pytest.raises(pasa.Error) as error:
        pasa.attend(**problem(), splits=0)
    copy = pickle.loads(pickle.dumps(error.value))
    assert (copy.category, str(copy)) == ("range", str(error.value))


def test_misspelt_argument():
    with pytest.raises(TypeError, match="attn_snik"):
        pasa.attend(**problem(), attn_snik=None)
    with pytest.raises(TypeError, match="attn_snik"):
        pasa.plan(**problem(), attn_snik=None)


def test_reduce():
    acc, m, l = np.zeros((2, 3, 4, 512), np.float32), np.zeros((2, 3, 4), np.float32), np.ones((2, 3, 4), np.float32)
    for category, name, change in (
        ("dtype", "acc", {"acc": acc.astype(np.float64)}),
        ("rank", "acc", {"acc": acc[0]}),
        ("shape", "m", {"m": m[:, :2]}),
        ("stride", "l", {"l": np.zeros((2, 3, 8), np.float32)[..., ::2]}),
        ("shape", "attn_sink", {"attn_sink": np.zeros(5, np.float32)}),
        ("dtype", "out", {"out": np.zeros((2, 4, 512), np.int32)}),
        ("shape", "lse", {"lse": np.zeros((4, 2), np.float32)}),
    ):
        with pytest.raises(pasa.Error) as error:
            pasa.reduce(**{"acc": acc, "m": m, "l": l, **change})
        assert str(error.value).startswith(f"{category}: {name} "), error.value
