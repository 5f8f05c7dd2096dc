#include "agent/ranktable/field_reader.h"

#include <algorithm>
#include <charconv>

#include "agent/ranktable/rules.h"
#include "fmt/format.h"

namespace taskd::ranktable {
namespace {

size_t Utf8Characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool IsDigits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

void RankTableFieldReader::ReadScalar(const RankTableSlot& slot) {
  RankTableField& field = *slot.field;
  field.present = true;
  field.span.begin = reader_.Begin();
  const bool is_2_0 = table_.version == RankTableVersion::k2_0;
  const bool is_string = reader_.First() == '"';
  const bool is_integer = slot.is_number && is_2_0;  // it should be
  if (is_string) {
    field.text = reader_.ReadString();
  } else {
    const JsonSpan span = reader_.Skip();
    field.text = std::string_view(*table_.text).substr(span.begin, span.end - span.begin);
  }
  field.span.end = reader_.at();
  if (is_string == is_integer) {
    errors_.Add(slot.name, field.span.begin,
                fmt::format("{} is {}{}, not {}{}", slot.name, is_string ? "the string " : "", QuoteValue(field.text),
                            is_integer ? "an integer" : "a string",
                            is_2_0 ? "" : "; all values of a rank table before 2.0 are strings"));
    return;
  }
  field.good = !slot.is_number || ParseNumber(slot, field);
}

bool RankTableFieldReader::ParseNumber(const RankTableSlot& slot, RankTableField& field) {
  int64_t number = 0;
  const auto parsed = std::from_chars(field.text.data(), field.text.data() + field.text.size(), number);
  if (IsDigits(field.text) && parsed.ec == std::errc() && number >= slot.min && number <= slot.max) {
    field.number = number;
    return true;
  }
  errors_.Add(
      slot.name, field.span.begin,
      fmt::format("{} is {}, not an integer from {} to {}", slot.name, QuoteValue(field.text), slot.min, slot.max));
  return false;
}

void RankTableFieldReader::MissingList(std::string_view name, uint32_t object) {
  complete_ = false;
  errors_.AddMissing(name, object);
}

bool RankTableFieldReader::Require(std::string_view name, const RankTableField& field, uint32_t object) {
  if (!field.present) errors_.AddMissing(name, object);
  return field.good;
}

void RankTableFieldReader::CheckCount(std::string_view name, const RankTableField& count, size_t found) {
  if (!count.good || static_cast<size_t>(count.number) == found) return;
  complete_ = false;
  errors_.Add(name, count.span.begin, fmt::format("{} is {}; there are {}", name, count.number, found));
}

void RankTableFieldReader::CheckLength(std::string_view name, const RankTableField& field, size_t longest) {
  if (!field.good) return;
  const size_t characters = Utf8Characters(field.text);
  if (characters > 0 && characters <= longest) return;
  errors_.Add(name, field.span.begin,
              fmt::format("{} {} has {} characters, not 1 to {}", name, QuoteValue(field.text), characters, longest));
}

void RankTableFieldReader::CheckAddresses(std::string_view name, RankTableField& field) {
  if (!field.good || field.text.empty()) return;
  ForEachInList(field.text, [&](std::string_view address) {
    IpAddress ignored;
    if (!field.good || ParseIpAddress(address, ignored)) return;
    field.good = false;
    errors_.Add(
        name, field.span.begin,
        fmt::format("{} is {}; {} is not an IPv4 or IPv6 address", name, QuoteValue(field.text), QuoteValue(address)));
  });
}

}  // namespace taskd::ranktable
