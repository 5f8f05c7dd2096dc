#include "manager/supervision/hang_origin.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/ranges_text.h"

namespace taskd::manager {
namespace {

using Kind = OpenPhase::Kind;

constexpr size_t kKinds = 5;

// In which phase the ranks stand that wait: the communication, if it is open in half of them or if the others are
// elsewhere for certain; without marks of communication what more than half have in common.
Kind WaitersPhase(const std::array<size_t, kKinds>& counts, size_t all) {
  const auto of = [&](Kind kind) { return counts[static_cast<size_t>(kind)]; };
  const size_t communicate = of(Kind::kCommunication);
  if (communicate > 0 && (communicate * 2 >= all || of(Kind::kNone) == 0)) return Kind::kCommunication;
  return of(Kind::kForward) * 2 > all ? Kind::kForward : Kind::kNone;
}

const char* PhaseText(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "in its forward pass";
    case Kind::kDataLoader:
      return "in its data loader";
    case Kind::kCheckpoint:
      return "saving a checkpoint";
    case Kind::kNone:
    case Kind::kCommunication:
      break;
  }
  return "in no communication";
}

}  // namespace

HangOrigin FindOrigin(const std::vector<RankPulse>& ranks) {
  std::array<size_t, kKinds> counts{};
  for (const RankPulse& rank : ranks) ++counts[static_cast<size_t>(rank.open.kind)];
  const Kind waiters = WaitersPhase(counts, ranks.size());
  HangOrigin origin;
  const RankPulse* first = nullptr;
  bool alike = true;
  for (const RankPulse& rank : ranks) {
    const Kind kind = rank.open.kind;
    if (kind == waiters) {
      if (origin.operation.empty()) origin.operation = rank.open.operation;
      continue;
    }
    // Without marks of communication nobody knows what a rank in no range does.
    if (waiters != Kind::kCommunication && (kind == Kind::kNone || kind == Kind::kCommunication)) continue;
    if (first == nullptr) first = &rank;
    alike = alike && kind == first->open.kind;
    origin.ranks.push_back(rank.rank);
  }
  const size_t waiting = ranks.size() - origin.ranks.size();
  if (first == nullptr || waiting == 0) return {};
  origin.since_ns = first->open.since_ns;
  const bool one = origin.ranks.size() == 1;
  origin.text =
      absl::StrCat(one ? "rank " : "ranks ", FormatRanges(origin.ranks), one ? " is " : " are ",
                   alike ? "" : absl::StrCat("elsewhere, rank ", first->rank, " "), PhaseText(first->open.kind),
                   ", in step ", first->step + 1, ", and ", waiting, waiting == 1 ? " rank waits" : " ranks wait");
  if (!origin.operation.empty()) absl::StrAppend(&origin.text, " in ", origin.operation);
  return origin;
}

}  // namespace taskd::manager
