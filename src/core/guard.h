// The C boundary: no exception leaves the library. Every extern "C" function that can fail is one guarded() body.
#pragma once

#include <exception>
#include <new>

#include "core/error.h"

namespace pasa {

// Records this thread's last error (c_api.cpp) and hands the status back.
pasa_status fail(pasa_status status, const char* text) noexcept;

template <typename Body>
pasa_status guarded(Body&& body) noexcept {
  try {
    body();
    return PASA_OK;
  } catch (const Error& error) {
    return fail(error.status, error.what());
  } catch (const std::bad_alloc&) {
    return fail(PASA_ERROR_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(PASA_ERROR_INTERNAL, error.what());
  } catch (...) {
    return fail(PASA_ERROR_INTERNAL, "unknown exception");
  }
}

inline void require_argument(const void* pointer, const char* name) {
  require(PASA_ERROR_COMBINATION, pointer != nullptr, name, " is NULL, expected a pointer");
}

}  // namespace pasa
