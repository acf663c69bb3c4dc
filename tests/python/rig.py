"""What the Python tests share: bf16 in NumPy, pools of every format with their decoded values, a float64 reference.

Nothing here uses the library: formats are decoded from docs/formats.md's definitions, so an error in the binding or in
the library shows up as a difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

FORMATS = ("bf16", "f16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_ds_mla", "packed_bf16", "fp8_v32")
FLAT = ("bf16", "f16", "fp8_e4m3fn", "fp8_e4m3fnuz")
ATOL, RTOL = 1e-2, 1e-2  # keys rounded to bf16, weights rounded to bf16, one rounding on store


def to_bf16(values) -> np.ndarray:
    """float -> bf16 bits, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits) -> np.ndarray:
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def e4m3_values(bias: int) -> np.ndarray:
    """The 256 values of an e4m3 with exponent bias 7 (OCP) or 8 (fnuz), in which bytes of NaN count as NaN."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias - 3), (8 + mantissa) * 2.0 ** (exponent - bias - 3))
    values = np.where(codes & 0x80, -magnitude, magnitude)
    nan = (codes & 0x7F) == 0x7F if bias == 7 else codes == 0x80
    return np.where(nan, np.nan, values)


E4M3FN, E4M3FNUZ = e4m3_values(7), e4m3_values(8)


def _codes(rng, shape) -> np.ndarray:
    """Random codes that are no NaN in either flavour."""
    return rng.choice(np.array([c for c in range(256) if c & 0x7F != 0x7F and c != 0x80], np.uint8), shape)


@dataclass
class Pool:
    """A cache as the library takes it, and what it means."""

    kv_format: str
    kv: np.ndarray
    keys: np.ndarray  # float64 [slots, D]
    scales: np.ndarray | None = None

    @property
    def slots(self) -> int:
        return len(self.keys)


def make_pool(rng, kv_format: str, slots: int, page: int = 4, dim: int = 512) -> Pool:
    """Random values of about unit size; pages hold `page` tokens in the paged formats."""
    if kv_format in ("bf16", "f16"):
        values = rng.normal(size=(slots, dim)) * 0.5
        kv = to_bf16(values) if kv_format == "bf16" else values.astype(np.float16)
        return Pool(kv_format, kv, (from_bf16(kv) if kv_format == "bf16" else kv).astype(np.float64))
    if kv_format in ("fp8_e4m3fn", "fp8_e4m3fnuz"):
        codes = _codes(rng, (slots, dim))
        table = E4M3FN if kv_format == "fp8_e4m3fn" else E4M3FNUZ
        if dim == 576:
            return Pool(kv_format, codes, table[codes])
        scales = (rng.uniform(0.5, 1.5, (slots, 8)) / 448).astype(np.float32)
        return Pool(kv_format, codes, table[codes] * np.repeat(scales.astype(np.float64), 64, axis=1), scales)
    blocks = -(-slots // page)
    slots = blocks * page
    if kv_format == "packed_bf16":
        kv = to_bf16(rng.normal(size=(blocks, page, 512)) * 0.5)
        return Pool(kv_format, kv, from_bf16(kv).reshape(slots, 512).astype(np.float64))
    rope = to_bf16(rng.normal(size=(slots, 64)) * 0.5)
    if kv_format == "fp8_ds_mla":
        codes, exponents = _codes(rng, (slots, 448)), rng.integers(117, 120, (slots, 8)).astype(np.uint8)
        records = np.concatenate((codes, rope.view(np.uint8)), axis=1).reshape(blocks, page * 576)
        kv = np.concatenate((records, exponents.reshape(blocks, page * 8)), axis=1).reshape(blocks, page, 584)
        scale = np.repeat(2.0 ** (exponents[:, :7].astype(np.float64) - 127), 64, axis=1)
        return Pool(kv_format, kv, np.concatenate((E4M3FN[codes] * scale, from_bf16(rope)), axis=1))
    assert kv_format == "fp8_v32"
    codes, scales = _codes(rng, (slots, 512)), (rng.uniform(0.5, 1.5, (slots, 4)) / 448).astype(np.float32)
    kv = np.concatenate((codes, scales.view(np.uint8), rope.view(np.uint8)), axis=1).reshape(blocks, page, 656)
    nope = E4M3FN[codes] * np.repeat(scales.astype(np.float64), 128, axis=1)
    return Pool(kv_format, kv, np.concatenate((nope, from_bf16(rope)), axis=1))


@dataclass
class Case:
    """A problem: attend(**case.arguments), and what must come out."""

    arguments: dict
    rows: list[list[np.ndarray]]  # per source, per row: valid and invalid indices
    pools: list[Pool]
    options: dict = field(default_factory=dict)

    def reference(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """out, lse, max_logits in float64."""
        q = self.arguments["q"]
        q = (from_bf16(q) if q.dtype == np.uint16 else q).astype(np.float64)
        tokens, heads, dim = q.shape
        scale = self.arguments.get("softmax_scale")
        scale = dim**-0.5 if scale is None else scale
        kv_scale = self.arguments.get("kv_scale") or 1
        sink = self.arguments.get("attn_sink")
        sink = np.full(heads, -np.inf) if sink is None else sink.astype(np.float64)
        out, lse = np.zeros((tokens, heads, 512)), np.full((tokens, heads), -np.inf)
        top = np.full((tokens, heads), -np.inf)
        for t in range(tokens):
            picked = []
            for pool, rows in zip(self.pools, self.rows):
                valid = rows[t][(rows[t] >= 0) & (rows[t] < pool.slots)]
                picked.append(kv_scale * pool.keys[valid])
            keys = np.concatenate(picked)
            if len(keys) == 0:
                continue
            scores = scale * q[t] @ keys.T
            top[t] = scores.max(axis=1)
            weights = np.exp(scores - top[t][:, None])
            lse[t] = top[t] + np.log(weights.sum(axis=1))
            with np.errstate(over="ignore"):
                out[t] = weights @ keys[:, :512] / (weights.sum(axis=1) + np.exp(sink - top[t]))[:, None]
        return out, lse, top


def make_lists(rng, tokens: int, slots: int, width: int, form: str) -> tuple[dict, list[np.ndarray]]:
    """Index tensors as named by `kv_...`, and the rows they mean. About one entry in eight is invalid."""
    entries = rng.integers(0, max(slots, 1), (tokens, width)).astype(np.int32)
    odd = np.array([-1, slots, -(2**31), 2**31 - 1, slots + 7], np.int32)
    entries = np.where(rng.random((tokens, width)) < 0.125, rng.choice(odd, (tokens, width)), entries)
    if form == "full":
        return {"indices": entries}, list(entries)
    lengths = rng.integers(0, width + 1, tokens).astype(np.int32)
    if form == "lengths":
        return {"indices": entries, "lengths": lengths}, [row[:n] for row, n in zip(entries, lengths)]
    assert form == "ragged"
    rows = [row[:n] for row, n in zip(entries, lengths)]
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return {"indices": np.concatenate([*rows, np.zeros(0, np.int32)]).astype(np.int32), "indptr": indptr}, rows


def take_apart(kv: np.ndarray, pe: str) -> dict[str, np.ndarray]:
    """A [slots, 576] pool with its last 64 components elsewhere: in a tensor of their own, or before the others."""
    if pe == "apart":
        return {"kv": np.ascontiguousarray(kv[:, :512]), "kv_pe": np.ascontiguousarray(kv[:, 512:])}
    assert pe == "before"
    both = np.full((len(kv), 64 + 3 + 512), 0xFF, np.uint8).astype(kv.dtype)
    both[:, :64], both[:, 67:] = kv[:, 512:], kv[:, :512]
    return {"kv": both[:, 67:], "kv_pe": both[:, :64]}


def make_mla_case(
    rng,
    kv_format: str,
    *,
    lists: int = 3,
    queries: int = 1,
    pe: str = "whole",
    kv_scale: float | None = None,
    **options,
) -> Case:
    """Dense MLA decode: rows of 576, `queries` rows a list, each cut to what the row sees."""
    if kv_scale is None and kv_format.startswith("fp8"):
        kv_scale = 0.004  # codes reach 448
    case = make_case(rng, kv_format, tokens=lists, dim=576, fp16=kv_format == "f16", **options)
    q = np.repeat(case.arguments["q"], queries, axis=0)
    case.arguments["q"] = (q.reshape(-1, 576)[rng.permutation(q.size // 576)]).reshape(q.shape)
    case.rows = [[row[: max(len(row) - (queries - 1 - p), 0)] for row in case.rows[0] for p in range(queries)]]
    if queries > 1:
        case.arguments["queries_per_list"] = queries
    if kv_scale is not None:
        case.arguments["kv_scale"] = kv_scale
    if pe != "whole":
        case.arguments |= take_apart(case.arguments["kv"], pe)
    return case


def make_case(
    rng,
    kv_format: str,
    *,
    tokens: int = 3,
    heads: int = 5,
    slots: int = 60,
    width: int = 19,
    form: str = "ragged",
    extra_format: str | None = None,
    extra_form: str = "full",
    sink: bool = True,
    scale: float | None = None,
    fp16: bool = False,
    page: int = 4,
    dim: int | None = None,
) -> Case:
    dim = dim or (576 if kv_format == "fp8_v32" else 512)
    q = rng.normal(size=(tokens, heads, dim))
    arguments = {"q": q.astype(np.float16) if fp16 else to_bf16(q), "kv_format": kv_format}
    pools, rows = [], []
    for prefix, name, fmt, lists_form in (
        ("kv", "kv", kv_format, form),
        ("extra", "extra_kv", extra_format, extra_form),
    ):
        if fmt is None:
            continue
        pool = make_pool(rng, fmt, slots, page, dim)
        lists, meaning = make_lists(rng, tokens, pool.slots, width, lists_form)
        arguments |= {name: pool.kv, **{f"{prefix}_{key}": value for key, value in lists.items()}}
        if pool.scales is not None:
            arguments[f"{name}_scales"] = pool.scales
        if prefix == "extra":
            arguments["extra_kv_format"] = fmt
        pools.append(pool)
        rows.append(meaning)
    if sink:
        arguments["attn_sink"] = rng.normal(size=heads).astype(np.float32)
    if scale is not None:
        arguments["softmax_scale"] = scale
    return Case(arguments, rows, pools)


def poison(shape, dtype) -> np.ndarray:
    """Memory in which every element is a NaN."""
    array = np.empty(shape, dtype)
    array.view(np.uint8)[...] = 0xFF
    return array


def values(array) -> np.ndarray:
    """The numbers of an out array."""
    return (from_bf16(array) if array.dtype == np.uint16 else array).astype(np.float64)


def assert_matches(case: Case, out, lse=None, max_logits=None) -> None:
    want_out, want_lse, want_top = case.reference()
    np.testing.assert_allclose(values(out), want_out, ATOL, RTOL)
    for row in range(len(want_lse)):
        if np.isneginf(want_lse[row]).all():
            assert (values(out)[row] == 0).all(), "a row without keys must be exactly 0"
    if lse is not None:
        np.testing.assert_allclose(lse, want_lse, atol=1e-3, rtol=1e-3)
    if max_logits is not None:
        np.testing.assert_allclose(max_logits, want_top, atol=1e-3, rtol=1e-3)
