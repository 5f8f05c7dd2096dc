#include "common/hostlist.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "fmt/format.h"

namespace taskd {
namespace {

constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxDigits = 18;

struct Range {
  uint64_t first;
  uint64_t last;
  size_t width;  // 0: no leading zeros
};

// A piece of a name: plain text, or the numbers of one bracket.
struct Piece {
  std::string_view text;
  std::vector<Range> ranges;
};

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 80;
  return fmt::format("\"{}{}\"", absl::CHexEscape(std::string(text.substr(0, kShown))),
                     text.size() > kShown ? "…" : "");
}

absl::Status Bad(std::string_view what, std::string_view entry) {
  return absl::InvalidArgumentError(fmt::format("bad hostlist {}: {}", Quoted(entry), what));
}

bool ParseNumber(std::string_view text, uint64_t& number) {
  if (text.empty() || text.size() > kMaxDigits) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

absl::Status ParseRanges(std::string_view inside, std::string_view entry, std::vector<Range>& ranges) {
  while (true) {
    const size_t comma = inside.find(',');
    const std::string_view part = inside.substr(0, comma);
    const size_t dash = part.find('-');
    const std::string_view begin = part.substr(0, dash);
    Range range = {};
    if (!ParseNumber(begin, range.first)) {
      return Bad(fmt::format("{} is not a number or a range of numbers", Quoted(part)), entry);
    }
    range.last = range.first;
    if (dash != std::string_view::npos && !ParseNumber(part.substr(dash + 1), range.last)) {
      return Bad(fmt::format("{} is not a range of numbers", Quoted(part)), entry);
    }
    if (range.last < range.first) return Bad(fmt::format("the range {} goes down", Quoted(part)), entry);
    if (begin.size() > 1 && begin[0] == '0') range.width = begin.size();
    ranges.push_back(range);
    if (comma == std::string_view::npos) return absl::OkStatus();
    inside.remove_prefix(comma + 1);
  }
}

absl::Status ParseEntry(std::string_view entry, std::vector<Piece>& pieces) {
  if (entry.empty()) return Bad("a name is empty", entry);
  for (size_t at = 0; at < entry.size();) {
    const size_t bracket = entry.find_first_of("[]", at);
    if (bracket != at) {
      pieces.push_back({entry.substr(at, bracket - at), {}});
      at = bracket;
      continue;
    }
    const size_t close = entry.find_first_of("[]", at + 1);
    if (entry[at] == ']' || close == std::string_view::npos || entry[close] == '[') {
      return Bad("a bracket has no partner", entry);
    }
    pieces.push_back({{}, {}});
    if (absl::Status status = ParseRanges(entry.substr(at + 1, close - at - 1), entry, pieces.back().ranges);
        !status.ok()) {
      return status;
    }
    at = close + 1;
  }
  return absl::OkStatus();
}

absl::Status ExpandEntry(std::string_view entry, size_t max_hosts, std::vector<std::string>& hosts) {
  std::vector<Piece> pieces;
  if (absl::Status status = ParseEntry(entry, pieces); !status.ok()) return status;
  // Counted before anything is made, so that a short hostile list costs nothing.
  uint64_t total = 1;
  size_t name_bytes = 0;
  for (const Piece& piece : pieces) {
    uint64_t choices = piece.ranges.empty() ? 1 : 0;
    for (const Range& range : piece.ranges) choices += std::min<uint64_t>(range.last - range.first + 1, max_hosts + 1);
    total = std::min<uint64_t>(total * std::min<uint64_t>(choices, max_hosts + 1), max_hosts + 1);
    name_bytes += piece.ranges.empty() ? piece.text.size() : kMaxDigits;
  }
  if (total + hosts.size() > max_hosts) {
    return absl::ResourceExhaustedError(
        Bad(fmt::format("with it the list has more than {} names", max_hosts), entry).message());
  }
  if (name_bytes > kMaxHostBytes) return Bad(fmt::format("a name may be longer than {} bytes", kMaxHostBytes), entry);
  std::vector<std::string> names = {""};
  for (const Piece& piece : pieces) {
    if (piece.ranges.empty()) {
      for (std::string& name : names) name += piece.text;
      continue;
    }
    std::vector<std::string> next;

    for (const std::string& name : names) {
      for (const Range& range : piece.ranges) {
        for (uint64_t number = range.first; number <= range.last; ++number) {
          next.push_back(fmt::format("{}{:0{}}", name, number, range.width));
        }
      }
    }
    names = std::move(next);
  }
  hosts.insert(hosts.end(), std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpandHostlist(std::string_view list, size_t max_hosts, std::vector<std::string>& hosts) {
  size_t begin = 0;
  bool in_bracket = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size()) {
      if (list[i] == '[') in_bracket = true;
      if (list[i] == ']') in_bracket = false;
      if (list[i] != ',' || in_bracket) continue;
    }
    if (absl::Status status = ExpandEntry(list.substr(begin, i - begin), max_hosts, hosts); !status.ok()) return status;
    begin = i + 1;
  }
  return absl::OkStatus();
}

}  // namespace taskd
