#include "manager/job/job_link_core.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/ranges_text.h"

namespace taskd::manager {

// ---- Joining

std::vector<JobLinkCore::Pending>::iterator JobLinkCore::FindPending(uint64_t peer) {
  return std::find_if(pending_.begin(), pending_.end(), [&](const Pending& one) { return one.peer == peer; });
}

JobOutputs JobLinkCore::Join(uint64_t peer, JobJoin join, int64_t now_ns) {
  now_ns_ = now_ns;
  if (FindNode(peer) != nullptr || FindPending(peer) != pending_.end()) return {};
  ForgetWhatIsOver();
  std::string complaint = CheckJoin(join);
  if (complaint.empty()) {
    Admit(peer, std::move(join));
  } else {
    Refuse(peer, std::move(complaint));
  }
  return TakeOutputs();
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
  if (Node* node = attempt_->FindIndex(join.index); node != nullptr) {
    AdmitAgain(*node, peer, std::move(join));
    return;
  }
  const std::string unfit = attempt_->WhyRefused(join);
  const bool nobody_minds = attempt_->end() || attempt_->connected() == 0;
  // Where somebody has begun the next attempt already, and nobody is left of this one, it is the next one's.
  const bool next_begun = !pending_.empty() && nobody_minds;
  if (unfit.empty() && !next_begun) {
    Enter(peer, std::move(join));
  } else if (nobody_minds) {
    Wait(peer, std::move(join));
  } else {
    Refuse(peer, unfit);
  }
}

// Its index is `node`'s.
void JobLinkCore::AdmitAgain(Node& node, uint64_t peer, JobJoin join) {
  if (node.info.run_id == join.run_id) {
    Return(node, peer, std::move(join));
  } else if (node.peer != 0 && !attempt_->end()) {
    Refuse(peer, absl::StrCat("index ", join.index, " is taken by ", NodeText(node.info),
                              ", which is connected; this is ", join.name));
  } else {
    Wait(peer, std::move(join));
  }
}

void JobLinkCore::Refuse(uint64_t peer, std::string text) { Send(peer, JobRefusal{std::move(text)}); }

void JobLinkCore::Enter(uint64_t peer, JobJoin join) {
  if (!attempt_) {
    attempt_.emplace(join);
    told_progress_ = JobProgress::kBegun;
  }
  if (!attempt_->HasRoomFor(join)) {
    Refuse(peer, absl::StrCat("the joins of the job's nodes have more than ", JobLimits::kMaxJoinBytes >> 20, " MiB"));
    return;
  }
  const bool was_ready = join.ready;
  std::optional<JobEnd> ended = std::exchange(join.ended, std::nullopt);
  Node& node = attempt_->Add(std::move(join));
  attempt_->Connect(node, peer, clock_.Look(now_ns_));
  if (was_ready) attempt_->SetReady(node);
  SendSoFar(node);
  if (ended) TakeEnded(node, *std::move(ended));
  EndIfAllDone();
}

void JobLinkCore::Return(Node& node, uint64_t peer, JobJoin join) {
  if (node.peer != 0) {
    Send(node.peer, StreamEnd{absl::AbortedError("another stream of this node has taken its place")});
    DropStream(node);
  }
  attempt_->Connect(node, peer, clock_.Look(now_ns_));
  node.info.name = std::move(join.name);
  node.info.addresses = std::move(join.addresses);
  if (join.ready) attempt_->SetReady(node);
  SendSoFar(node);
  commands_.NodeBack(node.info.index, peer);
  if (join.ended) TakeEnded(node, *std::move(join.ended));
  EndIfAllDone();
  // Who waits had the next attempt in mind, which is not near any more.
  if (!attempt_->end()) Readmit();
}

void JobLinkCore::SendSoFar(Node& node) {
  StateChanged();
  if (node.told_version != version_) {
    node.told_version = version_;
    Send(node.peer, State());
  }
  if (attempt_->end()) {
    Send(node.peer, *attempt_->end());
    return;
  }
  if (node.info.index == 0) return;
  if (JobMpirunNews news = attempt_->mpirun().all(); news.count > 0) Send(node.peer, std::move(news));
}

void JobLinkCore::Wait(uint64_t peer, JobJoin join) {
  for (auto one = pending_.begin(); one != pending_.end(); ++one) {
    if (one->join.index != join.index || one->join.run_id != join.run_id) continue;
    Send(one->peer, StreamEnd{absl::AbortedError("another stream of this node has taken its place")});
    ErasePending(one);
    break;
  }
  const size_t bytes = JoinBytes(join);
  if (pending_bytes_ + bytes > JobLimits::kMaxJoinBytes || pending_.size() >= JobLimits::kMaxNodes) {
    return RefuseToWait(peer);
  }
  pending_bytes_ += bytes;
  JobState state;
  state.hosted = options_.hosted;
  state.missing_count = join.nodes;
  for (uint32_t i = 0; i < join.nodes && i < JobLimits::kMaxMissingListed; ++i) state.missing.push_back(i);
  state.connected = static_cast<uint32_t>(pending_.size()) + 1;
  state.node_timeout_ms = static_cast<uint32_t>(attempt_->node_timeout_ns() / 1'000'000);
  Send(peer, std::move(state));
  pending_.push_back({peer, std::move(join), {}, clock_.Look(now_ns_)});
  BeginNextIfFree();
}

void JobLinkCore::RefuseToWait(uint64_t peer) {
  Refuse(peer, absl::StrCat("the nodes that wait for the next attempt are more than ", JobLimits::kMaxNodes,
                            ", or have more than ", JobLimits::kMaxJoinBytes >> 20, " MiB"));
}

std::vector<JobLinkCore::Pending>::iterator JobLinkCore::ErasePending(std::vector<Pending>::iterator pending) {
  pending_bytes_ -= JoinBytes(pending->join) + pending->mpirun.size() * sizeof(JobMpirunCall);
  return pending_.erase(pending);
}

void JobLinkCore::Readmit() {
  pending_bytes_ = 0;
  for (Pending& one : std::exchange(pending_, {})) {
    Admit(one.peer, std::move(one.join));
    for (const JobMpirunCall& call : one.mpirun) TakeMpirun(one.peer, call);
  }
}

// Its nodes are known by their run ids alone from now on.
void JobLinkCore::MakePast() {
  past_ = Past();
  for (const auto& [index, node] : attempt_->nodes()) past_->run_ids.insert(node.info.run_id);
  past_->end = *attempt_->end();
  past_->until_ns = now_ns_ + (silent_left_ ? kRememberSilentNs : kRememberNs);
  ForgetAttempt();
}

void JobLinkCore::BeginNextIfFree() {
  if (!attempt_ || !attempt_->end() || attempt_->connected() > 0 || pending_.empty()) return;
  MakePast();
  Readmit();
}

// ---- What nodes report

JobOutputs JobLinkCore::Ready(uint64_t peer, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    pending->join.ready = true;
  } else if (Node* node = FindNode(peer); node != nullptr && !node->info.ready) {
    attempt_->SetReady(*node);
    StateChanged();
  }
  return TakeOutputs();
}

