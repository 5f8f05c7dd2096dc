#include "agent/route/topology_formats/reading.h"

#include <string>

#include "fmt/format.h"

namespace taskd::route {

absl::Status At(std::string_view context, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", context, std::string(status.message())));
}

bool NextLine(std::string_view& text, std::string_view& line) {
  if (text.empty()) return false;
  const size_t end = text.find('\n');
  line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return true;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n\v\f");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n\v\f") - begin + 1);
}

}  // namespace taskd::route
