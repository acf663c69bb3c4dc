// Arithmetic, logic, comparisons, conversions, moves: one template of lanes, and for each instruction its formula.
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "tools/ptxemu/machine.h"
#include "tools/ptxemu/numbers.h"

namespace ptxemu {
namespace {

// d = F(s...)
template <auto F, typename D, typename... S>
void apply(Warp& w, const Op& op, u32 mask) {
  [&]<std::size_t... k>(std::index_sequence<k...>) {
    Cell<D>* d = w.cells<D>(op.a[0]);
    const std::tuple<const Cell<S>*...> s{w.cells<S>(op.a[1 + k])...};
    lanes(mask, [&](int i) { d[i] = put<D>(static_cast<D>(F(get<S>(std::get<k>(s)[i])...))); });
  }
  (std::index_sequence_for<S...>());
}

// p = F(a, b)
template <auto F, typename T>
void compare(Warp& w, const Op& op, u32 mask) {
  const Cell<T>*a = w.cells<T>(op.a[1]), *b = w.cells<T>(op.a[2]);
  u32 result = 0;
  for (int i = 0; i < kLanes; ++i) result |= static_cast<u32>(F(get<T>(a[i]), get<T>(b[i]))) << i;
  if (op.variant == 1) result &= w.p[op.a[3]];
  if (op.variant == 2) result |= w.p[op.a[3]];
  if (op.variant == 3) result ^= w.p[op.a[3]];
  w.p[op.a[0]] = (w.p[op.a[0]] & ~mask) | (result & mask);
}

template <typename T>
void select(Warp& w, const Op& op, u32 mask) {
  Cell<T>* d = w.cells<T>(op.a[0]);
  const Cell<T>*a = w.cells<T>(op.a[1]), *b = w.cells<T>(op.a[2]);
  const u32 p = w.p[op.a[3]];
  lanes(mask, [&](int i) { d[i] = p >> i & 1 ? a[i] : b[i]; });
}

template <auto F>
void logic(Warp& w, const Op& op, u32 mask) {
  const u32 result = F(w.p[op.a[1]], w.p[op.a[2]]);
  w.p[op.a[0]] = (w.p[op.a[0]] & ~mask) | (result & mask);
}

// {parts} -> whole, and back: the parts are `width` bytes each.
template <typename Part, typename Whole>
void join(Warp& w, const Op& op, u32 mask) {
  Cell<Whole>* d = w.cells<Whole>(op.a[0]);
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  lanes(mask, [&](int i) {
    Whole value = 0;
    for (int k = 0; k < kParts; ++k) {
      value = static_cast<Whole>(
          value | static_cast<Whole>(
                      static_cast<Whole>(static_cast<Part>(w.cells<Part>(op.a[1 + static_cast<std::size_t>(k)])[i]))
                      << (8 * sizeof(Part) * static_cast<std::size_t>(k))));
    }
    d[i] = value;
  });
}
template <typename Part, typename Whole>
void part(Warp& w, const Op& op, u32 mask) {
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  const Cell<Whole>* s = w.cells<Whole>(op.a[0]);
  lanes(mask, [&](int i) {
    const Cell<Whole> value = s[i];
    for (int k = 0; k < kParts; ++k) {
      const u32 ref = op.a[1 + static_cast<std::size_t>(k)];
      if (ref != kNone)
        w.cells<Part>(ref)[i] = static_cast<Part>(value >> (8 * sizeof(Part) * static_cast<std::size_t>(k)));
    }
  });
}

enum Special : u32 {
  kTid,
  kNtid = 3,
  kCtaid = 6,
  kNctaid = 9,
  kLane = 12,
  kWarp,
  kRank,
  kClusterSize,
  kClusterid,
  kNclusterid = 19,
  kClusterCtaid = 22,
  kClusterNctaid = 25,
  kLanemaskLt = 28,
  kLanemaskLe,
  kLanemaskGt,
  kLanemaskGe,
  kLanemaskEq,
  kClock,
  kSmid,
  kDynamicShared,
  kTotalShared,
  kGridWorkspaceHigh,
  kGridWorkspaceLow
};
constexpr std::string_view kSpecials[] = {"%tid.x",
                                          "%tid.y",
                                          "%tid.z",
                                          "%ntid.x",
                                          "%ntid.y",
                                          "%ntid.z",
                                          "%ctaid.x",
                                          "%ctaid.y",
                                          "%ctaid.z",
                                          "%nctaid.x",
                                          "%nctaid.y",
                                          "%nctaid.z",
                                          "%laneid",
                                          "%warpid",
                                          "%cluster_ctarank",
                                          "%cluster_nctarank",
                                          "%clusterid.x",
                                          "%clusterid.y",
                                          "%clusterid.z",
                                          "%nclusterid.x",
                                          "%nclusterid.y",
                                          "%nclusterid.z",
                                          "%cluster_ctaid.x",
                                          "%cluster_ctaid.y",
                                          "%cluster_ctaid.z",
                                          "%cluster_nctaid.x",
                                          "%cluster_nctaid.y",
                                          "%cluster_nctaid.z",
                                          "%lanemask_lt",
                                          "%lanemask_le",
                                          "%lanemask_gt",
                                          "%lanemask_ge",
                                          "%lanemask_eq",
                                          "%clock",
                                          "%smid",
                                          "%dynamic_smem_size",
                                          "%total_smem_size",
                                          "%envreg1",
                                          "%envreg2"};

u32 coordinate(const Dim3& d, u32 which) { return which == 0 ? d.x : which == 1 ? d.y : d.z; }

u32 special(const Warp& w, u32 which, int lane) {
  const Cluster& cluster = *w.cta->cluster;
  const Launch& launch = cluster.launch;
  const auto l = static_cast<u32>(lane);
  if (which < kNtid) return w.tid[which][static_cast<std::size_t>(lane)];
  if (which < kCtaid) return coordinate(launch.block, which - kNtid);
  if (which < kNctaid) return coordinate(w.cta->index, which - kCtaid);
  if (which < kLane) return coordinate(launch.grid, which - kNctaid);
  const auto in_clusters = [&](const Dim3& d, u32 k) { return coordinate(d, k) / coordinate(launch.cluster, k); };
  if (which >= kClusterid && which < kNclusterid) return in_clusters(w.cta->index, which - kClusterid);
  if (which >= kNclusterid && which < kClusterCtaid) return in_clusters(launch.grid, which - kNclusterid);
  if (which >= kClusterCtaid && which < kClusterNctaid) {
    return coordinate(w.cta->index, which - kClusterCtaid) % coordinate(launch.cluster, which - kClusterCtaid);
  }
  if (which >= kClusterNctaid && which < kLanemaskLt) return coordinate(launch.cluster, which - kClusterNctaid);
  switch (which) {
    case kLane:
      return l;
    case kWarp:
      return w.id;
    case kRank:
      return w.cta->rank;
    case kClusterSize:
      return static_cast<u32>(launch.cluster.count());
    case kLanemaskLt:
      return (1u << l) - 1;
    case kLanemaskLe:
      return (2u << l) - 1;
    case kLanemaskGt:
      return ~((2u << l) - 1);
    case kLanemaskGe:
      return ~((1u << l) - 1);
    case kLanemaskEq:
      return 1u << l;
    case kDynamicShared:
      return launch.dynamic_shared_bytes;
    case kTotalShared:
      return static_cast<u32>(w.cta->shared.size());
    case kGridWorkspaceHigh:
      return static_cast<u32>(cluster.grid_workspace >> 32);
    case kGridWorkspaceLow:
      return static_cast<u32>(cluster.grid_workspace);
    default:
      return 0;
  }
}
void move_special(Warp& w, const Op& op, u32 mask) {
  u32* d = w.cells<u32>(op.a[0]);
  lanes(mask, [&](int i) { d[i] = special(w, op.variant, i); });
}

template <typename T>
bool is(std::string_view type) {
  if constexpr (std::is_same_v<T, u16>) return type == "u16" || type == "b16";
  if constexpr (std::is_same_v<T, i16>) return type == "s16";
  if constexpr (std::is_same_v<T, u32>) return type == "u32" || type == "b32";
  if constexpr (std::is_same_v<T, i32>) return type == "s32";
  if constexpr (std::is_same_v<T, u64>) return type == "u64" || type == "b64";
  if constexpr (std::is_same_v<T, i64>) return type == "s64";
  if constexpr (std::is_same_v<T, float>) return type == "f32";
  if constexpr (std::is_same_v<T, double>) return type == "f64";
  if constexpr (std::is_same_v<T, u8>) return type == "u8" || type == "b8";
  if constexpr (std::is_same_v<T, i8>) return type == "s8";
  if constexpr (std::is_same_v<T, Half>) return type == "f16";
  if constexpr (std::is_same_v<T, Brain>) return type == "bf16";
  if constexpr (std::is_same_v<T, Pair<Half>>) return type == "f16x2";
  if constexpr (std::is_same_v<T, Pair<Brain>>) return type == "bf16x2";
  return false;
}

// The handler for the first of the types that is the named one; F takes `Arity` of it to D, or to its own type.
template <auto F, int kArity, typename... T>
Handler over(std::string_view type) {
  Handler found = nullptr;
  const auto consider = [&]<typename U>() {
    if (found || !is<U>(type)) return;
    if constexpr (kArity == 1) found = apply<F, U, U>;
    if constexpr (kArity == 2) found = apply<F, U, U, U>;
    if constexpr (kArity == 3) found = apply<F, U, U, U, U>;
  };
  (consider.template operator()<T>(), ...);
  return found;
}
template <auto F, typename... T>
Handler comparison(std::string_view type) {
  Handler found = nullptr;
  ((found = !found && is<T>(type) ? compare<F, T> : found), ...);
  return found;
}

// Wrapping arithmetic on integers, plain on floats.
constexpr auto kAdd = []<typename T>(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<u64>(a) + static_cast<u64>(b));
  else
    return a + b;
};
constexpr auto kSub = []<typename T>(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<u64>(a) - static_cast<u64>(b));
  else
    return a - b;
};
constexpr auto kMul = []<typename T>(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
  else
    return a * b;
};
constexpr auto kMad = []<typename T>(T a, T b, T c) {
  return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b) + static_cast<u64>(c));
};
constexpr auto kFma = []<typename T>(T a, T b, T c) {
  if constexpr (std::is_floating_point_v<T>)
    return std::fma(a, b, c);
  else
    return fma(a, b, c);
};
constexpr auto kHigh = []<typename T>(T a, T b) {
  using Wide = std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                                  std::conditional_t<std::is_signed_v<T>, i64, u64>>;
  return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) >> (8 * sizeof(T)));
};
constexpr auto kDiv = []<typename T>(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(-static_cast<u64>(a));
    }
    return static_cast<T>(a / b);
  } else {
    return a / b;
  }
};
constexpr auto kRem = []<typename T>(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return T{0};
  }
  return static_cast<T>(a % b);
};
// Of a number and NaN: the number; -0 < +0.
constexpr auto kMin = []<typename T>(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
};
constexpr auto kMax = []<typename T>(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
};
constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kXor = [](auto a, auto b) { return a ^ b; };
constexpr auto kNot = []<typename T>(T a) { return static_cast<T>(~a); };
constexpr auto kNeg = []<typename T>(T a) { return static_cast<T>(u64{0} - static_cast<u64>(a)); };
constexpr auto kAbs = []<typename T>(T a) { return a < 0 ? static_cast<T>(u64{0} - static_cast<u64>(a)) : a; };
constexpr auto kCopy = [](auto a) { return a; };
// Shifts clamp their amount.
template <typename T>
constexpr T shift_left(T a, u32 by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << by);
}
template <typename T>
constexpr T shift_right(T a, u32 by) {
  if (by >= 8 * sizeof(T)) return std::is_signed_v<T> && a < 0 ? static_cast<T>(-1) : T{0};
  return static_cast<T>(a >> by);
}
constexpr auto kShl = []<typename T>(T a, u32 by) { return shift_left(a, by); };
constexpr auto kShr = []<typename T>(T a, u32 by) { return shift_right(a, by); };

