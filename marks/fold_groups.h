// Lists the process groups of one rank, as its marks and parallel_group.json name them (mark_fold.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "marks/step_fold.h"

namespace taskd {

// The index of a group is its position in the order in which marks first named the groups. Not thread-safe.
class FoldGroups {
 public:
  static constexpr size_t kMaxGroups = 1 << 10;
  // This limits the member runs of all groups together. The members of a group beyond the limit are unknown. A rank
  // cannot exceed the limit by rewriting its parallel_group.json.
  static constexpr size_t kMaxMemberBytes = size_t{256} << 10;

  // Implements MarkFold::SetGroups().
  void Announce(const std::vector<GroupInfo>& groups);
  // Returns the group's index and adds the group if it is new; nullopt if there are kMaxGroups groups already.
  std::optional<uint32_t> IndexOf(std::string_view name) {
    // Most operations use the same group as the operation before.
    if (last_ < groups_.size() && groups_[last_].name == name) return last_;
    return Find(name);
  }

  // Returns the number of operations of this group and kind that began in step `serial` before this call.
  uint32_t NextNumber(uint32_t group, CommOp op, uint64_t serial) {
    State& state = states_[group];
    if (state.numbers_serial != serial) {
      state.numbers_serial = serial;
      state.numbers = {};
    }
    return state.numbers[static_cast<size_t>(op)]++;
  }
  // A rank waits in operations of a blocking group. A group is on the device if its operations had device records.
  bool is_blocking(uint32_t group) const { return states_[group].blocking; }
  bool is_on_device(uint32_t group) const { return states_[group].on_device; }
  void set_on_device(uint32_t group) { states_[group].on_device = true; }
  void ForgetDevice();
  bool HasOneMember(uint32_t group) const;

  const std::vector<GroupInfo>& all() const { return groups_; }
  uint64_t version() const { return version_; }  // changes with all()

 private:
  struct State {
    bool blocking = false;
    bool on_device = false;
    uint64_t numbers_serial = 0;
    std::array<uint32_t, kCommOps> numbers{};  // operations that began in step `numbers_serial`
  };

  std::optional<uint32_t> Find(std::string_view name);
  // Charges for `info`, which replaces an entry with `before` runs. Drops the members of `info` if they exceed the
  // limit.
  GroupInfo Fit(GroupInfo info, size_t before);

  std::vector<GroupInfo> groups_;
  std::vector<State> states_;
  std::map<std::string, uint32_t, std::less<>> index_;
  std::map<std::string, GroupInfo, std::less<>> announced_;  // no mark has named these yet
  size_t member_bytes_ = 0;
  uint32_t last_ = 0;
  uint64_t version_ = 0;
};

}  // namespace taskd
