// The machine's state and how instructions reach it: decoded instructions, warps, blocks, clusters. One handler per
// instruction form (alu.cpp, memory.cpp, sync.cpp, matrix.cpp) works on these; launch.cpp drives them.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "tools/ptxemu/ptx.h"
#include "tools/ptxemu/ptxemu.h"

namespace ptxemu {

constexpr int kLanes = 32;
constexpr u32 kAll = ~u32{0};

// Addresses. Global ones are the host's. A block's shared memory begins at kSharedStart of its window (what is below belongs
// to the system on a GPU too); the upper byte of a shared::cluster address is 1 + the rank of the block, or 0: this block.
// Shared and local memory have their own high halves in generic addresses.
constexpr u32 kSharedStart = 1024;
constexpr int kRankShift = 24;
constexpr u64 kSharedTag = 0x5a00'0000, kLocalTag = 0x5b00'0000, kParamTag = 0x5c00'0000;  // upper 32 bits

struct Warp;
struct Op;
using Handler = void (*)(Warp&, const Op&, u32 mask);

enum class Kind : u8 { kPlain, kBlocking, kBranch, kExit };

// One decoded instruction. A register operand is its offset in the warp's registers, a constant one its offset in the
// kernel's constants plus 1; a predicate is its number.
struct Op {
  Handler run = nullptr;
  Kind kind = Kind::kPlain;
  bool aligned = false;   // executed by all lanes of the warp that have not left
  bool fragment = false;  // touches registers of wgmma fragments
  bool negated = false;
  bool stale = false;                            // a load that may read what the launch before has yet to write
  bool wide_address = false, wide_data = false;  // 64-bit registers
  i32 predicate = -1;
  std::array<u32, 6> a{};
  i64 value = 0;             // displacement of an address, an immediate, the target of a branch
  u32 list = 0, listed = 0;  // more operands: Code::lists from here on
  u32 width = 0;             // bytes of an element, or what else the family needs
  u32 members = 0;           // lanes that must execute a .sync together; 0: no matter
  u32 variant = 0;           // as the family needs
  u32 id = 0;                // position, and of the instruction in Code::source
};

constexpr u32 kFalse = 0, kTrue = 1;  // predicates that are constant
constexpr u32 kNone = ~u32{0};        // no operand

// Registers of wgmma fragments that an ordinary instruction touches, and which of them it writes.
struct FragmentUse {
  std::vector<u32> touched, written;
};

struct Code {
  Function function;
  const Text* text = nullptr;
  std::vector<Op> ops;
  std::vector<u32> lists;
  std::vector<u32> constants;  // a cell for each lane
  u32 register_bytes = 0, predicates = 0;
  u32 fragment_bytes = 0;                              // of registers of wgmma fragments, which come first
  std::unordered_map<u32, FragmentUse> fragment_uses;  // by Op::id, where Op::fragment
  u32 dynamic_shared_at = 0;                           // offset in the block's shared memory
  bool overlaps = false;  // waits for the end of the launch before it (griddepcontrol.wait)

