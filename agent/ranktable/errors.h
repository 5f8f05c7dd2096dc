// What the check of a rank table has found so far. Internal to agent/ranktable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/ranktable/rank_table.h"

namespace taskd::ranktable {

class RankTableErrors {
 public:
  // The value of `field` that begins at byte `begin` breaks a rule. Fields are literals.
  void Add(std::string_view field, uint32_t begin, std::string text);
  // The same, where the value of the object's field may be absent: then `value` is `object`.
  void AddToObject(std::string_view field, uint32_t object, uint32_t value, std::string text);
  // The object that begins at byte `object` lacks `field`.
  void AddMissing(std::string_view field, uint32_t object, std::string_view why = "");

  // Whether `field` has no error so far: rules that need all its values are checked only then.
  bool Clean(std::string_view field) const { return !fields_.contains(field); }
  bool empty() const { return errors_.empty(); }

  // Puts the errors into `check`, with their paths.
  void MoveInto(std::string_view text, RankTableCheck& check);

 private:
  struct Error {
    uint32_t begin = 0;
    std::string_view missing;  // the field, if it is absent
    std::string text;
  };
  void Append(std::string_view field, Error error);

  std::vector<Error> errors_;
  size_t left_off_ = 0;
  std::set<std::string_view> fields_;
};

// A value for a message: in quotes, without control characters, cut when it is long.
std::string QuoteValue(std::string_view value);

}  // namespace taskd::ranktable
