// From a description to tensors: seeded, the same bits on every platform (integer hashes, and float operations that IEEE
// rounds exactly; no libm).
#pragma once

#include <cstdint>

#include "harness/case.h"
#include "harness/text.h"

namespace pasa {

// Inputs by the spec, outputs allocated and poisoned. Slots that no row selects, page padding, gaps and list entries beyond
// a row's length hold NaN or garbage (see Poison), so a kernel that looks at them is found out.
Case make_case(const CaseSpec& spec);

// The generator, for tests that build their own tensors. hash() is a bijective mix; normal() has mean 0, deviation 1 and a
// range of +-3.46 (a sum of four uniforms: exact in double).
std::uint64_t hash(std::uint64_t seed, std::uint64_t stream, std::uint64_t i);
double uniform(std::uint64_t random);  // [0, 1)
double normal(std::uint64_t random);

// Writes one key of `values[dim]` as slot `slot` of a source's pool (and kv_scales), by the format's quantiser.
void write_key(pasa_source& source, std::int64_t slot, const float* values, bool v32_pow2 = false);
// Fills the slot's bytes and scales with NaN.
void poison_key(pasa_source& source, std::int64_t slot);
std::int64_t pool_slots(const pasa_source& source);

}  // namespace pasa
