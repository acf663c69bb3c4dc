"""NumPy arrays and torch tensors as pasa_tensor structs.

The two frameworks differ in few things: how a tensor is described, how a new one is made, where scratch memory comes
from, which stream is current. One class each says how; the rest of the package does not ask which it has. torch is
looked at, never imported, until a torch tensor arrives.

A signature is all of a tensor that its struct holds but the address: what need not be packed again while it is equal.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from typing import Any

import numpy as np

from . import _native
from ._native import Status, fail

WORKSPACE_ALIGNMENT = 256
_DLPACK_DEVICE = {_native.CPU: 1, _native.CUDA: 2, _native.HIP: 10}

# A pasa_tensor of rank 0 to 4: data, dtype, rank, shape[4], stride[4], device, device_index.
_PACK = [struct.Struct(f"=Qii{r}q{8 * (4 - r)}x{r}q{8 * (4 - r)}xii") for r in range(5)]

_DTYPES = {  # NumPy's, ml_dtypes' and torch's name -> pasa_dtype
    "bfloat16": _native.BF16,
    "float16": _native.F16,
    "float32": _native.F32,
    "uint8": _native.U8,
    "int8": _native.I8,
    "float8_e4m3fn": _native.F8_E4M3FN,
    "float8_e4m3fnuz": _native.F8_E4M3FNUZ,
    "int32": _native.I32,
    "int64": _native.I64,
}


def _pack(packed, offset: int, name: str, tensor, dtype: int | None, stride, device: int, index: int) -> None:
    shape = tensor.shape
    if dtype is None:
        raise fail(Status.DTYPE, f"{name} is {tensor.dtype}, which no tensor of pasa may be")
    if not 1 <= len(shape) <= 4:  # to the library, rank 0 means absent
        raise fail(Status.RANK, f"{name} has rank {len(shape)}, expected 1 to 4")
    _PACK[len(shape)].pack_into(packed, offset, 0, dtype, len(shape), *shape, *stride, device, index)


def _aligned(address: int) -> int:
    return -(-address // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def _new_scratch(size: int) -> tuple[np.ndarray, int]:
    memory = np.empty(size + WORKSPACE_ALIGNMENT, np.uint8)
    return memory, _aligned(memory.ctypes.data)


class _ThisThread(threading.local):
    """Host scratch memory that grows with need: work in host memory is done when the call returns."""

    def __init__(self):
        self.size, self.memory = -1, None

    def scratch(self, size: int) -> tuple[np.ndarray, int]:
        if size > self.size:
            self.size, self.memory = size, _new_scratch(size)
        return self.memory


_this_thread = _ThisThread()


class NumpyArrays:
    """Host memory. NumPy knows no bfloat16: it is ml_dtypes.bfloat16 or uint16 bits, and results have the form of q."""

    float32, int32, uint8 = np.float32, np.int32, np.uint8

    def signatures(self, arrays) -> list:
        return [a if a is None else (a.shape, a.strides, a.dtype, a.flags.writeable) for a in arrays]

    def set_addresses(self, words: memoryview, places, arrays) -> None:
        for place, array in zip(places, arrays):
            if array is not None:
                words[place] = array.ctypes.data

    def native_call(self, like, packed, offsets: list[int]) -> _native.Call | None:
        """Tells src/python_api.cpp of a problem and of the offsets in it where tuples of tensors go; None if it cannot be
        used. The result is valid as long as `packed`."""
        return None

    def describe(self, packed: bytearray, offset: int, name: str, array: Any) -> None:
        """Writes the struct of an array, but for its address."""
        if not isinstance(array, np.ndarray):
            raise fail(Status.DTYPE, f"{name} is {type(array).__name__}, expected a NumPy array as q")
        size, strides = array.itemsize, array.strides
        if any(stride % size for stride in strides):
            raise fail(Status.STRIDE, f"{name} has strides of {strides} bytes, expected multiples of {size}")
        _pack(packed, offset, name, array, self.dtype_code(array), [s // size for s in strides], _native.CPU, 0)

    def dtype_code(self, array: np.ndarray) -> int | None:
        if array.dtype == np.uint16:
            return _native.BF16
        return _DTYPES.get(array.dtype.name) if array.dtype.isnative else None

    def empty(self, like: np.ndarray, shape, dtype=None) -> np.ndarray:
        return np.empty(shape, dtype or like.dtype)

    def scratch(self, like: np.ndarray, size: int, keep: bool = False) -> tuple[np.ndarray, int]:
        """Memory and an aligned address in it with `size` bytes behind; unless kept, only until the next call."""
        return _new_scratch(size) if keep else _this_thread.scratch(size)

    def memory(self, like: np.ndarray, workspace: np.ndarray) -> tuple[int, int]:
        """Address and bytes of a caller's workspace."""
        if not isinstance(workspace, np.ndarray):
            raise fail(Status.DTYPE, f"workspace is {type(workspace).__name__}, expected a NumPy array as q")
        if not (workspace.flags.c_contiguous and workspace.flags.writeable):
            raise fail(Status.STRIDE, "workspace has gaps or is read-only, expected contiguous memory to write to")
        return workspace.ctypes.data, workspace.nbytes

    def stream(self, like: np.ndarray) -> int | None:
        return None

    def require_writable(self, name: str, array: np.ndarray) -> None:
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise fail(Status.COMBINATION, f"{name} is read-only, expected memory to write to")

    def host(self, array: np.ndarray) -> np.ndarray:
        return array

    def raw(self, array: np.ndarray) -> np.ndarray:
        """All elements as bytes, row-major."""
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# DLPackExchangeAPI: where the pointers to these functions are.
_EXCHANGE = {"view": 40, "stream": 48}
_PYTHON = {
    "item": "PyTuple_GetItem",
    "type": "PyObject_Type",
    "release": "Py_DecRef",
    "unlock": "PyEval_SaveThread",
    "lock": "PyEval_RestoreThread",
}


