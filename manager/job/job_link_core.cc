#include "manager/job/job_link_core.h"

#include <arpa/inet.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace taskd::manager {
namespace {

constexpr size_t kMessageOverheadBytes = 256;  // of what is queued, beside its data

std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

// One line of whole characters.
std::string Cut(std::string text) {
  if (text.size() > JobLinkCore::kMaxTextBytes) {
    size_t size = JobLinkCore::kMaxTextBytes;
    while (size > 0 && (text[size] & 0xc0) == 0x80) --size;
    text.resize(size);
  }
  return OneLine(std::move(text));
}

constexpr uint32_t kMaxExtras = 64;  // evaluators

size_t Bytes(const JobJoin& join) {
  size_t bytes = sizeof(JobJoin) + join.name.size() + join.plan.size() + join.run_id.size();
  for (const std::string& address : join.addresses) bytes += sizeof(std::string) + address.size();
  return bytes;
}

// Why a text of a join is too long; empty: it is not.
std::string TooLong(const JobJoin& join) {
  auto too_long = [](const char* what, const std::string& text, size_t most) {
    return text.size() <= most ? "" : absl::StrCat(what, ": ", text.size(), " bytes are more than ", most);
  };
  std::string why = too_long("plan", join.plan, JobLinkCore::kMaxPlanBytes);
  if (why.empty()) why = too_long("name", join.name, JobLinkCore::kMaxNameBytes);
  if (why.empty()) why = too_long("run_id", join.run_id, JobLinkCore::kMaxNameBytes);
  for (auto one = join.addresses.begin(); why.empty() && one != join.addresses.end(); ++one) {
    why = too_long("addresses: one", *one, JobLinkCore::kMaxNameBytes);
  }
  return why;
}

std::string Name(const JobJoin& node) { return absl::StrCat("node ", node.index, " (", node.name, ")"); }

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

// ---- Joining

JobLinkCore::Node* JobLinkCore::FindNode(uint64_t peer) {
  auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &attempt_->joined.at(found->second);
}

std::vector<JobLinkCore::Pending>::iterator JobLinkCore::FindPending(uint64_t peer) {
  return std::find_if(pending_.begin(), pending_.end(), [&](const Pending& one) { return one.peer == peer; });
}

JobLinkCore::Outputs JobLinkCore::Join(uint64_t peer, JobJoin join, int64_t now_ns) {
  now_ns_ = now_ns;
  if (FindNode(peer) != nullptr || FindPending(peer) != pending_.end()) return {};
  ForgetWhatIsOver();
  if (join.addresses.size() > kMaxAddresses) join.addresses.resize(kMaxAddresses);
  if (join.ended) join.ended->reason = Cut(std::move(join.ended->reason));
  const std::string too_long = TooLong(join);
  join.name = Cut(std::move(join.name));
  join.plan = OneLine(std::move(join.plan));
  if (!too_long.empty()) {
    Refuse(peer, too_long);
  } else if (join.nodes == 0 || join.nodes > kMaxNodes) {
    Refuse(peer, absl::StrCat("nodes: ", join.nodes, " is not 1 to ", kMaxNodes));
  } else if (join.index > join.nodes + kMaxExtras) {
    Refuse(peer, absl::StrCat("index: ", join.index, " is not one of ", join.nodes, " nodes"));
  } else if (join.run_id.empty()) {
    Refuse(peer, "run_id: is empty");
  } else {
    Admit(peer, std::move(join));
  }
  return TakeOutputs();
}

std::string JobLinkCore::WhyRefused(const JobJoin& join) const {
  const JobJoin& first = attempt_->joined.at(attempt_->first).info;
  if (join.nodes != attempt_->nodes) {
    return absl::StrCat("the job has ", attempt_->nodes, " nodes at ", Name(first), ", which came first, and ",
                        join.nodes, " at ", Name(join));
  }
  if (join.plan != attempt_->plan) {
    return absl::StrCat("the plan is '", attempt_->plan, "' at ", Name(first), ", which came first, and '", join.plan,
                        "' at ", Name(join));
  }
  return "";
}

void JobLinkCore::Admit(uint64_t peer, JobJoin join) {
  if (past_ && past_->run_ids.count(join.run_id) > 0) {
    Send(peer, past_->end);
    return;
  }
  if (!attempt_) {
    Enter(peer, std::move(join));
    return;
  }
  auto found = attempt_->joined.find(join.index);
  if (found != attempt_->joined.end()) {
    Node& node = found->second;
    if (node.info.run_id == join.run_id) {
      Return(node, peer, std::move(join));
    } else if (node.peer != 0 && !attempt_->end) {
      Refuse(peer, absl::StrCat("index ", join.index, " is taken by ", Name(node.info),
                                ", which is connected; this is ", join.name));
    } else {
      Wait(peer, std::move(join));
    }
    return;
  }
  const std::string unfit = WhyRefused(join);
  // Where somebody has begun the next attempt already, and nobody is left of this one, it is the next one's.
  const bool next_begun = !pending_.empty() && (attempt_->end || attempt_->connected == 0);
  if (unfit.empty() && !next_begun) {
    Enter(peer, std::move(join));
  } else if (attempt_->end || attempt_->connected == 0) {
    Wait(peer, std::move(join));
  } else {
    Refuse(peer, unfit);
  }
}

void JobLinkCore::Refuse(uint64_t peer, std::string text) { Send(peer, JobRefusal{std::move(text)}); }

void JobLinkCore::Enter(uint64_t peer, JobJoin join) {
  if (!attempt_) {
    attempt_ = Attempt();
    attempt_->nodes = join.nodes;
    attempt_->plan = join.plan;
    attempt_->first = join.index;
    for (uint32_t i = 0; i < join.nodes; ++i) attempt_->not_joined.insert(attempt_->not_joined.end(), i);
    first_told_ = all_joined_told_ = all_ready_told_ = false;
  }
  const size_t bytes = Bytes(join);
  if (attempt_->bytes + bytes > kMaxJoinBytes) {
    Refuse(peer, absl::StrCat("the joins of the job's nodes have more than ", kMaxJoinBytes >> 20, " MiB"));
    return;
  }
  attempt_->bytes += bytes;
  const uint32_t index = join.index;
  Node& node = attempt_->joined[index];
  node.info = std::move(join);
  node.info.plan.clear();  // the attempt has it
  const bool was_ready = std::exchange(node.info.ready, false);
  std::optional<JobEnd> ended = std::exchange(node.info.ended, std::nullopt);
  node.peer = peer;
  peers_[peer] = index;
  ++attempt_->connected;
  if (index < attempt_->nodes) {
    attempt_->not_joined.erase(index);
    (node.info.serves ? attempt_->not_ready : attempt_->awaited).insert(index);
  }
  if (was_ready) TakeReady(node);
  TellSoFar(node);
  if (ended) TakeEnded(node, *std::move(ended));
  EndIfAllDone();
}

void JobLinkCore::Return(Node& node, uint64_t peer, JobJoin join) {
  if (node.peer != 0) {
    Send(node.peer, StreamEnd{absl::AbortedError("another stream of this node has taken its place")});
    DropStream(node);
  }
  DropFromLost(node);
  node.peer = peer;
  peers_[peer] = node.info.index;
  ++attempt_->connected;
  node.info.name = std::move(join.name);
  node.info.addresses = std::move(join.addresses);
  if (join.ready) TakeReady(node);
  TellSoFar(node);
  for (uint64_t id : std::exchange(node.lost_commands, {})) {
    Send(peer, RemoteOrder{id, RemoteOrder::Kind::kCancel, ""});
  }
  if (join.ended) TakeEnded(node, *std::move(join.ended));
  EndIfAllDone();
  // Who waits had the next attempt in mind, which is not near any more.
  if (!attempt_->end) Readmit();
}

void JobLinkCore::TellSoFar(Node& node) {
  StateChanged();
  if (node.told_version != version_) {
    node.told_version = version_;
    Send(node.peer, State());
  }
  if (attempt_->end) {
    Send(node.peer, *attempt_->end);
    return;
  }
  if (node.info.index == 0) return;
  for (const JobMpirunCall& call : attempt_->mpirun) Send(node.peer, call);
}

void JobLinkCore::Wait(uint64_t peer, JobJoin join) {
  for (auto one = pending_.begin(); one != pending_.end(); ++one) {
    if (one->join.index != join.index || one->join.run_id != join.run_id) continue;
    Send(one->peer, StreamEnd{absl::AbortedError("another stream of this node has taken its place")});
    ErasePending(one);
    break;
  }
  const size_t bytes = Bytes(join);
  if (pending_bytes_ + bytes > kMaxJoinBytes || pending_.size() >= kMaxNodes) {
    Refuse(peer, absl::StrCat("the nodes that wait for the next attempt are more than ", kMaxNodes,
                              ", or have more than ", kMaxJoinBytes >> 20, " MiB"));
    return;
  }
  pending_bytes_ += bytes;
  JobState state;
  state.hosted = options_.hosted;
  state.missing_count = join.nodes;
  for (uint32_t i = 0; i < join.nodes && i < kMaxMissingListed; ++i) state.missing.push_back(i);
  state.connected = static_cast<uint32_t>(pending_.size()) + 1;
  Send(peer, std::move(state));
  pending_.push_back({peer, std::move(join), {}});
  BeginNextIfFree();
}

void JobLinkCore::ErasePending(std::vector<Pending>::iterator pending) {
  pending_bytes_ -= Bytes(pending->join);
  pending_.erase(pending);
}

void JobLinkCore::Readmit() {
  pending_bytes_ = 0;
  for (Pending& one : std::exchange(pending_, {})) {
    Admit(one.peer, std::move(one.join));
    for (const JobMpirunCall& call : one.mpirun) TakeMpirun(one.peer, call);
  }
}

void JobLinkCore::BeginNextIfFree() {
  if (!attempt_ || !attempt_->end || attempt_->connected > 0 || pending_.empty()) return;
  past_ = Past();
  for (const auto& [index, node] : attempt_->joined) past_->run_ids.insert(node.info.run_id);
  past_->end = *attempt_->end;
  past_->until_ns = now_ns_ + kRememberNs;
  attempt_.reset();
  state_due_ = false;
  Readmit();
}

// ---- What nodes report

JobLinkCore::Outputs JobLinkCore::Ready(uint64_t peer, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    pending->join.ready = true;
  } else if (Node* node = FindNode(peer); node != nullptr && !node->info.ready) {
    TakeReady(*node);
    StateChanged();
  }
  return TakeOutputs();
}

