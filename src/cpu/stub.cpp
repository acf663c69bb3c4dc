#include "core/backend.h"
namespace pasa {
static std::string no() { return "stub"; }
static std::string no2(const Problem&) { return "stub"; }
#define S(n, s) extern const Backend n; const Backend n = {s, PASA_CPU, no, no2, nullptr, nullptr, nullptr};
S(kCpuAmx, "cpu:amx") S(kCpuAvx512, "cpu:avx512") S(kCpuAvx2, "cpu:avx2") S(kCpuPortable, "cpu:portable")
}
