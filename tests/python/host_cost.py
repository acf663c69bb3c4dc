#!/usr/bin/env python3
"""What a call costs on the host, in microseconds: median and minimum of 50 rounds of 200 calls that do not wait.

On a GPU the problem is one DeepSeek-V4 decode token (16 heads, 128 + 8 tokens of fp8_ds_mla); without one it has no
rows, so that nothing is computed. FlashMLA's call does what its shim adds: an lse with +inf, transposed.

    host_cost.py [--json FILE] [--commit TEXT]     --json writes the numbers to a file; --commit says there of what
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import pathlib
import statistics
import time

import pasa
import torch
from pasa import _native
from pasa.compat import flash_mla

ROUNDS, CALLS = 50, 200


def costs_of(calls: dict) -> dict[str, list[float]]:
    """Rounds of one call between those of the others: what disturbs the machine for a moment disturbs all alike."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    samples = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            wait()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples[name].append((time.perf_counter() - begin) / CALLS * 1e6)
            wait()
    return samples


_EMPTY = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\0"


def empty_launch():
    """What the driver alone asks for a launch; called through ctypes as pasa_run below."""
    cuda, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    status = cuda.cuModuleLoadData(ctypes.byref(module), _EMPTY)
    status = status or cuda.cuModuleGetFunction(ctypes.byref(function), module, b"empty")
    assert status == 0, status
    launch, stream = cuda.cuLaunchKernel, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    return lambda: launch(function, 1, 1, 1, 32, 1, 1, 0, stream, None, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device, tokens, heads = ("cuda", 1, 16) if on_gpu else ("cpu", 0, 16)
    q = torch.randn(tokens, heads, 512, device=device).bfloat16()
    kv = torch.zeros(64, 64, 584, dtype=torch.uint8, device=device)
    lists = [torch.randint(0, 4096, (tokens, width), dtype=torch.int32, device=device) for width in (128, 8)]
    lengths = [torch.full((tokens,), width, dtype=torch.int32, device=device) for width in (128, 8)]
    out, sink = torch.empty_like(q), torch.zeros(heads, device=device)
    one = dict(kv_format="fp8_ds_mla", kv_lengths=lengths[0], attn_sink=sink)
    two = dict(one, extra_kv=kv, extra_indices=lists[1], extra_lengths=lengths[1])
    plan = pasa.plan(q, kv, lists[0], **two, out=out)
    meta, _ = flash_mla.get_mla_metadata()
    batch = dict(
        q=q[:, None], k_cache=kv[:, :, None], block_table=None, cache_seqlens=None, head_dim_v=512,
        tile_scheduler_metadata=meta, is_fp8_kvcache=True, indices=lists[0][:, None], attn_sink=sink,
        topk_length=lengths[0],
    )  # fmt: skip
    in_c = plan._handle.handle, plan._problem.address, plan._scratch, plan._size, plan._arrays.stream(q)
    device_name = torch.cuda.get_device_name() if on_gpu else "no GPU, no rows"
    print(f"{device_name}; {plan.summary}")
    samples = costs_of(
        {
            **({"an empty kernel through ctypes": empty_launch()} if on_gpu else {}),
            "pasa_run through ctypes": lambda: _native.run(*in_c),
            "attend, one source, out=": lambda: pasa.attend(q, kv, lists[0], **one, out=out),
            "attend, two sources, out=": lambda: pasa.attend(q, kv, lists[0], **two, out=out),
            "attend, two sources": lambda: pasa.attend(q, kv, lists[0], **two),
            "plan.run()": plan.run,
            "plan.run(q=, kv=, out=)": lambda: plan.run(q=q, kv=kv, out=out),
            "flash_mla_with_kvcache": lambda: flash_mla.flash_mla_with_kvcache(**batch),
        }
    )
    for name, of in samples.items():
        print(f"{name:30s} median {statistics.median(of):6.2f}  min {min(of):6.2f}")
    if options.json:
        results = {
            "device": device_name,
            "torch": torch.__version__,
            "date": datetime.date.today().isoformat(),
            "commit": options.commit,
            "command": "host_cost.py",
            "plan": plan.summary,
            "calls": {
                name: {"median_us": round(statistics.median(of), 2), "min_us": round(min(of), 2)}
                for name, of in samples.items()
            },
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