JobOutputs JobLinkCore::Ended(uint64_t peer, JobEnd end, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    end.reason = CutLine(std::move(end.reason));
    if (!pending->join.ended) pending->join.ended = std::move(end);
  } else if (Node* node = FindNode(peer); node != nullptr) {
    TakeEnded(*node, std::move(end));
    EndIfAllDone();
  }
  return TakeOutputs();
}

void JobLinkCore::TakeEnded(Node& node, JobEnd end) {
  if (node.info.ended) return;
  std::string text = absl::StrCat(NodeText(node.info), " ended with code ", end.code);
  if (!end.reason.empty()) absl::StrAppend(&text, ": ", end.reason);
  const int code = end.code < 0 || end.code > 255 ? 1 : end.code;
  const int signal = end.signal;
  end.reason = CutLine(std::move(end.reason));
  attempt_->SetEnded(node, std::move(end));
  if (code != 0) End({code, std::move(text), signal});
}

JobOutputs JobLinkCore::Mpirun(uint64_t peer, const JobMpirunCall& call, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    // TakeMpirun() will want no others.
    if (pending->join.index != 0 || pending->mpirun.size() > JobLimits::kMaxMpirunEvents) return {};
    if (pending_bytes_ + sizeof(call) <= JobLimits::kMaxJoinBytes) {
      pending_bytes_ += sizeof(call);
      pending->mpirun.push_back(call);
    } else {
      ErasePending(pending);
      RefuseToWait(peer);
    }
  } else {
    TakeMpirun(peer, call);
  }
  return TakeOutputs();
}

void JobLinkCore::TakeMpirun(uint64_t peer, const JobMpirunCall& call) {
  const Node* from = FindNode(peer);
  if (from == nullptr || from->info.index != 0 || attempt_->end()) return;
  switch (attempt_->mpirun().Take(call)) {
    case MpirunCalls::Taken::kKnown:
      return;
    case MpirunCalls::Taken::kTooMany:
      End({1, absl::StrCat(NodeText(from->info), " has called mpirun more than ", JobLimits::kMaxMpirunEvents / 2,
                           " times")});
      return;
    case MpirunCalls::Taken::kNew:
      break;
  }
  for (const auto& [index, node] : attempt_->nodes()) {
    if (index != 0 && node.peer != 0) Send(node.peer, attempt_->mpirun().all());
  }
}

