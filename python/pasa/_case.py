"""Case files: one attention problem as a safetensors file, for bug reports and for the command line.

The container is a length, a JSON header and the tensors' bytes, so it is written and read here by hand.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import numpy as np

from . import _native
from ._native import Status, fail
from ._problem import INPUTS, OUTPUTS, PackedProblem, arguments
from ._tensor import arrays_of

_FLAT = ("bf16", "f16", "fp8_e4m3fn", "fp8_e4m3fnuz")
_TYPES = {  # name in the file -> NumPy's
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "U8": np.uint8,
    "F8_E4M3": np.uint8,
    "I32": np.int32,
}
_NAMES = {_native.BF16: "BF16", _native.F16: "F16", _native.F32: "F32", _native.I32: "I32"}  # all others are bytes
_NUMBERS = {"softmax_scale": float, "kv_scale": float, "queries_per_list": int}  # metadata that is no name
_EXPECTED = ("expected_out", "expected_lse")
_NOT_IN_A_CASE = (*OUTPUTS, "return_lse", "workspace")
_HEADER_ALIGNMENT = 64


def save_case(
    path: str | os.PathLike,
    q: Any,
    kv: Any,
    kv_indices: Any,
    *,
    kv_format: str,
    expected_out: Any = None,
    expected_lse: Any = None,
    **options: Any,
) -> None:
    """Writes a problem to a case file: takes the very arguments of `attend`, waits for the device and copies.

    Args:
        path: the file to write.
        q, kv, kv_indices, kv_format, options: as `attend`'s. A ragged index buffer is cut to the entries in use.
            Outputs are left out; what only steers the computation (splits, kernel, ...) is noted under "x_" names.
        expected_out, expected_lse: bf16 or float32 [T, H, 512] and float32 [T, H] for `pasa check` to compare with.

    Raises:
        Error: `attend` would refuse the problem, or an index list is malformed ("value").
    """
    arrays = arrays_of(q, "q")
    inputs = {name: value for name, value in options.items() if name not in _NOT_IN_A_CASE}
    lists = {name: arrays.host(value) for name, value in inputs.items() if name in INPUTS and value is not None}
    lists["kv_indices"] = arrays.host(kv_indices)
    for prefix in ("kv", "extra"):
        indices, indptr = lists.get(f"{prefix}_indices"), lists.get(f"{prefix}_indptr")
        if indices is not None and indptr is not None and len(indices.shape) == len(indptr.shape) == 1 and len(indptr):
            lists[f"{prefix}_indices"] = indices[: max(int(indptr[-1]), 0)]
    packed = PackedProblem(arrays, *arguments(q, kv, kv_format=kv_format, **{**inputs, **lists}))
    _native.check(_native.lib.pasa_validate(packed.on_cpu(), None))

    metadata = {"kv_format": kv_format}
    formats = {"kv": kv_format, "extra_kv": inputs.get("extra_kv_format") or kv_format}
    formats |= {f"{kv}_pe": name for kv, name in formats.items()}
    for name, value in inputs.items():
        if name in INPUTS or value is None:
            continue
        known = name in _NUMBERS or name == "extra_kv_format"
        metadata[name if known else f"x_{name}"] = str(_NUMBERS.get(name, str)(value))
    # The pools and q first: their sizes are multiples of 8, so every tensor is aligned.
    pieces = {name: inputs.get(name) for name in ("extra_kv", "kv_pe", "extra_kv_pe")}
    tensors = {"kv": kv, **pieces, "q": q, "expected_out": expected_out, **lists}
    tensors["expected_lse"] = expected_lse
    _write(path, arrays, {name: value for name, value in tensors.items() if value is not None}, formats, metadata)


def _write(path, arrays, tensors: dict, formats: dict, metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    parts, end = [], 0
    for name, tensor in tensors.items():
        part, begin, shape = arrays.raw(tensor), end, list(tensor.shape)
        end += part.nbytes
        if name in formats and len(shape) == (3 if formats[name] in _FLAT else 4):
            del shape[-2]  # the one KV head
        dtype = _NAMES.get(arrays.dtype_code(tensor), "U8")
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part)


def load_case(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Maps a case file.

    Returns:
        The arguments of `attend` as NumPy arrays (bf16 as uint16 bits), and the expected results the file holds:
        `case, expected = load_case(path)`, then `attend(**case)`.

    Raises:
        Error: "value", the file is not a case file.
    """
    size = os.path.getsize(path)
    if size < 8:
        raise fail(Status.VALUE, f"{path} is {size} bytes, expected a case file")
    data = np.memmap(path, np.uint8, "r")
    length = int(data[:8].view("<u8")[0])
    if length > size - 8:
        raise fail(Status.VALUE, f"{path} has a header of {length} bytes, expected at most {size - 8}")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        metadata = header.pop("__metadata__")
        tensors = {name: _tensor(name, entry, data[8 + length :]) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise fail(Status.VALUE, f"{path} is no case file: {error!r}") from error
    options = {name: value for name, value in metadata.items() if not name.startswith("x_")}
    options.update({name: number(options[name]) for name, number in _NUMBERS.items() if name in options})
    unknown = [name for name in tensors if name not in INPUTS and name not in _EXPECTED and not name.startswith("x_")]
    unknown += [name for name in options if name not in ("kv_format", "extra_kv_format", *_NUMBERS)]
    if unknown:
        raise fail(Status.VALUE, f"{path} holds {', '.join(unknown)}, expected names of a case file")
    case = {name: tensor for name, tensor in tensors.items() if name in INPUTS}
    return {**case, **options}, {name: tensors[name] for name in _EXPECTED if name in tensors}


def _tensor(name: str, entry: dict, data: np.ndarray) -> np.ndarray:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= data.size:
        raise ValueError(f"{name} lies outside the file")
    return data[begin:end].view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
