// What a kernel family looks like from outside: a row of functions, and the plan it makes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/problem.h"

namespace pasa {

struct Backend;

struct Plan {
  const Backend* backend = nullptr;
  Shape shape;
  int splits = 1;
  bool partial = false;  // the result is acc, m, l
  std::size_t workspace_bytes = 0;
  std::string summary;                 // one line for people
  std::shared_ptr<const void> detail;  // the backend's own decisions
};

struct Backend {
  std::string_view name;  // "cpu:amx"
  pasa_device_type device;
  // Empty: this machine can run it; else why not. Answers the same every time; cheap after the first call.
  std::string (*unavailable)();
  // Empty: it serves this problem (on a machine where it is available); else why not. Reads no tensor data.
  std::string (*decline)(const Problem&);
  // Fills splits, workspace_bytes, summary, detail; the caller does the rest.
  void (*plan)(const Problem&, Plan&);
  void (*run)(const Problem&, const Plan&, void* workspace, void* stream);
  // Merges given partials (pasa_reduce). nullptr: this kernel family leaves it to another of its device.
  void (*reduce)(const Reduce&, void* stream);
  // Not empty: it serves only problems that ask for it by its whole name; the reason, in words.
  std::string_view on_request = {};
  // The machine as tuning tables name it (core/tuning.h). nullptr: its plans take no block_h or splits from a table.
  std::string (*machine)(const Problem&) = nullptr;
};

constexpr const char* device_name(pasa_device_type device) {
  return device == PASA_CPU ? "cpu" : device == PASA_CUDA ? "cuda" : "hip";
}

// backends.cpp: the ordered table.
std::size_t backend_count();
const Backend& backend_at(std::size_t index);
// The first backend that serves the problem; throws PASA_ERROR_UNSUPPORTED (or DEVICE) with every reason.
const Backend& choose(const Problem& problem);
// Why `backend` will not serve the problem; empty if it will. Covers availability, device and a forced name.
std::string refusal(const Backend& backend, const Problem& problem);

}  // namespace pasa
