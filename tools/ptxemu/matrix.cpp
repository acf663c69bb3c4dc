// Products: mma.sync on registers, wgmma on shared memory. Sums are float, in the order of k.
#include <algorithm>

#include "tools/ptxemu/machine.h"
#include "tools/ptxemu/numbers.h"

namespace ptxemu {
namespace {

template <typename T>
float element(u32 pair, int which) {
  return widen(T{static_cast<u16>(which ? pair >> 16 : pair)});
}

// ---- mma.sync.m16n8k16 -------------------------------------------------------------------------------------------------------

template <typename T>
void mma(Warp& w, const Op& op, u32) {
  const u32* refs = &w.code->lists[op.list];  // d[4], a[4], b[2], c[4]
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (int k = 0; k < 2; ++k) {
      for (int r = 0; r < 4; ++r) a[g + r % 2 * 8][t + r / 2 * 8 + k] = element<T>(w.cells<u32>(refs[4 + r])[lane], k);
      for (int r = 0; r < 2; ++r) b[t + r * 8 + k][g] = element<T>(w.cells<u32>(refs[8 + r])[lane], k);
      for (int r = 0; r < 2; ++r) d[g + r * 8][t + k] = get<float>(w.cells<u32>(refs[10 + 2 * r + k])[lane]);
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (int r = 0; r < 4; ++r) w.cells<u32>(refs[r])[lane] = put(d[g + r / 2 * 8][t + r % 2]);
  }
}

// ---- wgmma ---------------------------------------------------------------------------------------------------------------------

// An operand in shared memory under the 128-byte swizzle: rows of 64 words, 8 rows a group.
struct Descriptor {
  u32 start, leading, stride;
};
Descriptor descriptor(Warp& w, const Op& op, u64 bits) {
  if (bits >> 62 != 1 || (bits >> 49 & 7) != 0)
    finding(w, op, "a descriptor without the 128-byte swizzle, or with a base offset");
  return {static_cast<u32>(bits & 0x3fff) << 4, static_cast<u32>(bits >> 16 & 0x3fff) << 4,
          static_cast<u32>(bits >> 32 & 0x3fff) << 4};
}

// Eight words of an operand at (row, column of a row in words).
template <typename T>
void read_chunk(Warp& w, const Op& op, u32 address, float* to) {
  const u32 swizzled = address ^ ((address >> 7 & 7) << 4);
  const Place place = find_shared(w, op, swizzled, 16, 16);
  touch(w, op, place, 16, Access::kAsyncRead);
  const auto* from = reinterpret_cast<const u16*>(place.cta->shared.data() + place.at);
  for (int i = 0; i < 8; ++i) to[i] = widen(T{from[i]});
}

// x[rows][16]: the sum runs along a row. Else x[16][columns], the sum runs down a column.
template <typename T>
void read_along(Warp& w, const Op& op, const Descriptor& d, u32 first, u32 rows, float (*x)[16]) {
  for (u32 r = 0; r < rows; ++r) {
    const u32 row = first + r, at = d.start + row / 8 * d.stride + row % 8 * 128;
    read_chunk<T>(w, op, at, x[r]);
    read_chunk<T>(w, op, at + 16, x[r] + 8);
  }
}
template <typename T>
void read_down(Warp& w, const Op& op, const Descriptor& d, u32 first, u32 columns, float* x) {
  for (u32 k = 0; k < 16; ++k) {
    for (u32 c = 0; c < columns; c += 8) {
      const u32 column = first + c;
      read_chunk<T>(w, op, d.start + column / 64 * d.leading + k / 8 * d.stride + k % 8 * 128 + column % 64 * 2,
                    x + k * columns + c);
    }
  }
}

struct Shape {  // Op::width: n; variant bits
  static constexpr u32 kTransposeA = 1, kTransposeB = 2, kNegateA = 4, kNegateB = 8, kRegistersA = 16, kF16 = 32;
};

// One warp's 16 rows of the product.
template <typename T>
void multiply(Warp& w, const Product& product) {
  const Op& op = *product.op;
  const u32 n = op.width, row0 = w.id % 4 * 16;
  const u32* d_refs = &w.code->lists[op.list];
  float a[16][16], along[256][16];
  std::vector<float> b(16 * n), d(16 * n);
  if (op.variant & Shape::kRegistersA) {
    for (u32 lane = 0; lane < kLanes; ++lane) {
      for (u32 r = 0; r < 4; ++r) {
        for (u32 k = 0; k < 2; ++k) {
          a[lane / 4 + r % 2 * 8][lane % 4 * 2 + r / 2 * 8 + k] =
              element<T>(product.a_registers[r * kLanes + lane], static_cast<int>(k));
        }
      }
    }
  } else if (op.variant & Shape::kTransposeA) {
    float down[16 * 16];
    read_down<T>(w, op, descriptor(w, op, product.a), row0, 16, down);
    for (u32 m = 0; m < 16; ++m) {
      for (u32 k = 0; k < 16; ++k) a[m][k] = down[k * 16 + m];
    }
  } else {
    read_along<T>(w, op, descriptor(w, op, product.a), row0, 16, a);
  }
  if (op.variant & Shape::kTransposeB) {
    read_down<T>(w, op, descriptor(w, op, product.b), 0, n, b.data());
  } else {
    read_along<T>(w, op, descriptor(w, op, product.b), 0, n, along);
    for (u32 k = 0; k < 16; ++k) {
      for (u32 c = 0; c < n; ++c) b[k * n + c] = along[c][k];
    }
  }
  const float sign = ((op.variant & Shape::kNegateA) != 0) != ((op.variant & Shape::kNegateB) != 0) ? -1.0f : 1.0f;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    for (u32 j = 0; j < n / 2; ++j) {
      const u32 row = lane / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
      d[row * n + column] = product.accumulate ? get<float>(w.cells<u32>(d_refs[j])[lane]) : 0.0f;
    }
  }
  for (u32 m = 0; m < 16; ++m) {
    for (u32 k = 0; k < 16; ++k) {
      const float factor = sign * a[m][k];
      float* to = &d[m * n];
      const float* from = &b[k * n];
      for (u32 c = 0; c < n; ++c) to[c] += factor * from[c];
    }
  }
  for (u32 lane = 0; lane < kLanes; ++lane) {
    for (u32 j = 0; j < n / 2; ++j) {
      const u32 row = lane / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
      w.cells<u32>(d_refs[j])[lane] = put(d[row * n + column]);
    }
  }
}

u32 fragment_index(u32 ref) { return ref / (kLanes * 4); }

// The fragment registers of a wgmma: of the sums, then of A.
std::span<const u32> registers_of(const Warp& w, const Op& op) { return {&w.code->lists[op.list], op.listed}; }

void start_product(Warp& w, const Op& op, u32) {
  if (w.id % 4 == 0 && w.cta->warps.size() < w.id + 4) finding(w, op, "the warpgroup has fewer than four warps");
  for (u32 ref : registers_of(w, op)) {
    if (w.dirty[fragment_index(ref)]) finding(w, op, "a register was written after the last wgmma.fence");
    ++w.pending[fragment_index(ref)];
  }
  Product product{.op = &op,
                  .a = 0,
                  .b = w.cells<u64>(op.a[1])[0],
                  .accumulate = (w.p[op.a[2]] & 1) != 0,
                  .a_registers = {},
                  .group = w.committed};
  if (op.variant & Shape::kRegistersA) {
    for (u32 ref : registers_of(w, op).subspan(op.width / 2)) {
      product.a_registers.insert(product.a_registers.end(), w.cells<u32>(ref), w.cells<u32>(ref) + kLanes);
    }
  } else {
    product.a = w.cells<u64>(op.a[0])[0];
  }
  w.products.push_back(std::move(product));
}

void fence_products(Warp& w, const Op&, u32) { std::fill(w.dirty.begin(), w.dirty.end(), u8{0}); }
void commit_products(Warp& w, const Op&, u32) { ++w.committed; }
void wait_products(Warp& w, const Op& op, u32) {
  const auto pending = static_cast<u32>(op.value);
  const u32 before = w.committed - std::min(w.committed, pending);
  auto product = w.products.begin();
  for (; product != w.products.end() && product->group < before; ++product) {
    if (product->op->variant & Shape::kF16) {
      multiply<Half>(w, *product);
    } else {
      multiply<Brain>(w, *product);
    }
    for (u32 ref : registers_of(w, *product->op)) --w.pending[fragment_index(ref)];
  }
  w.products.erase(w.products.begin(), product);
}

// wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T {d}, a, b, scale_d, scale_a, scale_b[, transpose_a], transpose_b
bool compile_product(Builder& b, const Instruction& i, Op& op) {
  const std::string_view shape = i.part[4];
  const bool f16 = i.type() == "f16";
  if (i.part.size() != 8 || i.part[5] != "f32" || i.part[6] != i.part[7] || (!f16 && i.type() != "bf16")) return false;
  if (!shape.starts_with("m64n") || !shape.ends_with("k16")) return false;
  std::vector<u32> refs;
  for (const Operand& o : i.op[0].parts) refs.push_back(b.out(o));
  op.width = static_cast<u32>(2 * refs.size());
  if (shape != "m64n" + std::to_string(op.width) + "k16" || op.width > 256) return false;
  const bool registers = i.op[1].kind == Operand::kVector;
  for (const Operand& o : i.op[1].parts) refs.push_back(b.in(o, 32));
  op.list = b.list(refs);
  op.listed = static_cast<u32>(refs.size());
  op.a = {registers ? kNone : b.in(i.op[1], 64), b.in(i.op[2], 64), b.predicate(i.op[3])};
  const auto flag = [&](std::size_t k, i64 value, u32 bit) {
    return k < i.op.size() && i.op[k].value == value ? bit : 0;
  };
  op.variant = (registers ? Shape::kRegistersA : 0) | (f16 ? Shape::kF16 : 0) | flag(4, -1, Shape::kNegateA) |
               flag(5, -1, Shape::kNegateB);
  op.variant |=
      registers ? flag(6, 1, Shape::kTransposeB) : flag(6, 1, Shape::kTransposeA) | flag(7, 1, Shape::kTransposeB);
  op.run = start_product;
  return true;
}

}  // namespace

