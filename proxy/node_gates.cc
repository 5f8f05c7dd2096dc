// Node: what its ranks are to record, and what they made of it.
#include "absl/strings/str_cat.h"
#include "proxy/node.h"
#include "taskd/mspti_result.h"

namespace taskd {

uint32_t GateOf(KindMask kinds) {
  constexpr KindMask kDefaultDomain = kAllKindsMask & ~MaskOf(SwitchKind::kCommunication);
  return kinds | ((kinds & kDefaultDomain) != 0 ? uint32_t{ring::kGateOther} : 0u);
}

std::optional<WantedKinds> Node::wanted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return wanted_;
}

void Node::ApplyGate(Rank& rank, Segment& segment) {
  if (!wanted_ || !segment.fault.empty()) return;
  RingSegment& ring = segment.drain->segment();
  const uint32_t gate = GateOf(wanted_->kinds);
  std::atomic<uint32_t>& keep = ring.header().undecided_keep;
  // The first word of a proxy also decides on what was recorded before it.
  if ((keep.load(std::memory_order_relaxed) & ring::kGateUndecided) == 0) keep.store(gate | ring::kGateUndecided);
  if (segment.ended) return;
  ring.SetGate(segment.current ? gate : 0);
  if (!segment.current) return;
  const uint64_t now_ns = ReadMonotonicNs();
  if (rank.asked != wanted_) {
    rank.asked = wanted_;
    rank.answer = Rank::Answer::kAwaited;
    rank.unanswered_since_ns = now_ns;
    rank.failure.clear();
  }
  TakeAnswer(rank, segment, now_ns);
  answers_awaited_ |= rank.answer == Rank::Answer::kAwaited;
}

bool Node::TakeAnswer(Rank& rank, Segment& segment, uint64_t now_ns) {
  const ring::SegmentHeader& header = segment.drain->segment().header();
  const uint32_t answered = header.source_domains.load(std::memory_order_acquire);
  const uint32_t domains = ring::SourceDomainsOf(GateOf(rank.asked->kinds));
  // Success is told by the code alone: it is one word, and names the domains too.
  const bool applied = answered == (domains | ring::kSourceAnswered) &&
                       header.source_code.load(std::memory_order_relaxed) == ring::SourceCodeOf(domains);
  const int32_t error = header.source_error.load(std::memory_order_relaxed);
  std::string failure;
  if (answered == 0 || applied) {
    rank.unanswered_since_ns = 0;
  } else if (answered == (domains | ring::kSourceAnswered) && error != kMsptiOk) {
    rank.unanswered_since_ns = 0;
    failure = absl::StrCat("not applied: ", MsptiErrorText(error), " (", error, "); it is tried again");
  } else {  // not this one, or half written
    if (rank.unanswered_since_ns == 0) rank.unanswered_since_ns = now_ns;
    if (now_ns - rank.unanswered_since_ns < uint64_t{kAnswerMs} * 1'000'000) return false;
    failure = "not applied: MSPTI has not answered";
  }
  const Rank::Answer answer = failure.empty() ? Rank::Answer::kApplied : Rank::Answer::kFailed;
  if (answer == rank.answer && failure == rank.failure) return false;
  if (answer == Rank::Answer::kApplied) {
    rank.applied = rank.asked->kinds;
    rank.applied_revision = rank.asked->revision;
  } else if (rank.answer == Rank::Answer::kApplied) {
    rank.applied = 0;  // nobody knows
    rank.applied_revision = 0;
  }
  rank.answer = answer;
  rank.failure = std::move(failure);
  return true;
}

void Node::TakeAnswers() {
  const uint64_t now_ns = ReadMonotonicNs();
  bool news = false;
  answers_awaited_ = false;
  for (auto& [number, rank] : ranks_) {
    if (!rank.asked) continue;
    for (auto& segment : rank.segments) {
      if (!segment->current || segment->ended || !segment->fault.empty()) continue;
      news |= TakeAnswer(rank, *segment, now_ns);
      answers_awaited_ |= rank.answer == Rank::Answer::kAwaited;
    }
  }
  if (news) Changed();
}

void Node::SetWanted(const WantedKinds& wanted) {
  std::lock_guard<std::mutex> lock(mutex_);
  wanted_ = wanted;
  for (auto& [number, rank] : ranks_) {
    for (auto& segment : rank.segments) ApplyGate(rank, *segment);
  }
  Changed();
}

}  // namespace taskd
