#!/usr/bin/env bash
# The whole of pasa in one command: installs what is missing (Debian, as root or with sudo), builds, makes the four
# DeepSeek-V4 decode workloads in every cache format as case files, solves each, checks it against the float64 reference,
# times it on the best device of this machine, and shows one table and one picture (build/demo/speed.svg).
#
#   ./demo.sh                 about two minutes on two cores, the first time
#   TOKENS=64 HEADS=128 DEVICE=cpu ./demo.sh
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }

# ---- packages: only what is missing, only where there is apt
packages=(g++ cmake ninja-build python3 libgtest-dev libcli11-dev nlohmann-json3-dev libfmt-dev)
missing=()
if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
fi
if [ ${#missing[@]} -gt 0 ]; then
  say "installing ${missing[*]}"
  root=(); [ "$(id -u)" = 0 ] || root=(sudo)
  export DEBIAN_FRONTEND=noninteractive
  "${root[@]}" apt-get update -qq
  "${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# ---- build
say "building (Release, in build/)"
mkdir -p build/demo
if ! { cmake --preset release && cmake --build build -j "$(nproc)" --target pasa_cli; } >build/demo/build.log 2>&1; then
  tail -n 40 build/demo/build.log
  exit 1
fi
pasa=build/tools/pasa

# ---- the problem: tokens x heads, as large as suits the device
best=$($pasa info --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["devices"][0]["name"])')
device=${DEVICE:-$best}
case $device in
  cpu*) tokens=${TOKENS:-16} heads=${HEADS:-64} ;;
  *) tokens=${TOKENS:-64} heads=${HEADS:-128} ;;
esac

# Workload NAME: window 128 + COMPRESSED tokens a query; the compressed cache has PAGE slots a page.
# One list (1) holds both in one pool; two lists (2) keep the window and the compressed cache apart, as engines do.
say "making the case files in build/demo: $tokens queries x $heads heads"
cases=()
make_case() {  # NAME TEXT
  local file=build/demo/$1.safetensors
  $pasa make "decode:T=$tokens,H=$heads,$2" -o "$file" >/dev/null
  cases+=("$file")
}
for workload in 256/64 1024/64 8/2 64/2; do
  compressed=${workload%/*} page=${workload#*/} sum=$((128 + ${workload%/*}))
  one="len=$sum,pattern=unique" two="len=128+$compressed,page=256+$page,pattern=window+unique"
  make_case "128+$compressed,fp8_e4m3fn,1" "fmt=fp8_e4m3fn,$one"
  make_case "128+$compressed,fp8_e4m3fnuz,1" "fmt=fp8_e4m3fnuz,$one"
  make_case "128+$compressed,bf16,1" "fmt=bf16,$one"
  make_case "128+$compressed,fp8_ds_mla,1" "fmt=fp8_ds_mla,$one"
  make_case "128+$compressed,fp8_ds_mla,2" "fmt=fp8_ds_mla,$two"
  make_case "128+$compressed,packed_bf16,1" "fmt=packed_bf16,$one"
  make_case "128+$compressed,packed_bf16,2" "fmt=packed_bf16,$two"
done

say "solving one and writing its result"
$pasa run "${cases[0]}" -o build/demo/result.safetensors --device "$device"

say "checking all ${#cases[@]} against the float64 reference"
$pasa check "${cases[@]}" --device "$device" >build/demo/check.log || { grep -A2 DIFFER build/demo/check.log; exit 1; }
grep -c '^ok' build/demo/check.log | sed 's/$/ of them within tolerance/'

say "timing them on $device"
$pasa bench "${cases[@]}" --device "$device" --seconds 0.3 --json >build/demo/bench.json
$pasa info --json >build/demo/info.json
python3 bench/plot.py build/demo/bench.json --info build/demo/info.json --title "DeepSeek-V4 decode, $tokens queries x $heads heads" \
  -o build/demo/speed.svg
