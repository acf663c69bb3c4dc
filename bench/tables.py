#!/usr/bin/env python3
"""Writes every measured table of the documentation from docs/results/*.json, so that no number is typed by hand.

    bench/tables.py            rewrite the tables in README.md and docs/*.md
    bench/tables.py --check    exit 1 if one of them is not what the results say (CI)

A table stands between two comments:

    <!-- table: decode flashmla -->  ...generated...  <!-- end -->

The words after "table:" are a function of this file and its arguments.
"""
import json
import pathlib
import re
import sys

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


def cpu(name):
    """Rows of `pasa bench --json`, under the machine they were measured on."""
    result = load(f"cpu_{name}")
    body = [[row["problem"], row["kernel"], row["threads"], number(row["median_s"] * 1e6), f"{100 * row['spread']:.0f} %",
             number(row["gbytes_per_s"]), f"{row['gflops_per_s']:.0f}", row["roofline"]["bound"],
             f"{100 * row['roofline']['fraction']:.0f} %"] for row in result["rows"]]
    header = ["problem", "kernel", "threads", "us", "spread", "GB/s", "GFLOP/s", "bound", "of roofline"]
    return markdown(header, body) + "\n\n" + caption(result)


TABLES = {"decode": decode, "cpu": cpu}
MARK = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(\n?<!-- end -->)", re.DOTALL)


def generate(match):
    function, *arguments = match[2].split()
    return f"{match[1]}\n{TABLES[function](*arguments)}\n\n<!-- end -->"


def main():
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
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
