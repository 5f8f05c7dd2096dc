#include "agent/engine/host_list.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace taskd::engine {
namespace {

constexpr size_t kMaxDigits = 18;
constexpr size_t kMaxNameBytes = 255;

absl::Status TooMany() { return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxHosts, " hosts")); }

absl::Status Wrong(absl::string_view what, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("'", what, "': ", rule));
}

bool ReadNumber(absl::string_view text, uint64_t* number) {
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return text.size() <= kMaxDigits && absl::SimpleAtoi(text, number);
}

// "001-003,7": the texts that it stands for.
absl::StatusOr<std::vector<std::string>> ExpandBracket(absl::string_view inside) {
  std::vector<std::string> texts;
  for (const absl::string_view item : absl::StrSplit(inside, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(item, absl::MaxSplits('-', 1));
    uint64_t first = 0;
    uint64_t last = 0;
    if (!ReadNumber(ends.front(), &first) || !ReadNumber(ends.back(), &last))
      return Wrong(item, "a number or FIRST-LAST");
    if (last < first) return Wrong(item, "the range runs backwards");
    if (last - first >= kMaxHosts || texts.size() + (last - first) >= kMaxHosts) return TooMany();
    for (uint64_t number = first; number <= last; ++number) {
      std::string text = absl::StrCat(number);
      if (text.size() < ends.front().size()) text.insert(0, ends.front().size() - text.size(), '0');
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

// One item of the list: no comma outside of its brackets.
absl::StatusOr<std::vector<std::string>> ExpandName(absl::string_view name) {
  std::vector<std::string> hosts = {""};
  for (absl::string_view rest = name; !rest.empty();) {
    const size_t open = rest.find('[');
    const absl::string_view plain = rest.substr(0, open);
    if (plain.find(']') != absl::string_view::npos) return Wrong(name, "a bracket is closed that was not opened");
    for (std::string& host : hosts) absl::StrAppend(&host, plain);
    if (open == absl::string_view::npos) break;
    rest.remove_prefix(open + 1);
    const size_t close = rest.find(']');
    if (close == absl::string_view::npos) return Wrong(name, "a bracket is not closed");
    absl::StatusOr<std::vector<std::string>> texts = ExpandBracket(rest.substr(0, close));
    if (!texts.ok()) return texts.status();
    if (hosts.size() * texts->size() > kMaxHosts) return TooMany();
    std::vector<std::string> longer;
    longer.reserve(hosts.size() * texts->size());
    for (const std::string& host : hosts) {
      for (const std::string& text : *texts) longer.push_back(host + text);
    }
    hosts = std::move(longer);
    rest.remove_prefix(close + 1);
  }
  for (const std::string& host : hosts) {
    if (host.empty() || host.size() > kMaxNameBytes) return Wrong(name, "names of 1 to 255 bytes");
  }
  return hosts;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view list) {
  std::vector<std::string> hosts;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size()) {
      const char c = list[i];
      if (absl::ascii_isspace(static_cast<unsigned char>(c)) || absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
        return Wrong(list.substr(begin, i - begin), "is followed by a blank");
      }
      if (c == '[' && inside) return Wrong(list.substr(begin, i + 1 - begin), "a bracket is in another one");
      if (c == '[' || c == ']') inside = c == '[';
      if (c != ',' || inside) continue;
    }
    absl::StatusOr<std::vector<std::string>> more = ExpandName(list.substr(begin, i - begin));
    if (!more.ok()) return more.status();
    if (more->empty() || more->front().empty()) return Wrong(list.substr(begin, i - begin), "names of 1 to 255 bytes");
    if (hosts.size() + more->size() > kMaxHosts) return TooMany();
    hosts.insert(hosts.end(), more->begin(), more->end());
    begin = i + 1;
  }
  return hosts;
}

}  // namespace taskd::engine
