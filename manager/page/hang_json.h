// The open hang as /api/v1/hang has it.
#pragma once

#include <cstdint>
#include <string>

#include "manager/supervision/supervision_core.h"
#include "nlohmann/json.hpp"

namespace taskd::manager {

// null: there is none. `since_ns`: HangSinceNs(). `stacks`: merged; empty: none have come.
nlohmann::ordered_json HangToJson(const SupervisionSnapshot& supervision, int64_t since_ns, const std::string& stacks);

// To a report, as `taskd diagnose --json` has it. There is a hang.
void AddHang(const SupervisionSnapshot& supervision, int64_t since_ns, nlohmann::ordered_json& report);

}  // namespace taskd::manager
