#!/usr/bin/env python3
"""Writes every measured table of the documentation from docs/results/*.json, so that no number is typed by hand.

    bench/tables.py            rewrite the tables in README.md, docs/*.md and python/README.md
    bench/tables.py --check    exit 1 if one of them is not what the results say (CI)

A table stands between two comments:

    <!-- table: decode flashmla -->  ...generated...  <!-- end -->         docs/results/decode_flashmla.json
    <!-- table: tune general -->  ...generated...  <!-- end -->            docs/results/tune_general.json
    <!-- table: cpu xeon 9efc459 -->  ...generated...  <!-- end -->         docs/results/cpu-xeon.json, that commit's runs

The words after "table:" are a function of this file and its arguments.
"""
import json
import math
import pathlib
import re
import sys

import tune_fit

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def caption(result):
    return f"*{result['device']}, {result['date']}, commit {result['commit']}: `{result['command']}`*"


def number(x):
    return f"{x:.1f}" if x < 100 else f"{x:.0f}"


def decode(name):
    """One row per format, heads and lists; one column per number of query rows: us (peer's recorded us, or % of floor)."""
    result = load(f"decode_{name}")
    tokens = sorted({row["tokens"] for row in result["rows"]})
    lines = {}
    for row in result["rows"]:
        key = (row["format"], row["lists"], row["heads"], f"{row['main']}+{row['extra']}")
        peer = f" / {number(row['peer_us_recorded'])}" if row["peer_us_recorded"] > 0 else ""
        lines.setdefault(key, {})[row["tokens"]] = f"{number(row['us_cold'])}{peer} ({100 * row['floor_us'] / row['us_cold']:.0f} %)"
    body = [[*key, *(cells.get(t, "") for t in tokens)] for key, cells in lines.items()]
    return markdown(["format", "lists", "heads", "keys", *(f"T={t}" for t in tokens)], body) + "\n\n" + caption(result)


def cpu(name, commit):
    """The runs of one commit: a row per kernel, format, threads and query rows; a column per head count."""
    result = load(f"cpu_{name}".replace("_", "-", 1))
    parts = []
    for run in result.get("runs", [result]):
        if run["commit"] != commit:
            continue
        lines = {}
        for row in run["results"]:
            key = (f"`{row['kernel']}`", f"`{row['format']}`", row["threads"], row["rows"], row["keys"])
            gather = f", {100 * row['of_gather']:.0f} % of gather" if "of_gather" in row and row["kernel"] == "cpu:amx" else ""
            lines.setdefault(key, {})[row["heads"]] = f"{number(row['us'])} us, {100 * row['of_peak']:.0f} %{gather}"
        heads = sorted({row["heads"] for row in run["results"]})
        body = [[*key, *(cells.get(h, "") for h in heads)] for key, cells in lines.items()]
        header = ["kernel", "format", "threads", "rows", "keys", *(f"H={h}: time, of peak" for h in heads)]
        note = f"*{result['machine']}; {result['date']}, commit {commit}; {run.get('state', result.get('time', ''))}*"
        parts.append(markdown(header, body) + "\n\n" + note)
    return "\n\n".join(parts)


def prefill(name):
    """One row per format, heads and shape: us, TFLOP/s and the peer's recorded TFLOP/s, for full rows and for rows of random length."""
    result = load(f"prefill_{name}")
    lines = {}
    for row in result["rows"]:
        key = (f"`{row['kernel']}`", row["format"], row["heads"], f"{row['tokens']}, {row['slots']}, {row['main']}")
        peer = f" / {number(row['tflops'] * row['us_cold'] / row['peer_us_recorded'])}" if row["peer_us_recorded"] > 0 else ""
        lines.setdefault(key, {})[row["rows"]] = f"{number(row['us_cold'])} us, {number(row['tflops'])}{peer} TFLOP/s"
    body = [[*key, cells.get("full", ""), cells.get("random", "")] for key, cells in lines.items()]
    header = ["kernel", "format", "heads", "queries, pool, keys", "full rows", "random rows"]
    return markdown(header, body) + "\n\n" + caption(result)


def switch(name):
    """One row per format, heads and keys; one column per number of query rows: us of each kernel, the planner's choice in bold."""
    result = load(f"switch_{name}")
    tokens = sorted({row["tokens"] for row in result["rows"]})
    lines, taken = {}, {}
    for row in result["rows"]:
        key = (row["format"], row["heads"], row["main"])
        lines.setdefault(key, {}).setdefault(row["tokens"], {})[row["kernel"]] = row["us_cold"]
        if "planner" in row:
            taken[(*key, row["tokens"])] = row["planner"]
    kernels = sorted({row["kernel"] for row in result["rows"]})
    cell = lambda key, t: " / ".join(
        ("**{}**" if taken.get((*key, t)) == k else "{}").format(number(lines[key][t][k])) for k in kernels if k in lines[key].get(t, {})
    )
    body = [[*key, *(cell(key, t) for t in tokens)] for key in lines]
    header = ["format", "heads", "keys", *(f"T={t}" for t in tokens)]
    return f"{' / '.join(f'`{k}`' for k in kernels)}, us:\n\n" + markdown(header, body) + "\n\n" + caption(result)


