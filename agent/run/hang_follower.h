// While a job hangs: asks all nodes, again and again, what their ranks' communication libraries tell of it, and hands on
// what is new.
//
// Dumps come minutes after the hang was noticed, one after the other. RAS answers for the whole job: one node asks, and
// another one only where that has brought nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/evidence/node_evidence.h"
#include "agent/run/rendezvous_messages.h"

namespace taskd::run {

// Thread safety: any thread.
class HangFollower {
 public:
  struct Options {
    int hang = 0;         // its number
    int64_t idle_ms = 0;  // since when it lasts
    int nodes = 0;
    bool asks_ras = true;
  };
  // In the follower's thread. The first asks all nodes, whose answers come to OnEvidence().
  using Look = std::function<void(const LookMessage&)>;
  using Report = std::function<void(const evidence::Finding&)>;

  HangFollower(const Options& options, Look look, Report report);
  ~HangFollower();
  HangFollower(const HangFollower&) = delete;
  HangFollower& operator=(const HangFollower&) = delete;

  // One node's answer. From the network: any text.
  void OnEvidence(int hang, const std::string& text);
  // Until RAS has said what it knows, or has nothing to say; at most `limit`.
  void AwaitRas(std::chrono::milliseconds limit);
  // Nothing is asked or reported any more, once what is under way is over; nobody waits.
  void Stop();

 private:
  void Follow();

  const Options options_;
  const Look look_;
  const Report report_;
  std::mutex mutex_;  // guards from here
  std::condition_variable changed_;
  bool stopping_ = false;
  bool ras_is_over_ = false;
  std::vector<std::string> texts_;  // that came since the last look
  std::thread thread_;              // last: it uses the others
};

}  // namespace taskd::run