void JobLinkCore::TakeReady(Node& node) {
  node.info.ready = true;
  attempt_->not_ready.erase(node.info.index);
}

JobLinkCore::Outputs JobLinkCore::Ended(uint64_t peer, JobEnd end, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    end.reason = Cut(std::move(end.reason));
    if (!pending->join.ended) pending->join.ended = std::move(end);
  } else if (Node* node = FindNode(peer); node != nullptr) {
    TakeEnded(*node, std::move(end));
    EndIfAllDone();
  }
  return TakeOutputs();
}

void JobLinkCore::TakeEnded(Node& node, JobEnd end) {
  if (node.info.ended) return;
  std::string text = absl::StrCat(Name(node.info), " ended with code ", end.code);
  if (!end.reason.empty()) absl::StrAppend(&text, ": ", end.reason);
  const int code = end.code < 0 || end.code > 255 ? 1 : end.code;
  end.reason = Cut(std::move(end.reason));
  node.info.ended = std::move(end);
  attempt_->awaited.erase(node.info.index);
  if (code != 0) End(code, std::move(text));
}

JobLinkCore::Outputs JobLinkCore::Mpirun(uint64_t peer, const JobMpirunCall& call, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    if (pending->mpirun.size() < kMaxMpirunEvents) pending->mpirun.push_back(call);
  } else {
    TakeMpirun(peer, call);
  }
  return TakeOutputs();
}

