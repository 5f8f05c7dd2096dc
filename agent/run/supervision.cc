#include "agent/run/supervision.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/stacks/stack_merge.h"
#include "common/atomic_file.h"
#include "common/log.h"
#include "common/realtime.h"
#include "common/runtime_dir.h"
#include "common/utf8.h"

namespace taskd::run {
namespace {

// A call of the launcher's has 2 s.
constexpr int64_t kCollectNs = 1'500'000'000;
constexpr std::chrono::seconds kGather{5};
constexpr std::chrono::seconds kAwaitRas{12};  // two answers and what lies between them
constexpr std::chrono::seconds kAskAgain{1};
constexpr std::chrono::seconds kWriteFiles{2};  // at the launcher's end
constexpr size_t kMaxEarly = 256;
constexpr size_t kMaxFrameBytes = 512;

std::string MakeFolder(const std::string& wanted) {
  if (!wanted.empty() && mkdir(wanted.c_str(), 0700) == 0) return wanted;
  absl::StatusOr<std::string> folder = MakeFreshDir();
  if (folder.ok()) return *std::move(folder);
  spdlog::warn("no folder for stacks, a hang will show only what /proc says: {}", folder.status().message());
  return "";
}

// Where the main thread of this rank stands; nothing is known of one that has not answered.
v1::HangEvidence FramesOf(const std::vector<stacks::RankStacks>& all, int rank) {
  v1::HangEvidence frames;
  const auto found = std::ranges::find(all, rank, &stacks::RankStacks::rank);
  if (found == all.end() || found->threads.empty()) return frames;
  const stacks::ThreadStack& main = found->threads[0];
  for (const std::string& frame : main.python.empty() ? main.native : main.python) {
    frames.add_frames(ValidUtf8(CutUtf8(frame, kMaxFrameBytes)));
  }
  frames.set_text(ValidUtf8(CutUtf8(main.script, kMaxFrameBytes)));
  return frames;
}

// `folder` empty: the runtime folder's. `name`: "hang-<pid>-<number>.txt". Returns what the log is to say.
StorageThread::Report WriteStacks(std::string folder, const std::string& name, const std::string& text) {
  if (folder.empty()) {
    absl::StatusOr<std::string> own = RuntimeDir("stacks");
    if (!own.ok()) own = MakeFreshDir();
    if (!own.ok()) {
      return [status = own.status()] { spdlog::warn("the stacks cannot be written: {}", status.message()); };
    }
    folder = *std::move(own);
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = absl::StrCat(folder, "/", name);
  const absl::Status written = WriteFileAtomically(path, text);
  if (written.ok()) return [path] { spdlog::error("all of the stacks: {}", path); };
  return [written] { spdlog::warn("the stacks cannot be written to {}", written.message()); };
}

}  // namespace

RunSupervision::RunSupervision(const Options& options)
    : options_(options),
      folder_(MakeFolder(options.stack_folder)),
      evidence_reader_(options.environment, options.ras),
      files_(kWriteFiles) {}

RunSupervision::~RunSupervision() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (follower_ != nullptr) follower_->Stop();
  }
  changed_.notify_all();
  if (investigator_.joinable()) investigator_.join();
  EndFollowing();
  std::unique_ptr<SupervisionClient> client;  // ends without the mutex
  {
    std::lock_guard lock(mutex_);
    client = std::move(client_);
  }
  client.reset();
  std::error_code error;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
}

void RunSupervision::SetControl(const LauncherControl& control) {
  std::lock_guard lock(control_mutex_);
  control_ = control;
}

void RunSupervision::SetAssignment(const Assignment& assignment) {
  std::lock_guard lock(mutex_);
  assignment_ = assignment;
}

void RunSupervision::SetClient(std::unique_ptr<SupervisionClient> client) {
  std::lock_guard lock(mutex_);
  client_ = std::move(client);
  for (v1::SupervisionEvent& event : early_) client_->Report(std::move(event));
  early_.clear();
  if (!waits_for_.empty()) client_->SetWaitsFor(waits_for_);
  investigator_ = std::thread([this] { Investigate(); });
}

bool RunSupervision::has_client() {
  std::lock_guard lock(mutex_);
  return client_ != nullptr;
}

