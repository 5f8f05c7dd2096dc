#include "common/json_limits.h"

#include "absl/strings/str_cat.h"

namespace taskd {

absl::Status CheckJsonLimits(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("JSON of ", text.size(), " bytes, the limit is ", limits.bytes));
  }
  size_t depth = 0;
  size_t values = 1;  // one for the root, one for each comma and each array or object that is opened
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limits.depth) {
        return absl::InvalidArgumentError(absl::StrCat("JSON of more than ", limits.depth, " levels"));
      }
      ++values;
    } else if (c == ']' || c == '}') {
      if (depth > 0) --depth;
    } else if (c == ',') {
      ++values;
    }
    if (values > limits.values) {
      return absl::InvalidArgumentError(absl::StrCat("JSON of more than ", limits.values, " values"));
    }
  }
  return absl::OkStatus();
}

}  // namespace taskd
