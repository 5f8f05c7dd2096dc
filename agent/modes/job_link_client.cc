#include "agent/modes/job_link_client.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/log.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/channel.h"
#include "taskd/v1/job_link.grpc.pb.h"

namespace taskd::modes {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Stream = grpc::ClientReaderWriter<v1::NodeReport, v1::JobNotice>;

constexpr milliseconds kFlush{1000};
constexpr milliseconds kPause{100};
constexpr milliseconds kAliveInterval{2000};
// Of output that remote commands make faster than the manager takes it.
constexpr size_t kMaxQueuedOutputBytes = size_t{64} << 20;

size_t OutputBytes(const v1::NodeReport& report) {
  return report.remote().output().out().size() + report.remote().output().err().size();
}

// One thread keeps the stream and reads from it, one writes to it.
class JobLinkClientImpl final : public JobLinkClient {
 public:
  JobLinkClientImpl(Options options, Callbacks callbacks, std::unique_ptr<proto::ManagerDial> dial)
      : options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        dial_(std::move(dial)),
        writer_([this] { Write(); }),
        reader_([this] { Run(); }) {}

  ~JobLinkClientImpl() override {
    {
      std::unique_lock lock(mutex_);
      const auto until = steady_clock::now() + kFlush;
      // First, so that no callback is begun that might wait for whoever is destroying this.
      stopping_ = true;
      wake_.notify_all();
      wake_.wait_until(lock, until, [this] { return over_ || (!unsaid_ && queue_.empty() && !writing_); });
      // A cancelled stream drops what the manager has not read yet; one that is ended in order does not.
      ending_writes_ = true;
      wake_.notify_all();
      wake_.wait_until(lock, until, [this] { return over_ || stream_ == nullptr; });
      abandoned_ = true;
      if (context_ != nullptr) context_->TryCancel();
      wake_.notify_all();
    }
    reader_.join();
    writer_.join();
  }

  void Send(v1::NodeReport report) override {
    {
      std::lock_guard lock(mutex_);
      if (over_) return;
      if (report.has_remote()) {
        if (stream_ == nullptr) return;
        const size_t bytes = OutputBytes(report);
        if (queued_output_bytes_ + bytes > kMaxQueuedOutputBytes) {
          if (!std::exchange(output_dropped_, true)) {
            spdlog::warn("output of remote commands is dropped: {} MiB wait for the manager {}",
                         kMaxQueuedOutputBytes >> 20, options_.manager);
          }
          return;
        }
        queued_output_bytes_ += bytes;
      } else if (report.has_ready()) {
        options_.join.set_ready(true);
      } else if (report.has_ended()) {
        if (!options_.join.has_ended()) *options_.join.mutable_ended() = report.ended();
      } else if (report.has_mpirun()) {
        mpirun_.push_back(report);
      }
      unsaid_ = unsaid_ || !report.has_remote();
      queue_.push_back(std::move(report));
    }
    wake_.notify_all();
  }

  void Reopen() override {
    std::lock_guard lock(mutex_);
    if (stream_ != nullptr) context_->TryCancel();
  }

