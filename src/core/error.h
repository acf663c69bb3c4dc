// The one exception of the library: a stable status and a line for the user. It crosses no boundary: c_api.cpp turns it
// into a status code and the thread's last error.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "pasa/pasa.h"

namespace pasa {

struct Error : std::runtime_error {
  Error(pasa_status code, const std::string& text) : std::runtime_error(text), status(code) {}
  pasa_status status;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// require(Status, condition, "kv_scales is ", shape, ", expected ", wanted)
template <typename... Parts>
void require(pasa_status status, bool condition, const Parts&... parts) {
  if (!condition) throw Error(status, concat(parts...));
}

}  // namespace pasa