def _functions_of(torch) -> _native.Functions | None:
    """What src/python_api.cpp needs to look at torch's tensors; None before torch 2.10."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = get_pointer(capsule, b"dlpack_exchange_api")
    if ctypes.c_uint32.from_address(table).value != 1:  # DLPack's major version
        return None
    address_of = {n: ctypes.cast(getattr(ctypes.pythonapi, f), ctypes.c_void_p).value for n, f in _PYTHON.items()}
    address_of.update((name, ctypes.c_void_p.from_address(table + offset).value) for name, offset in _EXCHANGE.items())
    return _native.Functions(tensor=id(torch.Tensor), parameter=id(torch.nn.Parameter), none=id(None), **address_of)


class TorchTensors:
    """CPU and GPU tensors; work goes to the current stream of q's device."""

    def __init__(self, torch):
        self.torch, self.float32, self.int32, self.uint8 = torch, torch.float32, torch.int32, torch.uint8
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.gpu = _native.HIP if getattr(torch.version, "hip", None) else _native.CUDA
        self.dtypes = {getattr(torch, name): code for name, code in _DTYPES.items() if hasattr(torch, name)}
        self.is_compiling = torch.compiler.is_compiling
        self.functions = _functions_of(torch)
        # The public torch.cuda.current_stream() builds a Python object: dearer than all the rest of a launch.
        self.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
            lambda index: torch.cuda.current_stream(index).cuda_stream
        )

    def signatures(self, tensors) -> list:
        return [t if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors]

    def set_addresses(self, words: memoryview, places, tensors) -> None:
        for place, tensor in zip(places, tensors):
            if tensor is not None:
                words[place] = tensor.data_ptr()

    def native_call(self, like, packed, offsets: list[int]) -> _native.Call | None:
        if self.functions is None:
            return None
        call = _native.Call(
            problem=packed.address, count=len(offsets), offsets=(ctypes.c_int32 * len(offsets))(*offsets)
        )
        call.functions = ctypes.pointer(self.functions)
        call.device = _DLPACK_DEVICE[self.gpu if like.is_cuda else _native.CPU]
        call.device_index = max(like.get_device(), 0)
        return call

    def describe(self, packed: bytearray, offset: int, name: str, tensor: Any) -> None:
        self._require_tensor(name, tensor)
        if tensor.layout != self.torch.strided:
            raise fail(Status.STRIDE, f"{name} is a {tensor.layout} tensor, expected a dense one")
        if tensor.is_cuda:
            device, index = self.gpu, tensor.get_device()
        elif tensor.is_cpu:
            device, index = _native.CPU, 0
        else:
            raise fail(Status.DEVICE, f"{name} is on {tensor.device}, expected cpu or cuda")
        _pack(packed, offset, name, tensor, self.dtype_code(tensor), tensor.stride(), device, index)

    def _require_tensor(self, name: str, tensor: Any) -> None:
        if not isinstance(tensor, self.torch.Tensor):
            raise fail(Status.DTYPE, f"{name} is {type(tensor).__name__}, expected a torch tensor as q")

    def dtype_code(self, tensor) -> int | None:
        return self.dtypes.get(tensor.dtype)

    def empty(self, like, shape, dtype=None):
        return like.new_empty(shape, dtype=dtype)

    def scratch(self, like, size: int, keep: bool = False) -> tuple[Any, int]:
        if like.is_cpu:
            return _new_scratch(size) if keep else _this_thread.scratch(size)
        # Freed right after the launch it is still safe: the caching allocator reuses it in this stream's order.
        memory = self.torch.empty(size + WORKSPACE_ALIGNMENT, dtype=self.torch.uint8, device=like.device)
        return memory, _aligned(memory.data_ptr())

    def memory(self, like, workspace) -> tuple[int, int]:
        self._require_tensor("workspace", workspace)
        if workspace.device != like.device:
            raise fail(Status.DEVICE, f"workspace is on {workspace.device}, expected {like.device} as q")
        if not workspace.is_contiguous():
            raise fail(Status.STRIDE, "workspace has gaps, expected contiguous memory")
        return workspace.data_ptr(), workspace.numel() * workspace.element_size()

    def stream(self, like) -> int | None:
        return self.raw_stream(like.get_device()) if like.is_cuda else None

    def require_writable(self, name: str, tensor) -> None:
        pass  # torch has no read-only memory

    def host(self, tensor):
        return tensor.cpu()

    def raw(self, tensor) -> np.ndarray:
        return tensor.detach().cpu().contiguous().reshape(-1).view(self.torch.uint8).numpy()


