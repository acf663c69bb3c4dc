#!/usr/bin/env bash
# Installs a build into a fresh prefix and uses it from outside: the README's C++ example, extracted and completed to a
# program, built once with find_package(pasa) and once with pkg-config; the C header test with pkg-config. All are run.
#   install_test.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir=$1 build_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build_dir" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
for file in include/pasa/pasa.h include/pasa/pasa.hpp; do
  [ -f "$prefix/$file" ] || { echo "install: $file is missing"; exit 1; }
done

# The first C++ block of the README, between the declarations of its tensors and a check of its result.
block=$(awk '/^```cpp/ {inside = 1; next} /^```/ {if (inside) exit} inside' "$source_dir/README.md")
[ -n "$block" ] || { echo "README.md has no C++ example"; exit 1; }
{
  grep '^#include' <<<"$block"
  cat <<'CPP'
#include <cstdint>
#include <cstdio>
#include <vector>
int main() {
  constexpr int T = 2, H = 16, blocks = 4, topk = 8;
  std::vector<std::uint16_t> q(T * H * 512, 0x3f00), out(T * H * 512, 0xffff);
  std::vector<std::uint8_t> cache(blocks * 64 * 584, 0x38);  // every code 1.0
  for (int b = 0; b < blocks; ++b)
    for (int i = 64 * 576; i < 64 * 584; ++i) cache[b * 64 * 584 + i] = 127;  // every scale 1.0
  std::vector<std::int32_t> slots = {0, 5, 9, -1, 255, 77, 1000, 3, 1, 2, 3, 4, 5, 6, 7, 8};
CPP
  grep -v '^#include' <<<"$block"
  cat <<'CPP'
  for (int d = 0; d < 448; ++d)
    if (out[d] != 0x3f80) return std::printf("out[%d] is %#x, expected 1.0\n", d, out[d]), 1;
  return 0;
}
CPP
} >"$work/readme.cpp"

cmake -G Ninja -S "$source_dir/tests/install" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DSOURCE="$work/readme.cpp" \
  -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$work/build/outside"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name pasa.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir pasa)
# shellcheck disable=SC2046  # the flags are words
{
  c++ -std=c++20 "$work/readme.cpp" -o "$work/with_pkg_config" $(pkg-config --cflags --libs pasa)
  cc -std=c11 -Wall -Wextra -pedantic -Werror "$source_dir/tests/api/header_c11.c" -o "$work/header_c11" $(pkg-config --cflags --libs pasa)
}
LD_LIBRARY_PATH=$libdir "$work/with_pkg_config"
LD_LIBRARY_PATH=$libdir "$work/header_c11"
[ "$(pkg-config --modversion pasa)" = "$(grep -oP 'PASA_VERSION "\K[^"]+' "$prefix/include/pasa/pasa.h")" ]