void JobLinkCore::TakeMpirun(uint64_t peer, const JobMpirunCall& call) {
  const Node* from = FindNode(peer);
  if (from == nullptr || from->info.index != 0 || attempt_->end) return;
  // Node 0 says all of them again after a break.
  if (!attempt_->mpirun_known.emplace(call.number, call.ended).second) return;
  if (attempt_->mpirun.size() >= kMaxMpirunEvents) {
    End(1, absl::StrCat(Name(from->info), " has called mpirun more than ", kMaxMpirunEvents / 2, " times"));
    return;
  }
  attempt_->mpirun.push_back(call);
  for (const auto& [index, node] : attempt_->joined) {
    if (index != 0 && node.peer != 0) Send(node.peer, call);
  }
}

// ---- The end

void JobLinkCore::EndIfAllDone() {
  if (attempt_->end || !attempt_->not_joined.empty() || !attempt_->awaited.empty()) return;
  bool all_serve = true;
  bool all_ended = true;
  for (const auto& [index, node] : attempt_->joined) {
    if (index >= attempt_->nodes) continue;
    all_serve = all_serve && node.info.serves;
    all_ended = all_ended && node.info.ended;
    if (!all_serve) break;
  }
  if (!all_serve) {
    End(0, "all nodes that were waited for have ended with code 0");
  } else if (all_ended) {
    End(0, "all nodes have ended with code 0");
  }
}

