"""NumPy arrays and torch tensors as pasa_tensor structs.

The two frameworks differ in four things only: how a tensor is described, how a new one is made, where scratch memory
comes from and which stream is current. One small class each says how; the rest of the package does not ask which it has.
torch is looked at, never imported, until a torch tensor arrives.
"""

from __future__ import annotations

import functools
import struct
import sys
from typing import Any

import numpy as np

from . import _native
from ._native import Status, fail

WORKSPACE_ALIGNMENT = 256

# A pasa_tensor of each rank: data, dtype, rank, shape[4], stride[4], device, device_index.
_PACK = [struct.Struct(f"=Qii{r}q{8 * (4 - r)}x{r}q{8 * (4 - r)}xii") for r in range(5)]
assert all(pack.size == _native.ctypes.sizeof(_native.Tensor) for pack in _PACK)


def _pack(view, offset: int, name: str, dtype: int | None, element_type, shape, stride, device: int, index: int) -> None:
    if dtype is None:
        raise fail(Status.DTYPE, f"{name} is {element_type}, which no tensor of pasa may be")
    if not 1 <= len(shape) <= 4:
        raise fail(Status.RANK, f"{name} has rank {len(shape)}, expected 1 to 4")
    _PACK[len(shape)].pack_into(view, offset, 0, dtype, len(shape), *shape, *stride, device, index)


