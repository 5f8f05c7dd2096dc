// JSON of foreign files, and the base64(gzip(…)) that some of it comes in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/input_budget.h"
#include "nlohmann/json.hpp"

namespace taskd::route {

// Refused: not JSON (one line with the place), deeper than 64, or, before anything is made, more values than `budget`
// has room for.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, InputBudget& budget);

// Whether `text` is nothing but the letters of base64 and blanks, and begins like a packed gzip file.
bool LooksLikePackedGzip(std::string_view text);
// Refused: not base64, not gzip, a broken checksum, cut, something behind it, more than `budget` has room for.
absl::StatusOr<std::string> UnpackGzip(std::string_view base64, InputBudget& budget);

// Members of an object. Errors name `context`.`key`.
absl::StatusOr<std::string_view> StringMember(const nlohmann::json& object, const char* key, std::string_view context);
absl::StatusOr<const nlohmann::json*> ListMember(const nlohmann::json& object, const char* key,
                                                 std::string_view context);
// An integer, or a string of decimal digits.
absl::StatusOr<int64_t> IntegerMember(const nlohmann::json& object, const char* key, std::string_view context);
// kUnavailable unless `status` is absent or "completed".
absl::Status CheckCompleted(const nlohmann::json& root);

}  // namespace taskd::route