template <auto F, typename... T>
Handler shifting(std::string_view type) {
  Handler found = nullptr;
  ((found = !found && is<T>(type) ? apply<F, T, T, u32> : found), ...);
  return found;
}

template <typename T>
constexpr T insert_bits(T a, T b, u32 position, u32 length) {
  position &= 255, length &= 255;
  constexpr u32 kBits = 8 * sizeof(T);
  if (position >= kBits || length == 0) return b;
  const T ones = length >= kBits ? ~T{0} : static_cast<T>((T{1} << length) - 1);
  const T field = static_cast<T>(ones << position);
  return static_cast<T>((b & ~field) | (static_cast<T>(a << position) & field));
}
constexpr auto kBfi = []<typename T>(T a, T b, u32 position, u32 length) {
  return insert_bits(a, b, position, length);
};
constexpr auto kBfe = []<typename T>(T a, u32 position, u32 length) {
  position &= 255, length &= 255;
  constexpr u32 kBits = 8 * sizeof(T);
  if (length == 0) return T{0};
  using U = std::make_unsigned_t<T>;
  const u32 top = std::min(position + length - 1, kBits - 1);
  const bool sign = std::is_signed_v<T> && (static_cast<U>(a) >> top & 1);
  U result = sign ? static_cast<U>(~U{0}) : U{0};
  for (u32 k = 0; k < length && k < kBits && position + k < kBits; ++k) {
    const U bit = static_cast<U>(static_cast<U>(a) >> (position + k) & 1);
    result = static_cast<U>((result & ~(U{1} << k)) | (bit << k));
  }
  return static_cast<T>(result);
};
constexpr auto kPrmt = [](u32 a, u32 b, u32 selector) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (u32 k = 0; k < 4; ++k) {
    const u32 digit = selector >> (4 * k) & 15;
    u32 byte = static_cast<u32>(bytes >> (8 * (digit & 7))) & 255;
    byte = digit & 8 ? (byte & 128 ? 255u : 0u) : byte;
    result |= byte << (8 * k);
  }
  return result;
};
template <bool kRight, bool kWrap>
constexpr u32 funnel(u32 low, u32 high, u32 by) {
  by = kWrap ? by & 31 : std::min(by, 32u);
  const u64 both = u64{high} << 32 | low;
  return kRight ? static_cast<u32>(both >> by) : static_cast<u32>(both << by >> 32);
}
template <bool kRight, bool kWrap>
constexpr auto kFunnel = [](u32 low, u32 high, u32 by) { return funnel<kRight, kWrap>(low, high, by); };
template <bool kRight>
Handler funnel_handler(bool wrap) {
  return wrap ? apply<kFunnel<kRight, true>, u32, u32, u32, u32> : apply<kFunnel<kRight, false>, u32, u32, u32, u32>;
}
constexpr auto kLop3 = [](u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (u32 k = 0; k < 8; ++k) {
    if (table >> k & 1) result |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  }
  return result;
};
constexpr auto kReverse = [](u32 a) {
  u32 result = 0;
  for (int k = 0; k < 32; ++k) result |= (a >> k & 1) << (31 - k);
  return result;
};