 private:
  void Write() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait_until(lock, alive_due_, [this] {
        return over_ || abandoned_ || (stream_ != nullptr && (!queue_.empty() || ending_writes_));
      });
      if (over_ || abandoned_) return;
      const bool alive = steady_clock::now() >= alive_due_;
      if (alive) alive_due_ = steady_clock::now() + kAliveInterval;
      if (stream_ == nullptr || (queue_.empty() && !ending_writes_ && !alive)) continue;
      Stream* stream = stream_;
      writing_ = true;
      const bool ending = ending_writes_;
      v1::NodeReport report;
      if (!ending && alive && joined_) {
        report.mutable_alive();  // before output that waits
      } else if (!ending) {
        joined_ = true;
        report = std::move(queue_.front());
        queue_.pop_front();
        queued_output_bytes_ -= OutputBytes(report);
      }
      lock.unlock();
      // What a broken stream loses is sent again on the next one, or is not missed.
      const bool written = ending ? stream->WritesDone() : stream->Write(report);
      lock.lock();
      writing_ = false;
      if (written && queue_.empty()) unsaid_ = false;
      wake_.notify_all();
      if (ending) return;
    }
  }

  // What a new stream begins with.
  void FillQueue() {
    queue_.clear();
    joined_ = false;
    queued_output_bytes_ = 0;
    output_dropped_ = false;
    v1::NodeReport first;
    *first.mutable_join() = options_.join;
    queue_.push_back(std::move(first));
    queue_.insert(queue_.end(), mpirun_.begin(), mpirun_.end());
  }

  void Run() {
    bool last = false;
    while (!last) {
      absl::Status status = RunOnce(&last);
      std::unique_lock lock(mutex_);
      if (!stopping_) {
        lock.unlock();
        if (callbacks_.lost) callbacks_.lost(status);
        lock.lock();
      }
      last = last || abandoned_ || absl::IsUnauthenticated(status) || absl::IsInvalidArgument(status) ||
             absl::IsUnimplemented(status);
      if (!last) {
        wake_.wait_for(lock, kPause, [this] { return abandoned_; });
        lock.unlock();
        dial_->Reconnect(kPause);
        lock.lock();
      }
      last = last || abandoned_ || (stopping_ && !unsaid_ && queue_.empty());
      if (last) over_ = true;
    }
    wake_.notify_all();
  }

  // `last`: the manager has sent its last message, the end of the job or a refusal.
  absl::Status RunOnce(bool* last) {
    grpc::ClientContext context;
    {
      std::lock_guard lock(mutex_);
      if (abandoned_) return absl::CancelledError("the client ends");
      context_ = &context;
    }
    // It could be made once, so it can be made.
    const std::unique_ptr<v1::JobLink::Stub> stub = v1::JobLink::NewStub(dial_->Channel().value());
    std::unique_ptr<Stream> stream = stub->Join(&context);
    {
      std::lock_guard lock(mutex_);
      FillQueue();
      stream_ = stream.get();
    }
    wake_.notify_all();
    v1::JobNotice notice;
    while (stream->Read(&notice)) {
      if (notice.has_end() || notice.has_refused()) *last = true;
      {
        std::lock_guard lock(mutex_);
        if (stopping_) continue;
      }
      if (callbacks_.notice) callbacks_.notice(notice);
    }
    {
      std::lock_guard lock(mutex_);
      stream_ = nullptr;
    }
    wake_.notify_all();
    grpc::Status status = stream->Finish();
    context.TryCancel();  // a write under way returns
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return !writing_; });
      context_ = nullptr;
    }
    return dial_->Explain(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  Options options_;  // `join` grows by what was reported; guarded by mutex_
  const Callbacks callbacks_;
  const std::unique_ptr<proto::ManagerDial> dial_;

  std::mutex mutex_;  // guards from here
  std::condition_variable wake_;
  bool stopping_ = false;   // no callbacks any more
  bool abandoned_ = false;  // nothing is sent any more
  bool over_ = false;       // there will be no other stream
  bool ending_writes_ = false;
  bool unsaid_ = false;  // something was reported and not written since
  bool writing_ = false;
  Stream* stream_ = nullptr;
  grpc::ClientContext* context_ = nullptr;  // to be cancelled
  std::deque<v1::NodeReport> queue_;
  bool joined_ = false;  // the first of a stream has left the queue
  steady_clock::time_point alive_due_ = steady_clock::now() + kAliveInterval;
  size_t queued_output_bytes_ = 0;
  bool output_dropped_ = false;
  std::vector<v1::NodeReport> mpirun_;

  std::thread writer_, reader_;  // last: they use the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<JobLinkClient>> JobLinkClient::Start(Options options, Callbacks callbacks) {
  auto dial = std::make_unique<proto::ManagerDial>(options.manager, options.security, proto::Silence::kIsWatched);
  if (absl::Status status = dial->Channel().status(); !status.ok()) return status;
  return std::make_unique<JobLinkClientImpl>(std::move(options), std::move(callbacks), std::move(dial));
}

}  // namespace taskd::modes
