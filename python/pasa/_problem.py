"""A pasa_problem as packed bytes: the Python arguments on their way into the C struct.

Filling a struct through ctypes attributes costs more than a launch. So structs are kept and used again: a call whose
arguments differ from an earlier one's in their addresses alone needs only these written.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import _native
from ._native import FORMATS, Problem, Source, Status, c_string, fail

_ABSENT = bytes(ctypes.sizeof(_native.Tensor))


def _source(base: int, kv: str, prefix: str) -> dict[str, int]:
    names = (kv, f"{kv}_scales", f"{kv}_pe", f"{prefix}_indices", f"{prefix}_indptr", f"{prefix}_lengths")
    fields = (Source.kv, Source.kv_scales, Source.kv_pe, Source.indices, Source.indptr, Source.lengths)
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


def arguments(
    q: Any,
    kv: Any,
    kv_indices: Any,
    *,
    kv_format: str,
    kv_indptr: Any = None,
    kv_lengths: Any = None,
    kv_scales: Any = None,
    kv_pe: Any = None,
    attn_sink: Any = None,
    extra_kv: Any = None,
    extra_kv_format: str | None = None,
    extra_indices: Any = None,
    extra_indptr: Any = None,
    extra_lengths: Any = None,
    extra_kv_scales: Any = None,
    extra_kv_pe: Any = None,
    softmax_scale: float | None = None,
    kv_scale: float | None = None,
    queries_per_list: int | None = None,
    splits: int | None = None,
    block_h: int | None = None,
    nan_to_zero: bool = False,
    no_invalid: bool = False,
    skip_reduce: bool = False,
    kernel: str | None = None,
    threads: int | None = None,
) -> tuple[tuple, bytes]:
    """All inputs of the operator: its tensors in the order of INPUTS, and a struct with everything else."""
    if extra_kv is not None and extra_kv_format is None:
        extra_kv_format = kv_format
    if kv_scale == 0:  # in the struct it stands for None
        raise fail(Status.RANGE, "kv_scale is 0, expected another number")
    main = (kv, kv_scales, kv_pe, kv_indices, kv_indptr, kv_lengths)
    extra = (extra_kv, extra_kv_scales, extra_kv_pe, extra_indices, extra_indptr, extra_lengths)
    flags = {_native.NAN_TO_ZERO: nan_to_zero, _native.NO_INVALID: no_invalid, _native.SKIP_REDUCE: skip_reduce}
    problem = Problem(
        struct_size=ctypes.sizeof(Problem),
        softmax_scale=0.0 if softmax_scale is None else softmax_scale,
        has_softmax_scale=softmax_scale is not None,
        kv_scale=0.0 if kv_scale is None else kv_scale,
        queries_per_list=_count("queries_per_list", queries_per_list),
        kv_splits=_count("splits", splits),
        block_h=_count("block_h", block_h),
        flags=sum(bit for bit, wanted in flags.items() if wanted),
        threads=_count("threads", threads),
        kernel=None if kernel is None else ctypes.addressof(c_string(kernel)),
    )
    problem.main.format = format_code("kv_format", kv_format)
    problem.extra.format = 0 if extra_kv_format is None else format_code("extra_kv_format", extra_kv_format)
    return (q, *main, *extra, attn_sink), bytes(problem)


def _count(name: str, value: int | None) -> int:
    """0 stands for None."""
    if value is not None and not 1 <= value < 2**31:
        raise fail(Status.RANGE, f"{name} is {value}, expected at least 1")
    return value or 0


def format_code(name: str, value: str | None) -> int:
    if value not in FORMATS:
        raise fail(Status.RANGE, f"{name} is {value!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[value]


class Packed:
    """One C struct as bytes, and where its tensors are. Not for two threads at once."""

    def __init__(self, struct: bytes, offsets: dict[str, int]):
        self.bytes, self.offsets = bytearray(struct), offsets
        self.words = memoryview(self.bytes).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def bind(self, arrays, tensors: dict[str, Any]) -> None:
        """Writes tensors; None makes one absent."""
        for name, tensor in tensors.items():
            offset = self.offsets[name]
            if tensor is None:
                self.bytes[offset : offset + len(_ABSENT)] = _ABSENT
            else:
                arrays.describe(self.bytes, offset, name, tensor)
                arrays.set_addresses(self.words, (offset >> 3,), (tensor,))


class PackedProblem(Packed):
    """The inputs of the operator, as `arguments` gives them."""

    def __init__(self, arrays, tensors: tuple, struct: bytes):
        super().__init__(struct, TENSORS)
        self.bind(arrays, {name: tensor for name, tensor in zip(INPUTS, tensors) if tensor is not None})

    def on_cpu(self) -> int:
        """Declares every tensor to be in host memory; returns the struct's address."""
        problem = Problem.from_buffer(self.bytes)
        for source in (problem, problem.main, problem.extra):
            for name, kind in source._fields_:
                if kind is _native.Tensor:
                    getattr(source, name).device = _native.CPU
        return self.address