// ---- comparisons

template <typename... T>
Handler find_comparison(std::string_view name, std::string_view type) {
  if (name == "eq") return comparison<[](auto a, auto b) { return a == b; }, T...>(type);
  if (name == "ne") return comparison<[](auto a, auto b) { return (a < b || a > b); }, T...>(type);
  if (name == "lt" || name == "lo") return comparison<[](auto a, auto b) { return a < b; }, T...>(type);
  if (name == "le" || name == "ls") return comparison<[](auto a, auto b) { return a <= b; }, T...>(type);
  if (name == "gt" || name == "hi") return comparison<[](auto a, auto b) { return (a > b); }, T...>(type);
  if (name == "ge" || name == "hs") return comparison<[](auto a, auto b) { return a >= b; }, T...>(type);
  if (name == "equ") return comparison<[](auto a, auto b) { return !(a < b || a > b); }, T...>(type);
  if (name == "neu") return comparison<[](auto a, auto b) { return !(a == b); }, T...>(type);
  if (name == "ltu") return comparison<[](auto a, auto b) { return !(a >= b); }, T...>(type);
  if (name == "leu") return comparison<[](auto a, auto b) { return !(a > b); }, T...>(type);
  if (name == "gtu") return comparison<[](auto a, auto b) { return !(a <= b); }, T...>(type);
  if (name == "geu") return comparison<[](auto a, auto b) { return !(a < b); }, T...>(type);
  if (name == "num") return comparison<[](auto a, auto b) { return a == a && b == b; }, T...>(type);
  if (name == "nan") return comparison<[](auto a, auto b) { return a != a || b != b; }, T...>(type);
  return nullptr;
}

