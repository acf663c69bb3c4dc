// Which cases of the quick list an emulator can run in reasonable time.
#pragma once

#include <vector>

#include "harness/cases.h"

namespace pasa {

// Those with few tiles of 16 heads and 64 tokens and with small pools: an even selection of about `tiles` in all (an
// emulator does some tens a second), 0: every one.
std::vector<TestCase> short_cases(std::int64_t tiles);

}  // namespace pasa
