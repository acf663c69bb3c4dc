#include "code_object.h"

#include <elf.h>

#include <algorithm>
#include <functional>

namespace gfx950emu {
namespace {

constexpr u32 kRelative64 = 13;  // R_AMDGPU_RELATIVE64, the only relocation of a linked code object
constexpr std::size_t kPage = 4096;

struct Machine {
  u32 flags;  // EF_AMDGPU_MACH
  Architecture architecture;
  u32 cu_lds_bytes;
};
constexpr Machine kMachines[] = {{0x4c, Architecture::kGfx942, 64 << 10},
                                 {0x4f, Architecture::kGfx950, 160 << 10},
                                 {0x49, Architecture::kGfx1250, 320 << 10}};

const Machine* find_machine(const Elf64_Ehdr& header) {
  const auto* machine = std::ranges::find(kMachines, header.e_flags & 0xff, &Machine::flags);
  return machine == std::end(kMachines) ? nullptr : machine;
}

// The metadata note is MessagePack. Only what kernels need: calls visit(path, value) for every number and string, the path
// being the keys and array positions from the root, joined by '/'.
class MessagePack {
 public:
  using Visit =
      std::function<void(const std::string& path, u32 number, std::string text)>;  // a type: map() nests a visit

  explicit MessagePack(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void walk(const std::string& path, const Visit& visit) {
    const u32 type = take(1);
    if (type < 0x80) return visit(path, type, "");
    if (type < 0x90) return map(path, type & 15, visit);
    if (type < 0xa0) return array(path, type & 15, visit);
    if (type < 0xc0) return visit(path, 0u, string(type & 31));
    switch (type) {
      case 0xc0:
      case 0xc2:
      case 0xc3:
        return visit(path, type & 1, "");
      case 0xcc:
      case 0xd0:
        return visit(path, take(1), "");
      case 0xcd:
      case 0xd1:
        return visit(path, take(2), "");
      case 0xce:
      case 0xd2:
        return visit(path, take(4), "");
      case 0xcf:
      case 0xd3:
        take(4);
        return visit(path, take(4), "");
      case 0xd9:
        return visit(path, 0u, string(take(1)));
      case 0xda:
        return visit(path, 0u, string(take(2)));
      case 0xdc:
        return array(path, take(2), visit);
      case 0xdd:
        return array(path, take(4), visit);
      case 0xde:
        return map(path, take(2), visit);
      case 0xdf:
        return map(path, take(4), visit);
      default:
        if (type >= 0xe0) return visit(path, type, "");
        throw Error("metadata note: unexpected MessagePack type");
    }
  }

 private:
  u32 take(std::size_t n) {
    if (at_ + n > bytes_.size()) throw Error("metadata note is cut short");
    u32 x = 0;
    for (std::size_t k = 0; k < n; ++k) x = x << 8 | static_cast<u32>(bytes_[at_++]);
    return x;
  }
  std::string string(u32 n) {
    std::string s;
    for (u32 k = 0; k < n; ++k) s += static_cast<char>(take(1));
    return s;
  }
  void array(const std::string& path, u32 n, const Visit& visit) {
    for (u32 k = 0; k < n; ++k) walk(path + '/' + std::to_string(k), visit);
  }
  void map(const std::string& path, u32 n, const Visit& visit) {
    for (u32 k = 0; k < n; ++k) {
      std::string key;
      walk("", [&](const std::string&, u32, std::string s) { key = std::move(s); });
      walk(path + '/' + key, visit);
    }
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

struct Field {
  std::string_view key;
  u32 KernelInfo::*member;
};
constexpr Field kFields[] = {
    {".vgpr_count", &KernelInfo::vgprs},
    {".agpr_count", &KernelInfo::agprs},
    {".sgpr_count", &KernelInfo::sgprs},
    {".vgpr_spill_count", &KernelInfo::vgpr_spills},
    {".sgpr_spill_count", &KernelInfo::sgpr_spills},
    {".group_segment_fixed_size", &KernelInfo::lds_bytes},
    {".private_segment_fixed_size", &KernelInfo::scratch_bytes},
    {".kernarg_segment_size", &KernelInfo::kernarg_bytes},
    {".max_flat_workgroup_size", &KernelInfo::max_threads},
};

// Kernel name -> resources.
std::map<std::string, KernelInfo> read_metadata(std::span<const std::byte> note) {
  std::map<std::string, KernelInfo> by_position, by_name;
  std::map<std::string, std::string> names;
  MessagePack(note).walk("", [&](const std::string& path, u32 number, const std::string& text) {
    constexpr std::string_view kRoot = "/amdhsa.kernels/";
    if (!path.starts_with(kRoot)) return;
    const std::size_t slash = path.find('/', kRoot.size());
    if (slash == std::string::npos || path.find('/', slash + 1) != std::string::npos) return;
    const std::string position = path.substr(0, slash), key = path.substr(slash + 1);
    if (key == ".name") names[position] = text;
    for (const Field& field : kFields) {
      if (key == field.key) by_position[position].*field.member = number;
    }
  });
  for (const auto& [position, name] : names) by_name[name] = by_position[position];
  return by_name;
}

}  // namespace

std::uint32_t KernelInfo::waves_per_simd() const {
  const u32 by_registers = 512 / std::max(8u, (vgprs + 7) / 8 * 8);
  u32 waves = std::min(8u, by_registers);
  if (lds_bytes) waves = std::min(waves, cu_lds_bytes / lds_bytes * ((max_threads + 63) / 64) / 4);
  return waves;
}

std::optional<Architecture> CodeObject::architecture_of(std::span<const std::byte> elf) {
  Elf64_Ehdr header;
  if (elf.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, elf.data(), sizeof header);
  const Machine* machine = find_machine(header);
  return machine ? std::optional(machine->architecture) : std::nullopt;
}

CodeObject::CodeObject(std::span<const std::byte> elf) {
  const auto check = [&](u64 offset, u64 bytes) {
    if (offset > elf.size() || bytes > elf.size() - offset) throw Error("code object is cut short");
  };
  const auto read = [&]<typename T>(u64 offset, T value) {
    check(offset, sizeof value);
    std::memcpy(&value, elf.data() + offset, sizeof value);
    return value;
  };
  const auto header = read(0, Elf64_Ehdr{});
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_machine != 224) throw Error("not an AMDGPU code object");
  const Machine* machine = find_machine(header);
  if (!machine) {
    throw Error("code for an architecture that is not known (EF_AMDGPU_MACH " + std::to_string(header.e_flags & 0xff) +
                ")");
  }
  architecture_ = machine->architecture;

  u64 top = 0;
  std::map<std::string, KernelInfo> metadata;
  for (u32 k = 0; k < header.e_phnum; ++k) {
    const auto segment = read(header.e_phoff + k * sizeof(Elf64_Phdr), Elf64_Phdr{});
    if (segment.p_type == PT_LOAD) top = std::max(top, segment.p_vaddr + segment.p_memsz);
    if (segment.p_type == PT_NOTE) {
      const auto note = read(segment.p_offset, Elf64_Nhdr{});
      const u64 begin = segment.p_offset + sizeof note + (note.n_namesz + 3) / 4 * 4;
      check(begin, note.n_descsz);
      metadata = read_metadata(elf.subspan(begin, note.n_descsz));
    }
  }
  image_.resize(top + 2 * kPage);
  align_ = (kPage - reinterpret_cast<std::uintptr_t>(image_.data()) % kPage) % kPage;
  u8* base = image_.data() + align_;
  for (u32 k = 0; k < header.e_phnum; ++k) {
    const auto segment = read(header.e_phoff + k * sizeof(Elf64_Phdr), Elf64_Phdr{});
    if (segment.p_type != PT_LOAD) continue;
    check(segment.p_offset, segment.p_filesz);
    std::memcpy(base + segment.p_vaddr, elf.data() + segment.p_offset, segment.p_filesz);
  }

  std::map<std::string, Elf64_Sym> symbols;
  for (u32 k = 0; k < header.e_shnum; ++k) {
    const auto section = read(header.e_shoff + k * sizeof(Elf64_Shdr), Elf64_Shdr{});
    if (section.sh_type == SHT_DYNSYM) {
      const auto strings = read(header.e_shoff + section.sh_link * sizeof(Elf64_Shdr), Elf64_Shdr{});
      check(strings.sh_offset, strings.sh_size);
      for (u64 at = 0; at < section.sh_size; at += sizeof(Elf64_Sym)) {
        const auto symbol = read(section.sh_offset + at, Elf64_Sym{});
        symbols[reinterpret_cast<const char*>(elf.data() + strings.sh_offset + symbol.st_name)] = symbol;
      }
    }
    if (section.sh_type == SHT_RELA) {
      for (u64 at = 0; at < section.sh_size; at += sizeof(Elf64_Rela)) {
        const auto relocation = read(section.sh_offset + at, Elf64_Rela{});
        if (ELF64_R_TYPE(relocation.r_info) != kRelative64) throw Error("unexpected relocation in the code object");
        const u64 value = reinterpret_cast<u64>(base) + static_cast<u64>(relocation.r_addend);
        std::memcpy(base + relocation.r_offset, &value, sizeof value);
      }
    }
  }
  for (const auto& [name, symbol] : symbols) {
    if (!name.ends_with(".kd")) continue;
    const std::string kernel = name.substr(0, name.size() - 3);
    KernelSymbol k;
    k.descriptor = symbol.st_value;
    if (const auto found = metadata.find(kernel); found != metadata.end()) k.info = found->second;
    k.info.cu_lds_bytes = machine->cu_lds_bytes;
    i64 entry;
    std::memcpy(&entry, base + k.descriptor + 16, sizeof entry);
    k.code = k.descriptor + static_cast<u64>(entry);
    const auto function = symbols.find(kernel);
    k.code_bytes = function != symbols.end() ? function->second.st_size : 0;
    if (!k.code_bytes) k.code_bytes = top - k.code;  // hand-written code without a size: whatever follows
    kernels_[kernel] = k;
  }
}

const KernelSymbol& CodeObject::kernel(const std::string& name) const {
  const auto found = kernels_.find(name);
  if (found != kernels_.end()) return found->second;
  std::string known;
  for (const auto& entry : kernels_) known += " " + entry.first;
  throw Error("no kernel '" + name + "' in the code object, it has:" + known);
}

}  // namespace gfx950emu
