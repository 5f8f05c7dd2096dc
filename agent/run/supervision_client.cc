#include "agent/run/supervision_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/address.h"
#include "common/log.h"
#include "common/ranges_text.h"
#include "common/utf8.h"
#include "grpcpp/channel.h"

namespace taskd::run {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kMaxBatch = 1000;
constexpr size_t kMaxBatchBytes = size_t{1} << 20;
constexpr size_t kMaxEventTextBytes = size_t{64} * 1024;
constexpr size_t kMaxEvidenceText = 2048;
constexpr size_t kMaxRanges = 64;
constexpr milliseconds kCallTimeout{5000};
constexpr milliseconds kFirstPause{200};
constexpr milliseconds kLongestPause{5000};

// A message must be UTF-8, and not longer than the manager keeps.
std::string Sound(const std::string& text) {
  std::string sound = ValidUtf8(CutUtf8(text, kMaxEventTextBytes));
  CutUtf8(&sound, kMaxEventTextBytes);
  return sound;
}

v1::SupervisionEvent::Kind ToProto(LauncherEvent::Kind kind) {
  switch (kind) {
    case LauncherEvent::Kind::kStarted:
      return v1::SupervisionEvent::STARTED;
    case LauncherEvent::Kind::kExited:
      return v1::SupervisionEvent::EXITED;
    case LauncherEvent::Kind::kRestarting:
      return v1::SupervisionEvent::RESTARTING;
    case LauncherEvent::Kind::kEnded:
      return v1::SupervisionEvent::ENDED;
  }
  return v1::SupervisionEvent::UNKNOWN;
}

v1::SupervisionEvent::Cause ToProto(StopCause cause) {
  switch (cause) {
    case StopCause::kNone:
      break;
    case StopCause::kRankExit:
      return v1::SupervisionEvent::RANK_EXIT;
    case StopCause::kNodeLost:
      return v1::SupervisionEvent::NODE_LOST;
    case StopCause::kTerminated:
      return v1::SupervisionEvent::TERMINATED;
    case StopCause::kInterrupted:
      return v1::SupervisionEvent::INTERRUPTED;
    case StopCause::kNodeJoined:
      return v1::SupervisionEvent::NODE_JOINED;
    case StopCause::kOrdered:
      return v1::SupervisionEvent::ORDERED;
    case StopCause::kTimedOut:
      return v1::SupervisionEvent::TIMED_OUT;
  }
  return v1::SupervisionEvent::CAUSE_UNKNOWN;
}

}  // namespace

v1::SupervisionEvent ToSupervisionEvent(const LauncherEvent& event) {
  v1::SupervisionEvent result;
  result.set_kind(ToProto(event.kind));
  result.set_round(event.round);
  result.set_rank(event.rank);
  result.set_node(event.node);
  result.set_pid(event.pid);
  result.set_code(event.code);
  result.set_signal(event.signal);
  result.set_world_size(event.world_size);
  result.set_time_ns(event.time_ns);
  result.set_message(event.reason);
  result.set_cause(ToProto(event.cause));
  return result;
}

v1::HangEvidence ToEvidence(uint64_t hang, const evidence::Finding& finding) {
  const auto sound = [](const std::string& text) { return ValidUtf8(CutUtf8(text, kMaxEvidenceText)); };
  v1::HangEvidence result;
  result.set_number(hang);
  if (finding.hang) {
    result.set_found(true);
    for (int rank : finding.hang->origins) result.add_origins(rank);
    result.set_kind(finding.hang->kind);
    result.set_group(sound(finding.hang->group));
    result.set_operation(sound(finding.hang->operation));
    result.set_since_ns(finding.hang->since_ns);
    result.set_waiting(FormatRanges(finding.hang->waiting, kMaxRanges));
    const std::vector<std::string> frames = absl::StrSplit(finding.hang->frames, '\n', absl::SkipEmpty());
    for (const std::string& frame : frames) result.add_frames(sound(frame));
    result.set_text(sound(finding.hang->text));
  }
  for (const std::string& note : finding.notes) result.add_notes(sound(note));
  for (const readers::Source& source : finding.sources) {
    v1::EvidenceSource* row = result.add_sources();
    row->set_path(sound(source.path));
    row->set_format(Name(source.format));
    row->set_rank(source.rank);
    row->set_records(source.records);
    row->set_note(sound(source.note));
  }
  result.set_more_sources(static_cast<uint32_t>(finding.more_sources));
  return result;
}

absl::StatusOr<std::unique_ptr<SupervisionClient>> SupervisionClient::Start(const Options& options,
                                                                            OnNotice on_notice) {
  auto dial = std::make_unique<proto::ManagerDial>(options.manager, options.security);
  if (absl::Status status = dial->Channel().status(); !status.ok()) return status;
  return std::unique_ptr<SupervisionClient>(new SupervisionClient(options, std::move(dial), std::move(on_notice)));
}

SupervisionClient::SupervisionClient(const Options& options, std::unique_ptr<proto::ManagerDial> dial,
                                     OnNotice on_notice)
    : options_(options),
      on_notice_(std::move(on_notice)),
      dial_(std::move(dial)),
      sender_([this] {
        SendAll();
        std::lock_guard lock(mutex_);
        sender_done_ = true;
        wake_.notify_all();
      }),
      watcher_([this] { Watch(); }) {}

SupervisionClient::~SupervisionClient() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_at_ = steady_clock::now() + kFlush;
    if (watching_ != nullptr) watching_->TryCancel();
  }
  wake_.notify_all();
  {
    // A call that waits for a manager that does not answer.
    std::unique_lock lock(mutex_);
    if (!wake_.wait_until(lock, stop_at_, [this] { return sender_done_; }) && sending_ != nullptr) {
      sending_->TryCancel();
    }
  }
  watcher_.join();
  sender_.join();
}

