// The users that ranks run as: root's launcher may start ranks by setpriv, any user's launcher by sudo.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>

namespace taskd::run {

// A look reads /proc for every process of the machine, and any connection can cause one. So each user causes one look
// within kAgainNs, and all users together cause at most kMostLooks. Not thread safe.
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
