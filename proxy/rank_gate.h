// What one rank is to record, and what it made of that: the gate in its segment, and MSPTI's answer, which the rank's
// process writes into the segment's header (worker_sdk/include/taskd/ring.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/switch.h"
#include "taskd/ring.h"

namespace taskd::proxy {

struct WantedKinds {
  KindMask kinds = 0;
  uint64_t revision = 0;  // of the manager's state; 0: it is not the manager's

  friend bool operator==(const WantedKinds&, const WantedKinds&) = default;
};

// The gate word for the kinds that are wanted: marks of no known kind go with the default domain.
uint32_t GateOf(KindMask kinds);

// A rank without MSPTI has applied what its gate holds; one with MSPTI when MSPTI confirms it, and MSPTI may later
// revoke that. Not thread-safe.
class RankGate {
 public:
  static constexpr int kAnswerMs = 1000;  // for MSPTI; after that the rank has failed, until it answers

  // The gate holds `wanted` now. The same once more changes nothing.
  void Ask(const WantedKinds& wanted, uint64_t now_ns);
  // Looks for the answer to what was asked last, if anything was. True: it is news.
  bool TakeAnswer(const ring::SegmentHeader& header, uint64_t now_ns);
  // Another process has the rank.
  void Reset() { *this = RankGate(); }

  bool awaited() const { return answer_ == Answer::kAwaited; }
  KindMask applied() const { return applied_; }
  uint64_t applied_revision() const { return applied_revision_; }
  // Why what was asked is not applied; empty: it is, or the answer is awaited.
  const std::string& failure() const { return failure_; }
  uint64_t failed_revision() const { return failure_.empty() ? 0 : asked_->revision; }

 private:
  enum class Answer : uint8_t { kNotAsked, kAwaited, kApplied, kFailed };

  // The header's answer to the last request, with the failure's text; kAwaited: none yet.
  Answer Read(const ring::SegmentHeader& header, uint64_t now_ns, std::string& failure);

  std::optional<WantedKinds> asked_;
  Answer answer_ = Answer::kNotAsked;
  uint64_t unanswered_since_ns_ = 0;  // MSPTI's last answer is to something else; 0: it is not
  std::string failure_;
  uint64_t applied_revision_ = 0;
  KindMask applied_ = 0;
};

}  // namespace taskd::proxy
