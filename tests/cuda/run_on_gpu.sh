#!/bin/sh
# Runs everything that needs a GPU and writes docs/results/*.json:
#   attention_test  every kernel x every quick case, CPU kernels included
#   gpu_test        graph replay, spans, determinism, alignment; a tuning table's use
#   grids           the large grids (FlashMLA's, aiter's, vLLM's, our own) against the reference on the GPU, in parts
#   sanitizers      memcheck and synccheck on the tests named Small, racecheck on those named Tiny. racecheck does not follow an
#                   mbarrier at which one lane arrives for its warp, and reports what it orders: racecheck_pattern shows
#                   that. So its hazards are counted, and fail nothing
#   counters        how busy each part of the GPU is in some cells of the benchmarks (bench/cuda/counters.py; needs ncu)
#   benchmarks      the decode and prefill tables, the kernels of both around the switch (pasa_bench_cuda), the operations
# Tests and sanitizers run side by side, attention_test and grids in as many parts as there are processors; counters and benchmarks
# run alone. Minutes.
#
#   tests/cuda/run_on_gpu.sh [BUILD] [STEP...]
# BUILD: a build folder (default: build). STEP: attention gpu grids sanitize counters bench (default: all).
# PASA_GPU_EVERY=n: about every n-th case of the large grids (default 200; 1: each, which takes STEP_SECONDS=600).
# BIN=dir: the binaries are there, nothing is built.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build}
[ $# -gt 0 ] && shift
steps=${*:-attention gpu grids sanitize counters bench}
results=${RESULTS:-$root/docs/results}
logs=${LOGS:-/tmp/pasa_gpu_logs}
mkdir -p "$results" "$logs"
failed=0
running=
commit=${COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null)}

find_bin() {  # name
  for folder in "${BIN:-/nonexistent}" "$build" "$build/tests" "$build/tests/cuda" "$build/tests/ops" "$build/bench/cuda" "$build/tools"; do
    if [ -x "$folder/$1" ] && [ ! -d "$folder/$1" ]; then
      echo "$folder/$1"
      return
    fi
  done
}

if [ -z "${BIN:-}" ] && [ -z "$(find_bin gpu_test)" ]; then
  cmake -G Ninja -S "$root" -B "$build" && ninja -C "$build" attention_test gpu_test cuda_tuning_test ops_device_test racecheck_pattern pasa_bench_cuda || exit 2
fi

note() {  # name status seconds log
  printf '%-28s %-6s %4ss  %s\n' "$1" "$([ "$2" = 0 ] && echo ok || echo FAILED)" "$3" "$(grep -E 'tests ran|PASSED|FAILED|ERROR SUMMARY|comparisons|geometric' "$4" | tr '\n' ' ' | cut -c1-200)"
}

step() {  # name command...
  name=$1
  shift
  log=$logs/$name.log
  begin=$(date +%s)
  timeout "${STEP_SECONDS:-300}" "$@" >"$log" 2>&1
  status=$?
  note "$name" $status $(($(date +%s) - begin)) "$log"
  [ $status = 0 ] || grep -E -m 40 'FAILED|Failure|error|Error|wrong|what\(\)|expected|=========' "$log"
  return $status
}

beside() {  # name command...: a step that others need not wait for
  step "$@" &
  running="$running $!"
}

in_parts() {  # name command...: a test program, a part of its tests for each processor
  name=$1
  shift
  shards=$(nproc)
  shard=0
  while [ $shard -lt "$shards" ]; do
    beside "$name.$shard" env GTEST_TOTAL_SHARDS="$shards" GTEST_SHARD_INDEX=$shard OMP_NUM_THREADS=1 \
      "$@" --gtest_brief=1 --gtest_output="json:$results/$name.$shard.json"
    shard=$((shard + 1))
  done
}

