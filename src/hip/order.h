// Which row a work-group takes. Work-group i runs on chiplet i % 8, and each of the eight chiplets has an L2 cache of its
// own, so neighbouring rows, which tend to select the same keys, should meet on one chiplet. But rows also tend to grow with
// their number, so a chiplet must not get all the late ones: rows are dealt in runs, as long as what a chiplet has under
// way at once, to one chiplet after the other.
#pragma once

#include "core/gpu_args.h"

namespace pasa::hip {

constexpr int kChiplets = 8;

struct Order {
  std::int32_t
      groups;  // work-groups that share the rows: positions i, i + groups, ... are group i's. A multiple of 8, or all
  std::int32_t run;  // rows
  gpu::Divider by_run;
};

// A permutation of [0, rows). What the last round leaves over is dealt in shorter runs.
constexpr std::int32_t row_at(std::int32_t position, std::int32_t rows, const Order& order) {
  const std::int32_t chiplet = position % kChiplets, place = position / kChiplets;
  const auto round = static_cast<std::int32_t>(gpu::divide(static_cast<std::uint32_t>(place), order.by_run));
  const std::int32_t first = round * order.run * kChiplets, within = place - round * order.run, left = rows - first;
  if (left >= order.run * kChiplets) return first + chiplet * order.run + within;
  const std::int32_t longer = left % kChiplets;  // so many runs have one row more
  return first + chiplet * (left / kChiplets) + (chiplet < longer ? chiplet : longer) + within;
}

}  // namespace pasa::hip
