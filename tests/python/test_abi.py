"""The ctypes structs against the C header, by asking a C compiler for every size and offset."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from pasa import _native, _problem, ops

INCLUDE = pathlib.Path(__file__).parents[2] / "include"
HEADERS = [INCLUDE / "pasa" / "pasa.h", INCLUDE / "pasa" / "ops.h"]
TEXT = re.sub(r"/\*.*?\*/", "", "".join(header.read_text() for header in HEADERS), flags=re.S)
STRUCTS = {
    "pasa_tensor": _native.Tensor,
    "pasa_source": _native.Source,
    "pasa_problem": _native.Problem,
    "pasa_reduce_problem": _native.ReduceProblem,
    "pasa_kernel_info": _native.KernelInfo,
    "pasa_cache": ops.Cache,
    "pasa_paging": ops.Paging,
    "pasa_lists": ops.ListsStruct,
    "pasa_queries": ops.Queries,
    "pasa_cache_write_args": ops.CacheWriteArgs,
    "pasa_cache_gather_args": ops.CacheGatherArgs,
    "pasa_slots_args": ops.SlotsArgs,
    "pasa_token_counts_args": ops.TokenCountsArgs,
    "pasa_list_dense_args": ops.ListDenseArgs,
    "pasa_list_topk_args": ops.ListTopkArgs,
    "pasa_list_combine_args": ops.ListCombineArgs,
    "pasa_list_compressed_args": ops.ListCompressedArgs,
    "pasa_list_window_args": ops.ListWindowArgs,
    "pasa_merge_args": ops.MergeArgs,
}


@pytest.fixture(scope="module")
def from_c(tmp_path_factory):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("abi")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    (folder / "abi.c").write_text(
        f'#include <stdio.h>\n#include "pasa/ops.h"\nint main(void) {{ {" ".join(lines)} }}\n'
    )
    subprocess.run([compiler, "-std=c11", "-I", INCLUDE, "-o", folder / "abi", folder / "abi.c"], check=True)
    output = subprocess.run([folder / "abi"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in map(str.split, output.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_size_and_offsets(from_c, name):
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == from_c[name]
    for field, *_ in struct._fields_:
        assert getattr(struct, field).offset == from_c[f"{name}.{field}"], field


def test_every_field_is_bound():
    assert set(re.findall(r"typedef struct (\w+) {", TEXT)) == STRUCTS.keys()
    for name, struct in STRUCTS.items():
        body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", TEXT, re.S)[1]
        fields = re.findall(r"\b(\w+)(?:\[[^]]*\])?\s*[,;]", body)
        assert fields == [field for field, *_ in struct._fields_], name


def _enum(prefix):
    return {name: int(value) for name, value in re.findall(rf"\bPASA_{prefix}(\w+) = (\d+)", TEXT)}


def test_numbers_of_enums():
    statuses = {name: value for name, value in _enum("ERROR_").items()}
    assert {**statuses, "OK": 0} == {status.name: status.value for status in _native.Status}
    formats = {name.lower(): value for name, value in _enum("KV_").items() if value}
    assert formats == _native.FORMATS
    for name, value in _enum("").items():
        if name in ("BF16", "F16", "F32", "U8", "I8", "F8_E4M3FN", "F8_E4M3FNUZ", "I32", "I64", "CPU", "CUDA", "HIP"):
            assert getattr(_native, name) == value
        if name in ("NAN_TO_ZERO", "SKIP_REDUCE", "NO_INVALID"):
            assert getattr(_native, name) == value
        if name == "POWER_OF_TWO_SCALES":
            assert ops.POWER_OF_TWO_SCALES == value


def test_names_of_statuses():
    name = _native.lib.pasa_status_name
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_int]
    for status in _native.Status:
        assert name(status).decode() == status.name.lower()


def test_packed_scalars_reach_their_fields():
    tensors, template = _problem.arguments(
        *(None,) * 3,
        kv_format="fp8_v32",
        extra_kv_format="bf16",
        softmax_scale=0.25,
        splits=3,
        block_h=16,
        nan_to_zero=True,
        skip_reduce=True,
        no_invalid=True,
        kernel="cpu",
        threads=5,
    )
    problem = _native.Problem.from_buffer_copy(template)
    assert problem.struct_size == ctypes.sizeof(_native.Problem)
    assert (problem.main.format, problem.extra.format) == (7, 1)
    assert (problem.softmax_scale, problem.has_softmax_scale) == (0.25, 1)
    assert (problem.kv_splits, problem.block_h, problem.flags, problem.threads) == (3, 16, 7, 5)
    assert ctypes.string_at(problem.kernel) == b"cpu"
