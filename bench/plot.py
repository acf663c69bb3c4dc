#!/usr/bin/env python3
"""Shows what `pasa bench --json` measured for cases named WORKLOAD,FORMAT,LISTS.safetensors: a table on the terminal and a
picture (SVG) of the speed per format, each bar under the roofline measured in the same run. Standard library only: a plotting
package would be most of what a bare machine has to install.

  plot.py bench.json -o speed.svg [--info info.json] [--title TEXT]
"""
import argparse
import html
import json
import math
from pathlib import Path


def duration(seconds):
    """Three significant digits."""
    value, unit = (seconds * 1e6, "us") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("-o", "--output", default="speed.svg")
    parser.add_argument("--info")
    parser.add_argument("--title", default="pasa")
    args = parser.parse_args()

    measured, workloads, formats = {}, [], []
    for row in json.loads(Path(args.bench).read_text()):
        workload, kv_format, lists = Path(row["problem"]).stem.split(",")
        column = (kv_format, int(lists))
        measured[workload, column] = row
        workloads += [workload] * (workload not in workloads)
        formats += [column] * (column not in formats)
    first = next(iter(measured.values()))
    what = first["device"]
    if args.info:
        devices = {d["name"]: d["what"] for d in json.loads(Path(args.info).read_text())["devices"]}
        what = devices.get(first["device"], what)
    kernels = sorted({row["kernel"] for row in measured.values()})
    title = f"{args.title}; {', '.join(kernels)} on {what}"

    print_table(title, measured, workloads, formats)
    draw(args.output, title, measured, workloads, formats)
    print(f"\npicture: {args.output}")


def lists_word(lists):
    return "1 list" if lists == 1 else f"{lists} lists"


def print_table(title, measured, workloads, formats):
    def cell(workload, column):
        row = measured[workload, column]
        roofline = row.get("roofline")
        return f"{duration(row['median_s'])} {100 * roofline['fraction']:3.0f} %" if roofline else duration(row["median_s"])

    columns = [["", "tokens a query"] + workloads]
    for column in formats:
        columns.append([column[0], lists_word(column[1])] + [cell(w, column) for w in workloads])
    widths = [max(map(len, column)) for column in columns]
    print(f"\n{title}\n")
    for i in range(len(workloads) + 2):
        print("  ".join(c[i].ljust(w) if j == 0 else c[i].rjust(w) for j, (c, w) in enumerate(zip(columns, widths))).rstrip())
        if i == 1:
            print("  ".join("-" * w for w in widths))
    print("\nmedian of a call, and the fraction of the roofline: the least time that the gather rate or the arithmetic peak measured\n"
          "in the same run would allow, over that median." if any("roofline" in r for r in measured.values()) else "\nmedian of a call")


COLOURS = ["#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f"]


def round_up(value):
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * 0.999)


def draw(path, title, measured, workloads, formats):
    def ceiling(row):
        return row["gflops_per_s"] / row["roofline"]["fraction"] if "roofline" in row else 0

    width, height, left, right, top, bottom = 1100, 520, 70, 20, 110, 60
    highest = max(max(row["gflops_per_s"], ceiling(row)) for row in measured.values()) or 1
    step = round_up(highest / 6)
    scale = (height - top - bottom) / (step * math.ceil(highest / step))
    floor = height - bottom

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
           '<rect width="100%" height="100%" fill="white"/>']

    def text(x, y, words, anchor="middle", more=""):
        svg.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(words)}</text>')

    def line(x1, y1, x2, y2, colour, thickness):
        svg.append(f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" stroke-width="{thickness}"/>')

    text(width / 2, 24, title, more='font-size="15" font-weight="bold"')
    for i in range(math.ceil(highest / step) + 1):
        y = floor - i * step * scale
        line(left, y, width - right, y, "#ddd" if i else "black", 1)
        text(left - 8, y + 4, f"{i * step:g}", "end")
    text(18, (top + floor) / 2, "GFLOP/s", more=f'transform="rotate(-90 18 {(top + floor) / 2})"')

    group = (width - left - right) / len(workloads)
    bar = 0.84 * group / len(formats)
    for i, workload in enumerate(workloads):
        text(left + (i + 0.5) * group, floor + 20, workload)
        for j, column in enumerate(formats):
            row = measured[workload, column]
            x = left + (i + 0.08) * group + j * bar
            y = row["gflops_per_s"] * scale
            svg.append(f'<rect x="{x:.1f}" y="{floor - y:.1f}" width="{bar * 0.9:.1f}" height="{y:.1f}" fill="{COLOURS[j % 8]}"/>')
            if ceiling(row):
                line(x, floor - ceiling(row) * scale, x + bar * 0.9, floor - ceiling(row) * scale, "black", 2)
    text(left + (width - left - right) / 2, height - 12, "tokens a query (window + compressed)")

    # Legend, four to a row.
    for j, column in enumerate(formats):
        x, y = left + j % 4 * 250, 44 + j // 4 * 22
        svg.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[j % 8]}"/>')
        text(x + 20, y + 12, f"{column[0]}, {lists_word(column[1])}", "start")
    if any(map(ceiling, measured.values())):
        x, y = left + len(formats) % 4 * 250, 44 + len(formats) // 4 * 22
        line(x, y + 8, x + 14, y + 8, "black", 2)
        text(x + 20, y + 12, "roofline of this machine", "start")
    Path(path).write_text("\n".join(svg + ["</svg>"]))


if __name__ == "__main__":
    main()
