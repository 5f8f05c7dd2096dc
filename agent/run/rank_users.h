// Whom ranks run as: a launcher of root's may start them by setpriv, one of anybody's by sudo.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>

namespace taskd::run {

// To look costs as much as the machine has processes, and whoever connects makes us look: so once for a user within
// kAgainNs, and kMostLooks times within it for all of them. Not thread safe.
class RankUsers {
 public:
  static constexpr int64_t kAgainNs = 250'000'000;
  static constexpr size_t kMostLooks = 8;

  // The users of all processes that descend from this one.
  using Look = std::function<std::set<uid_t>()>;
  explicit RankUsers(Look look = LookAtDescendants) : look_(std::move(look)) {}

  // Whether a process that descends from this one is, or has been, `user`'s.
  bool Has(uid_t user, int64_t now_ns);

 private:
  static std::set<uid_t> LookAtDescendants();

  const Look look_;
  std::set<uid_t> found_;
  std::map<uid_t, int64_t> looked_;  // for whom, and when, within kAgainNs
};

}  // namespace taskd::run