  std::string where(u32 id) const;
};
std::unique_ptr<Code> compile(const Text& text, const std::string& kernel);

// ---- lanes -------------------------------------------------------------------------------------------------------------

// 16-bit and narrower values lie in 32 bits, zero-extended.
template <typename T>
using Cell = std::conditional_t<sizeof(T) == 8, u64, u32>;

template <typename T>
T get(Cell<T> cell) {
  if constexpr (sizeof(T) == sizeof(cell)) return std::bit_cast<T>(cell);
  if constexpr (sizeof(T) == 2) return std::bit_cast<T>(static_cast<u16>(cell));
  if constexpr (sizeof(T) == 1) return std::bit_cast<T>(static_cast<u8>(cell));
}
// A float result that is NaN is the GPU's NaN.
template <typename T>
Cell<T> put(T value) {
  if constexpr (std::is_same_v<T, float>) return value != value ? 0x7fffffffu : std::bit_cast<u32>(value);
  if constexpr (std::is_same_v<T, double>) return value != value ? 0x7fffffff'ffffffffu : std::bit_cast<u64>(value);
  if constexpr (sizeof(T) == 8) return std::bit_cast<u64>(value);
  if constexpr (sizeof(T) == 4) return std::bit_cast<u32>(value);
  if constexpr (sizeof(T) == 2) return std::bit_cast<u16>(value);
  if constexpr (sizeof(T) == 1) return std::bit_cast<u8>(value);
}

template <typename Body>
inline void lanes(u32 mask, Body&& body) {
  if (mask == kAll) {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (int i = 0; i < kLanes; ++i) body(i);
  } else {
    for (; mask; mask &= mask - 1) body(std::countr_zero(mask));
  }
}

// ---- order -------------------------------------------------------------------------------------------------------------

// What a warp knows of the others' progress (a vector clock over the cluster's warps and the blocks' copy engines), through
// ordinary synchronisation and, for the asynchronous proxy (wgmma, bulk copies), through proxy fences.
struct Knowledge {
  std::vector<u32> seen, fenced;
  void learn(const Knowledge& other) {
    if (seen.empty()) seen.resize(other.seen.size()), fenced.resize(other.seen.size());
    for (std::size_t i = 0; i < other.seen.size(); ++i) {
      seen[i] = std::max(seen[i], other.seen[i]);
      fenced[i] = std::max(fenced[i], other.fenced[i]);
    }
  }
};

// Who wrote a byte of shared memory last, and when by its own clock; 0: nobody, or an asynchronous copy.
struct Shadow {
  u32 clock = 0;
  u16 writer = 0;
};

// ---- state -------------------------------------------------------------------------------------------------------------

struct Mbarrier {
  u32 expected = 0;
  i64 pending = 0, bytes = 0;
  u64 phase = 0;
  u32 init_warp = 0, init_clock = 0;
  Knowledge arriving, completed;
};

struct Barrier {
  u32 threads = 0;  // expected; 0: all that live
  u32 arrived = 0;
  const Op* waits = nullptr;  // where the warps of this generation wait, if by an aligned form
  u64 generation = 0;
  bool any = false, all = true, result_any = false, result_all = false;
  u32 result_count = 0, count = 0;
  Knowledge arriving, completed;
};

struct Cluster;
struct Warp;

struct Cta {
  Cluster* cluster = nullptr;
  u32 rank = 0;
  Dim3 index;
  u32 live_warps = 0;
  std::vector<u8> shared;      // from kSharedStart on
  std::vector<Shadow> shadow;  // by byte; empty: not asked for
  // By dword and warp of the block, and behind these its copy engine: its clock at its last read.
  std::vector<u32> reads;
  u32 engine = 0;  // that one's clock
  std::array<Barrier, 16> barriers;
  std::unordered_map<u32, Mbarrier> mbarriers;  // by shared address
  std::vector<std::unique_ptr<Warp>> warps;
  bool started = false;
};

// What an asynchronous copy does when it lands.
struct Landing {
  std::function<void()> land;
};

// splitmix64: a block's costs nothing to start.
struct Random {
  u64 state = 0;
  u64 operator()() {
    u64 z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
};

struct Cluster {
  const Code* code = nullptr;
  const Options* options = nullptr;
  const std::vector<Range>* memory = nullptr;  // sorted
  std::vector<u8>* parameters = nullptr;
  Launch launch;
  u64 grid_workspace = 0;  // of a cooperative launch: what its blocks count their arrivals in
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<Landing> landings;
  Random* random = nullptr;
  u32 clock = 0;   // where the warps' clocks start: behind those of the cluster before
  u64 events = 0;  // counts what may let a waiting warp go on
  u32 live_warps = 0, arrived = 0;
  u64 generation = 0;
  Knowledge arriving, completed;
  Stats stats;
};

struct Fragment {  // lanes at one place
  u32 pc = 0, mask = 0;
  bool blocked = false;
  u64 token = 0;  // of what it waits for
};

// A wgmma that has been issued.
struct Product {
  const Op* op;
  u64 a, b;
  bool accumulate;
  std::vector<u32> a_registers;  // a snapshot: register, lane
  u32 group;
};

// An ordinary asynchronous copy of one instruction.
struct Copy {
  u32 mask, bytes;
  std::array<u64, kLanes> from;
  std::array<u32, kLanes> to, from_bytes, group;
};

enum class Outcome : u8 { kNext, kBlocked, kYield };

struct Warp {
  u8* base[2] = {};  // registers, constants
  u32* p = nullptr;  // predicates
  Cta* cta = nullptr;
  const Code* code = nullptr;
  u32 id = 0, number = 0;  // in the block, in the cluster
  u32 alive = 0;
  std::array<std::array<u32, kLanes>, 3> tid{};
  std::vector<Fragment> fragments;
  Fragment* now = nullptr;
  Outcome outcome = Outcome::kNext;
  u64 stalled_at = ~u64{0};  // Cluster::events when nothing could run
  std::vector<Product> products;
  u32 committed = 0;               // wgmma groups
  std::vector<u8> pending, dirty;  // fragment registers: in a product under way; written since the last fence
  std::deque<Copy> copies;
  std::array<u32, kLanes> copy_groups{};  // committed
  // Tensor copies from shared memory by thread: they read when a wait for that asks for it, as late as they may.
  std::array<std::vector<std::function<void()>>, kLanes> stores;
  bool cluster_arrived = false;
  u64 cluster_token = 0;
  u32 registers = 0;   // setmaxnreg
  bool early = false;  // the launch before this one may still be running
  Range last_range{1, 0};
  Knowledge knows;
  u64* counts = nullptr;
  std::vector<u8> local;
  std::unique_ptr<u8[]> storage;
  std::vector<u32> predicate_storage;