// ---- conversions

// To an integer: toward zero, to nearest, down, up; out of range clamps, NaN is 0 (of 64 bits: the sign bit).
template <typename D, int kRound>
constexpr auto kToInteger = [](auto x) -> D {
  double y = static_cast<double>(x);
  if (y != y) return sizeof(D) == 8 ? static_cast<D>(u64{1} << 63) : D{0};
  y = kRound == 0 ? std::trunc(y) : kRound == 1 ? std::nearbyint(y) : kRound == 2 ? std::floor(y) : std::ceil(y);
  constexpr double kLeast = static_cast<double>(std::numeric_limits<D>::min());
  constexpr double kBound = 2.0 * static_cast<double>(D{1} << (8 * sizeof(D) - 2)) * (std::is_signed_v<D> ? 1 : 2);
  if (y <= kLeast) return std::numeric_limits<D>::min();
  if (y >= kBound) return std::numeric_limits<D>::max();
  return static_cast<D>(y);
};

template <typename D, typename S>
Handler conversion(const Instruction& i) {
  constexpr bool kFloats[] = {std::is_floating_point_v<D>, std::is_floating_point_v<S>};
  const bool saturates = i.has("sat"), rounds = i.has("rn");
  if constexpr (!kFloats[0] && !kFloats[1]) {
    if (saturates) return nullptr;
    return apply<[](S x) { return static_cast<D>(x); }, D, S>;
  } else if constexpr (kFloats[0] && !kFloats[1]) {
    return rounds && !saturates ? apply<[](S x) { return static_cast<D>(x); }, D, S> : nullptr;
  } else if constexpr (!kFloats[0] && kFloats[1]) {
    if (i.has("rzi")) return apply<kToInteger<D, 0>, D, S>;
    if (i.has("rni")) return apply<kToInteger<D, 1>, D, S>;
    if (i.has("rmi")) return apply<kToInteger<D, 2>, D, S>;
    if (i.has("rpi")) return apply<kToInteger<D, 3>, D, S>;
    return nullptr;
  } else if constexpr (std::is_same_v<D, S>) {
    if (i.has("rni")) return apply<[](S x) { return std::nearbyint(x); }, D, S>;
    if (i.has("rzi")) return apply<[](S x) { return std::trunc(x); }, D, S>;
    if (i.has("rmi")) return apply<[](S x) { return std::floor(x); }, D, S>;
    if (i.has("rpi")) return apply<[](S x) { return std::ceil(x); }, D, S>;
    if (saturates) return apply<[](S x) { return std::fmin(std::fmax(x, S{0}), S{1}); }, D, S>;
    return nullptr;
  } else {
    return saturates || (sizeof(D) < sizeof(S) && !rounds) ? nullptr
                                                           : apply<[](S x) { return static_cast<D>(x); }, D, S>;
  }
}
template <typename D>
Handler conversion_to(const Instruction& i) {
  Handler found = nullptr;
  const auto consider = [&]<typename S>() {
    if (!found && is<S>(i.type())) found = conversion<D, S>(i);
  };
  [&]<typename... S>(std::tuple<S...>*) {
    (consider.template operator()<S>(), ...);
  }(static_cast<std::tuple<u8, i8, u16, i16, u32, i32, u64, i64, float, double>*>(nullptr));
  return found;
}