void JobLinkCore::End(int code, std::string reason) {
  if (attempt_->end) return;
  attempt_->end = JobEnd{code, Cut(std::move(reason))};
  attempt_->end_ns = now_ns_;
  lost_.clear();
  for (auto& [index, node] : attempt_->joined) {
    node.give_up_ns = 0;
    if (node.peer != 0) Send(node.peer, *attempt_->end);
  }
}

void JobLinkCore::DropFromLost(Node& node) {
  if (node.give_up_ns != 0) lost_.erase({node.give_up_ns, node.info.index});
  node.give_up_ns = 0;
}

void JobLinkCore::DropStream(Node& node) {
  peers_.erase(node.peer);
  node.peer = 0;
  --attempt_->connected;
  attempt_->empty_ns = now_ns_;
  for (uint64_t id : std::set<uint64_t>(node.commands)) {
    node.lost_commands.push_back(id);
    FailCommand(id, absl::UnavailableError(absl::StrCat(Name(node.info), " is gone")));
  }
  if (!attempt_->end && !node.info.ended) {
    node.give_up_ns = now_ns_ + kComeBackNs;
    lost_.emplace(node.give_up_ns, node.info.index);
  }
}

JobLinkCore::Outputs JobLinkCore::Lost(uint64_t peer, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    ErasePending(pending);
  } else if (auto caller = callers_.find(peer); caller != callers_.end()) {
    const uint64_t id = caller->second;
    Cancel(id, commands_.at(id));
    EndCommand(id);
  } else if (Node* node = FindNode(peer); node != nullptr) {
    DropStream(*node);
    StateChanged();
    BeginNextIfFree();
  }
  return TakeOutputs();
}

void JobLinkCore::ForgetWhatIsOver() {
  if (past_ && now_ns_ >= past_->until_ns) past_.reset();
  if (attempt_ && attempt_->end && attempt_->connected == 0 && now_ns_ >= attempt_->end_ns + kRememberNs) {
    attempt_.reset();
    state_due_ = false;
  }
}

JobLinkCore::Outputs JobLinkCore::Tick(int64_t now_ns) {
  now_ns_ = now_ns;
  if (attempt_ && !attempt_->end && !lost_.empty() && lost_.begin()->first <= now_ns) {
    End(1, absl::StrCat(Name(attempt_->joined.at(lost_.begin()->second).info), ": its `taskd run` is gone"));
  }
  // Who ended with 0 may go, but not all of them while others have never come: nobody would end the attempt.
  if (attempt_ && !attempt_->end && attempt_->connected == 0 && now_ns >= attempt_->empty_ns + kComeBackNs) {
    End(1, "no node's `taskd run` is left");
  }
  BeginNextIfFree();
  ForgetWhatIsOver();
  if (state_due_ && now_ns >= state_told_ns_ + kStateIntervalNs) TellState();
  return TakeOutputs();
}