def tune(name):
    """One row per kind of keys and heads: how far the planner that ran, and the model fitted to these launches, are from the best."""
    result = load(f"tune_{name}")
    sms = tune_fit.multiprocessors(result)
    constants = tune_fit.fit(result["rows"], sms)
    groups = {}
    for row in result["rows"]:
        groups.setdefault((row["keys"], row["heads"]), []).append(row)
    mean = lambda ratios: f"{100 * (math.exp(sum(map(math.log, ratios)) / len(ratios)) - 1):.1f} %, {100 * (max(ratios) - 1):.0f} %"
    body = [
        [*key, len(rows), sum(len(row["trials"]) for row in rows), mean(tune_fit.planner_losses(rows)),
         mean(tune_fit.losses(rows, sms, constants))]
        for key, rows in groups.items()
    ]
    header = ["keys", "heads", "shapes", "launches", "former planner: mean, most", "fitted: mean, most"]
    return markdown(header, body) + "\n\n" + caption(result)


def counters():
    """How busy each part of the GPU is, in percent of what it could do in the time."""
    result = load("counters")
    body = [
        [f"`{row['function']}`", row["table"], row["heads"], row.get("tokens", ""), row["lists"], number(row["us"]), f"{row['ghz']:.2f}",
         *(f"{row[part]:.0f}" for part in ("tensor", "shared", "issue", "l2", "dram"))]
        for row in result["rows"]
    ]
    header = ["kernel", "table", "heads", "T", "keys", "us", "GHz", "tensor cores", "shared memory", "issue slots", "L2", "device memory"]
    return markdown(header, body) + "\n\n" + caption(result)


def grids():
    """The large grids on the GPU: cases, and of how many each kernel's result was compared with the reference."""
    result = load("gpu_tests")
    counts = result["tests"]["grids"]["grids"]
    kernels = sorted({kernel for grid in counts.values() for kernel in grid if kernel != "cases"})
    body = [[f"`{name}`", grid["cases"], *(grid.get(kernel, 0) for kernel in kernels)] for name, grid in counts.items()]
    return markdown(["grid", "cases", *(f"`{kernel}`" for kernel in kernels)], body) + "\n\n" + caption(result)


def ops(which):
    """The operations around the kernel: calls of one size, or list builders by their number of rows."""
    result = load("ops")
    if which == "calls":
        body = [[row["what"], row["rows"], number(row["us"]), f"{row['gbps'] / 1000:.2f} TB/s" if row["gbps"] else ""]
                for row in result["rows"] if not row["what"].startswith("list: ")]
        return markdown(["call", "tokens", "us", ""], body) + "\n\n" + caption(result)
    builders = {}
    for row in result["rows"]:
        if row["what"].startswith("list: "):
            builders.setdefault(row["what"][6:], {})[row["rows"]] = number(row["us"])
    sizes = sorted({size for row in builders.values() for size in row})
    body = [[name, *(row.get(size, "") for size in sizes)] for name, row in builders.items()]
    return markdown(["list builder, us", *(f"{size} rows" for size in sizes)], body) + "\n\n" + caption(result)


def host():
    """What each Python call costs before the GPU has anything to do."""
    result = load("host_cost")
    body = [[f"`{name}`", f"{us['median_us']:.1f}", f"{us['min_us']:.1f}"] for name, us in result["calls"].items()]
    return markdown(["call", "median, us", "least, us"], body) + f"\n\n{caption(result)}"


def peers():
    """The other libraries' suites: how many of their tests passed."""
    outcomes, results = ("passed", "failed", "skipped", "not_run"), load("peers")
    body = [[name, *(r[outcome] for outcome in outcomes), r["device"], r["commit"]] for name, r in results.items()]
    table = markdown(["suite", "passed", "failed", "skipped", "not run", "on", "commit"], body)
    commands = {f"`{r['command']}` on {r['date']}, revision {r['revision'][:10]}": None for r in results.values()}
    return table + "\n\n*" + "; ".join(commands) + "*"


TABLES = {"decode": decode, "prefill": prefill, "cpu": cpu, "switch": switch, "tune": tune, "host": host, "peers": peers,
          "counters": counters, "grids": grids, "ops": ops}
MARK = re.compile(r"(<!-- table: ([\w ]+?) -->\n).*?(\n?<!-- end -->)", re.DOTALL)


def generate(match):
    function, *arguments = match[2].split()
    return f"{match[1]}\n{TABLES[function](*arguments)}\n\n<!-- end -->"


def main():
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "python" / "README.md"]:
        old = page.read_text()
        new = MARK.sub(generate, old)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if "--check" not in sys.argv[1:]:
                page.write_text(new)
    for page in stale:
        print(f"{page}: tables {'differ from docs/results' if '--check' in sys.argv[1:] else 'rewritten'}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
