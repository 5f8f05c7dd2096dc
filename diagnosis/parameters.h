// All numbers that decide what becomes a verdict: parameters.inc has them, each with its unit and reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taskd::diagnosis {

struct Parameters {
#define TASKD_PARAMETER(type, name, value, unit, reason) type name = value;
#include "diagnosis/parameters.inc"
#undef TASKD_PARAMETER

  // A bit a veto: it never holds.
  uint32_t vetoes_off = 0;
};

// A variable for tests/diagnosis/ablate.sh alone, which changes it before it makes an engine.
inline constinit Parameters parameters;

}  // namespace taskd::diagnosis