class NumpyArrays:
    """bfloat16 arrays are ml_dtypes.bfloat16 or plain uint16 bits; results come in the form of q."""

    dtypes = {
        np.dtype(np.uint16): _native.BF16,
        np.dtype(np.float16): _native.F16,
        np.dtype(np.float32): _native.F32,
        np.dtype(np.uint8): _native.U8,
        np.dtype(np.int8): _native.I8,
        np.dtype(np.int32): _native.I32,
        np.dtype(np.int64): _native.I64,
    }
    by_name = {  # of the ml_dtypes package, which we need not import to recognise
        "bfloat16": _native.BF16,
        "float8_e4m3fn": _native.F8_E4M3FN,
        "float8_e4m3fnuz": _native.F8_E4M3FNUZ,
    }
    float32 = np.float32

    def require(self, array: Any, name: str) -> None:
        if not isinstance(array, np.ndarray):
            raise fail(Status.DTYPE, f"{name} is {type(array).__name__}, expected a NumPy array as q")

    def put(self, view, offset: int, name: str, array: np.ndarray) -> int:
        self.require(array, name)
        size = array.itemsize
        if any(stride % size for stride in array.strides):
            raise fail(Status.STRIDE, f"{name} has strides of {array.strides} bytes, expected multiples of {size}")
        stride = [s // size for s in array.strides]
        _pack(view, offset, name, self.dtype_code(array), array.dtype, array.shape, stride, _native.CPU, 0)
        return array.ctypes.data

    def empty(self, like: np.ndarray, shape, dtype=None) -> np.ndarray:
        return np.empty(shape, dtype or like.dtype)

    def scratch(self, like: np.ndarray, size: int) -> tuple[np.ndarray, int]:
        """Memory and an aligned address in it with `size` bytes behind."""
        memory = np.empty(size + WORKSPACE_ALIGNMENT, np.uint8)
        return memory, -(-memory.ctypes.data // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT

    def memory(self, like: np.ndarray, workspace: np.ndarray) -> tuple[int, int]:
        """Address and bytes of a caller's workspace."""
        self.require(workspace, "workspace")
        if not (workspace.flags.c_contiguous and workspace.flags.writeable):
            raise fail(Status.STRIDE, "workspace has gaps or is read-only, expected a contiguous array to write to")
        return workspace.ctypes.data, workspace.nbytes

    def stream(self, like: np.ndarray) -> None:
        return None

    def is_writable(self, array: np.ndarray) -> bool:
        return array.flags.writeable

    def host(self, array: np.ndarray) -> np.ndarray:
        return array

    def dtype_code(self, array: np.ndarray) -> int | None:
        return self.dtypes.get(array.dtype) or self.by_name.get(array.dtype.name)

    def raw(self, array: np.ndarray) -> np.ndarray:
        """All elements as bytes, row-major."""
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class TorchTensors:
    """CPU and GPU tensors; work goes to the current stream of q's device."""

    def __init__(self, torch):
        self.torch, self.Tensor = torch, torch.Tensor
        self.float32 = torch.float32
        self.gpu = _native.HIP if getattr(torch.version, "hip", None) else _native.CUDA
        names = {
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
        self.dtypes = {getattr(torch, name): code for name, code in names.items() if hasattr(torch, name)}
        # The public torch.cuda.current_stream() builds a Python object: three times the cost of a whole launch.
        self.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
            lambda index: torch.cuda.current_stream(index).cuda_stream
        )

    def require(self, tensor: Any, name: str) -> None:
        if not isinstance(tensor, self.Tensor):
            raise fail(Status.DTYPE, f"{name} is {type(tensor).__name__}, expected a torch tensor as q")

    def put(self, view, offset: int, name: str, tensor) -> int:
        if not isinstance(tensor, self.Tensor):
            self.require(tensor, name)
        if tensor.is_cuda:
            device, index = self.gpu, tensor.get_device()
        elif tensor.is_cpu:
            device, index = _native.CPU, 0
        else:
            raise fail(Status.DEVICE, f"{name} is on {tensor.device}, expected cpu or cuda")
        dtype, shape = self.dtypes.get(tensor.dtype), tensor.shape
        _pack(view, offset, name, dtype, tensor.dtype, shape, tensor.stride(), device, index)
        return tensor.data_ptr()

    def empty(self, like, shape, dtype=None):
        return self.torch.empty(shape, dtype=dtype or like.dtype, device=like.device)

    def scratch(self, like, size: int) -> tuple[Any, int]:
        # CUDA allocations are aligned already; the caching allocator keeps freed memory in this stream's order.
        extra = 0 if like.is_cuda else WORKSPACE_ALIGNMENT
        memory = self.torch.empty(size + extra, dtype=self.torch.uint8, device=like.device)
        return memory, -(-memory.data_ptr() // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT

    def memory(self, like, workspace) -> tuple[int, int]:
        self.require(workspace, "workspace")
        if workspace.device != like.device:
            raise fail(Status.DEVICE, f"workspace is on {workspace.device}, expected {like.device} as q")
        if not workspace.is_contiguous():
            raise fail(Status.STRIDE, "workspace has gaps, expected a contiguous tensor")
        return workspace.data_ptr(), workspace.numel() * workspace.element_size()

    def stream(self, like) -> int | None:
        return self.raw_stream(like.get_device()) if like.is_cuda else None

    def is_writable(self, tensor) -> bool:
        return True

    def host(self, tensor):
        return tensor.cpu()

    def dtype_code(self, tensor) -> int | None:
        return self.dtypes.get(tensor.dtype)

    def raw(self, tensor) -> np.ndarray:
        return tensor.detach().cpu().contiguous().reshape(-1).view(self.torch.uint8).numpy()


_numpy = NumpyArrays()


@functools.lru_cache(maxsize=None)
def _torch_tensors(torch) -> TorchTensors:
    return TorchTensors(torch)


def arrays_of(tensor: Any, name: str) -> NumpyArrays | TorchTensors:
    """The framework of a tensor."""
    if isinstance(tensor, np.ndarray):
        return _numpy
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _torch_tensors(torch)
    raise fail(Status.DTYPE, f"{name} is {type(tensor).__name__}, expected a NumPy array or a torch tensor")


def is_traced(tensor: Any) -> bool:
    """Whether torch.compile is reading along, or the tensor has no memory (FakeTensor): then operators, not pointers."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