finish() {  # all of them
  for one in $running; do
    wait "$one" || failed=1
  done
  running=
}

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for group in $steps; do
  case $group in
    attention) in_parts attention_test "$(find_bin attention_test)" ;;
    grids) in_parts grids "$(find_bin gpu_test)" --gtest_filter='*GpuGrids*' ;;
    gpu)
      beside gpu_test "$(find_bin gpu_test)" --gtest_filter='-*GpuGrids*' --gtest_output="json:$results/gpu_test.json"
      beside cuda_tuning_test "$(find_bin cuda_tuning_test)" --gtest_output="json:$results/cuda_tuning_test.json"
      beside ops_device_test "$(find_bin ops_device_test)"
      ;;
    sanitize)
      for tool in memcheck synccheck; do
        beside "$tool" "$sanitizer" --tool $tool --error-exitcode 9 "$(find_bin gpu_test)" --gtest_filter='Gpu.Small*'
      done
      beside racecheck "$sanitizer" --tool racecheck "$(find_bin gpu_test)" --gtest_filter='Gpu.Tiny*'
      for who in lanes warp; do
        beside racecheck_$who "$sanitizer" --tool racecheck "$(find_bin racecheck_pattern)" $who
      done
      ;;
    counters)
      finish
      step counters python3 "$root/bench/cuda/counters.py" "$(find_bin pasa_bench_cuda)" --json "$results/counters.json" \
        --commit "$commit" || failed=1
      ;;
    bench)
      bench() {  # result arguments...
        result=$1
        shift
        step "bench_$result" "$(find_bin pasa_bench_cuda)" "$@" --peers "$root/bench/peers" --json "$results/$result.json" \
          --commit "$commit" || failed=1
      }
      finish
      for table in flashmla formats loops v32; do
        bench "decode_$table" --table $table
      done
      step bench_ops "$(find_bin ops_device_test)" --time "$results/ops.json" "$commit" || failed=1
      bench prefill_chosen --table prefill
      bench prefill_h200 --table prefill --kernel cuda:sm90_prefill
      bench switch_sm90 --table switch --replays 5
      ;;
    *) echo "no such step: $group" >&2; exit 2 ;;
  esac
done
finish

# One summary, small enough to read: machine, and what passed.
python3 - "$results" "$logs" "$commit" <<'PY'
import datetime, json, os, pathlib, re, subprocess, sys
results, logs = map(pathlib.Path, sys.argv[1:3])
query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                       capture_output=True, text=True).stdout.strip()
summary = {"device": query, "date": datetime.date.today().isoformat(), "commit": sys.argv[3],
           "command": "tests/cuda/run_on_gpu.sh", "tests": {}}
for name in ("attention_test", "gpu_test", "grids", "cuda_tuning_test"):
    tests = []
    for path in sorted(results.glob(f"{name}.*json")):
        tests += [t for suite in json.loads(path.read_text())["testsuites"] for t in suite["testsuite"]]
        path.unlink()  # one line a test is too much to keep
    if not tests:
        continue
    bad = [f'{t["classname"]}.{t["name"]}' for t in tests if t.get("failures")]
    skipped = [t for t in tests if t.get("result") == "SKIPPED"]
    summary["tests"][name] = {"run": len(tests), "failed": bad, "skipped": len(skipped)}
    if name == "grids":
        counts = {}  # of each grid: cases, and comparisons of each kernel
        for t in tests:
            for key in (key for key in t if "/" in key):
                grid, what = key.split("/")
                of_grid = counts.setdefault(grid, {})
                of_grid[what] = of_grid.get(what, 0) + int(t[key])
        summary["tests"][name] |= {"every": int(os.environ.get("PASA_GPU_EVERY", "200")), "grids": counts}
log = logs / "ops_device_test.log"
if log.exists():
    summary["tests"]["ops_device_test"] = log.read_text().splitlines()[-1]
for tool in ("memcheck", "synccheck", "racecheck", "racecheck_lanes", "racecheck_warp"):
    log = logs / f"{tool}.log"
    if log.exists():
        found = re.findall(r"ERROR SUMMARY: .*|RACECHECK SUMMARY: .*", log.read_text())
        summary["tests"][tool] = found[-1] if found else "no summary"
old = results / "gpu_tests.json"
if old.exists():  # steps that were not run this time keep their last result
    kept = json.loads(old.read_text())["tests"]
    summary["tests"] = {**kept, **summary["tests"]}
old.write_text(json.dumps(summary, indent=1) + "\n")
PY
exit $failed
