#!/usr/bin/env python3
"""The same problems in NumPy with a tuned OpenBLAS, side by side with `pasa bench`: float32 matrix products per query row,
fp8 decoded by table. Checks first that both give the same answer.

  numpy_peer.py [--pasa build/tools/pasa] [--threads N] [--seconds S] CASE.safetensors...
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

# Both must be set before NumPy loads the library. Out of the box OpenBLAS does not know recent CPUs and falls back to SSE3.
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("cases", nargs="+")
parser.add_argument("--pasa", default="build/tools/pasa")
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--kernel")
args = parser.parse_args()
with open("/proc/cpuinfo") as cpuinfo:
    flags = next((line for line in cpuinfo if line.startswith("flags")), "").split()
core = "SkylakeX" if "avx512bw" in flags else "Haswell" if "avx2" in flags else None
if core:
    os.environ.setdefault("OPENBLAS_CORETYPE", core)
os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)

import numpy as np  # noqa: E402


def read(path):
    """name -> (dtype, array of raw words), metadata"""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    words = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "U8": "u1", "F8_E4M3": "u1", "I32": "<i4"}
    raw = np.memmap(path, mode="r")
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, info in header.items():
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        tensors[name] = (info["dtype"], np.frombuffer(raw[begin:end], words[info["dtype"]]).reshape(info["shape"]))
    return tensors, metadata


def to_float(tensor):
    dtype, values = tensor
    return bf16(values) if dtype == "BF16" else values.astype(np.float32)


def bf16(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def fp8_table(bias):
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - bias - 3), mantissa * 2.0 ** (1 - bias - 3))
    value = np.where(codes & 128, -value, value)
    value[[128] if bias == 8 else [127, 255]] = np.nan
    return value.astype(np.float32)


OCP, FNUZ = fp8_table(7), fp8_table(8)


class Source:
    def __init__(self, tensors, prefix, kv_format):
        self.format, self.kv = kv_format, tensors[prefix + "kv"][1]
        names = "kv_" if not prefix else prefix
        self.indices = tensors[names + "indices"][1]
        self.indptr, self.lengths = (tensors.get(names + word, (0, None))[1] for word in ("indptr", "lengths"))
        self.scales = tensors.get(prefix + "kv_scales", (0, None))[1]
        self.page = self.kv.shape[1] if self.kv.ndim == 3 else 1
        self.slots = self.kv.shape[0] * self.page
        if kv_format == "fp8_ds_mla":  # all records of a page, then all scales
            pages = self.kv.reshape(self.kv.shape[0], -1)
            self.records = pages[:, : self.page * 576].reshape(-1, self.page, 576)
            self.tails = pages[:, self.page * 576 :].reshape(-1, self.page, 8)

    def row(self, t):
        if self.indptr is not None:
            row = self.indices[self.indptr[t] : self.indptr[t + 1]]
        else:
            row = self.indices[t, : None if self.lengths is None else self.lengths[t]]
        return row[(row >= 0) & (row < self.slots)]

    def keys(self, slots):
        """[n, D] float32"""
        if self.format in ("bf16", "packed_bf16"):
            return bf16(self.kv.reshape(-1, self.kv.shape[-1])[slots])
        if self.format == "f16":
            return self.kv[slots].astype(np.float32)
        if self.format.startswith("fp8_e4m3"):
            table = FNUZ if self.format.endswith("fnuz") else OCP
            return (table[self.kv[slots]].reshape(-1, 8, 64) * self.scales[slots][:, :, None]).reshape(-1, 512)
        if self.format == "fp8_ds_mla":
            record = self.records[slots // self.page, slots % self.page]
            scale = np.ldexp(np.float32(1), self.tails[slots // self.page, slots % self.page, :7].astype(np.int32) - 127)
            nope = (OCP[record[:, :448]].reshape(-1, 7, 64) * scale[:, :, None]).reshape(-1, 448)
            return np.concatenate([nope, bf16(record[:, 448:].copy().view("<u2"))], axis=1)
        record = self.kv.reshape(-1, 656)[slots]
        scale = record[:, 512:528].copy().view("<f4")
        nope = (OCP[record[:, :512]].reshape(-1, 4, 128) * scale[:, :, None]).reshape(-1, 512)
        return np.concatenate([nope, bf16(record[:, 528:].copy().view("<u2"))], axis=1)


def attend(q, sources, sink, scale):
    out = np.zeros((q.shape[0], q.shape[1], 512), np.float32)
    for t in range(q.shape[0]):
        keys = [source.keys(source.row(t)) for source in sources]
        keys = keys[0] if len(keys) == 1 else np.concatenate(keys)
        if len(keys) == 0:
            continue
        scores = (q[t] * scale) @ keys.T
        top = scores.max(axis=1)
        if sink is not None:
            top = np.maximum(top, sink)
        p = np.exp(scores - top[:, None])
        total = p.sum(axis=1)
        if sink is not None:
            total += np.exp(sink - top)
        out[t] = (p @ keys[:, :512]) / total[:, None]
    return out


def problem(path):
    tensors, metadata = read(path)
    q = to_float(tensors["q"])
    sources = [Source(tensors, "", metadata["kv_format"])]
    if "extra_kv" in tensors:
        sources.append(Source(tensors, "extra_", metadata.get("extra_kv_format", metadata["kv_format"])))
    sink = tensors["attn_sink"][1] if "attn_sink" in tensors else None
    scale = np.float32(metadata.get("softmax_scale", q.shape[2] ** -0.5))
    return q, sources, sink, scale


def timed(body, seconds):
    """Median over repetitions, after one call to warm up."""
    samples, begin = [], time.perf_counter()
    body()
    while len(samples) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        body()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def main():
    kernel = ["--kernel", args.kernel] if args.kernel else []
    common = ["--device", "cpu", "--threads", str(args.threads), *kernel]
    print(f"NumPy {np.__version__}, OPENBLAS_CORETYPE={os.environ.get('OPENBLAS_CORETYPE', 'as found')}, {args.threads} threads\n")
    print(f"{'case':<40} {'NumPy':>12} {'pasa':>12} {'ratio':>7}  kernel         largest difference")
    with np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        for path in args.cases:
            inputs = problem(path)
            result = os.path.join(folder, "result.safetensors")
            subprocess.run([args.pasa, "run", path, "-o", result, *common], check=True, stdout=subprocess.DEVNULL)
            theirs, ours = attend(*inputs), to_float(read(result)[0]["out"])
            difference = float(np.max(np.abs(theirs - ours), initial=0))
            if not difference < 0.02 * max(1.0, float(np.max(np.abs(ours), initial=0))):
                sys.exit(f"{path}: NumPy and pasa differ by {difference}")
            numpy_seconds = timed(lambda inputs=inputs: attend(*inputs), args.seconds)
            bench = subprocess.run([args.pasa, "bench", path, "--json", "--no-roofline", "--seconds", str(args.seconds), *common],
                                   check=True, capture_output=True, text=True)
            row = json.loads(bench.stdout)[0]
            seconds = row["median_s"]
            print(f"{os.path.basename(path):<40} {1e6 * numpy_seconds:>9.0f} us {1e6 * seconds:>9.0f} us {numpy_seconds / seconds:>6.1f}x"
                  f"  {row['kernel']:<14} {difference:.2g}")


if __name__ == "__main__":
    main()