JobOutputs JobLinkCore::Alive(uint64_t peer, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    pending->heard_ns = clock_.Look(now_ns);
  } else if (Node* node = FindNode(peer); node != nullptr) {
    node->heard_ns = clock_.Look(now_ns);
  } else {
    return {};
  }
  Send(peer, JobAlive{});
  return TakeOutputs();
}

// ---- The end

void JobLinkCore::EndIfAllDone() {
  if (attempt_->end()) return;
  if (std::optional<JobEnd> end = attempt_->WhenAllDone()) End(*std::move(end));
}

void JobLinkCore::End(JobEnd end) {
  if (attempt_->end()) return;
  end.reason = CutLine(std::move(end.reason));
  attempt_->SetEnd(std::move(end), now_ns_);
  for (const auto& [index, node] : attempt_->nodes()) {
    if (node.peer != 0) Send(node.peer, *attempt_->end());
  }
}

// A machine that is gone without a word closes nothing, and one that was stopped answers nobody.
void JobLinkCore::LoseWhoIsSilent() {
  if (!attempt_) return;
  const int64_t seen_ns = clock_.Look(now_ns_);
  const int64_t timeout_ns = attempt_->node_timeout_ns();
  const auto is_silent = [&](const JobJoin& join, int64_t heard_ns, int64_t after_ns) {
    return join.node_timeout_ms != 0 && seen_ns - heard_ns >= after_ns;
  };
  const auto text = [](int64_t silent_ns) { return absl::StrCat("was silent for ", silent_ns / 1'000'000'000, " s"); };
  for (auto& [index, node] : attempt_->nodes()) {
    const int64_t after_ns = attempt_->end() ? std::min(timeout_ns, kSilentAfterEndNs) : timeout_ns;
    if (node.peer == 0 || !is_silent(node.info, node.heard_ns, after_ns)) continue;
    Send(node.peer, StreamEnd{absl::DeadlineExceededError(absl::StrCat("this node ", text(after_ns)))});
    DropStream(node);
    silent_left_ = true;
    if (!attempt_->end() && !node.info.ended) {
      End({1, absl::StrCat(NodeText(node.info), ": its `taskd run` ", text(after_ns))});
    }
    StateChanged();
  }
  for (auto one = pending_.begin(); one != pending_.end();) {
    if (is_silent(one->join, one->heard_ns, timeout_ns)) {
      Send(one->peer, StreamEnd{absl::DeadlineExceededError(absl::StrCat("this node ", text(timeout_ns)))});
      one = ErasePending(one);
    } else {
      ++one;
    }
  }
}

void JobLinkCore::DropStream(Node& node) {
  const int64_t seen_ns = clock_.Look(now_ns_);
  attempt_->Disconnect(node, seen_ns, seen_ns + kComeBackNs);
  commands_.NodeLost(node.info);
}

JobOutputs JobLinkCore::Lost(uint64_t peer, int64_t now_ns) {
  now_ns_ = now_ns;
  if (auto pending = FindPending(peer); pending != pending_.end()) {
    ErasePending(pending);
  } else if (commands_.HasCaller(peer)) {
    commands_.CallerLost(peer);
  } else if (Node* node = FindNode(peer); node != nullptr) {
    DropStream(*node);
    StateChanged();
    BeginNextIfFree();
  }
  return TakeOutputs();
}

void JobLinkCore::ForgetAttempt() {
  attempt_.reset();
  commands_.ForgetLostNodes();
  state_due_ = false;
  silent_left_ = false;
}

void JobLinkCore::ForgetWhatIsOver() {
  if (past_ && now_ns_ >= past_->until_ns) past_.reset();
  const bool over = attempt_ && attempt_->end() && attempt_->connected() == 0;
  if (over && now_ns_ >= attempt_->end_ns() + kRememberNs) silent_left_ ? MakePast() : ForgetAttempt();
}

JobOutputs JobLinkCore::Tick(int64_t now_ns) {
  now_ns_ = now_ns;
  const int64_t seen_ns = clock_.Look(now_ns);
  LoseWhoIsSilent();
  if (attempt_ && !attempt_->end()) {
    const Node* lost = attempt_->NextToGiveUp();
    if (lost != nullptr && lost->give_up_ns <= seen_ns) {
      End({1, absl::StrCat(NodeText(lost->info), ": its `taskd run` is gone")});
    } else if (attempt_->connected() == 0 && seen_ns >= attempt_->empty_since_ns() + kComeBackNs) {
      // Who ended with 0 may go, but not all of them while others have never come: nobody would end the attempt.
      End({1, "no node's `taskd run` is left"});
    }
  }
  BeginNextIfFree();
  ForgetWhatIsOver();
  if (state_due_ && now_ns >= state_sent_ns_ + kStateIntervalNs) SendState();
  return TakeOutputs();
}

int64_t JobLinkCore::next_tick_ns() const {
  int64_t next = std::numeric_limits<int64_t>::max();
  if (attempt_) {
    if (const Node* lost = attempt_->NextToGiveUp()) next = clock_.NextLook(lost->give_up_ns);
    if (attempt_->connected() == 0) {
      next = std::min(next, attempt_->end() ? attempt_->end_ns() + kRememberNs
                                            : clock_.NextLook(attempt_->empty_since_ns() + kComeBackNs));
    }
  }
  // While somebody may fall silent, each second.
  if (attempt_ && (attempt_->connected() > 0 || !pending_.empty())) {
    next = std::min(next, clock_.NextLook(std::numeric_limits<int64_t>::max()));
  }
  if (past_) next = std::min(next, past_->until_ns);
  if (state_due_) next = std::min(next, state_sent_ns_ + kStateIntervalNs);
  return next;
}

// ---- What all are sent

JobState JobLinkCore::State() const {
  JobState state = attempt_->State();
  state.hosted = options_.hosted;
  return state;
}

std::string JobLinkCore::WaitsFor() const {
  if (!attempt_ || attempt_->end()) return "";
  const JobState state = attempt_->State();
  if (state.all_joined) return "";
  const std::vector<int> listed(state.missing.begin(), state.missing.end());
  const size_t others = state.missing_count - listed.size();
  return absl::StrCat(state.missing_count == 1 ? "node " : "nodes ", FormatRanges(listed, listed.size()),
                      others == 0 ? "" : absl::StrCat(" and ", others, " more"), " (",
                      attempt_->size() - state.missing_count, " of ", attempt_->size(), " here)");
}

void JobLinkCore::StateChanged() {
  ++version_;
  state_due_ = true;
  const bool news = attempt_->progress() != told_progress_;
  const bool interval_over = now_ns_ >= state_sent_ns_ + kStateIntervalNs;
  // The node that hosts the manager goes when it is the last one.
  const bool last_left = attempt_->end() && attempt_->connected() <= 1;
  if (news || interval_over || last_left) SendState();
}

void JobLinkCore::SendState() {
  state_due_ = false;
  state_sent_ns_ = now_ns_;
  told_progress_ = attempt_->progress();
  const JobState state = State();
  for (auto& [index, node] : attempt_->nodes()) {
    if (node.peer == 0 || node.told_version == version_) continue;
    node.told_version = version_;
    Send(node.peer, state);
  }
}

// ---- Commands on other nodes

absl::StatusOr<const JobLinkCore::Node*> JobLinkCore::FindCalled(const std::string& host) {
  if (!attempt_) return absl::NotFoundError(absl::StrCat("host '", CutLine(host), "': no node has joined the job"));
  if (attempt_->end()) return absl::UnavailableError("the job has ended");
  absl::StatusOr<uint32_t> index = attempt_->FindHost(host);
  if (!index.ok()) return index.status();
  const Node* node = attempt_->FindIndex(*index);
  if (node->peer == 0) return absl::UnavailableError(absl::StrCat(NodeText(node->info), " is not connected"));
  if (!node->info.remote_start) {
    return absl::PermissionDeniedError(
        absl::StrCat(NodeText(node->info), " takes no commands: it was not started with --remote-start taskd"));
  }
  if (const size_t running = commands_.running(*index); running >= JobLimits::kMaxCommands) {
    return absl::ResourceExhaustedError(absl::StrCat(NodeText(node->info), " runs ", running,
                                                     " commands of other nodes, and ", JobLimits::kMaxCommands,
                                                     " at a time is the most"));
  }
  return node;
}

JobOutputs JobLinkCore::Call(uint64_t caller, const std::string& host, std::string command, int64_t now_ns) {
  now_ns_ = now_ns;
  if (commands_.HasCaller(caller)) return {};
  absl::StatusOr<const Node*> node = FindCalled(host);
  if (node.ok()) {
    commands_.Start(caller, (*node)->info, (*node)->peer, std::move(command));
  } else {
    Send(caller, StreamEnd{node.status()});
  }
  return TakeOutputs();
}

JobOutputs JobLinkCore::Input(uint64_t caller, std::string input, int64_t now_ns) {
  now_ns_ = now_ns;
  commands_.Input(caller, std::move(input));
  return TakeOutputs();
}

JobOutputs JobLinkCore::InputEnd(uint64_t caller, int64_t now_ns) {
  now_ns_ = now_ns;
  commands_.InputEnd(caller);
  return TakeOutputs();
}

JobOutputs JobLinkCore::Answer(uint64_t peer, RemoteAnswer answer, int64_t now_ns) {
  now_ns_ = now_ns;
  commands_.Answer(peer, std::move(answer));
  return TakeOutputs();
}

}  // namespace taskd::manager
