"""A pasa_problem that is filled by packing bytes: the Python arguments on their way into the C struct.

Filling a struct through ctypes attributes costs more than a launch. So whatever is not a tensor comes as a template of
the whole struct, made once per set of values; tensors are packed over it, and their addresses come last: until then the
bytes of the struct are the key under which its plan is cached.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from . import _native
from ._native import FORMATS, Problem, ReduceProblem, Source, Status, c_string, fail

_ABSENT = bytes(ctypes.sizeof(_native.Tensor))


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
_INPUT_FIELDS = tuple(INPUTS.items())


def arguments(
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
) -> tuple[tuple, bytes]:
    """All inputs of the operator: its tensors in the order of INPUTS, and everything else as a template."""
    if extra_kv is not None and extra_kv_format is None:
        extra_kv_format = kv_format
    if softmax_scale is not None:
        softmax_scale = float(softmax_scale)
    main = (kv, kv_scales, kv_indices, kv_indptr, kv_lengths)
    extra = (extra_kv, extra_kv_scales, extra_indices, extra_indptr, extra_lengths)
    flags = (nan_to_zero, no_invalid, skip_reduce)
    template = _template(kv_format, extra_kv_format, softmax_scale, splits, block_h, flags, kernel, threads)
    return (q, *main, *extra, attn_sink), template


def _count(name: str, value: int | None) -> int:
    """0 stands for None."""
    if value is not None and not 1 <= value < 2**31:
        raise fail(Status.RANGE, f"{name} is {value}, expected at least 1")
    return value or 0


def format_code(name: str, value: str | None) -> int:
    if value not in FORMATS:
        raise fail(Status.RANGE, f"{name} is {value!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[value]


@functools.lru_cache(maxsize=256)
def _template(kv_format, extra_kv_format, softmax_scale, splits, block_h, flags, kernel, threads) -> bytes:
    bits = (_native.NAN_TO_ZERO, _native.NO_INVALID, _native.SKIP_REDUCE)
    problem = Problem(
        struct_size=ctypes.sizeof(Problem),
        softmax_scale=0.0 if softmax_scale is None else softmax_scale,
        has_softmax_scale=softmax_scale is not None,
        kv_splits=_count("splits", splits),
        block_h=_count("block_h", block_h),
        flags=sum(bit for bit, flag in zip(bits, flags) if flag),
        threads=_count("threads", threads),
        kernel=None if kernel is None else ctypes.addressof(c_string(kernel)),
    )
    problem.main.format = format_code("kv_format", kv_format)
    problem.extra.format = 0 if extra_kv_format is None else format_code("extra_kv_format", extra_kv_format)
    return bytes(problem)


class _Packed:
    """One C struct as bytes. Not for two threads at once."""

    def __init__(self, blank: bytes, offsets: dict[str, int]):
        self.bytes, self.offsets = bytearray(blank), offsets
        self.words = memoryview(self.bytes).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def bind(self, arrays, tensors: dict[str, Any]) -> None:
        """Writes tensors with their addresses; None is passed over."""
        offsets = self.offsets
        fields = [(name, offsets[name]) for name in tensors]
        self.set_addresses(arrays.describe(self.bytes, fields, tensors.values()))

    def unbind(self, name: str) -> None:
        """Makes a tensor absent."""
        offset = self.offsets[name]
        self.bytes[offset : offset + len(_ABSENT)] = _ABSENT

    def set_addresses(self, addresses: list[tuple[int, int]]) -> None:
        words = self.words
        for word, address in addresses:
            words[word] = address


class PackedProblem(_Packed):
    def __init__(self):
        super().__init__(bytes(ctypes.sizeof(Problem)), TENSORS)

    def fill(self, arrays, tensors: tuple, template: bytes) -> list[tuple[int, int]]:
        """Writes what `arguments` gave, but not yet the addresses, which are returned for set_addresses."""
        self.bytes[:] = template
        return arrays.describe(self.bytes, _INPUT_FIELDS, tensors)

    def on_cpu(self) -> int:
        """Declares every tensor to be in host memory; returns the struct's address."""
        problem = Problem.from_buffer(self.bytes)
        for source in (problem, problem.main, problem.extra):
            for name, kind in source._fields_:
                if kind is _native.Tensor:
                    getattr(source, name).device = _native.CPU
        return self.address


class PackedReduce(_Packed):
    def __init__(self):
        names = ("acc", "m", "l", "attn_sink", "out", "lse")
        blank = bytes(ReduceProblem(struct_size=ctypes.sizeof(ReduceProblem)))
        super().__init__(blank, {name: getattr(ReduceProblem, name).offset for name in names})
