#include "agent/ranktable/errors.h"

#include <algorithm>
#include <utility>

#include "common/utf8.h"
#include "fmt/format.h"

namespace taskd::ranktable {

void RankTableErrors::Append(std::string_view field, Error error) {
  fields_.insert(field);
  if (errors_.size() < kMaxRankTableErrors) {
    errors_.push_back(std::move(error));
  } else {
    ++left_off_;
  }
}

void RankTableErrors::Add(std::string_view field, uint32_t begin, std::string text) {
  Append(field, {begin, "", std::move(text)});
}

void RankTableErrors::AddToObject(std::string_view field, uint32_t object, uint32_t value, std::string text) {
  Append(field, {value, value == object ? field : "", std::move(text)});
}

void RankTableErrors::AddMissing(std::string_view field, uint32_t object, std::string_view why) {
  Append(field, {object, field, fmt::format("{} is missing{}{}", field, why.empty() ? "" : "; ", why)});
}

void RankTableErrors::MoveInto(std::string_view text, RankTableCheck& check) {
  std::stable_sort(errors_.begin(), errors_.end(), [](const Error& a, const Error& b) { return a.begin < b.begin; });
  std::vector<uint32_t> begins;
  for (const Error& error : errors_) begins.push_back(error.begin);
  std::vector<std::string> paths = JsonPathsAt(text, begins);
  for (size_t i = 0; i < errors_.size(); ++i) {
    if (!errors_[i].missing.empty()) paths[i] += fmt::format("{}{}", paths[i].empty() ? "" : ".", errors_[i].missing);
    check.errors.push_back({std::move(paths[i]), std::move(errors_[i].text)});
  }
  check.errors_left_off = left_off_;
}

std::string QuoteValue(std::string_view value) {
  constexpr size_t kLongest = 80;
  const std::string shown = CutUtf8(value, kLongest);
  std::string quoted = "'";
  for (const char c : shown) quoted += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return quoted + (shown.size() < value.size() ? "…'" : "'");
}

}  // namespace taskd::ranktable
