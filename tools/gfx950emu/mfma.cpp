// Matrix instructions: D = A B + C for M x M x K. Lane l and element e of a fragment hold
//   A, B   row (column) l % M, depth kl * (l / M) + e with kl = K * M / 64 elements a lane; fragments of more than 16
//          byte-sized elements consist of runs of 16 that are interleaved between the lane groups
//   C, D   M = 16: row 4 * (l / 16) + e, column l % 16;  M = 32: row 8 * (e / 4) + 4 * (l / 32) + e % 4, column l % 32
// Products are summed in double and rounded once, so results may differ from the hardware's in the last float bits.
#include <cmath>
#include <cstdio>

#include "machine.h"

namespace gfx950emu {
namespace {

enum Format { kFp8 = 0, kBf8 = 1, kFp4 = 4, kBf16 = 16, kF16 = 17, kF32 = 32 };  // the first three as cbsz and blgp do

int element_bits(int format) { return format == kFp4 ? 4 : format < kFp4 ? 8 : format == kF32 ? 32 : 16; }

// 16 codes of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
float fp4(u32 code) {
  constexpr float kMagnitude[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kMagnitude[code & 7] : kMagnitude[code & 7];
}

float element(const Wave& w, const Inst& inst, int first, int lane, int e, int format) {
  const int bits = element_bits(format), at = e * bits;
  const u32 dword = w.v[first + at / 32][lane];
  const u32 x = bits == 32 ? dword : dword >> (at % 32) & ((1u << bits) - 1);
  switch (format) {
    case kFp8:
      return pasa::fp8_to_float(inst.fp8, static_cast<u8>(x));
    case kBf8:
      return pasa::f16_to_float(static_cast<u16>(x << 8));
    case kFp4:
      return fp4(x);
    case kBf16:
      return pasa::bf16_to_float(static_cast<u16>(x));
    case kF16:
      return pasa::f16_to_float(static_cast<u16>(x));
    default:
      return as_float(x);
  }
}

constexpr int kMaxRows = 32, kMaxDepth = 128;

// Operand k as rows: out[row * depth + k].
void unpack(const Wave& w, const Inst& inst, std::size_t k, int format, float* out) {
  const int m = inst.rows, depth = inst.depth, in_lane = depth * m / kLanes;
  const bool interleaved = in_lane > 16 && element_bits(format) == 8;
  for (int l = 0; l < kLanes; ++l) {
    for (int e = 0; e < in_lane; ++e) {
      const int at = interleaved ? 16 * (l / m) + e % 16 + e / 16 * 16 * (kLanes / m) : in_lane * (l / m) + e;
      out[l % m * depth + at] = element(w, inst, inst.op[k].index, l, e, format);
    }
  }
  if (!inst.scaled) return;
  // A scale for 32 elements: a byte, chosen by op_sel, of the lane that would hold them in a K = 32 fragment.
  const std::size_t which = k - 1;
  const u32 byte = (inst.op_sel >> which & 1) | (inst.op_sel_hi >> which & 1) << 1;
  for (int row = 0; row < m; ++row) {
    for (int at = 0; at < depth; ++at) {
      const u32 scales = lane32(w, inst.op[4 + which], row + m * (at / 32));
      out[row * depth + at] *= pasa::ue8m0_to_float(static_cast<u8>(scales >> (8 * byte)));
    }
  }
}

void multiply(Wave& w, const Inst& inst) {
  const int m = inst.rows, depth = inst.depth, results = m * m / kLanes;
  float a[kMaxRows * kMaxDepth], b[kMaxRows * kMaxDepth];
  unpack(w, inst, 1, inst.format_a, a);
  unpack(w, inst, 2, inst.format_b, b);
  u32 d[16][kLanes];
  for (int r = 0; r < results; ++r) {
    for (int l = 0; l < kLanes; ++l) {
      const int row = m == 16 ? 4 * (l / 16) + r : 8 * (r / 4) + 4 * (l / 32) + r % 4;
      const float *x = a + row * depth, *y = b + l % m * depth;
      double sums[4] = {};
      for (int k = 0; k < depth; k += 4) {
        for (int j = 0; j < 4; ++j) sums[j] += static_cast<double>(x[k + j]) * static_cast<double>(y[k + j]);
      }
      Operand c = inst.op[3];
      if (c.kind == Operand::kVector) c.index = static_cast<u16>(c.index + r);
      const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]) + static_cast<double>(as_float(lane32(w, c, l)));
      d[r][l] = as_bits(static_cast<float>(sum));
    }
  }
  for (int r = 0; r < results; ++r) std::memcpy(w.v[inst.op[0].index + r], d[r], sizeof d[r]);
  w.group->stats.mfma_passes += static_cast<u64>(inst.passes);
}

}  // namespace

bool set_up_matrix(Inst& inst) {
  // v_mfma_f32_16x16x32_bf16, v_mfma_scale_f32_16x16x128_f8f6f4, v_mfma_f32_16x16x32_fp8_bf8, ...
  if (!inst.name.starts_with("v_mfma_")) return false;
  const std::size_t shape = inst.name.find("f32_");
  int rows, columns, length = 0;
  if (shape == std::string::npos ||
      std::sscanf(inst.name.c_str() + shape + 4, "%dx%dx%d%n", &rows, &columns, &inst.depth, &length) != 3) {
    return false;
  }
  if (rows < 16 || rows != columns) return false;
  const std::string type = inst.name.substr(shape + 4 + static_cast<std::size_t>(length) + 1);
  inst.rows = rows;
  inst.scaled = inst.name.find("scale_") != std::string::npos;
  if (type == "bf16" || type == "bf16_1k") {
    inst.format_a = inst.format_b = kBf16;
  } else if (type == "f16") {
    inst.format_a = inst.format_b = kF16;
  } else if (type == "f32") {
    inst.format_a = inst.format_b = kF32;
  } else if (type == "f8f6f4") {
    const auto format = [&](const char* key) {
      const auto found = inst.modifiers.find(key);
      return found == inst.modifiers.end() ? 0 : std::stoi(found->second);
    };
    inst.format_a = format("cbsz");
    inst.format_b = format("blgp");
  } else if (type == "fp8_fp8" || type == "fp8_bf8" || type == "bf8_fp8" || type == "bf8_bf8") {
    inst.format_a = type.starts_with("bf8") ? kBf8 : kFp8;
    inst.format_b = type.ends_with("bf8") ? kBf8 : kFp8;
  } else {
    return false;
  }
  for (int format : {inst.format_a, inst.format_b}) {
    if (format == 2 || format == 3) return false;  // fp6
  }
  inst.passes = rows == 16 ? 4 : 8;
  if (type == "f8f6f4" && (inst.format_a != kFp4 || inst.format_b != kFp4)) inst.passes *= 2;
  if (type == "f32") inst.passes = rows == 16 ? 8 : 16;
  if (!inst.modifiers.contains("op_sel_hi")) inst.op_sel_hi = 0;
  inst.kind = Class::kMfma;
  inst.run = multiply;
  return true;
}

}  // namespace gfx950emu
