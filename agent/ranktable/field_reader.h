// Objects and lists of a rank table, with the rules that concern one value. Internal to agent/ranktable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "agent/ranktable/errors.h"
#include "agent/ranktable/json_text.h"
#include "agent/ranktable/rank_table.h"
#include "fmt/format.h"

namespace taskd::ranktable {

// One value of an object.
struct RankTableField {
  bool present = false;
  bool good = false;  // of the right type and in range
  std::string_view text;
  int64_t number = -1;
  JsonSpan span;
};

// A field that an object may have, and what it may be.
struct RankTableSlot {
  static RankTableSlot Text(std::string_view name, RankTableField& field) { return {name, &field}; }
  // In quotes before 2.0.
  static RankTableSlot Number(std::string_view name, RankTableField& field, int64_t min, int64_t max) {
    return {name, &field, true, min, max};
  }

  std::string_view name;
  RankTableField* field = nullptr;
  bool is_number = false;
  int64_t min = 0;
  int64_t max = 0;
};

class RankTableFieldReader {
 public:
  RankTableFieldReader(RankTable& table, RankTableErrors& errors)
      : reader_(*table.text, &table.decoded), table_(table), errors_(errors) {}

  // The next value.
  void ReadScalar(const RankTableSlot& slot);

  // The next value is an object. other(key): a member that no slot names.
  template <typename F>
  JsonSpan ReadObject(std::initializer_list<RankTableSlot> slots, F&& other) {
    JsonSpan span;
    span.begin = reader_.Begin();
    reader_.ForEachMember([&](std::string_view key) {
      for (const RankTableSlot& slot : slots) {
        if (slot.name == key) return ReadScalar(slot);
      }
      other(key);
    });
    span.end = reader_.at();
    return span;
  }

  // The next value is the list `name`: f() for each object in it. Returns how many elements it has.
  template <typename F>
  size_t ReadList(std::string_view name, F&& f) {
    const uint32_t begin = reader_.Begin();
    size_t count = 0;
    if (reader_.First() != '[') {
      complete_ = false;
      errors_.Add(name, begin, fmt::format("{} is not a list", name));
      return 0;
    }
    reader_.ForEachElement([&] {
      ++count;
      if (reader_.First() == '{') return f();
      complete_ = false;
      errors_.Add(name, reader_.Begin(), fmt::format("what is in {} is an object", name));
    });
    if (count == 0) {
      complete_ = false;
      errors_.Add(name, begin, fmt::format("{} is empty", name));
    }
    return count;
  }

  void MissingList(std::string_view name, uint32_t object);
  // False: it cannot be used; the error has been reported.
  bool Require(std::string_view name, const RankTableField& field, uint32_t object);
  // A count that is there has to be right.
  void CheckCount(std::string_view name, const RankTableField& count, size_t found);
  // 1 to `longest` characters.
  void CheckLength(std::string_view name, const RankTableField& field, size_t longest);
  // A comma list of addresses, or empty. Takes `good` away if not.
  void CheckAddresses(std::string_view name, RankTableField& field);

 protected:
  JsonReader reader_;
  RankTable& table_;
  RankTableErrors& errors_;
  // Every list could be read and is as long as the table's count for it.
  bool complete_ = true;

 private:
  bool ParseNumber(const RankTableSlot& slot, RankTableField& field);
};

}  // namespace taskd::ranktable
