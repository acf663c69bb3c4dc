// Memory instructions: global, buffer, scratch, LDS, scalar loads, direct-to-LDS loads.
//
// An access is checked and its addresses are fixed when it issues; it takes effect when a wait (s_waitcnt, the end of the
// wave) makes it. Until then its registers may not be touched, and a direct load's LDS bytes may not either.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "machine.h"

namespace gfx950emu {

void finding(const Inst& inst, const std::string& what) {
  char where[32];
  std::snprintf(where, sizeof where, " at 0x%llx: ", static_cast<unsigned long long>(inst.pc));
  throw Error(what + where + inst.text);
}

void enqueue(Wave& w, std::deque<Pending>& queue, Pending pending) {
  if (!w.group->options->late_memory) {
    pending.complete();
    return;
  }
  for (int k = 0; k < pending.vectors; ++k) ++w.vector_pending[pending.vector + k];
  for (int k = 0; k < pending.scalars; ++k) ++w.scalar_pending[pending.scalar + k];
  queue.push_back(std::move(pending));
}

void drain(Wave& w, std::deque<Pending>& queue, std::size_t left) {
  while (queue.size() > left) {
    const Pending pending = std::move(queue.front());
    queue.pop_front();
    for (int k = 0; k < pending.vectors; ++k) --w.vector_pending[pending.vector + k];
    for (int k = 0; k < pending.scalars; ++k) --w.scalar_pending[pending.scalar + k];
    pending.complete();
  }
}

namespace {

std::string text(const char* format, auto... values) {
  char line[160];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

u32 registers(u32 bytes) { return std::max(1u, bytes / 4); }

// ---- checks ----------------------------------------------------------------------------------------------------------

void check_global(const Wave& w, const Inst& inst, u64 address, u32 bytes) {
  if (!w.group->options->check_bounds) return;
  const std::vector<Range>& ranges = w.group->buffers;
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), address,
                                      [](u64 a, const Range& range) { return a < range.begin; });
  if (after != ranges.begin() && address + bytes <= std::prev(after)->end) return;
  finding(inst,
          text("access of %u bytes at 0x%llx outside all buffers", bytes, static_cast<unsigned long long>(address)));
}

enum class LdsAccess { kRead, kWrite, kDirectIssue, kDirectWrite };

// Bounds, and races within the barrier interval. `data`: what a write stores; equal stores of several waves are allowed.
void check_lds(Wave& w, const Inst& inst, u32 address, u32 bytes, LdsAccess access, const u8* data = nullptr) {
  Group& g = *w.group;
  if (u64{address} + bytes > g.lds.size()) {
    finding(inst, text("LDS access past the end (%u + %u of %zu bytes)", address, bytes, g.lds.size()));
  }
  if (!g.options->check_races) return;
  const u32 me = 1u << w.id;
  const bool write = access != LdsAccess::kRead;
  const bool direct = access == LdsAccess::kDirectIssue || access == LdsAccess::kDirectWrite;
  for (u32 dword = address / 4; dword <= (address + bytes - 1) / 4; ++dword) {
    LdsShadow& s = g.shadow[dword];
    const u32 writers = s.write_interval == g.interval ? s.writers & ~me : 0;
    const u32 readers = s.read_interval == g.interval ? s.readers & ~me : 0;
    const char* problem = nullptr;
    u32 others = writers;
    if (s.direct_load >= 0 && !direct) {
      problem = "LDS touched while a direct load into it is in flight";
      others = 1u << s.direct_load;
    } else if (write && writers) {
      const u32 begin = std::max(address, 4 * dword), end = std::min(address + bytes, 4 * dword + 4);
      if (data && std::equal(data + (begin - address), data + (end - address), g.lds.begin() + begin)) {
        s.writers |= me;
        ++g.stats.same_value_writes;
        continue;
      }
      problem = "LDS write/write race";
    } else if (writers && !(s.writers & me)) {
      problem = "LDS write/read race";
    } else if (write && readers) {
      problem = "LDS read/write race";
      others = readers;
    }
    if (problem) finding(inst, text("%s (byte %u, wave %d, other waves 0x%x)", problem, 4 * dword, w.id, others));
    if (access == LdsAccess::kDirectIssue) {
      if (g.options->late_memory) s.direct_load = w.id;
    } else if (write) {
      s.writers = (s.write_interval == g.interval ? s.writers : 0) | me;
      s.write_interval = g.interval;
      if (direct) s.direct_load = -1;
    } else {
      s.readers = (s.read_interval == g.interval ? s.readers : 0) | me;
      s.read_interval = g.interval;
    }
  }
}

// An LDS instruction may read as soon as it issues: no direct load may be under way into what it touches.
void check_no_direct_load(const Wave& w, const Inst& inst, const u32* address, u32 offset, u64 mask) {
  const Group& g = *w.group;
  for (int l = 0; l < kLanes; ++l) {
    const u64 begin = u64{address[l]} + offset;
    if (!(mask >> l & 1) || begin + inst.width > g.lds.size()) continue;
    for (u64 dword = begin / 4; dword <= (begin + inst.width - 1) / 4; ++dword) {
      if (g.shadow[dword].direct_load >= 0) finding(inst, "LDS touched while a direct load into it is in flight");
    }
  }
}

// Clocks of one LDS access. Model: 64 banks of 4 bytes; consecutive lanes that together ask for 256 bytes are served at
// once, in 2 clocks (128 bytes a clock) for each different dword that the busiest bank is asked for.
void lds_cost(Stats& stats, const u32* address, u32 bytes, u64 mask) {
  constexpr u32 kBanks = 64;
  const u32 each = std::max(4u, bytes), lanes = 4 * kBanks / each;
  for (u32 first = 0; first < kLanes; first += lanes) {
    u32 asked[kBanks][kLanes], count[kBanks] = {}, busiest = 0;  // different dwords of each bank
    for (u32 l = first; l < first + lanes; ++l) {
      if (!(mask >> l & 1)) continue;
      for (u32 k = 0; k < each / 4; ++k) {
        const u32 dword = address[l] / 4 + k;
        u32 *bank = asked[dword % kBanks], &n = count[dword % kBanks];
        if (std::find(bank, bank + n, dword) == bank + n) bank[n++] = dword;
        busiest = std::max(busiest, n);
      }
    }
    stats.lds_clocks += 2 * busiest;
    stats.lds_ideal_clocks += busiest ? 2 : 0;
  }
}

// ---- registers <-> bytes ---------------------------------------------------------------------------------------------

void to_registers(Wave& w, const Inst& inst, int d, int lane, const u8* bytes, u32 count) {
  if (count >= 4) {
    for (u32 k = 0; k < count / 4; ++k) std::memcpy(&w.v[d + static_cast<int>(k)][lane], bytes + 4 * k, 4);
    return;
  }
  u32 x = bytes[0];
  if (count == 2) x |= static_cast<u32>(bytes[1]) << 8;
  if (inst.sign_extend) x = static_cast<u32>(count == 1 ? static_cast<i8>(x) : static_cast<i16>(x));
  const u32 old = w.v[d][lane];
  if (inst.d16_high) x = (old & 0xffff) | x << 16;
  if (inst.d16_low) x = (old & 0xffff0000) | (x & 0xffff);
  w.v[d][lane] = x;
}

void from_registers(const Wave& w, const Inst& inst, int s, int lane, u8* bytes, u32 count) {
  if (count >= 4) {
    for (u32 k = 0; k < count / 4; ++k) std::memcpy(bytes + 4 * k, &w.v[s + static_cast<int>(k)][lane], 4);
    return;
  }
  const u32 x = inst.d16_high ? w.v[s][lane] >> 16 : w.v[s][lane];
  std::memcpy(bytes, &x, count);
}

// ---- global memory ---------------------------------------------------------------------------------------------------

// The addresses of an access: active lanes, and those of them that are inside the buffer (a buffer load gives zero and a
// buffer store does nothing outside).
struct Addresses {
  u64 at[kLanes];
  u64 active, inside;
};

Addresses global_addresses(const Wave& w, const Inst& inst, std::size_t vector, std::size_t scalar) {
  Addresses a;
  a.active = a.inside = w.exec();
  const Operand& v = inst.op[vector];
  const bool has_base = scalar < inst.op.size() && inst.op[scalar].kind == Operand::kScalar;
  for (int l = 0; l < kLanes; ++l) {
    const u64 base = has_base ? w.s64(inst.op[scalar].index) : 0;
    const u64 offset = has_base ? lane32(w, v, l) : lane64(w, v, l);
    a.at[l] = base + offset + static_cast<u64>(inst.offset);
  }
  return a;
}

Addresses buffer_addresses(const Wave& w, const Inst& inst, std::size_t vector) {
  Addresses a;
  a.active = w.exec();
  a.inside = 0;
  const int resource = inst.op[vector + 1].index;
  const u64 base = w.s64(resource) & 0xffffffffffff;
  const u32 size = w.s[resource + 2], scalar = scalar32(w, inst.op[vector + 2]);
  for (int l = 0; l < kLanes; ++l) {
    const u64 offset = (inst.by_lane ? lane32(w, inst.op[vector], l) : 0) + static_cast<u64>(inst.offset) + scalar;
    a.at[l] = base + offset;
    if (offset + inst.width <= size && a.active >> l & 1) a.inside |= u64{1} << l;
  }
  return a;
}

Addresses scratch_addresses(Wave& w, const Inst& inst, std::size_t vector, std::size_t scalar) {
  Addresses a;
  a.active = a.inside = w.exec();
  for (int l = 0; l < kLanes; ++l) {
    u64 offset = static_cast<u64>(inst.offset);
    if (inst.op[vector].kind == Operand::kVector) offset += w.v[inst.op[vector].index][l];
    if (scalar < inst.op.size() && inst.op[scalar].kind == Operand::kScalar) offset += w.s[inst.op[scalar].index];
    if (offset + inst.width > w.group->scratch_bytes) finding(inst, "scratch access past the end");
    a.at[l] = reinterpret_cast<u64>(w.scratch.data()) + static_cast<u64>(l) * w.group->scratch_bytes + offset;
  }
  return a;
}

void count_bytes(Wave& w, const Inst& inst, u64 active) {
  w.group->stats.memory_bytes += inst.width * static_cast<u64>(std::popcount(active));
}

void load(Wave& w, const Inst& inst, const Addresses& a) {
  const auto d = inst.op[0].index;
  count_bytes(w, inst, a.active);
  const auto complete = [&w, &inst, a, d] {
    for (int l = 0; l < kLanes; ++l) {
      if (!(a.active >> l & 1)) continue;
      u8 bytes[16] = {};
      if (a.inside >> l & 1) {
        check_global(w, inst, a.at[l], inst.width);
        std::memcpy(bytes, reinterpret_cast<const void*>(a.at[l]), inst.width);
      }
      to_registers(w, inst, d, l, bytes, inst.width);
    }
  };
  enqueue(w, w.memory, {complete, d, static_cast<u16>(registers(inst.width)), 0, 0});
}

void store(Wave& w, const Inst& inst, std::size_t data, const Addresses& a) {
  std::vector<u8> bytes(16 * kLanes);
  for (int l = 0; l < kLanes; ++l)
    from_registers(w, inst, inst.op[data].index, l, &bytes[16u * static_cast<u32>(l)], inst.width);
  count_bytes(w, inst, a.active);
  enqueue(w, w.memory, {[&w, &inst, a, bytes = std::move(bytes)] {
            for (int l = 0; l < kLanes; ++l) {
              if (!(a.inside >> l & 1)) continue;
              check_global(w, inst, a.at[l], inst.width);
              std::memcpy(reinterpret_cast<void*>(a.at[l]), &bytes[16u * static_cast<u32>(l)], inst.width);
            }
          }});
}

// Lane l's bytes go to M0 + offset + l * width.
void load_to_lds(Wave& w, const Inst& inst, const Addresses& a) {
  const u32 each = std::max(4u, inst.width), base = (w.s[kM0] & 0x3ffff) + static_cast<u32>(inst.offset);
  const auto place = [=](int l) { return base + static_cast<u32>(l) * each; };
  for (int l = 0; l < kLanes; ++l) {
    if (a.active >> l & 1) check_lds(w, inst, place(l), each, LdsAccess::kDirectIssue);
  }
  count_bytes(w, inst, a.active);
  enqueue(w, w.memory, {[&w, &inst, a, place, each] {
            for (int l = 0; l < kLanes; ++l) {
              if (!(a.active >> l & 1)) continue;
              check_lds(w, inst, place(l), each, LdsAccess::kDirectWrite);
              u8 bytes[16] = {};
              if (a.inside >> l & 1) {
                check_global(w, inst, a.at[l], inst.width);
                std::memcpy(bytes, reinterpret_cast<const void*>(a.at[l]), inst.width);
              }
              std::memcpy(&w.group->lds[place(l)], bytes, each);
            }
          }});
}

// Real atomics: work-groups may run on different host threads.
template <auto F>
void atomic(Wave& w, const Inst& inst) {
  const std::size_t k = inst.returns ? 1 : 0;
  const Addresses a = global_addresses(w, inst, k, k + 2);
  const int d = inst.op[0].index, s = inst.op[k + 1].index;
  std::vector<u32> operand(w.v[s], w.v[s] + kLanes);
  count_bytes(w, inst, a.active);
  Pending pending;
  if (inst.returns) {
    pending.vector = static_cast<u16>(d);
    pending.vectors = 1;
  }
  pending.complete = [&w, &inst, a, d, operand = std::move(operand)] {
    for (int l = 0; l < kLanes; ++l) {
      if (!(a.active >> l & 1)) continue;
      check_global(w, inst, a.at[l], 4);
      std::atomic_ref<u32> target(*reinterpret_cast<u32*>(a.at[l]));
      u32 old = target.load();
      while (!target.compare_exchange_weak(old, F(old, operand[static_cast<std::size_t>(l)]))) {
      }
      if (inst.returns) w.v[d][l] = old;
    }
  };
  enqueue(w, w.memory, std::move(pending));
}

void load_scalar(Wave& w, const Inst& inst) {
  u64 address = w.s64(inst.op[1].index) + static_cast<u64>(inst.offset);
  if (inst.op.size() > 2) address += scalar32(w, inst.op[2]);
  address &= ~u64{3};
  const u16 d = inst.op[0].index;
  enqueue(w, w.scalar_memory,
          {[&w, &inst, d, address] {
             check_global(w, inst, address, inst.width);
             std::memcpy(&w.s[d], reinterpret_cast<const void*>(address), inst.width);
           },
           0, 0, d, static_cast<u16>(inst.width / 4)});
}

// ---- LDS -------------------------------------------------------------------------------------------------------------

void count_lds(Wave& w, const u32* address, u32 offset, u32 bytes, u64 mask) {
  u32 at[kLanes];
  for (int l = 0; l < kLanes; ++l) at[l] = address[l] + offset;
  w.group->stats.lds_bytes += bytes * static_cast<u64>(std::popcount(mask));
  lds_cost(w.group->stats, at, bytes, mask);
}

// `offsets`: one for a plain read, two for the read2 forms.
void read_lds(Wave& w, const Inst& inst, std::vector<u32> offsets) {
  const int d = inst.op[0].index;
  const u32 *address = w.v[inst.op[1].index], total = inst.width * static_cast<u32>(offsets.size());
  const u64 exec = w.exec();
  for (u32 offset : offsets) {
    count_lds(w, address, offset, inst.width, exec);
    check_no_direct_load(w, inst, address, offset, exec);
  }
  const auto complete = [&w, &inst, d, exec, total, offsets, at = std::vector<u32>(address, address + kLanes)] {
    u8 raw[kLanes][16] = {};
    for (int l = 0; l < kLanes; ++l) {
      if (!(exec >> l & 1)) continue;
      for (std::size_t k = 0; k < offsets.size(); ++k) {
        const u32 from = at[static_cast<std::size_t>(l)] + offsets[k];
        check_lds(w, inst, from, inst.width, LdsAccess::kRead);
        std::memcpy(raw[l] + inst.width * k, &w.group->lds[from], inst.width);
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      if (!(exec >> l & 1)) continue;
      if (!inst.transpose) {
        to_registers(w, inst, d, l, raw[l], total);
        continue;
      }
      // The 16 lanes of a group hold a matrix, row after row, 8 bytes a lane; lane c receives column c.
      u8 column[8];
      const int group = l & ~15, c = l & 15, bytes = inst.transpose / 8, in_lane = 8 / bytes;
      for (int j = 0; j < in_lane; ++j) {
        const u8* row = raw[group + c / in_lane + 16 / in_lane * j];
        std::memcpy(column + bytes * j, row + bytes * (c % in_lane), static_cast<std::size_t>(bytes));
      }
      to_registers(w, inst, d, l, column, 8);
    }
  };
  enqueue(w, w.lds, {complete, static_cast<u16>(d), static_cast<u16>(registers(total)), 0, 0});
}

struct LdsStore {
  std::size_t operand;
  u32 offset;
};

void write_lds(Wave& w, const Inst& inst, std::vector<LdsStore> parts) {
  const u32* address = w.v[inst.op[0].index];
  const u64 exec = w.exec();
  std::vector<std::array<u8, 16>> data(kLanes * parts.size());
  for (std::size_t k = 0; k < parts.size(); ++k) {
    count_lds(w, address, parts[k].offset, inst.width, exec);
    check_no_direct_load(w, inst, address, parts[k].offset, exec);
    for (int l = 0; l < kLanes; ++l) {
      from_registers(w, inst, inst.op[parts[k].operand].index, l, data[k * kLanes + static_cast<std::size_t>(l)].data(),
                     inst.width);
    }
  }
  enqueue(w, w.lds,
          {[&w, &inst, exec, parts = std::move(parts), data = std::move(data),
            at = std::vector<u32>(address, address + kLanes)] {
            for (std::size_t l = 0; l < kLanes; ++l) {
              if (!(exec >> l & 1)) continue;
              for (std::size_t k = 0; k < parts.size(); ++k) {
                const u8* bytes = data[k * kLanes + l].data();
                const u32 to = at[l] + parts[k].offset;
                check_lds(w, inst, to, inst.width, LdsAccess::kWrite, bytes);
                std::memcpy(&w.group->lds[to], bytes, inst.width);
              }
            }
          }});
}

// Lane exchanges through the LDS crossbar: no LDS memory, but a result that must be waited for.
void exchange(Wave& w, const Inst& inst, const u32* values) {
  const u16 d = inst.op[0].index;
  const u64 exec = w.exec();
  enqueue(w, w.lds,
          {[&w, d, exec, r = std::vector<u32>(values, values + kLanes)] { write_vector(w, d, r.data(), exec); }, d, 1,
           0, 0});
}

void ds_bpermute(Wave& w, const Inst& inst) {
  const u32 *from = w.v[inst.op[1].index], *values = w.v[inst.op[2].index];
  u32 r[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const int lane = static_cast<int>((from[l] + static_cast<u32>(inst.offset)) >> 2 & 63);
    r[l] = w.active(lane) ? values[lane] : 0;
  }
  exchange(w, inst, r);
}

void ds_swizzle(Wave& w, const Inst& inst) {
  const u32 pattern = inst.immediate, *values = w.v[inst.op[1].index];
  u32 r[kLanes];
  for (u32 l = 0; l < kLanes; ++l) {
    const u32 quad = (l & ~3u) + (pattern >> (2 * (l & 3)) & 3);
    const u32 bits = (((l & 31 & pattern) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31)) | (l & 32);
    r[l] = values[pattern & 0x8000 ? quad : bits];
  }
  exchange(w, inst, r);
}

// ---- decoding --------------------------------------------------------------------------------------------------------

struct Width {
  std::string_view name;
  u32 bytes;
  bool sign_extend, low, high;
};
constexpr Width kWidths[] = {
    {"dword", 4, false, false, false},      {"dwordx2", 8, false, false, false},
    {"dwordx3", 12, false, false, false},   {"dwordx4", 16, false, false, false},
    {"dwordx8", 32, false, false, false},   {"dwordx16", 64, false, false, false},
    {"ubyte", 1, false, false, false},      {"sbyte", 1, true, false, false},
    {"byte", 1, false, false, false},       {"ushort", 2, false, false, false},
    {"sshort", 2, true, false, false},      {"short", 2, false, false, false},
    {"u8", 1, false, false, false},         {"i8", 1, true, false, false},
    {"b8", 1, false, false, false},         {"u16", 2, false, false, false},
    {"i16", 2, true, false, false},         {"b16", 2, false, false, false},
    {"b32", 4, false, false, false},        {"b64", 8, false, false, false},
    {"b96", 12, false, false, false},       {"b128", 16, false, false, false},
    {"short_d16", 2, false, true, false},   {"short_d16_hi", 2, false, false, true},
    {"ubyte_d16", 1, false, true, false},   {"ubyte_d16_hi", 1, false, false, true},
    {"byte_d16_hi", 1, false, false, true}, {"u16_d16", 2, false, true, false},
    {"u16_d16_hi", 2, false, false, true},  {"u8_d16", 1, false, true, false},
    {"u8_d16_hi", 1, false, false, true},   {"b16_d16_hi", 2, false, false, true},
    {"b8_d16_hi", 1, false, false, true},
};

bool set_width(Inst& inst, std::string_view name) {
  for (const Width& width : kWidths) {
    if (width.name != name) continue;
    inst.width = width.bytes;
    inst.sign_extend = width.sign_extend;
    inst.d16_low = width.low;
    inst.d16_high = width.high;
    return true;
  }
  return false;
}

// If the name starts so, the rest of it must be a width.
bool is_family(Inst& inst, std::string_view prefix) {
  const std::string_view name = inst.name;
  return name.starts_with(prefix) && set_width(inst, name.substr(prefix.size()));
}

}  // namespace

bool set_up_memory(Inst& inst) {
  if (is_family(inst, "s_load_")) {
    inst.run = load_scalar;
  } else if (is_family(inst, "global_load_lds_")) {
    inst.run = [](Wave& w, const Inst& i) { load_to_lds(w, i, global_addresses(w, i, 0, 1)); };
  } else if (is_family(inst, "global_load_") || is_family(inst, "flat_load_")) {
    inst.run = [](Wave& w, const Inst& i) { load(w, i, global_addresses(w, i, 1, 2)); };
  } else if (is_family(inst, "global_store_") || is_family(inst, "flat_store_")) {
    inst.run = [](Wave& w, const Inst& i) { store(w, i, 1, global_addresses(w, i, 0, 2)); };
  } else if (is_family(inst, "buffer_load_")) {
    inst.run = [](Wave& w, const Inst& i) {
      i.to_lds ? load_to_lds(w, i, buffer_addresses(w, i, 0)) : load(w, i, buffer_addresses(w, i, 1));
    };
  } else if (is_family(inst, "buffer_store_")) {
    inst.run = [](Wave& w, const Inst& i) { store(w, i, 0, buffer_addresses(w, i, 1)); };
  } else if (is_family(inst, "scratch_load_")) {
    inst.run = [](Wave& w, const Inst& i) { load(w, i, scratch_addresses(w, i, 1, 2)); };
  } else if (is_family(inst, "scratch_store_")) {
    inst.run = [](Wave& w, const Inst& i) { store(w, i, 1, scratch_addresses(w, i, 0, 2)); };
  } else if (inst.name == "global_atomic_add_f32") {
    inst.width = 4;
    inst.run = atomic<[](u32 a, u32 b) { return as_bits(as_float(a) + as_float(b)); }>;
  } else if (inst.name == "global_atomic_add") {
    inst.width = 4;
    inst.run = atomic<[](u32 a, u32 b) { return a + b; }>;
  } else if (is_family(inst, "ds_read2st64_") || is_family(inst, "ds_read2_")) {
    inst.run = [](Wave& w, const Inst& i) { read_lds(w, i, {i.offset0, i.offset1}); };
  } else if (is_family(inst, "ds_write2st64_") || is_family(inst, "ds_write2_")) {
    inst.run = [](Wave& w, const Inst& i) { write_lds(w, i, {{1, i.offset0}, {2, i.offset1}}); };
  } else if (inst.name == "ds_read_b64_tr_b16" || inst.name == "ds_read_b64_tr_b8") {
    inst.width = 8;
    inst.transpose = inst.name.ends_with("b16") ? 16 : 8;
    inst.run = [](Wave& w, const Inst& i) { read_lds(w, i, {static_cast<u32>(i.offset)}); };
  } else if (is_family(inst, "ds_read_")) {
    inst.run = [](Wave& w, const Inst& i) { read_lds(w, i, {static_cast<u32>(i.offset)}); };
  } else if (is_family(inst, "ds_write_")) {
    inst.run = [](Wave& w, const Inst& i) { write_lds(w, i, {{1, static_cast<u32>(i.offset)}}); };
  } else if (inst.name == "ds_bpermute_b32") {
    inst.run = ds_bpermute;
  } else if (inst.name == "ds_swizzle_b32") {
    inst.run = ds_swizzle;
  } else {
    return false;
  }
  if (inst.name.starts_with("ds_read2") || inst.name.starts_with("ds_write2")) {
    const u32 unit = inst.width * (inst.name.find("st64") != std::string::npos ? 64 : 1);
    inst.offset0 *= unit;
    inst.offset1 *= unit;
  }
  return true;
}

}  // namespace gfx950emu