_numpy = NumpyArrays()
_torch_tensors = functools.lru_cache(maxsize=None)(TorchTensors)
_arrays_of_type: dict[type, TorchTensors] = {}  # torch's types of tensors with memory


def find_arrays(tensor: Any, name: str) -> NumpyArrays | TorchTensors | None:
    """The framework of a tensor; None if torch traces the caller, so that the tensor has no memory yet."""
    kind = type(tensor)
    if kind is np.ndarray:
        return _numpy
    if kind in _arrays_of_type:
        arrays = _arrays_of_type[kind]
        return None if arrays.is_compiling() else arrays
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if torch.compiler.is_compiling():
            return None
        arrays = _torch_tensors(torch)
        if kind not in arrays.plain:
            return None
        _arrays_of_type.update(dict.fromkeys(arrays.plain, arrays))
        return arrays
    if isinstance(tensor, np.ndarray):
        return _numpy
    raise fail(Status.DTYPE, f"{name} is {type(tensor).__name__}, expected a NumPy array or a torch tensor")


def arrays_of(tensor: Any, name: str) -> NumpyArrays | TorchTensors:
    """The framework of a tensor that has memory."""
    arrays = find_arrays(tensor, name)
    if arrays is None:
        raise fail(Status.UNSUPPORTED, f"{name} is traced by torch, expected a tensor with memory")
    return arrays
