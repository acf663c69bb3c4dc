#!/usr/bin/env bash
# Builds and runs every test. Bash alone is enough to start: on Debian it installs what is missing (as root or with sudo).
#
#   ./test.sh            everything quick: tests, sanitizers, 10 s of fuzzing, lint. CI=true fuzzes 60 s.
#   ./test.sh --full     whole grids instead of the quick list (hours on two cores)
#   ./test.sh STAGE...   only these: build tests python asan fuzz tsan aarch64 lint
#
# The last line is "N passed, N failed, N skipped"; the exit status says whether anything failed. What cannot run here (a
# kernel whose instructions the CPU lacks, GPU tests without a GPU) is skipped, named, and counted as such.
set -uo pipefail
cd "$(dirname "$0")" || exit

all_stages=(build tests python asan fuzz tsan aarch64 lint)
stages=()
for argument in "$@"; do
  case $argument in
    --full) export PASA_FULL=1 ;;
    -*) echo "test.sh: unknown option $argument"; exit 2 ;;
    *) [[ " ${all_stages[*]} " == *" $argument "* ]] || { echo "test.sh: unknown stage $argument, expected one of: ${all_stages[*]}"; exit 2; }
       stages+=("$argument") ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")

jobs=$(nproc)
passed=0 failed=0 skipped=0
say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }
pass() { passed=$((passed + 1)); echo "passed: $*"; }
fail() { failed=$((failed + 1)); echo "FAILED: $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped: $*"; }
have() { command -v "$1" >/dev/null 2>&1; }

# ---- packages: only what is missing, only where there is apt

packages=(g++ cmake ninja-build git python3 pkg-config libgtest-dev libcli11-dev nlohmann-json3-dev libfmt-dev
  clang libclang-rt-dev clang-format clang-tidy libomp-dev g++-aarch64-linux-gnu)
