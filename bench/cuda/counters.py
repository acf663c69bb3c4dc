#!/usr/bin/env python3
"""What the hardware counts while a kernel runs: for each cell of a few tables, how busy each part of the GPU is.

    bench/cuda/counters.py BENCH [--json FILE] [--commit C]      BENCH: pasa_bench_cuda

Runs Nsight Compute (`ncu`, of the CUDA toolkit) on one launch of each cell, with the caches emptied before and the clocks left alone.
Where they do not fit one pass, ncu runs the launch again. Exit status 3 without ncu.
"""
import argparse
import csv
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"

# As ncu names them; times and percentages.
METRICS = {
    "us": "gpu__time_duration.sum",
    "ghz": "gpc__cycles_elapsed.avg.per_second",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
TO = {"us": 1e-3, "ghz": 1e-9}

# Options of pasa_bench_cuda that leave one cell, or begin with it.
CELLS = [
    *({"table": "flashmla", "heads": heads, "tokens": tokens, "lists": "128+1024"}
      for heads in (16, 64, 128) for tokens in (1, 16, 256)),
    *({"table": "flashmla", "heads": heads, "tokens": 256, "lists": "128+8"} for heads in (16, 64, 128)),
    {"table": "v32", "heads": 128, "tokens": 256, "lists": "2048+0"},
    *({"table": "prefill", "heads": heads, "lists": str(keys), "kernel": "cuda:sm90_prefill"}
      for heads, keys in ((128, 512), (128, 1024), (64, 1024), (16, 1024))),
]


def counted(ncu, bench, cell):
    """One launch of the cell, behind the one that is checked."""
    options = [part for name, value in cell.items() for part in (f"--{name}", str(value))]
    command = [ncu, "--clock-control", "none", "--metrics", ",".join(METRICS.values()), "--page", "raw", "--csv", "--print-units", "base",
               "--kernel-name", "regex:decode|prefill", "--launch-skip", "1", "--launch-count", "1",
               bench, *options, "--replays", "1", "--peers", str(PEERS)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = list(csv.reader(out.splitlines()))
    begin = next(i for i, line in enumerate(lines) if line and line[0] == "ID")
    names, values = lines[begin], lines[begin + 2]
    row = {key: float(values[names.index(metric)].replace(",", "")) * TO.get(key, 1) for key, metric in METRICS.items()}
    return {**cell, "function": re.search(r"(decode|prefill)<[^(]*>", values[names.index("Kernel Name")])[0], **row}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="pasa_bench_cuda")
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--commit", default="", help="what the file says of the source")
    arguments = parser.parse_args()
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if not ncu:
        print("ncu not found: it comes with the CUDA toolkit", file=sys.stderr)
        return 3
    rows = []
    for cell in CELLS:
        rows.append(counted(ncu, arguments.bench, cell))
        print(rows[-1], flush=True)
    device = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    result = {"command": "bench/cuda/counters.py pasa_bench_cuda", "commit": arguments.commit,
              "date": datetime.date.today().isoformat(), "device": device.stdout.strip(), "metrics": METRICS, "rows": rows}
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
