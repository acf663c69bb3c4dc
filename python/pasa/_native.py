"""The C library seen from Python: include/pasa/pasa.h in ctypes, and its failures as one exception.

The lowest layer of the package: it knows structs and status codes, nothing of NumPy or torch. Field names and order are
the header's; tests/python/test_abi.py compares every offset with what a C compiler says.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import pathlib
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p

CPU, CUDA, HIP = 0, 1, 2

BF16, F16, F32, U8, I8, F8_E4M3FN, F8_E4M3FNUZ, I32, I64 = range(1, 10)

FORMATS = {
    "bf16": 1,
    "f16": 2,
    "fp8_e4m3fn": 3,
    "fp8_e4m3fnuz": 4,
    "fp8_ds_mla": 5,
    "packed_bf16": 6,
    "fp8_v32": 7,
}

NAN_TO_ZERO, SKIP_REDUCE, NO_INVALID = 1, 2, 4


class Status(enum.IntEnum):
    """What went wrong; the names are the stable categories of the library."""

    OK = 0
    DEVICE = 1
    DTYPE = 2
    RANK = 3
    SHAPE = 4
    STRIDE = 5
    ALIGNMENT = 6
    COMBINATION = 7
    RANGE = 8
    VALUE = 9
    UNSUPPORTED = 10
    OVERFLOW = 11
    MEMORY = 12
    INTERNAL = 13


class Error(RuntimeError):
    """A refused call. Nothing was launched and no output was written.

    The text reads "<category>: <argument> is <found>, expected <wanted>".
    """

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = Status(status)

    def __reduce__(self):
        return Error, (self.status, str(self))  # so that it travels between processes

    @property
    def category(self) -> str:
        """The status as the library spells it: "device", "dtype", "rank", "shape", "stride", ..."""
        return self.status.name.lower()


def fail(status: Status, text: str) -> Error:
    """An Error found on the Python side, worded like the library's own."""
    return Error(status, f"{status.name.lower()}: {text}")


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int),
        ("rank", c_int32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
        ("device", c_int),
        ("device_index", c_int32),
    ]


class Source(ctypes.Structure):
    _fields_ = [
        ("format", c_int),
        ("kv", Tensor),
        ("kv_scales", Tensor),
        ("kv_pe", Tensor),
        ("indices", Tensor),
        ("indptr", Tensor),
        ("lengths", Tensor),
    ]


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", Tensor),
        ("main", Source),
        ("extra", Source),
        ("attn_sink", Tensor),
        ("out", Tensor),
        ("lse", Tensor),
        ("max_logits", Tensor),
        ("acc", Tensor),
        ("m", Tensor),
        ("l", Tensor),
        ("softmax_scale", c_double),
        ("kv_scale", c_double),
        ("has_softmax_scale", c_int32),
        ("kv_splits", c_int32),
        ("block_h", c_int32),
        ("flags", c_uint32),
        ("threads", c_int32),
        ("queries_per_list", c_int32),
        ("kernel", c_void_p),
    ]


class ReduceProblem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("acc", Tensor),
        ("m", Tensor),
        ("l", Tensor),
        ("attn_sink", Tensor),
        ("out", Tensor),
        ("lse", Tensor),
    ]


class KernelInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char * 32),
        ("device", c_char * 8),
        ("available", c_int32),
        ("accepts", c_int32),
        ("reason", c_char * 256),
    ]


class Functions(ctypes.Structure):
    """What src/python_api.cpp needs of Python and of a tensor framework."""

    _fields_ = [
        (name, c_void_p)
        for name in ("item", "type", "release", "unlock", "lock", "view", "stream", "tensor", "parameter", "none")
    ]


class Call(ctypes.Structure):
    """A prepared call, as src/python_api.cpp runs it."""

    _fields_ = [
        ("functions", POINTER(Functions)),
        ("plan", c_void_p),
        ("problem", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("offsets", POINTER(c_int32)),
        ("count", c_int32),
        ("device", c_int32),
        ("device_index", c_int32),
    ]


CALL_OF_OTHERS = -2  # the tensors are not described as the call's


def _load() -> ctypes.CDLL:
    """libpasa.so: the file PASA_LIBRARY names, else the one inside this package."""
    path = os.environ.get("PASA_LIBRARY") or str(pathlib.Path(__file__).with_name("libpasa.so"))
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"pasa: cannot load {path} ({error}); PASA_LIBRARY may name another libpasa.so") from error
    signatures = {  # name: (result, arguments)
        "pasa_plan_create": (c_int, [c_void_p, POINTER(c_void_p)]),
        "pasa_plan_destroy": (None, [c_void_p]),
        "pasa_plan_workspace_bytes": (c_size_t, [c_void_p]),
        "pasa_plan_splits": (c_int32, [c_void_p]),
        "pasa_plan_kernel": (c_char_p, [c_void_p]),
        "pasa_plan_summary": (c_char_p, [c_void_p]),
        "pasa_plan_is_partial": (c_int32, [c_void_p]),
        "pasa_run": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
        "pasa_reduce": (c_int, [c_void_p, c_void_p]),
        "pasa_validate": (c_int, [c_void_p, POINTER(c_int64)]),
        "pasa_kernel_count": (c_int32, []),
        "pasa_get_kernel_info": (c_int, [c_int32, c_void_p, POINTER(KernelInfo)]),
        "pasa_last_error": (c_char_p, []),
        "pasa_version": (c_char_p, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()
run = lib.pasa_run
bind_call, run_call = (getattr(ctypes.PyDLL(lib._name), f"pasa_python_{verb}") for verb in ("bind", "run"))
for function in (bind_call, run_call):  # they keep Python's lock
    function.restype, function.argtypes = c_int, [c_void_p, ctypes.py_object]
version: str = lib.pasa_version().decode()


def last_error(status: int) -> Error:
    """The exception of this thread's last failing call."""
    return Error(status, lib.pasa_last_error().decode(errors="replace"))


def check(status: int) -> None:
    if status:
        raise last_error(status)


class PlanHandle:
    """Owns a pasa_plan. What a caller needs at every run is read out once."""

    def __init__(self, problem: int):
        handle = c_void_p()
        check(lib.pasa_plan_create(problem, handle))
        self.handle = handle.value
        self.workspace_bytes: int = lib.pasa_plan_workspace_bytes(handle)
        self.splits: int = lib.pasa_plan_splits(handle)
        self.kernel: str = lib.pasa_plan_kernel(handle).decode()
        self.summary: str = lib.pasa_plan_summary(handle).decode()
        self.is_partial = bool(lib.pasa_plan_is_partial(handle))

    def __del__(self, destroy=lib.pasa_plan_destroy):
        if getattr(self, "handle", None):
            destroy(self.handle)


@functools.lru_cache(maxsize=None)
def c_string(text: str) -> ctypes.Array:
    """A C string that lives as long as the process."""
    return ctypes.create_string_buffer(text.encode())