amd_packages=(clang-22 lld-22 llvm-22-dev)  # AMD kernels and their emulator; not in every distribution
install_packages() {
  have dpkg-query && have apt-get || return 0
  local missing=() root=()
  for package in "${packages[@]}" "${amd_packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || root=(sudo)
  export DEBIAN_FRONTEND=noninteractive
  "${root[@]}" apt-get update -qq || true
  local known=()
  for package in "${missing[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); else echo "apt does not have $package"; fi
  done
  [ ${#known[@]} -gt 0 ] || return 0
  say "installing ${known[*]}"
  "${root[@]}" apt-get install -y -qq --no-install-recommends "${known[@]}" >/dev/null ||
    echo "some packages could not be installed; stages that need them will say so"
}

# Configures a preset (unless done) and builds targets; prints the log only if it fails.
build() {  # PRESET DIRECTORY TARGET...
  local preset=$1 directory=$2 log=$2/build.log; shift 2
  mkdir -p "$directory"
  { cmake --preset "$preset" && cmake --build "$directory" -j "$jobs" --target "$@"; } >"$log" 2>&1 && return 0
  tail -n 40 "$log"
  return 1
}

# Runs ctest in a build and adds its counts; failures and skips are printed with their reasons.
run_ctest() {  # DIRECTORY
  local directory=$1 counts p f s
  rm -rf "$directory/junit.xml" "$directory/results"
  ctest --test-dir "$directory" -j "$jobs" --output-junit junit.xml --test-output-size-failed 20000 >"$directory/ctest.log" 2>&1
  if ! counts=$(python3 -B tests/count.py "$directory"); then
    tail -n 20 "$directory/ctest.log"
    fail "ctest in $directory"
    return
  fi
  sed '$d' <<<"$counts"
  read -r p f s <<<"$(tail -n 1 <<<"$counts")"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  echo "$directory: $p passed, $f failed, $s skipped"
}

wants() { [[ " ${stages[*]} " == *" $1 "* ]]; }

install_packages

if wants build || wants tests; then
  say "release build"
  if build release build all; then pass "release build"; else fail "release build"; fi
fi

if wants tests && [ -f build/CTestTestfile.cmake ]; then
  say "tests"
  build/tests/attention_test --gtest_filter='Counts.*' 2>/dev/null | grep -E 'cases'
  run_ctest build
  if ! build/tools/pasa info --json | grep -q gfx950-emu; then skip "AMD kernels: no ${amd_packages[*]} here"; fi
  if ! have nvidia-smi || ! nvidia-smi -L >/dev/null 2>&1; then skip "GPU tests: no NVIDIA GPU here"; fi
fi

if wants python && [ -f build/libpasa.so ]; then
  say "python"
  tests/python/run.sh build >build/python.log 2>&1
  if counts=$(tail -n 1 build/python.log | grep -oP '^\d+ passed, \d+ failed, \d+ skipped$'); then
    read -r p f s <<<"$(tr -dc '0-9 ' <<<"$counts" | xargs)"
    [ "$f" = 0 ] || tail -n 60 build/python.log
    grep '^SKIPPED' build/python.log | cut -c1-150 | head -20
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    echo "python: $counts"
  else
    tail -n 20 build/python.log
    fail "python tests"
  fi
fi

# The sanitizers see the unit tests and a subset of the kernels: their work is addresses and races, not numbers.
attention_subset='Kernels/OnKernel.*:-*Span*'
if wants asan || wants fuzz; then
  say "address and undefined-behaviour sanitizers"
  if ! have clang++; then
    skip "asan: no clang"
  elif build asan build-asan unit_test attention_test case_file_fuzz; then
    if wants asan; then
      echo 'leak:libomp' >build-asan/leaks.supp  # the OpenMP runtime keeps its threads' memory to the end
      for test in "unit_test --gtest_brief=1" "attention_test --gtest_brief=1 --gtest_filter=$attention_subset"; do
        # shellcheck disable=SC2086  # words
        if (cd build-asan/tests && LSAN_OPTIONS=suppressions=../leaks.supp:print_suppressions=0 ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 ./$test) >build-asan/test.log 2>&1; then
          pass "asan+ubsan: ${test%% *}, $(grep -oP '\d+ tests? ran' build-asan/test.log || grep -oP 'PASSED  \] \K.*' build-asan/test.log)"
        else
          tail -n 60 build-asan/test.log
          fail "asan+ubsan: $test"
        fi
      done
    fi
    if wants fuzz; then
      seconds=10; [ "${CI:-}" = true ] && seconds=60
      say "fuzzing the case-file reader for $seconds s"
      mkdir -p build-asan/corpus
      if build-asan/tests/case_file_fuzz -max_total_time=$seconds -max_len=16384 -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 \
        -artifact_prefix=build-asan/ build-asan/corpus tests/fuzz/corpus >build-asan/fuzz.log 2>&1; then
        pass "fuzz: $(grep -oP 'number_of_executed_units: \K\d+' build-asan/fuzz.log) inputs"
      else
        tail -n 40 build-asan/fuzz.log
        fail "fuzz (the input is in build-asan/)"
      fi
    fi
  else
    fail "asan build"
  fi
fi

if wants tsan; then
  say "thread sanitizer"
  if ! have clang++; then
    skip "tsan: no clang"
  elif build tsan build-tsan attention_test; then
    # LLVM's OpenMP runtime is not instrumented; archer, loaded with it, reports its synchronisation to the sanitizer.
    if OMP_NUM_THREADS=4 TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1" \
      build-tsan/tests/attention_test --gtest_brief=1 --gtest_filter='Kernels/OnKernel.*Splits*:Kernels/OnKernel.Partials*:Kernels/OnKernel.Threads*:-*reference' >build-tsan/test.log 2>&1; then
      pass "tsan: attention_test"
    else
      tail -n 60 build-tsan/test.log
      fail "tsan: attention_test"
    fi
  else
    fail "tsan build"
  fi
fi

if wants aarch64; then
  say "aarch64, compile only"
  if ! have aarch64-linux-gnu-g++; then
    skip "aarch64: no cross compiler"
  elif build aarch64 build-aarch64 pasa; then
    pass "aarch64 build"
  else
    fail "aarch64 build"
  fi
fi

if wants lint; then
  say "lint"
  mkdir -p build
  mapfile -t sources < <(git ls-files '*.h' '*.hpp' '*.cpp' '*.c' '*.cu' '*.cuh')
  if ! have clang-format; then
    skip "clang-format is missing"
  elif clang-format --dry-run -Werror "${sources[@]}" 2>build/format.log; then
    pass "clang-format: ${#sources[@]} files"
  else
    grep -oP '^[^:]+(?=:\d+:\d+: error)' build/format.log | sort | uniq -c
    fail "clang-format (run: clang-format -i FILES)"
  fi
  # What this build compiles, but not the kernels: their vector headers take minutes here, and the compiler's warnings cover them.
  mapfile -t units < <(git ls-files 'src/*.cpp' 'harness/*.cpp' 'tools/*.cpp' | grep -vE '^src/(cpu|cuda|hip)/|gfx950emu' |
    while read -r unit; do if grep -qF "$PWD/$unit\"" build/compile_commands.json; then echo "$unit"; fi; done 2>/dev/null)
  if ! have clang-tidy; then
    skip "clang-tidy is missing"
  elif ! [ -f build/compile_commands.json ]; then
    skip "clang-tidy: no release build"
  elif printf '%s\n' "${units[@]}" | xargs -P "$jobs" -n 2 clang-tidy -p build --quiet >build/tidy.log 2>/dev/null; then
    pass "clang-tidy: ${#units[@]} files"
  else
    grep -E 'error:|warning:' build/tidy.log | sort -u | head -40
    fail "clang-tidy"
  fi
fi

say "done"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
