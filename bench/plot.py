#!/usr/bin/env python3
"""Shows what `pasa bench --json` measured for cases named WORKLOAD,FORMAT,LISTS.safetensors: a table on the terminal and a
picture of the speed per format, each bar beside the roofline measured in the same run.

  plot.py bench.json -o speed.png [--info info.json] [--title TEXT]
"""
import argparse
import json
from pathlib import Path


def duration(seconds):
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            break
    return f"{seconds * scale:.3g} {unit}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("-o", "--output", default="speed.png")
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


def draw(path, title, measured, workloads, formats):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 5))
    width = 0.8 / len(formats)
    colours = plt.get_cmap("tab10")
    for j, column in enumerate(formats):
        places = [i + (j - (len(formats) - 1) / 2) * width for i in range(len(workloads))]
        rows = [measured[w, column] for w in workloads]
        axes.bar(places, [row["gflops_per_s"] for row in rows], width * 0.92, color=colours(j),
                 label=f"{column[0]}, {lists_word(column[1])}")
        for place, row in zip(places, rows):
            if "roofline" in row:
                ceiling = row["gflops_per_s"] / row["roofline"]["fraction"]
                axes.plot([place - width / 2, place + width / 2], [ceiling] * 2, color="black", linewidth=1.2,
                          label="roofline of this machine" if (row is rows[0] and j == len(formats) - 1) else None)
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_xlabel("tokens a query (window + compressed)")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(title, fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, ncol=2)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
