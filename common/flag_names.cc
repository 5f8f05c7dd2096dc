#include "common/flag_names.h"

#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"

namespace taskd {
namespace {

constinit const std::map<std::string, std::string>* flag_names =
    nullptr;  // lasts for ever, as threads may log at the end

bool IsPartOfWord(char c) { return c == '-' || c == '_' || absl::ascii_isalnum(static_cast<unsigned char>(c)); }

}  // namespace

void SetFlagNames(std::map<std::string, std::string> names) {
  flag_names = new std::map<std::string, std::string>(std::move(names));
}

std::string NamedFlags(std::string_view text) {
  std::string named;
  size_t done = 0;
  for (size_t at = 0; flag_names != nullptr && (at = text.find("--", at)) != std::string_view::npos;) {
    size_t end = at + 2;
    while (end < text.size() && IsPartOfWord(text[end])) ++end;
    const bool begins = at == 0 || !IsPartOfWord(text[at - 1]);
    const auto found = begins ? flag_names->find(std::string(text.substr(at, end - at))) : flag_names->end();
    if (found != flag_names->end()) {
      named.append(text.substr(done, at - done)).append(found->second);
      done = end;
    }
    at = end;
  }
  return named.append(text.substr(done));
}

}  // namespace taskd
