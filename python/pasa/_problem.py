"""A pasa_problem that is filled by packing bytes: the Python arguments on their way into the C struct.

Filling a struct through ctypes attributes costs more than the launch itself, so each tensor is one struct.pack_into at a
known offset. Data pointers go in last: until then the bytes of the struct are the key under which its plan is cached.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from . import _native
from ._native import FORMATS, NAN_TO_ZERO, NO_INVALID, SKIP_REDUCE, Problem, ReduceProblem, Source, Status, c_string, fail



def _blank(struct_type) -> bytes:
    return bytes(struct_type(struct_size=ctypes.sizeof(struct_type)))


_ABSENT = bytes(ctypes.sizeof(_native.Tensor))

# softmax_scale, has_softmax_scale, kv_splits, block_h, flags, threads, kernel
_SCALARS = struct.Struct("=diiiIi4xQ")
_SCALARS_OFFSET = Problem.softmax_scale.offset
_MAIN_FORMAT, _EXTRA_FORMAT = Problem.main.offset, Problem.extra.offset
_INT = struct.Struct("=i")
_PLACE = struct.Struct("=ii")  # device, device_index


def _source(base: int, kv: str, prefix: str) -> dict[str, int]:
    names = (kv, f"{kv}_scales", f"{prefix}_indices", f"{prefix}_indptr", f"{prefix}_lengths")
    fields = (Source.kv, Source.kv_scales, Source.indices, Source.indptr, Source.lengths)
    return {name: base + field.offset for name, field in zip(names, fields)}


# Argument name -> where its pasa_tensor is. The names are those of the library's messages and of case files.
INPUTS = {
    "q": Problem.q.offset,
    **_source(Problem.main.offset, "kv", "kv"),
    **_source(Problem.extra.offset, "extra_kv", "extra"),
    "attn_sink": Problem.attn_sink.offset,
}
OUTPUTS = {name: getattr(Problem, name).offset for name in ("out", "lse", "max_logits", "acc", "m", "l")}
TENSORS = {**INPUTS, **OUTPUTS}
_INPUTS = tuple(INPUTS.items())


def positive(name: str, value: int | None) -> int:
    """An optional count for the C struct, where 0 stands for None."""
    if value is None:
        return 0
    if not 1 <= value < 2**31:
        raise fail(Status.RANGE, f"{name} is {value}, expected at least 1")
    return value


def format_code(name: str, value: str | None) -> int:
    code = FORMATS.get(value)
    if code is None:
        raise fail(Status.RANGE, f"{name} is {value!r}, expected one of {', '.join(FORMATS)}")
    return code


class _Packed:
    """One C struct and the views it is written through. Not for two threads at once."""

    blank: bytes  # the struct as it starts: zeros and its size
    offsets: dict[str, int]  # of its tensors

    def __init__(self):
        self.bytes = bytearray(self.blank)
        self.words = memoryview(self.bytes).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def bind(self, arrays, name: str, tensor: Any) -> None:
        """Writes one tensor with its data pointer; None makes it absent."""
        offset = self.offsets[name]
        if tensor is None:
            self.bytes[offset : offset + len(_ABSENT)] = _ABSENT
            return
        if name in OUTPUTS and not arrays.is_writable(tensor):
            raise fail(Status.COMBINATION, f"{name} is read-only, expected memory to write to")
        self.words[offset >> 3] = arrays.put(self.bytes, offset, name, tensor)


class PackedReduce(_Packed):
    blank = _blank(ReduceProblem)
    offsets = {name: getattr(ReduceProblem, name).offset for name in ("acc", "m", "l", "attn_sink", "out", "lse")}


class PackedProblem(_Packed):
    blank = _blank(Problem)
    offsets = TENSORS

    def fill(
        self,
        arrays,
        q: Any,
        kv: Any,
        kv_indices: Any,
        *,
        kv_format: str,
        kv_indptr: Any = None,
        kv_lengths: Any = None,
        kv_scales: Any = None,
        attn_sink: Any = None,
        extra_kv: Any = None,
        extra_kv_format: str | None = None,
        extra_indices: Any = None,
        extra_indptr: Any = None,
        extra_lengths: Any = None,
        extra_kv_scales: Any = None,
        softmax_scale: float | None = None,
        splits: int | None = None,
        block_h: int | None = None,
        nan_to_zero: bool = False,
        no_invalid: bool = False,
        skip_reduce: bool = False,
        kernel: str | None = None,
        threads: int | None = None,
    ) -> list[tuple[int, int]]:
        """Writes all inputs but their data pointers, which are returned as (word, address)."""
        packed, put = self.bytes, arrays.put
        packed[:] = self.blank
        _INT.pack_into(packed, _MAIN_FORMAT, format_code("kv_format", kv_format))
        if extra_kv is not None or extra_kv_format is not None:
            _INT.pack_into(packed, _EXTRA_FORMAT, format_code("extra_kv_format", extra_kv_format or kv_format))
        _SCALARS.pack_into(
            packed,
            _SCALARS_OFFSET,
            0.0 if softmax_scale is None else softmax_scale,
            softmax_scale is not None,
            positive("splits", splits),
            positive("block_h", block_h),
            NAN_TO_ZERO * bool(nan_to_zero) | SKIP_REDUCE * bool(skip_reduce) | NO_INVALID * bool(no_invalid),
            positive("threads", threads),
            0 if kernel is None else ctypes.addressof(c_string(kernel)),
        )
        pointers = []
        tensors = (q, kv, kv_scales, kv_indices, kv_indptr, kv_lengths)
        tensors += (extra_kv, extra_kv_scales, extra_indices, extra_indptr, extra_lengths, attn_sink)
        for (name, offset), tensor in zip(_INPUTS, tensors):
            if tensor is not None:
                pointers.append((offset >> 3, put(packed, offset, name, tensor)))
        return pointers

    def set_pointers(self, pointers: list[tuple[int, int]]) -> None:
        words = self.words
        for word, address in pointers:
            words[word] = address

    def on_cpu(self) -> int:
        """Declares every tensor to be in host memory; returns the struct's address."""
        for offset in TENSORS.values():
            _PLACE.pack_into(self.bytes, offset + _native.Tensor.device.offset, _native.CPU, 0)
        return self.address
