// The subcommands for the operations of ops.h: `pasa cache ...` and `pasa indices ...`.
#pragma once

#include <CLI/CLI.hpp>

namespace pasa {

// Each subcommand does its work while `app` parses, and throws Error like the rest of the command line; the caller has
// nothing left to do if app.got_subcommand("cache") or ("indices").
void add_ops_commands(CLI::App& app);

}  // namespace pasa
