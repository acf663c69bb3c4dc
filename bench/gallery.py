#!/usr/bin/env python3
"""Draws the pictures of docs/gallery.md from docs/results/*.json with matplotlib; every number in them was measured by the command
that its file names.

    bench/gallery.py                 write docs/pictures/*.svg
    bench/gallery.py --accuracy PASA run PASA (the command line tool) over all formats first: docs/results/accuracy.json
"""
import argparse
import datetime
import json
import pathlib
import subprocess

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, PICTURES = ROOT / "docs" / "results", ROOT / "docs" / "pictures"
OURS, PEER = "#1f77b4", "#888888"
FORMATS = ["bf16", "f16", "packed_bf16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_ds_mla", "fp8_v32"]

plt.rcParams.update({"svg.hashsalt": "pasa", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                     "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e4e4", "legend.frameon": False})


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def save(figure, name, result):
    figure.text(0.01, 0.005, f"{result['device']}, {result['date']}, commit {result['commit']}: {result['command']}",
                fontsize=6.5, color="#555555")
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def by(rows, *keys):
    """{values of keys: rows in order of tokens}"""
    groups = {}
    for row in sorted(rows, key=lambda row: row["tokens"]):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def log2_tokens(axis, rows):
    axis.set_xscale("log", base=2)
    tokens = sorted({row["tokens"] for row in rows})
    axis.set_xticks(tokens, [str(t) for t in tokens])
    axis.minorticks_off()


def speed():
    """Time per call against the peer's recorded one: a row of panels per head count, a column per list length."""
    result = load("decode_flashmla")
    groups = by(result["rows"], "heads", "main", "extra")
    heads = sorted({key[0] for key in groups})
    lists = sorted({key[1:] for key in groups}, key=lambda pair: -sum(pair))
    figure, axes = plt.subplots(len(heads), len(lists), figsize=(11, 7), sharex=True, sharey="col", squeeze=False)
    for i, h in enumerate(heads):
        for j, pair in enumerate(lists):
            axis, rows = axes[i][j], groups[h, *pair]
            tokens = [row["tokens"] for row in rows]
            axis.plot(tokens, [row["us_cold"] for row in rows], "o-", color=OURS, label="pasa")
            axis.plot(tokens, [row["peer_us_recorded"] for row in rows], "s--", color=PEER, markersize=4,
                      label="FlashMLA (recorded)")
            axis.plot(tokens, [row["floor_us"] for row in rows], ":", color="black", linewidth=1, label="floor")
            axis.set_yscale("log")
            log2_tokens(axis, rows)
            if i == 0:
                axis.set_title(f"{pair[0]} + {pair[1]} keys")
            if i + 1 == len(heads):
                axis.set_xlabel("query rows")
            if j == 0:
                axis.set_ylabel(f"{h} heads\nus a call")
    axes[0][0].legend(fontsize=8)
    figure.suptitle("Two-source decode, fp8_ds_mla: time of a call, cold L2")
    save(figure, "decode_speed", result)


def floor():
    """Fraction of the floor per format and head count, all keys of the longest list."""
    result = load("decode_formats")
    longest = max(row["main"] + row["extra"] for row in result["rows"])
    groups = by([row for row in result["rows"] if row["main"] + row["extra"] == longest], "format", "heads")
    formats = sorted({key[0] for key in groups})
    figure, axes = plt.subplots(1, len(formats), figsize=(11, 3.4), sharey=True, squeeze=False)
    for axis, kv_format in zip(axes[0], formats):
        for (name, heads), rows in groups.items():
            if name == kv_format:
                axis.plot([row["tokens"] for row in rows], [100 * row["floor_us"] / row["us_cold"] for row in rows], "o-",
                          label=f"{heads} heads")
        log2_tokens(axis, result["rows"])
        axis.set_ylim(0, 100)
        axis.set_title(kv_format)
        axis.set_xlabel("query rows")
    axes[0][0].set_ylabel("% of the floor")
    axes[0][0].legend(fontsize=8)
    figure.suptitle(f"{longest} keys a row: the least time that bytes or arithmetic allow, over the measured one")
    save(figure, "decode_floor", result)


def accuracy():
    """The worst element of the output as a share of what its tolerance allows, per format and kernel."""
    result = load("accuracy")
    kernels = sorted({row["kernel"] for row in result["rows"] if row["kernel"] != "reference"})
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6))
    width = 0.8 / len(kernels)
    for i, kernel in enumerate(kernels):
        for axis, value in zip(axes, ["of_tolerance", "one_minus_cosine"]):
            points = [(FORMATS.index(row["format"]) + i * width, row[value]) for row in result["rows"] if row["kernel"] == kernel]
            axis.bar([x for x, _ in points], [y for _, y in points], 0.9 * width, label=kernel)
    for axis, title in zip(axes, ["worst element's error / its tolerance", "1 - cosine of the output with float64's"]):
        axis.set_xticks([k + 0.4 - width / 2 for k in range(len(FORMATS))], FORMATS, rotation=20)
        axis.set_title(title)
    axes[0].set_ylim(0, 1)
    axes[1].set_yscale("log")
    axes[0].legend(fontsize=8)
    save(figure, "accuracy", result)


def measure_accuracy(pasa):
    description = "decode:T=16,H=64,q={},fmt={},len=1152"
    rows = []
    for kv_format in FORMATS:
        run = subprocess.run([pasa, "check", description.format("f16" if kv_format == "f16" else "bf16", kv_format), "--kernel", "all", "--json"], capture_output=True,
                             text=True, check=True)
        for check in json.loads(run.stdout):
            out = next(tensor for tensor in check["tensors"] if tensor["tensor"] == "out")
            rows.append({"format": kv_format, "kernel": check["kernel"], "tolerance": check["tolerance"],
                         "of_tolerance": abs(out["got"] - out["want"]) / out["limit"], "max_abs": out["max_abs"],
                         "one_minus_cosine": out["one_minus_cosine"]})
    info = json.loads(subprocess.run([pasa, "info", "--json"], capture_output=True, text=True, check=True).stdout)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    cpu = next(device["what"] for device in info["devices"] if device["name"] == "cpu")
    result = {"device": cpu, "date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(),
              "command": f'pasa check "{description.format("...", "...")}" --kernel all --json', "rows": rows}
    (RESULTS / "accuracy.json").write_text(json.dumps(result, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", metavar="PASA")
    args = parser.parse_args()
    if args.accuracy:
        measure_accuracy(args.accuracy)
    PICTURES.mkdir(exist_ok=True)
    for picture in (speed, floor, accuracy):
        picture()


if __name__ == "__main__":
    main()