  template <typename T>
  Cell<T>* cells(u32 ref) const {
    return reinterpret_cast<Cell<T>*>(base[ref & 1] + (ref & ~1u));
  }
  u32 clock() const { return knows.seen[number]; }
};

// Ends the launch: `what` with kernel, instruction, source line, block, warp.
[[noreturn]] void finding(const Warp& w, const Op& op, const std::string& what);

// ---- what the parts offer each other ------------------------------------------------------------------------------------

struct Builder;
// Each gives an Op its handler and operands and returns true if the instruction is of its family.
bool compile_alu(Builder& b, const Instruction& i, Op& op);
bool compile_memory(Builder& b, const Instruction& i, Op& op);
bool compile_sync(Builder& b, const Instruction& i, Op& op);
bool compile_matrix(Builder& b, const Instruction& i, Op& op);

// Instruction -> Op: operands to references.
struct Builder {
  Code& code;
  const std::vector<u32>& place;          // of every register: offset, or number of a predicate
  std::unordered_map<u64, u32> known[2];  // constants by bits, narrow and wide

  u32 constant(u64 bits, bool wide);
  // A source of a width in bits; the operand may be a register, a number, a variable's address.
  u32 in(const Operand& o, int bits);
  u32 out(const Operand& o);  // kNone for _
  u32 predicate(const Operand& o);
  u32 address(Op& op, const Operand& o);   // the base; the displacement goes to op.value
  bool is_wide(const Operand& o) const;    // a 64-bit register
  u32 list(const std::vector<u32>& refs);  // position
};

// memory.cpp
struct Place {  // of shared memory
  Cta* cta;
  u32 at;  // offset from kSharedStart
};
Place find_shared(Warp& w, const Op& op, u32 address, u32 bytes, u32 alignment);
u8* find_global(Warp& w, const Op& op, u64 address, u64 bytes, u64 alignment);
// Orders an access of shared memory against those of other warps; throws on a race. `async`: by the asynchronous proxy.
enum class Access : u8 { kRead, kWrite, kAsyncRead, kAsyncWrite };
void touch(Warp& w, const Op& op, const Place& place, u32 bytes, Access access);
// The block's copy engine reads, from now on and until somebody waits for its end: returns what he then knows.
Knowledge touch_by_engine(Warp& w, const Op& op, const Place& place, u32 bytes);

// sync.cpp
Mbarrier& find_mbarrier(Warp& w, const Op& op, u32 address);
void complete_bytes(Cluster& cluster, Mbarrier& barrier, i64 bytes);
void leave(Warp& w);  // the warp's last lane has left

// matrix.cpp
void check_fragment(Warp& w, const Op& op);  // an op that touches fragment registers and is no wgmma

}  // namespace ptxemu
