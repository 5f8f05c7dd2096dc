#include "manager/job/job_attempt.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/node_timeout.h"

namespace taskd::manager {
namespace {

bool IsIpv4(const std::string& host) {
  in_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1;
}

// One spelling of a name or an address.
std::string Canonical(std::string_view host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (!host.empty() && host.back() == '.') host.remove_suffix(1);
  std::string name(host);
  absl::AsciiStrToLower(&name);
  in6_addr address;
  char text[INET6_ADDRSTRLEN];
  if (inet_pton(AF_INET6, name.c_str(), &address) == 1 && inet_ntop(AF_INET6, &address, text, sizeof(text))) {
    return text;
  }
  return name;
}

// "" for an address: 10.0.0.1 and 10.0.0.2 are not the same node.
std::string FirstLabel(const std::string& canonical) {
  if (IsIpv4(canonical) || canonical.find(':') != std::string::npos) return "";
  return canonical.substr(0, canonical.find('.'));
}

}  // namespace

JobAttempt::JobAttempt(const JobJoin& first) : size_(first.nodes), plan_(first.plan), first_(first.index) {
  for (uint32_t i = 0; i < size_; ++i) not_joined_.insert(not_joined_.end(), i);
}

std::string JobAttempt::WhyRefused(const JobJoin& join) const {
  const JobJoin& first = joined_.at(first_).info;
  if (join.nodes != size_) {
    return absl::StrCat("the job has ", size_, " nodes at ", NodeText(first), ", which came first, and ", join.nodes,
                        " at ", NodeText(join));
  }
  if (join.plan != plan_) {
    return absl::StrCat("the plan is '", plan_, "' at ", NodeText(first), ", which came first, and '", join.plan,
                        "' at ", NodeText(join));
  }
  return "";
}

JobAttempt::Node& JobAttempt::Add(JobJoin join) {
  bytes_ += JoinBytes(join);
  const uint32_t index = join.index;
  Node& node = joined_[index];
  node.info = std::move(join);
  node.info.plan.clear();  // the attempt has it
  node.info.ready = false;
  node.info.ended.reset();
  if (index < size_) {
    not_joined_.erase(index);
    (node.info.serves ? not_ready_ : awaited_).insert(index);
  }
  return node;
}

JobAttempt::Node* JobAttempt::FindIndex(uint32_t index) {
  auto found = joined_.find(index);
  return found == joined_.end() ? nullptr : &found->second;
}

JobAttempt::Node* JobAttempt::FindPeer(uint64_t peer) {
  auto found = streams_.find(peer);
  return found == streams_.end() ? nullptr : &joined_.at(found->second);
}

void JobAttempt::Connect(Node& node, uint64_t peer, int64_t now_ns) {
  if (node.give_up_ns != 0) lost_.erase({node.give_up_ns, node.info.index});
  node.give_up_ns = 0;
  node.peer = peer;
  node.heard_ns = now_ns;
  streams_[peer] = node.info.index;
}

void JobAttempt::Disconnect(Node& node, int64_t now_ns, int64_t give_up_ns) {
  streams_.erase(node.peer);
  node.peer = 0;
  empty_since_ns_ = now_ns;
  if (end_ || node.info.ended) return;
  node.give_up_ns = give_up_ns;
  lost_.emplace(give_up_ns, node.info.index);
}

const JobAttempt::Node* JobAttempt::NextToGiveUp() const {
  return lost_.empty() ? nullptr : &joined_.at(lost_.begin()->second);
}

int64_t JobAttempt::node_timeout_ns() const {
  constexpr double kMsPerS = 1'000;
  constexpr int64_t kNsPerMs = 1'000'000;
  const auto first = joined_.find(0);
  double ms = first == joined_.end() ? 0 : first->second.info.node_timeout_ms;
  if (ms == 0) ms = kNodeTimeoutS * kMsPerS;
  return static_cast<int64_t>(std::clamp(ms, kLeastNodeTimeoutS * kMsPerS, kMostNodeTimeoutS * kMsPerS)) * kNsPerMs;
}

void JobAttempt::SetReady(Node& node) {
  node.info.ready = true;
  not_ready_.erase(node.info.index);
}

void JobAttempt::SetEnded(Node& node, JobEnd end) {
  node.info.ended = std::move(end);
  awaited_.erase(node.info.index);
}

JobProgress JobAttempt::progress() const {
  if (!not_joined_.empty()) return *not_joined_.begin() == 0 ? JobProgress::kBegun : JobProgress::kFirstJoined;
  return not_ready_.empty() ? JobProgress::kAllReady : JobProgress::kAllJoined;
}

JobState JobAttempt::State() const {
  const JobProgress now = progress();
  JobState state;
  state.first_joined = now >= JobProgress::kFirstJoined;
  state.all_joined = now >= JobProgress::kAllJoined;
  state.all_ready = now >= JobProgress::kAllReady;
  const std::set<uint32_t>& missing = state.all_joined ? not_ready_ : not_joined_;
  state.missing_count = static_cast<uint32_t>(missing.size());
  for (auto one = missing.begin(); one != missing.end() && state.missing.size() < JobLimits::kMaxMissingListed; ++one) {
    state.missing.push_back(*one);
  }
  state.connected = connected();
  state.node_timeout_ms = static_cast<uint32_t>(node_timeout_ns() / 1'000'000);
  return state;
}

std::optional<JobEnd> JobAttempt::WhenAllDone() const {
  if (!not_joined_.empty() || !awaited_.empty()) return std::nullopt;
  bool all_ended = true;
  for (const auto& [index, node] : joined_) {
    if (index >= size_) break;
    if (!node.info.serves) return JobEnd{0, "all nodes that were waited for have ended with code 0"};
    all_ended = all_ended && node.info.ended;
  }
  if (!all_ended) return std::nullopt;
  return JobEnd{0, "all nodes have ended with code 0"};
}

void JobAttempt::SetEnd(JobEnd end, int64_t now_ns) {
  end_ = std::move(end);
  end_ns_ = now_ns;
  lost_.clear();
  for (auto& [index, node] : joined_) node.give_up_ns = 0;
}

absl::StatusOr<uint32_t> JobAttempt::FindHost(const std::string& host) const {
  const std::string wanted = Canonical(host);
  const std::string label = FirstLabel(wanted);
  // Its own name identifies it better than its addresses (each machine may have 172.17.0.1), and those better than a
  // part of a name.
  std::vector<const JobJoin*> by_name, by_address, by_label;
  for (const auto& [index, node] : joined_) {
    bool has_address = false;
    bool has_label = false;
    auto compare = [&](const std::string& one) {
      const std::string known = Canonical(one);
      has_address = has_address || known == wanted;
      has_label = has_label || (!label.empty() && FirstLabel(known) == label);
      return known == wanted;
    };
    if (compare(node.info.name)) by_name.push_back(&node.info);
    for (const std::string& address : node.info.addresses) compare(address);
    if (has_address) by_address.push_back(&node.info);
    if (has_label) by_label.push_back(&node.info);
  }
  for (const auto* found : {&by_name, &by_address, &by_label}) {
    if (found->empty()) continue;
    if (found->size() == 1) return found->front()->index;
    return absl::NotFoundError(absl::StrCat("host '", CutLine(host), "' may be ", NodeText(*(*found)[0]), " or ",
                                            NodeText(*(*found)[1]), ": name it in full"));
  }
  return absl::NotFoundError(absl::StrCat("host '", CutLine(host), "' is no node of the job"));
}

}  // namespace taskd::manager