void check_fragment(Warp& w, const Op& op) {
  const FragmentUse& use = w.code->fragment_uses.at(op.id);
  for (u32 ref : use.touched) {
    if (w.pending[fragment_index(ref)]) finding(w, op, "touches a register of a wgmma that has not been waited for");
  }
  for (u32 ref : use.written) w.dirty[fragment_index(ref)] = 1;
}

bool compile_matrix(Builder& b, const Instruction& i, Op& op) {
  if (i.part[0] != "mma" && i.part[0] != "wgmma") return false;
  op.kind = Kind::kBlocking;
  op.aligned = true;
  if (i.name == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" ||
      i.name == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") {
    std::vector<u32> refs;
    for (std::size_t k = 0; k < 4; ++k) {
      for (const Operand& o : i.op[k].parts) refs.push_back(k == 0 ? b.out(o) : b.in(o, 32));
    }
    op.list = b.list(refs);
    op.run = i.type() == "f32" && i.has("bf16") ? mma<Brain> : mma<Half>;
    return refs.size() == 14;
  }
  if (i.part[0] != "wgmma") return false;
  if (i.part[1] == "mma_async") return compile_product(b, i, op);
  if (i.part[1] == "fence") op.run = fence_products;
  if (i.part[1] == "commit_group") op.run = commit_products;
  if (i.part[1] == "wait_group") op.run = wait_products, op.value = i.op[0].value;
  return op.run != nullptr;
}

}  // namespace ptxemu
