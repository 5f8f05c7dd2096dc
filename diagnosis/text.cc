#include "diagnosis/text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/ranges_text.h"

namespace taskd::diagnosis {
namespace {

std::string FormatMs(double ms) { return absl::StrFormat("%.*f ms", ms < 10 ? 1 : 0, ms); }

// With as many digits as tell them apart, two at most.
std::string FormatInstead(double ms, double instead_of_ms) {
  std::string one = FormatMs(ms), other = FormatMs(instead_of_ms);
  for (int digits = 1; one == other && digits <= 2; ++digits) {
    one = absl::StrFormat("%.*f ms", digits, ms);
    other = absl::StrFormat("%.*f ms", digits, instead_of_ms);
  }
  return absl::StrCat(one, " instead of ", other);
}

std::string DescribeRank(int rank, const Layout& layout) {
  const int node = layout.node(rank);
  return node < 0 ? absl::StrCat("rank ", rank) : absl::StrCat("rank ", rank, " (node ", node, ")");
}

std::string DescribeSubject(const Verdict& verdict, const Layout& layout) {
  switch (verdict.scope) {
    case Scope::kRank:
      return verdict.ids.empty() ? "a rank" : DescribeRank(verdict.ids.front(), layout);
    case Scope::kNode:
      return verdict.ids.empty() ? "a node" : absl::StrCat("node ", verdict.ids.front());
    case Scope::kLink:
      return verdict.links.empty() ? "a link"
                                   : absl::StrCat("the link between ", DescribeRank(verdict.links.front().a, layout),
                                                  " and ", DescribeRank(verdict.links.front().b, layout));
    case Scope::kGroup:
      return absl::StrCat("the group of ranks ", FormatRanges(verdict.ids));
    case Scope::kJob:
      return "the job";
  }
  return "";
}

// "21 % longer", "3.2 times as long".
std::string DescribeRatio(double ratio) {
  return ratio < 2 ? absl::StrFormat("%.0f %% longer", (ratio - 1) * 100)
                   : absl::StrFormat("%.1f times as long", ratio);
}

std::string DescribeReference(const Evidence& evidence) {
  if (evidence.peers <= 0) return "than before";
  return evidence.peers == 1 ? "than its one peer" : absl::StrCat("than its ", evidence.peers, " peers");
}

std::string DescribeDeviation(const Verdict& verdict, const Evidence& evidence) {
  const double ratio = evidence.reference > 0 ? evidence.value / evidence.reference : 1;
  const std::string longer =
      DescribeRatio(ratio) + (ratio < 2 ? " " + DescribeReference(evidence)
                                        : " as " + std::string(evidence.peers > 0 ? "its peers" : "before"));
  switch (verdict.cause) {
    case Cause::kCompute:
      return absl::StrCat("computes ", longer);
    case Cause::kMemory:
      return absl::StrCat("computes ", longer, ", most of all where memory bandwidth counts,");
    case Cause::kDataloader:
      return absl::StrCat("waits for its data loader ", FormatMs(evidence.value), " a step instead of ",
                          FormatMs(evidence.reference));
    case Cause::kHost: {
      const auto wait = std::find_if(verdict.evidence.begin(), verdict.evidence.end(),
                                     [](const Evidence& other) { return other.feature == "cpu_wait"; });
      if (wait == verdict.evidence.end()) return absl::StrCat("is held up by its host and takes ", longer);
      return absl::StrCat("waits ", FormatMs(wait->value), " a step for a CPU (its peers ", FormatMs(wait->reference),
                          "), because of other work or a limit, and takes ", longer);
    }
    case Cause::kGc:
      return absl::StrCat("pauses again and again (garbage collection or another stop of its process) and takes ",
                          longer);
    case Cause::kCheckpoint:
      return absl::StrCat("saves checkpoints in ", FormatInstead(evidence.value, evidence.reference));
    case Cause::kNetwork:
      return absl::StrCat("transfers between nodes in ", FormatInstead(evidence.value, evidence.reference));
    case Cause::kIntraNodeLink:
      return absl::StrCat("transfers inside the node in ", FormatInstead(evidence.value, evidence.reference));
    case Cause::kPpLink:
      return absl::StrCat("takes ", FormatMs(evidence.value), " a transfer instead of ", FormatMs(evidence.reference));
    case Cause::kFabric:
      return absl::StrCat("is slowed by traffic between nodes everywhere: ", FormatMs(evidence.value),
                          " a transfer instead of ", FormatMs(evidence.reference));
    case Cause::kConfig:
      return absl::StrCat("transfers in ", FormatInstead(evidence.value, evidence.reference));
    case Cause::kUnknown:
      return absl::StrCat("takes ", longer);
  }
  return "";
}

}  // namespace

std::string WriteSentence(const Verdict& verdict, const Layout& layout) {
  if (verdict.evidence.empty()) return DescribeSubject(verdict, layout) + " is slow";
  std::string text = absl::StrCat(
      DescribeSubject(verdict, layout), " ", DescribeDeviation(verdict, verdict.evidence.front()), " since step ",
      verdict.since_step, verdict.since_step > verdict.last_step ? ", before the job was started again" : "");
  if (verdict.cost_ms_per_step > 0 && verdict.slowdown > 1) {
    const double without_ms = verdict.cost_ms_per_step / (verdict.slowdown - 1);
    absl::StrAppend(&text, "; without it a step would take ",
                    FormatInstead(without_ms, without_ms + verdict.cost_ms_per_step));
  }
  return text;
}

}  // namespace taskd::diagnosis
