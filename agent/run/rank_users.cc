#include "agent/run/rank_users.h"

#include <unistd.h>

#include <optional>

#include "agent/process/process_tree.h"

namespace taskd::run {

std::set<uid_t> RankUsers::LookAtDescendants() {
  std::set<uid_t> users;
  for (const process::ProcessInfo& one : process::Descendants(getpid(), {})) {
    if (const std::optional<uid_t> user = process::UserOf(one.pid)) users.insert(*user);
  }
  return users;
}

bool RankUsers::Has(uid_t user, int64_t now_ns) {
  if (found_.contains(user)) return true;
  std::erase_if(looked_, [now_ns](const auto& entry) { return now_ns - entry.second >= kAgainNs; });
  if (looked_.size() >= kMostLooks || !looked_.emplace(user, now_ns).second) return false;
  found_.merge(look_());
  return found_.contains(user);
}

}  // namespace taskd::run
