#!/usr/bin/env python3
"""Fits the cost model of cuda:general's planner (estimate_us in src/cuda/backend.cpp) to every launch that `pasa tune --json`
timed, and says how far the planner that ran and the fitted one are from the best launch of each shape.

    bench/tune_fit.py docs/results/tune_general.json

A block takes its ends and its steps of 32 keys, by head tile, blocks an SM and kind of keys; blocks come in waves; a merge
takes a fixed time, a time a part, and a time a megabyte of partials. Every constant enters linearly: least squares of relative
errors, no start values. Standard library only.
"""
import json
import math
import re
import sys

WINDOW = 128  # pasa tune's grid: the first source's list
BLOCKS = ("16 heads", "16 heads, two blocks an SM", "64 heads")
NAMES = [f"{block}: ends" for block in BLOCKS] + [f"{block}: {keys} step" for block in BLOCKS for keys in ("fp8", "16-bit")]
NAMES += ["merge", "merge: a part", "merge: a megabyte"]


def terms(row, sms, tile, splits):
    """What each constant is multiplied by."""
    blocks = row["tokens"] * splits * math.ceil(row["heads"] / tile)
    kind = 2 if tile == 64 else int(blocks > sms)
    waves = math.ceil(blocks / (sms * (2 if kind == 1 else 1)))
    steps = sum(math.ceil(math.ceil(keys / splits) / 32) for keys in (WINDOW, row["length"] - WINDOW))
    values = [0.0] * len(NAMES)
    values[kind] = waves
    values[3 + 2 * kind + (row["keys"] == "16-bit")] = waves * steps
    if splits > 1:
        values[9:] = 1, splits, row["tokens"] * splits * row["heads"] * 514 * 4e-6
    return values


def launches(row):
    return {(tile or 16, splits): us for tile, splits, us in row["trials"]}


def fit(rows, sms):
    size = len(NAMES)
    normal = [[0.0] * (size + 1) for _ in range(size)]
    for row in rows:
        for launch, us in launches(row).items():
            scaled = [x / us for x in terms(row, sms, *launch)] + [1.0]
            for i in range(size):
                for j in range(size + 1):
                    normal[i][j] += scaled[i] * scaled[j]
    for i in range(size):  # Gauss and Jordan; a sum of squares needs no pivot
        for k in range(size):
            if k != i:
                factor = normal[k][i] / normal[i][i]
                normal[k] = [a - factor * b for a, b in zip(normal[k], normal[i])]
    return [line[size] / line[i] for i, line in enumerate(normal)]


def losses(rows, sms, constants):
    """Of each shape, the time of the launch that the model would take, over the best one's. As in the planner, more parts
    must look 2 % better."""
    result = []
    for row in rows:
        timed = launches(row)
        taken, least = None, 0
        for launch in sorted(timed):
            us = sum(a * b for a, b in zip(constants, terms(row, sms, *launch)))
            if taken is None or us < 0.98 * least:
                taken, least = launch, us
        result.append(timed[taken] / min(timed.values()))
    return result


def planner_losses(rows):
    """The same of the planner that ran; where its splits are none of those tried, by its own measurement."""
    result = []
    for row in rows:
        timed = launches(row)
        tile, splits = re.search(r"(\d+) heads x 32 keys, splits (\d+)", row["plan"]).groups()
        result.append(max(1.0, timed.get((int(tile), int(splits)), row["planned_us"]) / min(timed.values())))
    return result


def describe(ratios):
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"mean {100 * (mean - 1):.2f} %, most {100 * (max(ratios) - 1):.1f} %, {sum(r > 1.03 for r in ratios)} of {len(ratios)} above 3 %"


def multiprocessors(result):
    return int(re.search(r"(\d+) SMs", result["device"])[1])


def main():
    result = json.load(open(sys.argv[1]))
    rows, sms = result["rows"], multiprocessors(result)
    constants = fit(rows, sms)
    for name, value in zip(NAMES, constants):
        print(f"{name:36} {value:.3f} us")
    errors = [
        sum(a * b for a, b in zip(constants, terms(row, sms, *launch))) / us - 1
        for row in rows
        for launch, us in launches(row).items()
    ]
    print(f"{len(errors)} launches, error {100 * math.sqrt(sum(e * e for e in errors) / len(errors)):.1f} % (root mean square)")
    print("over the best launch of a shape:")
    print("  the planner that ran      ", describe(planner_losses(rows)))
    print("  the fitted model          ", describe(losses(rows, sms, constants)))
    half = losses(rows[::2], sms, fit(rows[1::2], sms))
    print("  fitted to every other shape,", describe(half), "of the others")


if __name__ == "__main__":
    main()
