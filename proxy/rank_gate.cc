#include "proxy/rank_gate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "taskd/mspti_result.h"

namespace taskd::proxy {

uint32_t GateOf(KindMask kinds) {
  constexpr KindMask kDefaultDomain = kAllKindsMask & ~MaskOf(SwitchKind::kCommunication);
  return kinds | ((kinds & kDefaultDomain) != 0 ? uint32_t{ring::kGateOther} : 0u);
}

void RankGate::Ask(const WantedKinds& wanted, uint64_t now_ns) {
  if (asked_ == wanted) return;
  asked_ = wanted;
  answer_ = Answer::kAwaited;
  unanswered_since_ns_ = now_ns;
  failure_.clear();
}

RankGate::Answer RankGate::Read(const ring::SegmentHeader& header, uint64_t now_ns, std::string& failure) {
  const uint32_t answered = header.source_domains.load(std::memory_order_acquire);
  const uint32_t domains = ring::SourceDomainsOf(GateOf(asked_->kinds));
  // Success is read from the code alone: it is one word, and names the domains too.
  const bool applied = answered == (domains | ring::kSourceAnswered) &&
                       header.source_code.load(std::memory_order_relaxed) == ring::SourceCodeOf(domains);
  const int32_t error = header.source_error.load(std::memory_order_relaxed);
  if (answered == 0 || applied) {
    unanswered_since_ns_ = 0;
    return Answer::kApplied;
  }
  if (answered == (domains | ring::kSourceAnswered) && error != kMsptiOk) {
    unanswered_since_ns_ = 0;
    failure = absl::StrCat("not applied: ", MsptiErrorText(error), " (", error, "); it is tried again");
    return Answer::kFailed;
  }
  // Not this one, or half written.
  if (unanswered_since_ns_ == 0) unanswered_since_ns_ = now_ns;
  if (now_ns - unanswered_since_ns_ < uint64_t{kAnswerMs} * 1'000'000) return Answer::kAwaited;
  failure = "not applied: MSPTI has not answered";
  return Answer::kFailed;
}

bool RankGate::TakeAnswer(const ring::SegmentHeader& header, uint64_t now_ns) {
  if (!asked_) return false;
  std::string failure;
  const Answer answer = Read(header, now_ns, failure);
  if (answer == Answer::kAwaited || (answer == answer_ && failure == failure_)) return false;
  if (answer == Answer::kApplied) {
    applied_ = asked_->kinds;
    applied_revision_ = asked_->revision;
  } else if (answer_ == Answer::kApplied) {
    applied_ = 0;  // not known any more
    applied_revision_ = 0;
  }
  answer_ = answer;
  failure_ = std::move(failure);
  return true;
}

}  // namespace taskd::proxy
