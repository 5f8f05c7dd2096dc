// The nodes of a job on its link, for tests: a core, the time, and what each peer has heard.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "manager/job/job_link_core.h"

namespace taskd::manager {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kS = 1000 * kMs;

inline JobJoin Join(uint32_t index, uint32_t nodes, const std::string& run_id = "") {
  JobJoin join;
  join.index = index;
  join.nodes = nodes;
  join.name = std::string(1, static_cast<char>('a' + index % 26));
  join.run_id = run_id.empty() ? absl::StrCat("run", index) : run_id;
  join.plan = "torch";
  join.remote_start = true;
  return join;
}

inline JobJoin Serving(JobJoin join) {
  join.serves = true;
  return join;
}

// A core with what its peers have heard.
class LinkJob {
 public:
  explicit LinkJob(bool hosted = false) : core(JobLinkCore::Options{hosted}) {}

  void Take(JobOutputs outputs) {
    messages += outputs.size();
    for (JobOutput& output : outputs) heard[output.peer].push_back(std::move(output.message));
  }
  void Enter(uint64_t peer, JobJoin join) { Take(core.Join(peer, std::move(join), now)); }
  void Ready(uint64_t peer) { Take(core.Ready(peer, now)); }
  void End(uint64_t peer, int code, const std::string& reason = "") { Take(core.Ended(peer, {code, reason}, now)); }
  void Lose(uint64_t peer) { Take(core.Lost(peer, now)); }
  void Call(uint64_t caller, const std::string& host, const std::string& command = "true") {
    Take(core.Call(caller, host, command, now));
  }
  // As the service does: no later than the core wants.
  void Pass(int64_t ns) {
    const int64_t until = now + ns;
    while (core.next_tick_ns() <= until) {
      const int64_t next = std::max(now, core.next_tick_ns());
      const bool stuck = next == now && ++ticks_in_place > 100;
      ASSERT_FALSE(stuck) << "Tick does not get on";
      if (next > now) ticks_in_place = 0;
      now = next;
      Take(core.Tick(now));
    }
    now = until;
  }

  template <typename Message>
  std::vector<Message> All(uint64_t peer) {
    std::vector<Message> found;
    for (const JobMessage& message : heard[peer]) {
      if (const auto* one = std::get_if<Message>(&message)) found.push_back(*one);
    }
    return found;
  }
  template <typename Message>
  Message Last(uint64_t peer) {
    std::vector<Message> all = All<Message>(peer);
    EXPECT_FALSE(all.empty()) << "peer " << peer;
    return all.empty() ? Message{} : all.back();
  }
  // Those of which the peer has heard, as a stream tells them.
  std::vector<JobMpirunCall> MpirunCalls(uint64_t peer) {
    std::vector<JobMpirunCall> calls;
    for (const JobMpirunNews& news : All<JobMpirunNews>(peer)) {
      for (size_t i = calls.size(); i < news.count; ++i) calls.push_back(news.calls->at(i));
    }
    return calls;
  }
  std::vector<int> Ends(uint64_t peer) {
    std::vector<int> codes;
    for (const JobEnd& end : All<JobEnd>(peer)) codes.push_back(end.code);
    return codes;
  }
  std::string Refusal(uint64_t peer) { return Last<JobRefusal>(peer).text; }

  JobLinkCore core;
  int64_t now = 1000 * kS;
  int ticks_in_place = 0;
  size_t messages = 0;
  std::map<uint64_t, std::vector<JobMessage>> heard;
};

}  // namespace taskd::manager
