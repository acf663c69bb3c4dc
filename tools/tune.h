// pasa tune: times the launch choices of a kernel and writes the table that plans read (core/tuning.h, docs/tuning.md).
#pragma once

#include "tools/runs.h"

namespace pasa {

// options.problems: the shapes, or a grid of serving if empty. options.output: the table, tuning_path() if empty.
int tune(const Options& options);

}  // namespace pasa
