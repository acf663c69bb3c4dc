#!/usr/bin/env bash
# Runs the Python tests against a built library: tests/python/run.sh [BUILD_DIRECTORY] [PYTEST ARGUMENT...]
#
# Needs NumPy, pytest and hypothesis; on Debian it installs what is missing (as root or with sudo), and makes an environment
# in the build directory for what Debian has not: scikit-build-core, which builds the wheel, and ml_dtypes. Without a network
# their tests are skipped, as are those of torch wherever torch is not installed. PASA_PYTHON names an interpreter to use as
# it is. The last line is "N passed, N failed, N skipped".
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
shift || true

make_environment() {
  local missing=() package
  for package in python3-venv python3-numpy python3-pytest python3-hypothesis; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    local as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo)
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
  /usr/bin/python3 -m venv --system-site-packages "$build/python"
  "$build/python/bin/pip" install -q --disable-pip-version-check scikit-build-core ml_dtypes 2>/dev/null ||
    echo "no scikit-build-core or ml_dtypes: their tests are skipped"
}

python=${PASA_PYTHON:-}
if [ -z "$python" ] && command -v apt-get >/dev/null; then
  python=$build/python/bin/python
  [ -x "$python" ] && "$python" -c "import numpy, pytest, hypothesis, scikit_build_core" 2>/dev/null || make_environment
fi
python=${python:-python3}

export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export PASA_LIBRARY=$build/libpasa.so
if [ -x "$build/tools/pasa" ]; then export PASA_COMMAND=$build/tools/pasa; fi

log=$build/python_tests.log
status=0
"$python" -m pytest -q -rs -p no:cacheprovider --rootdir "$root/tests/python" "$root/tests/python" "$@" 2>&1 | tee "$log" || status=$?
count() { grep -oP "\\d+(?= $1)" <(tail -n 1 "$log") || echo 0; }
echo "$(count passed) passed, $(($(count failed) + $(count error))) failed, $(count skipped) skipped"
exit "$status"
