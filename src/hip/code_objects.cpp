// Takes the code objects in by the assembler's .incbin, from the build folder PASA_CODE_OBJECTS.
#include "hip/code_objects.h"

#define PASA_EMBED(symbol, file)                                                                             \
  asm(".pushsection .rodata\n.p2align 8\n" #symbol ":\n.incbin \"" PASA_CODE_OBJECTS "/" file "\"\n" #symbol \
      "_end:\n"                                                                                              \
      ".popsection");                                                                                        \
  extern "C" __attribute__((visibility("hidden"))) const std::byte symbol[], symbol##_end[]

PASA_EMBED(pasa_decode_gfx950, "decode.gfx950.co");
PASA_EMBED(pasa_portable_gfx950, "portable.gfx950.co");
PASA_EMBED(pasa_portable_gfx942, "portable.gfx942.co");
PASA_EMBED(pasa_portable_gfx1250, "portable.gfx1250.co");
PASA_EMBED(pasa_reduce_gfx950, "reduce.gfx950.co");
PASA_EMBED(pasa_reduce_gfx942, "reduce.gfx942.co");
PASA_EMBED(pasa_reduce_gfx1250, "reduce.gfx1250.co");

namespace pasa::hip {

std::span<const CodeObject> code_objects() {
  static const CodeObject all[] = {
      {"decode", "gfx950", {pasa_decode_gfx950, pasa_decode_gfx950_end}},
      {"portable", "gfx950", {pasa_portable_gfx950, pasa_portable_gfx950_end}},
      {"portable", "gfx942", {pasa_portable_gfx942, pasa_portable_gfx942_end}},
      {"portable", "gfx1250", {pasa_portable_gfx1250, pasa_portable_gfx1250_end}},
      {"reduce", "gfx950", {pasa_reduce_gfx950, pasa_reduce_gfx950_end}},
      {"reduce", "gfx942", {pasa_reduce_gfx942, pasa_reduce_gfx942_end}},
      {"reduce", "gfx1250", {pasa_reduce_gfx1250, pasa_reduce_gfx1250_end}},
  };
  return all;
}

}  // namespace pasa::hip
