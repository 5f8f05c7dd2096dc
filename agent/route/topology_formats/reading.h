// What the readers of the formats share.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/input_budget.h"
#include "nlohmann/json.hpp"

namespace taskd::route {

using Json = nlohmann::json;

// `context` ("line 3", "server_list[2]") before the message.
absl::Status At(std::string_view context, const absl::Status& status);

// Takes the next line off `text`, without its end (\n or \r\n). False: there is none.
bool NextLine(std::string_view& text, std::string_view& line);
std::string_view Trim(std::string_view text);

}  // namespace taskd::route
