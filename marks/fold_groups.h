// The process groups of one rank, as its marks and parallel_group.json name them (mark_fold.h).
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

// A group's index is that of the order in which marks first named them. Not thread-safe.
class FoldGroups {
 public:
  static constexpr size_t kMaxGroups = 1 << 10;
  // Runs of members, of all groups: a group beyond this is one whose members are unknown. Whoever rewrites its
  // parallel_group.json again and again takes no more.
  static constexpr size_t kMaxMemberBytes = size_t{256} << 10;

  // As MarkFold::SetGroups().
  void Announce(const std::vector<GroupInfo>& groups);
  // Known from now on. None: there are too many.
  std::optional<uint32_t> IndexOf(std::string_view name) {
    // Most operations are of the group of the one before.
    if (last_ < groups_.size() && groups_[last_].name == name) return last_;
    return Find(name);
  }

  // Operations of a group and kind that were begun in the step `serial`, before this call.
  uint32_t NextNumber(uint32_t group, CommOp op, uint64_t serial) {
    State& state = states_[group];
    if (state.numbers_serial != serial) {
      state.numbers_serial = serial;
      state.numbers = {};
    }
    return state.numbers[static_cast<size_t>(op)]++;
  }
  // Whether a rank waits in its operations; and whether these have had device records.
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
    std::array<uint32_t, kCommOps> numbers{};  // operations begun in the step `numbers_serial`
  };

  std::optional<uint32_t> Find(std::string_view name);
  // `info` instead of one with `before` runs, without its members where they do not fit.
  GroupInfo Fit(GroupInfo info, size_t before);

  std::vector<GroupInfo> groups_;
  std::vector<State> states_;
  std::map<std::string, uint32_t, std::less<>> index_;
  std::map<std::string, GroupInfo, std::less<>> announced_;  // not seen in marks yet
  size_t member_bytes_ = 0;
  uint32_t last_ = 0;
  uint64_t version_ = 0;
};

}  // namespace taskd