int64_t JobLinkCore::next_tick_ns() const {
  int64_t next = std::numeric_limits<int64_t>::max();
  if (!lost_.empty()) next = lost_.begin()->first;
  if (attempt_ && attempt_->connected == 0) {
    next = std::min(next, attempt_->end ? attempt_->end_ns + kRememberNs : attempt_->empty_ns + kComeBackNs);
  }
  if (past_) next = std::min(next, past_->until_ns);
  if (state_due_) next = std::min(next, state_told_ns_ + kStateIntervalNs);
  return next;
}

// ---- What all are told

JobState JobLinkCore::State() const {
  JobState state;
  state.all_joined = attempt_->not_joined.empty();
  state.first_joined = state.all_joined || *attempt_->not_joined.begin() != 0;
  state.all_ready = state.all_joined && attempt_->not_ready.empty();
  const std::set<uint32_t>& missing = state.all_joined ? attempt_->not_ready : attempt_->not_joined;
  state.missing_count = static_cast<uint32_t>(missing.size());
  for (auto one = missing.begin(); one != missing.end() && state.missing.size() < kMaxMissingListed; ++one) {
    state.missing.push_back(*one);
  }
  state.hosted = options_.hosted;
  state.connected = attempt_->connected;
  return state;
}

void JobLinkCore::StateChanged() {
  ++version_;
  state_due_ = true;
  const bool all_joined = attempt_->not_joined.empty();
  const bool first_joined = all_joined || *attempt_->not_joined.begin() != 0;
  const bool all_ready = all_joined && attempt_->not_ready.empty();
  const bool news = first_joined != first_told_ || all_joined != all_joined_told_ || all_ready != all_ready_told_;
  const bool interval_over = now_ns_ >= state_told_ns_ + kStateIntervalNs;
  // The node that hosts the manager goes when it is the last one.
  const bool last_left = attempt_->end && attempt_->connected <= 1;
  if (news || interval_over || last_left) TellState();
}

void JobLinkCore::TellState() {
  state_due_ = false;
  state_told_ns_ = now_ns_;
  const JobState state = State();
  first_told_ = state.first_joined;
  all_joined_told_ = state.all_joined;
  all_ready_told_ = state.all_ready;
  for (auto& [index, node] : attempt_->joined) {
    if (node.peer == 0 || node.told_version == version_) continue;
    node.told_version = version_;
    Send(node.peer, state);
  }
}

// ---- Commands on other nodes

absl::StatusOr<uint32_t> JobLinkCore::FindHost(const std::string& host) const {
  const std::string wanted = Canonical(host);
  const std::string label = FirstLabel(wanted);
  // Its own name says more than its addresses (each machine may have 172.17.0.1), and those more than a part of a name.
  std::vector<const JobJoin*> by_name, by_address, by_label;
  for (const auto& [index, node] : attempt_->joined) {
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
    return absl::NotFoundError(absl::StrCat("host '", Cut(host), "' may be ", Name(*(*found)[0]), " or ",
                                            Name(*(*found)[1]), ": name it in full"));
  }
  return absl::NotFoundError(absl::StrCat("host '", Cut(host), "' is no node of the job"));
}

JobLinkCore::Outputs JobLinkCore::Call(uint64_t caller, const std::string& host, std::string command, int64_t now_ns) {
  now_ns_ = now_ns;
  if (callers_.count(caller) > 0) return {};
  auto refuse = [&](absl::Status status) {
    Send(caller, StreamEnd{std::move(status)});
    return TakeOutputs();
  };
  if (!attempt_) return refuse(absl::NotFoundError(absl::StrCat("host '", Cut(host), "': no node has joined the job")));
  if (attempt_->end) return refuse(absl::UnavailableError("the job has ended"));
  absl::StatusOr<uint32_t> index = FindHost(host);
  if (!index.ok()) return refuse(index.status());
  Node& node = attempt_->joined.at(*index);
  if (node.peer == 0) return refuse(absl::UnavailableError(absl::StrCat(Name(node.info), " is not connected")));
  if (!node.info.remote_start) {
    return refuse(absl::PermissionDeniedError(
        absl::StrCat(Name(node.info), " takes no commands: it was not started with --remote-start taskd")));
  }
  const uint64_t id = next_id_++;
  commands_[id] = {caller, *index};
  callers_[caller] = id;
  node.commands.insert(id);
  const size_t size = command.size();
  Queue(id, node.peer, RemoteOrder{id, RemoteOrder::Kind::kStart, std::move(command)}, size);
  return TakeOutputs();
}