void RunSupervision::OnEvent(const LauncherEvent& happened) {
  v1::SupervisionEvent event = ToSupervisionEvent(happened);
  std::lock_guard lock(mutex_);
  if (happened.kind == LauncherEvent::Kind::kStarted) {
    // One a round: the ranks are in the status, and a large job would see nothing else.
    if (happened.round == started_round_) return;
    started_round_ = happened.round;
    event.set_rank(-1);
    event.set_node(-1);
    event.set_pid(0);
  }
  if (client_ != nullptr) {
    client_->Report(std::move(event));
  } else if (early_.size() < kMaxEarly) {
    early_.push_back(std::move(event));
  }
}

void RunSupervision::OnWaiting(const std::string& waits_for) {
  std::lock_guard lock(mutex_);
  waits_for_ = waits_for;
  if (client_ != nullptr) client_->SetWaitsFor(waits_for);
}

std::string RunSupervision::Collect(const std::map<int, pid_t>& pids) {
  int base = 0;
  int node = 0;
  {
    std::lock_guard lock(mutex_);
    base = assignment_.rank_base;
    node = assignment_.group_rank;
  }
  std::map<int, pid_t> ranks;
  for (const auto& [local_rank, pid] : pids) ranks[base + local_rank] = pid;
  return stacks::EncodeStacks(stacks::CollectStacks(ranks, node, folder_, kCollectNs));
}

std::string RunSupervision::Look(const LookMessage& message, const std::map<int, pid_t>& pids) {
  if (pids.empty()) return "";
  evidence::EvidenceReader::Wish wish;
  wish.hang = static_cast<uint64_t>(message.hang);
  wish.since_ns = RealtimeNs() - message.idle_ms * 1'000'000;
  {
    std::lock_guard lock(mutex_);
    wish.world_size = assignment_.world_size;
    for (const auto& [local_rank, pid] : pids) wish.ranks[assignment_.rank_base + local_rank] = pid;
    // Of several launchers on a node the one with its first rank.
    wish.asks_ras = message.asks_ras == assignment_.group_rank && pids.begin()->first == 0;
  }
  return evidence_reader_.Look(wish);
}

void RunSupervision::OnEvidence(int hang, const std::string& text) {
  std::lock_guard lock(mutex_);
  if (follower_ != nullptr) follower_->OnEvidence(hang, text);
}

void RunSupervision::OnStacks(int id, const std::string& text) {
  std::lock_guard lock(mutex_);
  if (id != waiting_for_) return;  // too late
  answers_[id].push_back(text);
  changed_.notify_all();
}

std::vector<stacks::RankStacks> RunSupervision::Gather(int id, int nodes) {
  std::vector<std::string> texts;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kGather, [&] { return stopping_ || answers_[id].size() >= static_cast<size_t>(nodes); });
    texts = std::move(answers_[id]);
    answers_.clear();
    waiting_for_ = -1;
  }
  if (texts.size() < static_cast<size_t>(nodes)) {
    spdlog::warn("stacks of {} of {} nodes have come", texts.size(), nodes);
  }
  std::vector<stacks::RankStacks> all;
  for (const std::string& text : texts) {
    absl::StatusOr<std::vector<stacks::RankStacks>> stacks = stacks::DecodeStacks(text);
    if (stacks.ok()) {
      all.insert(all.end(), stacks->begin(), stacks->end());
    } else {
      spdlog::warn("the stacks of a node are left out: {}", stacks.status().message());
    }
  }
  return all;
}

void RunSupervision::OnNotice(const v1::HangNotice& notice) {
  spdlog::log(notice.hung() ? spdlog::level::err : spdlog::level::warn, "{}", notice.text());
  {
    std::lock_guard lock(mutex_);
    open_hang_ = notice.hung() ? notice.number() : 0;
    notice_ = notice;
    if (follower_ != nullptr) follower_->Stop();
  }
  changed_.notify_all();
}

void RunSupervision::Investigate() {
  while (true) {
    v1::HangNotice notice;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || notice_.has_value(); });
      if (stopping_) return;
      notice = *std::exchange(notice_, std::nullopt);
    }
    EndFollowing();
    if (!notice.hung()) continue;
    FollowHang(notice);
    ReportStacks(notice);
    Act(notice);
  }
}

void RunSupervision::FollowHang(const v1::HangNotice& notice) {
  HangFollower::Options options;
  options.hang = static_cast<int>(notice.number() & 0x7fffffff);
  options.idle_ms = std::max<int64_t>(0, static_cast<int64_t>(notice.idle_s() * 1000));
  options.asks_ras = options_.ras;
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  options.nodes = assignment_.group_world_size;
  follower_ = std::make_unique<HangFollower>(
      options,
      [this](const LookMessage& message) {
        std::lock_guard lock(control_mutex_);
        if (control_.look) control_.look(message);
      },
      [this, hang = notice.number()](const evidence::Finding& finding) { ReportEvidence(hang, finding); });
}