Handler find_conversion(const Instruction& i) {
  const std::string_view to = i.part[i.part.size() - 2], from = i.type();
  const bool rn = i.has("rn");
  if (from == "f32" && rn && i.part.size() == 4) {
    if (to == "f16") return apply<[](float x) { return to_half(x); }, Half, float>;
    if (to == "bf16") return apply<[](float x) { return to_brain(x); }, Brain, float>;
    // The first source is the high half.
    if (to == "f16x2")
      return apply<[](float x, float y) { return Pair<Half>{to_half(y), to_half(x)}; }, Pair<Half>, float, float>;
    if (to == "bf16x2")
      return apply<[](float x, float y) { return Pair<Brain>{to_brain(y), to_brain(x)}; }, Pair<Brain>, float, float>;
  }
  if (i.name == "cvt.rn.satfinite.e4m3x2.f32") {
    return apply<[](float x, float y) { return static_cast<u16>(to_e4m3(x) << 8 | to_e4m3(y)); }, u16, float, float>;
  }
  if (i.name == "cvt.rn.f16x2.e4m3x2") {
    return apply<[](u16 x) {
      return Pair<Half>{to_half(from_e4m3(static_cast<u8>(x))), to_half(from_e4m3(static_cast<u8>(x >> 8)))};
    },
                 Pair<Half>, u16>;
  }
  if (i.name == "cvt.f32.f16") return apply<[](Half x) { return from_half(x); }, float, Half>;
  if (i.name == "cvt.f32.bf16") return apply<[](Brain x) { return from_brain(x); }, float, Brain>;
  Handler found = nullptr;
  const auto consider = [&]<typename D>() {
    if (!found && is<D>(to)) found = conversion_to<D>(i);
  };
  [&]<typename... D>(std::tuple<D...>*) {
    (consider.template operator()<D>(), ...);
  }(static_cast<std::tuple<u8, i8, u16, i16, u32, i32, u64, i64, float, double>*>(nullptr));
  return found;
}

