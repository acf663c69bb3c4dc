"""The operator on torch tensors: same results as NumPy, what the compiler sees, streams and devices where there are."""

import subprocess
import sys

import numpy as np
import pasa
import pytest
import rig

torch = pytest.importorskip("torch")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]


def to_torch(arguments, device="cpu", typed_fp8=False):
    """The same problem as torch tensors: uint16 is bf16, fp8 pools are bytes or typed."""
    result = {}
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            tensor = torch.from_numpy(np.ascontiguousarray(value).view(np.int16) if value.dtype == np.uint16 else value)
            tensor = tensor.view(torch.bfloat16) if value.dtype == np.uint16 else tensor
            if typed_fp8 and value.dtype == np.uint8:
                fnuz = arguments["extra_kv_format" if name == "extra_kv" else "kv_format"] == "fp8_e4m3fnuz"
                tensor = tensor.view(torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn)
            value = tensor.to(device)
        result[name] = value
    return result


def bits(tensor):
    return tensor.cpu().view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("kv_format", rig.FORMATS)
def test_formats(rng, kv_format, typed, device):
    case = rig.make_case(rng, kv_format, extra_format=kv_format, fp16=kv_format == "f16")
    arguments = to_torch(case.arguments, device, typed)
    out, lse = pasa.attend(**arguments, return_lse=True)
    assert out.device == arguments["q"].device and out.dtype == arguments["q"].dtype and lse.dtype == torch.float32
    rig.assert_matches(case, out.float().cpu().numpy(), lse.cpu().numpy())
    if device == "cpu":
        want = pasa.attend(**case.arguments)
        np.testing.assert_array_equal(bits(out), want.view(np.uint16))


@pytest.mark.parametrize("device", DEVICES)
def test_strided_tensors_and_outputs(rng, device):
    case = rig.make_case(rng, "bf16", form="lengths")
    arguments = to_torch(case.arguments, device)
    want = pasa.attend(**arguments)
    q = torch.zeros(5, 3, 600, dtype=torch.bfloat16, device=device)
    q[:, :, 8:520] = arguments["q"].transpose(0, 1)
    out = torch.full((3, 5, 520), 7.0, dtype=torch.bfloat16, device=device)
    got = pasa.attend(**{**arguments, "q": q[:, :, 8:520].transpose(0, 1)}, out=out[..., :512])
    assert got.data_ptr() == out.data_ptr() and torch.equal(out[..., :512], want) and (out[..., 512:] == 7).all()


@pytest.mark.parametrize("device", DEVICES)
def test_plan_and_partials(rng, device):
    case = rig.make_case(rng, "fp8_ds_mla", extra_format="fp8_ds_mla")
    arguments = to_torch(case.arguments, device)
    plan = pasa.plan(**arguments, return_lse=True)
    for _ in range(2):
        plan.run()[0].fill_(float("nan"))
        out, lse = plan.run()
        rig.assert_matches(case, out.float().cpu().numpy(), lse.cpu().numpy())
    partials = pasa.attend(**arguments, splits=3, skip_reduce=True)
    out = pasa.reduce(*partials, attn_sink=arguments["attn_sink"], dtype=torch.bfloat16)
    rig.assert_matches(case, out.float().cpu().numpy())
    assert pasa.validate(**arguments) == pasa.validate(**case.arguments)


@pytest.mark.parametrize("device", DEVICES)
def test_save_case(rng, tmp_path, device):
    case = rig.make_case(rng, "fp8_ds_mla")
    pasa.save_case(tmp_path / "torch", **to_torch(case.arguments, device))
    pasa.save_case(tmp_path / "numpy", **case.arguments)
    assert (tmp_path / "torch").read_bytes() == (tmp_path / "numpy").read_bytes()