void RunSupervision::EndFollowing() {
  std::unique_ptr<HangFollower> follower;  // ends without the mutex
  std::lock_guard lock(mutex_);
  follower.swap(follower_);
}

void RunSupervision::ReportEvidence(uint64_t hang, const evidence::Finding& finding) {
  v1::SupervisionEvent event;
  event.set_kind(v1::SupervisionEvent::EVIDENCE);
  event.set_rank(-1);
  event.set_node(-1);
  event.set_message(TextOf(finding));
  spdlog::error("hang: {}", event.message());
  *event.mutable_evidence() = ToEvidence(hang, finding);
  Send(std::move(event));
}

void RunSupervision::ReportStacks(const v1::HangNotice& notice) {
  const int id = static_cast<int>(notice.number() & 0x7fffffff);
  int nodes = 0;
  {
    std::lock_guard lock(mutex_);
    nodes = assignment_.group_world_size;
    waiting_for_ = id;
  }
  {
    std::lock_guard lock(control_mutex_);
    if (!control_.collect_stacks) return;
    control_.collect_stacks(id);
  }
  std::vector<stacks::RankStacks> all = Gather(id, nodes);
  v1::SupervisionEvent event;
  if (notice.origins_size() > 0) *event.mutable_evidence() = FramesOf(all, notice.origins(0));
  event.mutable_evidence()->set_number(notice.number());
  const stacks::MergedStacks merged =
      stacks::MergeStacks(std::move(all), {notice.origins().begin(), notice.origins().end()});
  // Each line by itself: the log shows a line break within one as text.
  for (const absl::string_view line : absl::StrSplit(merged.log, '\n', absl::SkipEmpty())) spdlog::error("{}", line);
  const bool is_taken =
      files_.Do([folder = options_.file_folder, name = absl::StrCat("hang-", getpid(), "-", notice.number(), ".txt"),
                 text = absl::StrCat(notice.text(), "\n", merged.full)] { return WriteStacks(folder, name, text); });
  if (!is_taken) spdlog::warn("the stacks are not written: the storage does not answer");
  event.set_kind(v1::SupervisionEvent::STACKS);
  event.set_rank(-1);
  event.set_node(-1);
  event.set_message(merged.log);
  Send(std::move(event));
}

void RunSupervision::Send(v1::SupervisionEvent event) {
  std::lock_guard lock(mutex_);
  event.set_round(assignment_.round);
  event.set_restart_count(assignment_.restart_count);
  if (client_ != nullptr) client_->Report(std::move(event));
}

void RunSupervision::Act(const v1::HangNotice& notice) {
  if (options_.hang_action == "report") return;
  HangFollower* follower = nullptr;  // stays: only this thread replaces it
  {
    std::lock_guard lock(mutex_);
    follower = follower_.get();
  }
  if (follower != nullptr) follower->AwaitRas(kAwaitRas);
  if (!MayAct(notice.number())) return;
  std::lock_guard lock(control_mutex_);
  if (options_.hang_action == "restart" && control_.restart) {
    control_.restart(notice.text());
  } else if (options_.hang_action == "stop" && control_.stop) {
    control_.stop(notice.text());
  }
}

bool RunSupervision::MayAct(uint64_t hang) {
  std::string said;
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return stopping_ || open_hang_ != hang; };
  while (!is_over()) {
    SupervisionClient* client = client_.get();  // lives as long as this thread
    lock.unlock();
    const absl::StatusOr<v1::ConfirmActionReply> answer = client->ConfirmAction(hang);
    const std::string why =
        answer.ok() ? answer->reason() : absl::StrCat("the manager cannot be asked: ", answer.status().message());
    if (!why.empty() && std::exchange(said, why) != why) {
      spdlog::warn("--hang-action {} waits: {}", options_.hang_action, why);
    }
    lock.lock();
    if (answer.ok() && answer->answer() != v1::ConfirmActionReply::WAIT && !is_over()) {
      return answer->answer() == v1::ConfirmActionReply::ACT;
    }
    changed_.wait_for(lock, kAskAgain, is_over);
  }
  return false;
}

}  // namespace taskd::run
