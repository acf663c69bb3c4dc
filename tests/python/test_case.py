"""Case files: what is written, what is read back, and what the command line thinks of it."""

import json
import os
import struct
import subprocess

import numpy as np
import pasa
import pytest
import rig


def header_of(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length


@pytest.mark.parametrize("form", ["full", "lengths", "ragged"])
@pytest.mark.parametrize("kv_format", rig.FORMATS)
def test_round_trip(rng, tmp_path, kv_format, form):
    case = rig.make_case(rng, kv_format, form=form, extra_format=kv_format, fp16=kv_format == "f16", scale=0.05)
    path = tmp_path / "case.safetensors"
    pasa.save_case(path, **case.arguments, splits=3, return_lse=True)
    loaded, expected = pasa.load_case(path)
    assert not expected and loaded.keys() == case.arguments.keys()
    for name, value in case.arguments.items():
        np.testing.assert_array_equal(loaded[name], value)
    np.testing.assert_array_equal(pasa.attend(**loaded), pasa.attend(**case.arguments))
    header, begin = header_of(path)
    assert header.pop("__metadata__") == {
        "kv_format": kv_format, "extra_kv_format": kv_format, "softmax_scale": "0.05", "x_splits": "3"
    }  # fmt: skip
    assert begin % 8 == 0
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert ends[0][0] == 0 and all(a[1] == b[0] for a, b in zip(ends, ends[1:]))
    assert begin + ends[-1][1] == os.path.getsize(path)


@pytest.mark.parametrize("pe", ["whole", "apart", "before"])
@pytest.mark.parametrize("kv_format", rig.FLAT)
def test_mla_round_trip(rng, tmp_path, kv_format, pe):
    case = rig.make_mla_case(rng, kv_format, queries=2, pe=pe, kv_scale=0.003, form="ragged")
    out, lse = pasa.attend(**case.arguments, return_lse=True)
    path = tmp_path / "case.safetensors"
    pasa.save_case(path, **case.arguments, expected_lse=lse)
    loaded, _ = pasa.load_case(path)
    assert loaded.keys() == case.arguments.keys()
    for name, value in case.arguments.items():
        np.testing.assert_array_equal(loaded[name], value)
    np.testing.assert_array_equal(pasa.attend(**loaded), out)
    metadata = header_of(path)[0]["__metadata__"]
    assert metadata == {"kv_format": kv_format, "kv_scale": "0.003", "queries_per_list": "2"}
    if command := os.environ.get("PASA_COMMAND"):
        done = subprocess.run([command, "check", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_running_problem(rng, tmp_path):
    """Padded pools, head dimensions, long index buffers and signed bytes become what the file format asks for."""
    case = rig.make_case(rng, "fp8_ds_mla", form="ragged")
    want = pasa.attend(**case.arguments)
    blocks, page, record = case.arguments["kv"].shape
    padded = np.zeros((blocks, page * record + 8), np.int8)
    padded[:, :-8] = case.arguments["kv"].reshape(blocks, -1).view(np.int8)
    running = dict(case.arguments)
    running["kv"] = np.lib.stride_tricks.as_strided(
        padded, (blocks, page, 1, record), (padded.strides[0], record, record, 1)
    )
    running["kv_indices"] = np.concatenate((running["kv_indices"], np.full(10, 77, np.int32)))
    np.testing.assert_array_equal(pasa.attend(**running), want)
    path = tmp_path / "case.safetensors"
    pasa.save_case(path, **running, expected_out=want)
    loaded, expected = pasa.load_case(path)
    np.testing.assert_array_equal(loaded["kv"], case.arguments["kv"])
    np.testing.assert_array_equal(loaded["kv_indices"], case.arguments["kv_indices"])
    np.testing.assert_array_equal(expected["expected_out"], want)
    np.testing.assert_array_equal(pasa.attend(**loaded), want)


def test_no_file_for_a_bad_problem(rng, tmp_path):
    case = rig.make_case(rng, "bf16", form="lengths")
    path = tmp_path / "case.safetensors"
    with pytest.raises(pasa.Error, match="attn_sink"):
        pasa.save_case(path, **{**case.arguments, "attn_sink": np.zeros(9, np.float32)})
    with pytest.raises(pasa.Error, match="kv_lengths") as error:
        pasa.save_case(path, **{**case.arguments, "kv_lengths": np.array([0, 99, 0], np.int32)})
    assert error.value.category == "value"
    with pytest.raises(TypeError, match="attn_snik"):
        pasa.save_case(path, **case.arguments, attn_snik=1)
    assert not path.exists()


@pytest.mark.parametrize("damage", ["empty", "short", "length", "json", "range", "dtype", "name", "key"])
def test_damaged_files(rng, tmp_path, damage):
    path = tmp_path / "case.safetensors"
    pasa.save_case(path, **rig.make_case(rng, "bf16").arguments)
    data = path.read_bytes()
    header, begin = header_of(path)
    if damage == "empty":
        data = b""
    elif damage == "short":
        data = data[:-1]
    elif damage == "length":
        data = struct.pack("<Q", 2**60) + data[8:]
    elif damage == "json":
        data = data[:8] + b"]" + data[9:]
    else:
        if damage == "range":
            header["q"]["data_offsets"][1] += 2
        elif damage == "dtype":
            header["q"]["dtype"] = "F4"
        elif damage == "name":
            header["attn_snik"] = header.pop("attn_sink")
        else:
            header["__metadata__"]["kv_fromat"] = "bf16"
        text = json.dumps(header).encode()
        data = struct.pack("<Q", len(text)) + text + data[begin:]
    path.write_bytes(data)
    with pytest.raises(pasa.Error) as error:
        pasa.load_case(path)
    assert error.value.category == "value"


@pytest.mark.parametrize("kv_format", rig.FORMATS)
def test_command_line_agrees(rng, tmp_path, kv_format):
    command = os.environ.get("PASA_COMMAND")
    if not command:
        pytest.skip("PASA_COMMAND does not name the pasa command")
    case = rig.make_case(rng, kv_format, extra_format=kv_format, fp16=kv_format == "f16", width=70)
    out, lse = pasa.attend(**case.arguments, return_lse=True)
    path = tmp_path / "case.safetensors"
    expected = {} if kv_format == "f16" else {"expected_out": out}  # F16 is not a type of expected_out
    pasa.save_case(path, **case.arguments, **expected, expected_lse=lse)
    done = subprocess.run([command, "check", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
