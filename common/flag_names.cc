#include "common/flag_names.h"

#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"

namespace taskd {
namespace {

// Lasts for ever, as threads may log at the end.
std::map<std::string, std::string>& FlagNames() {
  static auto* const names = new std::map<std::string, std::string>;
  return *names;
}

bool IsPartOfWord(char c) { return c == '-' || c == '_' || absl::ascii_isalnum(static_cast<unsigned char>(c)); }

}  // namespace

void SetFlagNames(std::map<std::string, std::string> names) { FlagNames() = std::move(names); }

std::string NamedFlags(std::string_view text) {
  const std::map<std::string, std::string>& names = FlagNames();
  std::string named;
  size_t done = 0;
  for (size_t at = 0; (at = text.find("--", at)) != std::string_view::npos;) {
    size_t end = at + 2;
    while (end < text.size() && IsPartOfWord(text[end])) ++end;
    const bool begins = at == 0 || !IsPartOfWord(text[at - 1]);
    const auto found = begins ? names.find(std::string(text.substr(at, end - at))) : names.end();
    if (found != names.end()) {
      named.append(text.substr(done, at - done)).append(found->second);
      done = end;
    }
    at = end;
  }
  return named.append(text.substr(done));
}

}  // namespace taskd