// ---- the list

Handler find_arithmetic(const Instruction& i) {
  const std::string_view name = i.part[0], type = i.type(), second = i.part[1];
  const bool floating = type == "f32" || type == "f64";
  // Modes that this emulator does not model are unknown instructions.
  for (std::string_view mode : {"sat", "rz", "rm", "rp", "cc"}) {
    if (i.has(mode)) return nullptr;
  }
  if (i.has("ftz") && name != "ex2" && name != "rcp" && name != "lg2") return nullptr;
  if (name == "add") return over<kAdd, 2, u16, i16, u32, i32, u64, i64, float, double, Pair<Half>, Pair<Brain>>(type);
  if (name == "sub") return over<kSub, 2, u16, i16, u32, i32, u64, i64, float, double, Pair<Half>, Pair<Brain>>(type);
  if (name == "mul" && second == "wide") {
    if (type == "u16") return apply<[](u16 a, u16 b) { return u32{a} * b; }, u32, u16, u16>;
    if (type == "s16") return apply<[](i16 a, i16 b) { return i32{a} * b; }, i32, i16, i16>;
    if (type == "u32") return apply<[](u32 a, u32 b) { return u64{a} * b; }, u64, u32, u32>;
    if (type == "s32") return apply<[](i32 a, i32 b) { return i64{a} * b; }, i64, i32, i32>;
  }
  if (name == "mad" && second == "wide") {
    if (type == "u32") return apply<[](u32 a, u32 b, u64 c) { return u64{a} * b + c; }, u64, u32, u32, u64>;
    if (type == "s32")
      return apply<[](i32 a, i32 b, u64 c) { return static_cast<u64>(i64{a} * b) + c; }, u64, i32, i32, u64>;
  }
  if (name == "mul" && second == "hi") return over<kHigh, 2, u32, i32, u64, i64>(type);
  if (name == "mul" && (floating || type.ends_with("x2") || second == "lo")) {
    return over<kMul, 2, u16, i16, u32, i32, u64, i64, float, double, Pair<Half>, Pair<Brain>>(type);
  }
  if (name == "mad" && second == "lo") return over<kMad, 3, u16, i16, u32, i32, u64, i64>(type);
  if (name == "fma") return over<kFma, 3, float, double, Pair<Half>, Pair<Brain>>(type);
  if (name == "div" && (!floating || second == "rn"))
    return over<kDiv, 2, u16, i16, u32, i32, u64, i64, float, double>(type);
  if (name == "rem") return over<kRem, 2, u16, i16, u32, i32, u64, i64>(type);
  if (name == "min") return over<kMin, 2, u16, i16, u32, i32, u64, i64, float, double>(type);
  if (name == "max") return over<kMax, 2, u16, i16, u32, i32, u64, i64, float, double>(type);
  if (name == "and") return over<kAnd, 2, u16, u32, u64>(type);
  if (name == "or") return over<kOr, 2, u16, u32, u64>(type);
  if (name == "xor") return over<kXor, 2, u16, u32, u64>(type);
  if (name == "not") return over<kNot, 1, u16, u32, u64>(type);
  if (name == "neg" && type == "f32") return apply<[](u32 x) { return x ^ 0x80000000u; }, u32, u32>;
  if (name == "neg" && type == "f64") return apply<[](u64 x) { return x ^ (u64{1} << 63); }, u64, u64>;
  if (name == "neg") return over<kNeg, 1, i16, i32, i64>(type);
  if (name == "abs" && type == "f32") return apply<[](u32 x) { return x & 0x7fffffffu; }, u32, u32>;
  if (name == "abs" && type == "f64") return apply<[](u64 x) { return x & ~(u64{1} << 63); }, u64, u64>;
  if (name == "abs") return over<kAbs, 1, i16, i32, i64>(type);
  if (name == "shl") return shifting<kShl, u16, u32, u64>(type);
  if (name == "shr") return shifting<kShr, u16, i16, u32, i32, u64, i64>(type);
  if (name == "bfi") return type == "b32" ? apply<kBfi, u32, u32, u32, u32, u32> : apply<kBfi, u64, u64, u64, u32, u32>;
  if (name == "bfe") {
    return type == "u32"   ? apply<kBfe, u32, u32, u32, u32>
           : type == "s32" ? apply<kBfe, i32, i32, u32, u32>
           : type == "u64" ? apply<kBfe, u64, u64, u32, u32>
                           : apply<kBfe, i64, i64, u32, u32>;
  }
  if (i.name == "prmt.b32") return apply<kPrmt, u32, u32, u32, u32>;
  if (name == "shf") return second == "r" ? funnel_handler<true>(i.has("wrap")) : funnel_handler<false>(i.has("wrap"));
  if (i.name == "lop3.b32") return apply<kLop3, u32, u32, u32, u32, u32>;
  if (i.name == "popc.b32") return apply<[](u32 x) { return std::popcount(x); }, u32, u32>;
  if (i.name == "popc.b64") return apply<[](u64 x) { return std::popcount(x); }, u32, u64>;
  if (i.name == "clz.b32") return apply<[](u32 x) { return std::countl_zero(x); }, u32, u32>;
  if (i.name == "clz.b64") return apply<[](u64 x) { return std::countl_zero(x); }, u32, u64>;
  if (i.name == "brev.b32") return apply<kReverse, u32, u32>;
  if (i.name == "bfind.u32") return apply<[](u32 x) { return x ? 31 - std::countl_zero(x) : -1; }, i32, u32>;
  // Approximations: correct to their documented error.
  if (i.name == "ex2.approx.ftz.f32") {
    return apply<[](float x) {
      const float y = std::exp2(x);
      return y < 0x1p-126f ? 0.0f : y;
    },
                 float, float>;
  }
  if (i.name == "ex2.approx.f32") return apply<[](float x) { return std::exp2(x); }, float, float>;
  if (i.name == "lg2.approx.f32" || i.name == "lg2.approx.ftz.f32")
    return apply<[](float x) { return std::log2(x); }, float, float>;
  if (i.name == "rcp.approx.f32" || i.name == "rcp.approx.ftz.f32" || i.name == "rcp.rn.f32")
    return apply<[](float x) { return 1 / x; }, float, float>;
  if (i.name == "rcp.approx.ftz.f64") {
    return apply<[](double x) { return std::bit_cast<double>(std::bit_cast<u64>(1 / x) & 0xffffffff'00000000u); },
                 double, double>;
  }
  if (i.name == "rsqrt.approx.f32") return apply<[](float x) { return 1 / std::sqrt(x); }, float, float>;
  if (i.name == "sqrt.rn.f32") return apply<[](float x) { return std::sqrt(x); }, float, float>;
  if (i.name == "div.full.f32" || i.name == "div.approx.f32") return apply<kDiv, float, float, float>;
  if (i.name == "copysign.f32")
    return apply<[](u32 a, u32 b) { return (a & 0x80000000u) | (b & 0x7fffffffu); }, u32, u32, u32>;
  if (name == "cvt") return find_conversion(i);
  return nullptr;
}

// Bits of an operand where they differ from those of the type: shift amounts, positions, the halves of a conversion.
int source_bits(const Instruction& i, std::size_t k) {
  const std::string_view name = i.part[0];
  const auto bits = [](std::string_view type) {
    return type.ends_with("64") ? 64 : type.ends_with("16") && type != "bf16x2" ? 16 : type.ends_with("8") ? 8 : 32;
  };
  if ((name == "shl" || name == "shr") && k == 2) return 32;
  if (name == "bfi" && k >= 3) return 32;
  if (name == "bfe" && k >= 2) return 32;
  if (name == "mad" && i.part[1] == "wide" && k == 3) return 64;
  if (i.type() == "e4m3x2") return 16;
  return bits(i.type());
}

bool compile_move(Builder& b, const Instruction& i, Op& op) {
  const Operand &to = i.op[0], &from = i.op[1];
  const std::string_view type = i.type();
  if (type == "pred") {
    op.a = {b.predicate(to), b.predicate(from), kFalse};
    op.run = logic<kOr>;
    return true;
  }
  if (from.kind == Operand::kSpecial) {
    op.a[0] = b.out(to);
    for (u32 k = 0; k < std::size(kSpecials); ++k) {
      if (from.text == kSpecials[k]) {
        op.variant = k;
        op.run = move_special;
      }
    }
    return op.run != nullptr;
  }
  const bool wide = type.ends_with("64");
  if (to.kind == Operand::kVector || from.kind == Operand::kVector) {
    const bool split = to.kind == Operand::kVector;
    const std::vector<Operand>& parts = split ? to.parts : from.parts;
    op.a[0] = split ? b.in(from, wide ? 64 : 32) : b.out(to);
    const int bits = (wide ? 64 : 32) / static_cast<int>(parts.size());
    for (std::size_t k = 0; k < parts.size(); ++k) op.a[1 + k] = split ? b.out(parts[k]) : b.in(parts[k], bits);
    if (bits == 32) op.run = split ? part<u32, u64> : join<u32, u64>;
    if (bits == 16 && wide) op.run = split ? part<u16, u64> : join<u16, u64>;
    if (bits == 16 && !wide) op.run = split ? part<u16, u32> : join<u16, u32>;
    if (bits == 8 && !wide) op.run = split ? part<u8, u32> : join<u8, u32>;
    return op.run != nullptr;
  }
  op.a = {b.out(to), b.in(from, wide ? 64 : type.ends_with("16") ? 16 : 32)};
  op.run = wide ? apply<kCopy, u64, u64> : apply<kCopy, u32, u32>;
  return true;
}

}  // namespace

bool compile_alu(Builder& b, const Instruction& i, Op& op) {
  const std::string_view name = i.part[0], type = i.type();
  if (name == "mov") return compile_move(b, i, op);
  if (name == "setp") {
    op.run = find_comparison<u16, i16, u32, i32, u64, i64, float, double>(i.part[1], type);
    if (i.part.size() == 4) op.variant = i.part[2] == "and" ? 1 : i.part[2] == "or" ? 2 : i.part[2] == "xor" ? 3 : 9;
    if (!op.run || op.variant == 9 || i.op.size() != (op.variant ? 4 : 3)) return false;
    op.a = {b.predicate(i.op[0]), b.in(i.op[1], source_bits(i, 1)), b.in(i.op[2], source_bits(i, 2)), kFalse};
    if (op.variant) op.a[3] = b.predicate(i.op[3]);
    return true;
  }
  if (name == "selp") {
    const int bits = source_bits(i, 1);
    op.a = {b.out(i.op[0]), b.in(i.op[1], bits), b.in(i.op[2], bits), b.predicate(i.op[3])};
    op.run = bits == 64 ? select<u64> : select<u32>;
    return true;
  }
  if (type == "pred" && (name == "and" || name == "or" || name == "xor" || name == "not")) {
    op.a = {b.predicate(i.op[0]), b.predicate(i.op[1]), name == "not" ? kTrue : b.predicate(i.op[2])};
    op.run = name == "and" ? logic<kAnd> : name == "or" ? logic<kOr> : logic<kXor>;
    return true;
  }
  if (i.part.size() < 2) return false;
  op.run = find_arithmetic(i);
  if (!op.run) return false;
  op.a[0] = b.out(i.op[0]);
  for (std::size_t k = 1; k < i.op.size(); ++k) op.a[k] = b.in(i.op[k], source_bits(i, k));
  return true;
}

}  // namespace ptxemu
