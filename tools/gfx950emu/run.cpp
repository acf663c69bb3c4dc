// gfx950emu: executes a kernel of any code object on buffers from files, or tells what is in a code object.
//
//   gfx950emu info CODE_OBJECT                            kernels, resources, instructions that the emulator lacks
//   gfx950emu run CODE_OBJECT KERNEL GRID BLOCK ARG...    GRID and BLOCK: X or X,Y,Z
//     ARG   b:FILE   a buffer, read from the file and written back        i:N  i32    l:N  i64    f:X  f32
//
// Environment: GFX950EMU_TRACE=1 prints every instruction.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "gfx950emu.h"

namespace {

using gfx950emu::Program;

gfx950emu::Dim3 parse_dim(const char* text) {
  gfx950emu::Dim3 d;
  std::sscanf(text, "%u,%u,%u", &d.x, &d.y, &d.z);
  return d;
}

void print_info(Program& program) {
  for (const std::string& kernel : program.kernels()) {
    const gfx950emu::KernelInfo k = program.info(kernel);
    std::printf("%s: %u VGPRs (%u of them AGPRs), %u SGPRs, %u + %u spills, LDS %u, scratch %u, %u waves a SIMD\n",
                kernel.c_str(), k.vgprs, k.agprs, k.sgprs, k.vgpr_spills, k.sgpr_spills, k.lds_bytes, k.scratch_bytes,
                k.waves_per_simd());
  }
  for (const auto& [name, n] : program.missing()) std::printf("not implemented: %s (%d)\n", name.c_str(), n);
}

void print_stats(const gfx950emu::Stats& stats) {
  std::printf("%llu wave instructions:", static_cast<unsigned long long>(stats.instructions()));
  for (int k = 0; k < gfx950emu::kClasses; ++k) {
    const auto c = static_cast<gfx950emu::Class>(k);
    std::printf(" %s %llu", std::string(class_name(c)).c_str(), static_cast<unsigned long long>(stats[c]));
  }
  std::printf("\nMFMA passes %llu, LDS clocks %llu (%llu without conflicts), memory bytes %llu\n",
              static_cast<unsigned long long>(stats.mfma_passes), static_cast<unsigned long long>(stats.lds_clocks),
              static_cast<unsigned long long>(stats.lds_ideal_clocks),
              static_cast<unsigned long long>(stats.memory_bytes));
}

int run(Program& program, int argc, char** argv) {
  std::vector<std::pair<std::string, std::vector<char>>> buffers;
  std::vector<gfx950emu::Range> ranges;
  std::vector<std::byte> arguments;
  const auto push = [&](auto value) {
    arguments.resize((arguments.size() + sizeof value - 1) / sizeof value * sizeof value);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    arguments.insert(arguments.end(), bytes, bytes + sizeof value);
  };
  for (int k = 6; k < argc; ++k) {
    const std::string value = argv[k] + 2;
    switch (argv[k][0]) {
      case 'b': {
        std::ifstream file(value, std::ios::binary);
        buffers.emplace_back(value, std::vector<char>((std::istreambuf_iterator<char>(file)), {}));
        const auto begin = reinterpret_cast<std::uint64_t>(buffers.back().second.data());
        ranges.push_back({begin, begin + buffers.back().second.size()});
        push(begin);
        break;
      }
      case 'i':
        push(static_cast<std::int32_t>(std::strtoll(value.c_str(), nullptr, 0)));
        break;
      case 'l':
        push(std::int64_t{std::strtoll(value.c_str(), nullptr, 0)});
        break;
      case 'f':
        push(std::strtof(value.c_str(), nullptr));
        break;
      default:
        std::fprintf(stderr, "argument '%s' is none of b:FILE i:N l:N f:X\n", argv[k]);
        return 2;
    }
  }
  gfx950emu::Options options;
  options.trace = std::getenv("GFX950EMU_TRACE") != nullptr;
  print_stats(program.launch(argv[3], arguments, parse_dim(argv[4]), parse_dim(argv[5]), ranges, options));
  for (const auto& [path, bytes] : buffers) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool info = argc == 3 && !std::strcmp(argv[1], "info");
  if (!info && (argc < 6 || std::strcmp(argv[1], "run"))) {
    std::fprintf(stderr,
                 "usage: gfx950emu info CODE_OBJECT\n       gfx950emu run CODE_OBJECT KERNEL GRID BLOCK ARG...\n");
    return 2;
  }
  try {
    Program program = Program::from_file(argv[2]);
    if (!info) return run(program, argc, argv);
    print_info(program);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
