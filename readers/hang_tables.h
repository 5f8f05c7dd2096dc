// Tables of the groups, members and calls that the dumps of a job share. 16,384 dumps of one job contain the list of
// all ranks 16,384 times; the tables keep it once.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/hang.h"

namespace taskd::readers {

// Gives members to groups that some dumps name without members: those of a group of the same name in other dumps. If no
// dump lists the members, they are the ranks that used the group; PyTorch's default group has all ranks.
diagnosis::HangFacts ResolveGroups(diagnosis::HangFacts facts);

// Thread-safe, except for Take.
class HangTables {
 public:
  // Limits for all dumps together. A job of 16,384 ranks, each in twenty groups, needs a tenth of them.
  static constexpr size_t kMaxMembers = size_t{1} << 22;
  static constexpr size_t kMaxCallBytes = size_t{64} << 20;

  // Returns the index; equal values share one. nullopt: a limit is reached.
  std::optional<uint32_t> AddGroup(const std::string& name, const std::vector<int>& members);
  std::optional<uint32_t> AddCall(diagnosis::HangCall call);

  // The facts of these ranks with resolved groups. Leaves the tables empty.
  diagnosis::HangFacts Take(std::map<int, diagnosis::HangRank> ranks);
  // A copy of the facts with the groups as in the dumps.
  diagnosis::HangFacts Copy(std::map<int, diagnosis::HangRank> ranks);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, uint32_t> groups_;
  std::map<diagnosis::HangCall, uint32_t> calls_;
  size_t members_ = 0;
  size_t call_bytes_ = 0;
};

}  // namespace taskd::readers
