// The case-file reader on arbitrary bytes: it either throws its one exception type or hands out a problem that the library's
// checks and validate() may look at without leaving the file. Nothing it does may allocate more than the file is long.
//
// Built with -fsanitize=fuzzer it is a libFuzzer target; without, a main() replays the files it is given (the seed corpus, and
// whatever a fuzzer once found), so that every compiler runs it as a plain test.
#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>

#include "core/error.h"
#include "harness/case_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    pasa::Case c = pasa::parse_case({reinterpret_cast<const std::byte*>(data), size});
    std::int64_t skipped = 0;
    if (pasa_validate(&c.problem, &skipped) == PASA_OK) {
      pasa_plan* plan = nullptr;
      if (pasa_plan_create(&c.problem, &plan) == PASA_OK) pasa_plan_destroy(plan);
    }
  } catch (const pasa::Error&) {
  }
  return 0;
}

#ifdef PASA_FUZZ_REPLAY
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++files;
    }
  }
  std::printf("%d files replayed\n", files);
  return files == 0;
}
#endif
