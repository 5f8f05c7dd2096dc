// What the dumps of a job have in common, kept once: its groups with their members, and what its ranks called. 16,384
// dumps of one job hold the list of all ranks 16,384 times.
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

// The facts with groups that some dumps name without their members as those that others name alike; where no dump says
// the members, who used the group is in it, and all ranks are in PyTorch's default one.
diagnosis::HangFacts ResolveGroups(diagnosis::HangFacts facts);

// Thread-safe, but for Take.
class HangTables {
 public:
  // Bounds for all dumps together; a job of 16,384 ranks in twenty groups each has a tenth of them.
  static constexpr size_t kMaxMembers = size_t{1} << 22;
  static constexpr size_t kMaxCallBytes = size_t{64} << 20;

  // The index; equal ones have the same. None: it is too much.
  std::optional<uint32_t> AddGroup(const std::string& name, const std::vector<int>& members);
  std::optional<uint32_t> AddCall(diagnosis::HangCall call);

  // The facts of these ranks, their groups resolved. Leaves the tables empty.
  diagnosis::HangFacts Take(std::map<int, diagnosis::HangRank> ranks);
  // A copy of the facts, their groups as the dumps have them.
  diagnosis::HangFacts Copy(std::map<int, diagnosis::HangRank> ranks);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, uint32_t> groups_;
  std::map<diagnosis::HangCall, uint32_t> calls_;
  size_t members_ = 0;
  size_t call_bytes_ = 0;
};

}  // namespace taskd::readers