void SupervisionClient::Report(v1::SupervisionEvent event) {
  event.set_message(Sound(event.message()));
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() >= kMaxQueued) {
      queue_.pop_front();
      ++dropped_;
    }
    queue_.push_back(std::move(event));
  }
  wake_.notify_all();
}

void SupervisionClient::SetWaitsFor(const std::string& waits_for) {
  {
    std::lock_guard lock(mutex_);
    waits_for_ = Sound(waits_for);
  }
  wake_.notify_all();
}

v1::ReportEventsRequest SupervisionClient::TakeBatch() {
  v1::ReportEventsRequest request;
  if (waits_for_) request.set_waits_for(*std::exchange(waits_for_, std::nullopt));
  size_t bytes = 0;
  while (!queue_.empty() && static_cast<size_t>(request.events_size()) < kMaxBatch && bytes < kMaxBatchBytes) {
    bytes += queue_.front().message().size();
    *request.add_events() = std::move(queue_.front());
    queue_.pop_front();
  }
  if (dropped_ != 0) {
    spdlog::warn("{} events were not sent: the manager {} was away for too long", dropped_, options_.manager);
    dropped_ = 0;
  }
  return request;
}

// Back to where they were; newer ones have come behind them.
void SupervisionClient::PutBack(v1::ReportEventsRequest request) {
  for (int i = request.events_size(); i-- > 0 && queue_.size() < kMaxQueued;) {
    queue_.push_front(std::move(*request.mutable_events(i)));
  }
  if (request.has_waits_for() && !waits_for_) waits_for_ = request.waits_for();
}

void SupervisionClient::SendAll() {
  milliseconds pause = kFirstPause;
  bool reachable = true;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto idle = [this] { return queue_.empty() && !waits_for_; };
    wake_.wait(lock, [&] { return stopping_ || !idle(); });
    if (idle() || (stopping_ && steady_clock::now() >= stop_at_)) return;
    v1::ReportEventsRequest request = TakeBatch();
    const grpc::Status status = Send(request, stopping_ ? kFlush : kCallTimeout, lock);
    if (status.ok()) {
      pause = kFirstPause;
      reachable = true;
      continue;
    }
    if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
      spdlog::warn("the manager refuses {} events: {}", request.events_size(), status.error_message());
      continue;
    }
    if (std::exchange(reachable, false)) {
      spdlog::warn(
          "the manager {} does not take events, trying again: {}", options_.manager,
          dial_->Explain(static_cast<absl::StatusCode>(status.error_code()), status.error_message()).message());
    }
    PutBack(std::move(request));
    if (stopping_) {
      wake_.wait_for(lock, milliseconds(50));
    } else {
      wake_.wait_for(lock, pause, [this] { return stopping_; });
    }
    pause = std::min(2 * pause, kLongestPause);
  }
}

grpc::Status SupervisionClient::Send(const v1::ReportEventsRequest& request, milliseconds timeout,
                                     std::unique_lock<std::mutex>& lock) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  sending_ = &context;
  lock.unlock();
  v1::ReportEventsReply reply;
  grpc::Status status = Stub()->Report(&context, request, &reply);
  lock.lock();
  sending_ = nullptr;
  return status;
}

absl::StatusOr<v1::ConfirmActionReply> SupervisionClient::ConfirmAction(uint64_t hang) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kConfirmTimeout);
  v1::ConfirmActionRequest request;
  request.set_number(hang);
  v1::ConfirmActionReply reply;
  const grpc::Status status = Stub()->ConfirmAction(&context, request, &reply);
  // An earlier release: its notices are all that is known.
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    reply.set_answer(v1::ConfirmActionReply::ACT);
    return reply;
  }
  if (!status.ok()) {
    return dial_->Explain(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  if (reply.answer() == v1::ConfirmActionReply::OVER) {
    // A manager that was started again counts its hangs from 1: none of its notices may pass for one that was handed on.
    std::lock_guard lock(mutex_);
    last_number_ = 0;
  }
  return reply;
}

std::unique_ptr<v1::Supervision::Stub> SupervisionClient::Stub() const {
  // The channel was made once, so it can be made.
  return v1::Supervision::NewStub(dial_->Channel().value());
}

bool SupervisionClient::WatchOnce() {
  grpc::ClientContext context;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    watching_ = &context;
  }
  v1::WatchRequest request;
  request.set_hang_factor(options_.hang_factor);
  request.set_hang_floor_s(options_.hang_floor_s);
  request.set_first_steps_grace_s(options_.first_steps_grace_s);
  std::unique_ptr<grpc::ClientReader<v1::HangNotice>> reader = Stub()->Watch(&context, request);
  v1::HangNotice notice;
  bool any = false;
  while (reader->Read(&notice)) {
    any = true;
    bool is_new = false;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
      // After a reconnect an open hang is sent again.
      is_new = notice.number() != last_number_ || notice.hung() != last_hung_;
      last_number_ = notice.number();
      last_hung_ = notice.hung();
    }
    if (is_new && on_notice_) on_notice_(notice);
  }
  {
    std::lock_guard lock(mutex_);
    watching_ = nullptr;
  }
  context.TryCancel();
  grpc::Status status = reader->Finish();
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    spdlog::debug("the manager {} knows nothing of hangs", options_.manager);
  }
  return any;
}

void SupervisionClient::Watch() {
  milliseconds pause = kFirstPause;
  while (true) {
    if (WatchOnce()) pause = kFirstPause;
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, pause, [this] { return stopping_; })) return;
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace taskd::run