WRONG = {
    "q f32": ("dtype", "q", lambda a: {"q": a["q"].float()}),
    "q rank 1": ("rank", "q has rank 1", lambda a: {"q": a["q"].reshape(-1)}),
    "q on meta": ("device", "q is on meta", lambda a: {"q": a["q"].to("meta")}),
    "kv on meta": ("device", "kv is on meta", lambda a: {"kv": a["kv"].to("meta")}),
    "kv of NumPy": ("dtype", "kv is ndarray", lambda a: {"kv": a["kv"].float().numpy()}),
    "sink f64": ("dtype", "attn_sink is torch.float64", lambda a: {"attn_sink": a["attn_sink"].double()}),
    "indices i64": ("dtype", "kv_indices is i64", lambda a: {"kv_indices": a["kv_indices"].long()}),
    "indices strided": ("stride", "kv_indices", lambda a: {"kv_indices": a["kv_indices"].repeat_interleave(2, 1)[:, ::2]}),
    "lengths scalar": ("rank", "kv_lengths has rank 0", lambda a: {"kv_lengths": torch.tensor(3, dtype=torch.int32)}),
    "sink sparse": ("stride", "attn_sink is a torch.sparse_coo", lambda a: {"attn_sink": a["attn_sink"].to_sparse()}),
    "out overlaps q": ("combination", "out overlaps q", lambda a: {"out": a["q"]}),
    "out expanded": ("stride", "out", lambda a: {"out": torch.zeros(1, 5, 512).bfloat16().expand(3, 5, 512)}),
    "workspace": ("dtype", "workspace is ndarray", lambda a: {"workspace": np.zeros(1 << 20, np.uint8)}),
    "workspace with gaps": ("stride", "workspace", lambda a: {"workspace": torch.zeros(8, 8)[:, :4]}),
    "workspace on meta": ("device", "workspace is on meta", lambda a: {"workspace": torch.zeros(8, device="meta")}),
    "format": ("range", "kv_format", lambda a: {"kv_format": "fp9"}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong(rng, name):
    category, words, change = WRONG[name]
    arguments = to_torch(rig.make_case(rng, "bf16", form="full").arguments)
    spoilt = {**arguments, **change(arguments)}
    for _ in range(2):
        with pytest.raises(pasa.Error) as error:
            pasa.attend(**spoilt)
        assert error.value.category == category and str(error.value).startswith(f"{category}: {words}"), error.value
        pasa.attend(**arguments)  # the second time, a good call has been prepared


def test_calls_are_told_apart(rng):
    """Calls of equal values whose tensors differ, in turn: more kinds of them than are tried first."""
    cases = [
        rig.make_case(rng, "bf16", tokens=t, form="full", sink=sink) for t in range(1, 5) for sink in (True, False)
    ]
    for case in (*cases, *reversed(cases), *cases[:2] * 3):
        arguments = to_torch(case.arguments)
        out = torch.full_like(arguments["q"], float("nan"))
        assert pasa.attend(**arguments, out=out) is out
        rig.assert_matches(case, out.float().numpy())
        rig.assert_matches(case, pasa.attend(**arguments).float().numpy())


def test_a_tensor_that_changes_is_seen(rng):
    """The same objects, with another shape or strides."""
    case = rig.make_case(rng, "bf16", heads=3, tokens=3, form="full", sink=False)
    arguments = to_torch(case.arguments)
    q = arguments["q"] = arguments["q"].clone()
    rig.assert_matches(case, pasa.attend(**arguments).float().numpy())
    q.transpose_(0, 1)  # three rows of three heads, as before
    case.arguments["q"] = np.ascontiguousarray(case.arguments["q"].transpose(1, 0, 2))
    rig.assert_matches(case, pasa.attend(**arguments).float().numpy())
    q.resize_(2, 3, 512)
    with pytest.raises(pasa.Error, match="shape: kv_indices"):
        pasa.attend(**arguments)


def test_parameters_and_gradients(rng):
    case = rig.make_case(rng, "bf16")
    arguments = to_torch(case.arguments)
    for q in (arguments["q"], torch.nn.Parameter(arguments["q"]), arguments["q"].clone().requires_grad_()):
        for _ in range(2):
            out = pasa.attend(**{**arguments, "q": q})
            rig.assert_matches(case, out.float().numpy())
            assert not out.requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_without_dlpack(rng, monkeypatch, device):
    """As before torch 2.10."""
    import pasa._call
    import pasa._tensor

    case = rig.make_case(rng, "fp8_ds_mla", extra_format="bf16")
    arguments = to_torch(case.arguments, device)
    monkeypatch.setattr(pasa._tensor.arrays_of(arguments["q"], "q"), "functions", None)
    monkeypatch.setattr(pasa._call, "_this_thread", pasa._call._ThisThread())
    plan = pasa.plan(**arguments)
    for _ in range(2):
        rig.assert_matches(case, pasa.attend(**arguments).float().cpu().numpy())
        rig.assert_matches(case, plan.run(q=arguments["q"].clone()).float().cpu().numpy())
    assert not pasa._call._this_thread.latest


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch shows no tensors to C code")
def test_repeated_calls_take_the_short_way(rng, monkeypatch):
    import pasa._call

    arguments = to_torch(rig.make_case(rng, "fp8_ds_mla", extra_format="fp8_ds_mla").arguments)
    plan, want = pasa.plan(**arguments), pasa.attend(**arguments)
    pasa.attend(**arguments, out=torch.zeros_like(want))
    monkeypatch.setattr(pasa._call, "_find", None)
    monkeypatch.setattr(pasa._call.Plan, "_describe_anew", None)
    assert torch.equal(pasa.attend(**{**arguments, "q": arguments["q"].clone()}), want)
    assert torch.equal(pasa.attend(**arguments, out=torch.zeros_like(want)), want)
    assert torch.equal(plan.run(q=arguments["q"].clone(), kv=arguments["kv"].clone()), want)


@cuda
def test_mixed_devices(rng):
    arguments = to_torch(rig.make_case(rng, "bf16").arguments, "cuda")
    for name in ("kv", "kv_indices", "kv_indptr", "attn_sink"):
        with pytest.raises(pasa.Error, match=f"device: {name} is on cpu"):
            pasa.attend(**{**arguments, name: arguments[name].cpu()})
    with pytest.raises(pasa.Error, match="device: kv is on cuda"):
        pasa.attend(**{**arguments, "q": arguments["q"].cpu()})


@cuda
@pytest.mark.parametrize("prepared", [False, True])
def test_current_stream_and_graph(rng, prepared):
    """Work is ordered on the current stream, and a captured call replays on new contents."""
    case = rig.make_case(rng, "fp8_ds_mla", form="lengths", extra_format="fp8_ds_mla")
    arguments = to_torch(case.arguments, "cuda")
    q, other = arguments["q"], arguments["q"].flip(1)
    want, out = pasa.attend(**{**arguments, "q": other}), torch.zeros_like(q)
    run = pasa.plan(**arguments, out=out).run if prepared else lambda: pasa.attend(**arguments, out=out)
    run()
    q.copy_(q.clone())  # all kernels are loaded now: loading one may wait for the device
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        q.copy_(other)
        run()  # reads the new q only if it is behind the copy in this stream
        assert not torch.cuda.current_stream().record_event().query(), "the call waited for the device"
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    arguments["kv_lengths"].clamp_(max=2)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, pasa.attend(**arguments))


@cuda
@pytest.mark.parametrize("heads", [5, 64, 128])
def test_calls_in_a_row(rng, heads):
    """Each reads what the one before it wrote, and writes what that one read: launches may overlap, the work must not."""
    a = to_torch(
        rig.make_case(rng, "fp8_ds_mla", heads=heads, tokens=40, slots=200, width=150, form="lengths").arguments, "cuda"
    )
    results = []
    for wait in (True, False):
        buffers = [a["q"].clone(), torch.empty_like(a["q"])]
        for turn in range(30):
            pasa.attend(**{**a, "q": buffers[turn % 2]}, out=buffers[1 - turn % 2])
            if turn % 5 == 0:
                buffers[1 - turn % 2].mul_(4)
            if wait:
                torch.cuda.synchronize()
        results.append(buffers[0])
    assert torch.equal(*results)


def call(q, kv, indices, sink, lengths):
    out, lse = pasa.attend(q * 1, kv, indices, kv_format="bf16", kv_lengths=lengths, attn_sink=sink, return_lse=True)
    return out + 1, lse


@pytest.fixture(scope="module")
def compiled():
    """Compiled with symbolic sizes, once."""
    return torch.compile(call, fullgraph=True, dynamic=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [2, 5])
def test_compiled(rng, compiled, tokens, device):
    a = to_torch(rig.make_case(rng, "bf16", tokens=tokens, form="lengths").arguments, device)
    tensors = a["q"], a["kv"], a["kv_indices"], a["attn_sink"], a["kv_lengths"]
    for got, want in zip(compiled(*tensors), call(*tensors)):
        torch.testing.assert_close(got, want)


def test_operator_is_well_defined(rng):
    import pasa._torch  # registers it

    a = to_torch(rig.make_case(rng, "fp8_ds_mla", extra_format="fp8_ds_mla").arguments)
    a |= {"out": torch.empty(3, 5, 512, dtype=torch.bfloat16), "lse": torch.empty(3, 5)}
    operator = torch.ops.pasa.attend.default
    kinds = {argument.name: str(argument.type) for argument in operator._schema.arguments}
    arguments = [a.get(name, False if kind == "bool" else None) for name, kind in kinds.items()]
    torch.library.opcheck(operator, tuple(arguments))


def test_fake_tensors(rng):
    from torch._subclasses.fake_tensor import FakeTensorMode

    a = to_torch(rig.make_case(rng, "bf16").arguments)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in a.items()}
        out, lse = pasa.attend(**fake, return_lse=True)
        assert out.shape == (3, 5, 512) and out.dtype == torch.bfloat16 and lse.shape == (3, 5)
        with pytest.raises(pasa.Error, match="q is traced by torch"):
            pasa.plan(**fake)


def test_import_brings_no_torch():
    code = "import sys, pasa; assert 'torch' not in sys.modules; print(pasa.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == pasa.__version__, done.stderr