JobLinkCore::Outputs JobLinkCore::Input(uint64_t caller, std::string input, int64_t now_ns) {
  now_ns_ = now_ns;
  auto found = callers_.find(caller);
  if (found == callers_.end() || input.empty()) return {};
  const uint64_t id = found->second;
  const Command& command = commands_.at(id);
  if (command.input_ended) return {};
  const size_t size = input.size();
  Queue(id, attempt_->joined.at(command.index).peer, RemoteOrder{id, RemoteOrder::Kind::kInput, std::move(input)},
        size);
  return TakeOutputs();
}

JobLinkCore::Outputs JobLinkCore::InputEnd(uint64_t caller, int64_t now_ns) {
  now_ns_ = now_ns;
  auto found = callers_.find(caller);
  if (found == callers_.end()) return {};
  Command& command = commands_.at(found->second);
  if (std::exchange(command.input_ended, true)) return {};
  Queue(found->second, attempt_->joined.at(command.index).peer,
        RemoteOrder{found->second, RemoteOrder::Kind::kInputEnd, ""}, 0);
  return TakeOutputs();
}

JobLinkCore::Outputs JobLinkCore::Answer(uint64_t peer, RemoteAnswer answer, int64_t now_ns) {
  now_ns_ = now_ns;
  const Node* node = FindNode(peer);
  if (node == nullptr || node->commands.count(answer.id) == 0) return {};
  const uint64_t id = answer.id;
  const uint64_t caller = commands_.at(id).caller;
  if (answer.kind == RemoteAnswer::Kind::kEnded) {
    Send(caller, std::move(answer));
    EndCommand(id);
  } else {
    const size_t size = answer.data.size();
    Queue(id, caller, std::move(answer), size);
  }
  return TakeOutputs();
}

void JobLinkCore::Queue(uint64_t id, uint64_t peer, Message message, size_t data_bytes) {
  Command& command = commands_.at(id);
  command.queued_bytes += data_bytes + kMessageOverheadBytes;
  if (command.queued_bytes <= kMaxQueuedBytes) {
    Send(peer, std::move(message));
    return;
  }
  const JobJoin& node = attempt_->joined.at(command.index).info;
  Cancel(id, command);
  FailCommand(id,
              absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxQueuedBytes >> 20, " MiB of the command on ",
                                                        Name(node), " wait for somebody who does not take them")));
}

void JobLinkCore::Cancel(uint64_t id, const Command& command) {
  const uint64_t peer = attempt_->joined.at(command.index).peer;
  if (peer != 0) Send(peer, RemoteOrder{id, RemoteOrder::Kind::kCancel, ""});
}

void JobLinkCore::EndCommand(uint64_t id) {
  const Command& command = commands_.at(id);
  callers_.erase(command.caller);
  attempt_->joined.at(command.index).commands.erase(id);
  commands_.erase(id);
}

void JobLinkCore::FailCommand(uint64_t id, const absl::Status& status) {
  Send(commands_.at(id).caller, StreamEnd{status});
  EndCommand(id);
}

uint64_t JobLinkCore::Sent(uint64_t id, size_t data_bytes) {
  auto found = commands_.find(id);
  if (found == commands_.end()) return 0;
  Command& command = found->second;
  command.queued_bytes -= std::min(command.queued_bytes, data_bytes + kMessageOverheadBytes);
  return command.caller;
}

size_t JobLinkCore::queued_bytes(uint64_t caller) const {
  auto found = callers_.find(caller);
  return found == callers_.end() ? 0 : commands_.at(found->second).queued_bytes;
}

}  // namespace taskd::manager
