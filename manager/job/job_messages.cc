#include "manager/job/job_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace taskd::manager {
namespace {

std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

// Why a text of a join is too long; empty: it is not.
std::string TooLong(const JobJoin& join) {
  auto too_long = [](const char* what, const std::string& text, size_t most) {
    return text.size() <= most ? "" : absl::StrCat(what, ": ", text.size(), " bytes are more than ", most);
  };
  std::string why = too_long("plan", join.plan, JobLimits::kMaxPlanBytes);
  if (why.empty()) why = too_long("name", join.name, JobLimits::kMaxNameBytes);
  if (why.empty()) why = too_long("run_id", join.run_id, JobLimits::kMaxNameBytes);
  for (auto one = join.addresses.begin(); why.empty() && one != join.addresses.end(); ++one) {
    why = too_long("addresses: one", *one, JobLimits::kMaxNameBytes);
  }
  return why;
}

}  // namespace

std::string CheckJoin(JobJoin& join) {
  if (join.addresses.size() > JobLimits::kMaxAddresses) join.addresses.resize(JobLimits::kMaxAddresses);
  if (join.ended) join.ended->reason = CutLine(std::move(join.ended->reason));
  std::string too_long = TooLong(join);
  join.name = CutLine(std::move(join.name));
  join.plan = OneLine(std::move(join.plan));
  if (!too_long.empty()) return too_long;
  if (join.nodes == 0 || join.nodes > JobLimits::kMaxNodes) {
    return absl::StrCat("nodes: ", join.nodes, " is not 1 to ", JobLimits::kMaxNodes);
  }
  if (join.index > join.nodes + JobLimits::kMaxExtras) {
    return absl::StrCat("index: ", join.index, " is not one of ", join.nodes, " nodes");
  }
  if (join.run_id.empty()) return "run_id: is empty";
  return "";
}

size_t JoinBytes(const JobJoin& join) {
  size_t bytes = sizeof(JobJoin) + join.name.size() + join.plan.size() + join.run_id.size();
  for (const std::string& address : join.addresses) bytes += sizeof(std::string) + address.size();
  return bytes;
}

std::string NodeText(const JobJoin& node) { return absl::StrCat("node ", node.index, " (", node.name, ")"); }

std::string CutLine(std::string text) {
  CutUtf8(&text, JobLimits::kMaxTextBytes);
  return OneLine(std::move(text));
}

}  // namespace taskd::manager
