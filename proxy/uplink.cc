#include "proxy/uplink.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/rank_report.h"
#include "common/utf8.h"
#include "proto/channel.h"
#include "proto/node_messages.h"
#include "proto/stream_connection.h"
#include "proxy/fold_sender.h"
#include "proxy/tick_clock.h"
#include "taskd/v1/node.grpc.pb.h"

namespace taskd::proxy {
namespace {

constexpr uint64_t kMs = 1'000'000;  // in ns
// Of reports while only counters move. A message costs the manager, whatever is in it: a report that goes with folds may
// be early, so that both arrive as one.
constexpr uint64_t kReportIntervalNs = 1'000 * kMs;
constexpr uint64_t kReportEarlyNs = 500 * kMs;
// A name that is too long to be one stays too long.
constexpr size_t kMaxNameBytes = 256;
constexpr uint64_t kSilenceNs = 1'500 * kMs;  // then it says that it is alive
// The ranks of a node end a step together: as long the first one's fold waits for the others'.
constexpr int kGatherMs = 20;
// At the end, for the manager to take what is written last.
constexpr auto kLastFoldsPatience = std::chrono::milliseconds(200);
constexpr auto kReconnectInterval = std::chrono::milliseconds(200);

using Stream = grpc::ClientReaderWriter<v1::NodeMessage, v1::ManagerMessage>;

// Distinguishes the lives of a proxy; never 0.
uint64_t NewLife() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;
}

}  // namespace

class Uplink::Impl {
 public:
  Impl(Options options, Node* node, Callbacks callbacks)
      : options_(std::move(options)),
        dial_(options_.manager, options_.security),
        node_(node),
        folds_(node),
        callbacks_(std::move(callbacks)) {}
  ~Impl() { Stop(); }

  absl::Status Start() {
    if (absl::Status status = dial_.Channel().status(); !status.ok()) return status;
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  void Stop() {
    ending_ = true;
    node_->WakeWaiters();
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait_for(lock, kLastFoldsPatience, [this] { return !spoke_ || context_ == nullptr; });
      stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    wake_.notify_all();
    node_->WakeWaiters();
    if (thread_.joinable()) thread_.join();
  }

  void ExpectEnd() { expects_end_ = true; }

  void Queue(v1::NodeMessage message) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (context_ == nullptr) return;  // no stream waits for it any more
      queue_.push_back(std::move(message));
    }
    node_->WakeWaiters();
  }

 private:
  void Loop() {
    std::string last_error;
    while (true) {
      const grpc::Status status = RunStream();
      const absl::Status ended =
          dial_.Explain(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
      std::unique_lock<std::mutex> lock(mutex_);
      if (stopping_ || ending_) return;
      // The same trouble twice is not news.
      std::string error = ended.ToString();
      // One that ends in order is none; if it does not come back, that is what the next try finds.
      const bool in_order = ended.message() == kManagerIsEnding;
      if (error != last_error && !expects_end_ && !in_order) {
        spdlog::warn("manager {}: {}; trying again", options_.manager,
                     ended.message().empty() ? "closed the stream" : ended.message());
      }
      last_error = std::move(error);
      if (spoke_) last_error.clear();
      wake_.wait_for(lock, kReconnectInterval, [this] { return stopping_ || ending_; });
      if (stopping_ || ending_) return;
    }
  }

  grpc::Status RunStream() {
    grpc::ClientContext context;
    context.AddMetadata(proto::kOnlyCall, "1");  // dial_ is for this stream alone
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return grpc::Status::CANCELLED;
      context_ = &context;
      queue_.clear();
      reader_done_ = false;
      spoke_ = false;
    }
    // It could be made once, so it can be made.
    folds_.Begin();
    const std::unique_ptr<v1::NodeLink::Stub> stub = v1::NodeLink::NewStub(dial_.Channel().value());
    std::unique_ptr<Stream> stream = stub->Connect(&context);
    const bool open = WriteHello(*stream);
    std::thread reader([&] { Read(*stream); });
    if (open) WriteNews(*stream);
    reader.join();
    folds_.End();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      context_ = nullptr;
    }
    wake_.notify_all();
    if (spoke_) callbacks_.on_connected(false);
    return stream->Finish();
  }

  bool WriteHello(Stream& stream) {
    v1::NodeMessage message;
    v1::NodeHello* hello = message.mutable_hello();
    hello->set_node_rank(options_.node_rank);
    hello->set_host(options_.node.host);
    hello->set_pod(CutUtf8(ValidUtf8(options_.node.pod), kMaxNameBytes));
    hello->set_node_name(CutUtf8(ValidUtf8(options_.node.node_name), kMaxNameBytes));
    hello->set_machine(options_.node.machine);
    hello->set_identity(ValidUtf8(options_.identity));
    hello->set_version(TASKD_VERSION);
    hello->set_says_alive(true);
    hello->set_life(life_);
    FillMarkFiles(hello->mutable_mark_files());
    return stream.Write(message);
  }

  // As last told on this stream, and what the hello says.
  void FillMarkFiles(v1::MarkFiles* message) {
    file_trouble_told_ = node_->file_trouble();
    message->set_dir(Printable(options_.mark_folder, kShownLineBytes));
    message->set_task(Printable(options_.task_folder, kShownLineBytes));
    const std::string& error = options_.mark_folder.empty() ? options_.no_mark_files : file_trouble_told_;
    message->set_error(Printable(error, kShownLineBytes));
  }

  bool WriteMarkFiles(Stream& stream) {
    if (node_->file_trouble() == file_trouble_told_) return true;
    v1::NodeMessage message;
    FillMarkFiles(message.mutable_mark_files());
    return stream.Write(message);
  }

  // Writes whatever is new, until the stream ends or Stop.
  void WriteNews(Stream& stream) {
    Node::Versions reported;
    uint64_t reported_ns = 0, wrote_ns = 0, folds_from_ns = 0;
    for (bool open = true; open;) {
      const bool ending = ending_;  // before a look at what there is to write
      const Node::Versions versions = node_->versions();
      const bool urgent = versions.urgent != reported.urgent;
      const uint64_t now_ns = ReadMonotonicNs();
      // Once the manager has spoken: before that a stream may go nowhere, and the folds with it.
      const bool folds =
          spoke_ && folds_.has_room() && node_->has_folds() && (now_ns >= folds_from_ns || urgent || ending);
      const bool report = urgent || (versions.all != reported.all &&
                                     now_ns >= reported_ns + (folds ? kReportEarlyNs : kReportIntervalNs));
      open = WriteQueued(stream) && WriteMarkFiles(stream) && (!folds || WriteFolds(stream, report)) &&
             (!report || WriteRanks(stream)) &&
             (folds || report || now_ns < wrote_ns + kSilenceNs || WriteAlive(stream));
      if (folds || report || now_ns >= wrote_ns + kSilenceNs) wrote_ns = now_ns;
      if (report) {
        reported = versions;
        reported_ns = now_ns;
      }
      if (folds) folds_from_ns = now_ns + options_.fold_interval_ns;
      if (open && ending) {
        stream.WritesDone();
        return;
      }
      if (open) Wait(reported, reported_ns, wrote_ns, folds_from_ns);
      std::lock_guard<std::mutex> lock(mutex_);
      open = open && !reader_done_ && !stopping_;
    }
  }

  // Until something is to be written.
  void Wait(const Node::Versions& reported, uint64_t reported_ns, uint64_t wrote_ns, uint64_t folds_from_ns) {
    const uint64_t now_ns = ReadMonotonicNs();
    const bool for_folds = spoke_ && folds_.has_room();
    uint64_t until_ns = reported_ns + kReportIntervalNs;
    if (until_ns <= now_ns) until_ns = now_ns + kReportEarlyNs;  // nobody tells that counters move
    until_ns = std::min(until_ns, wrote_ns + kSilenceNs);
    if (for_folds && folds_from_ns > now_ns) until_ns = std::min(until_ns, folds_from_ns);
    const uint64_t wait_ms = until_ns > now_ns ? (until_ns - now_ns) / kMs + 1 : 0;
    const bool folds_may_come = for_folds && folds_from_ns <= now_ns;
    node_->WaitForChange(reported.urgent, static_cast<int>(wait_ms), folds_may_come);
    if (folds_may_come && node_->has_folds()) node_->WaitForChange(reported.urgent, kGatherMs, false);
  }

  void Read(Stream& stream) {
    v1::ManagerMessage message;
    while (stream.Read(&message)) {
      if (message.has_wanted()) {
        auto received = std::chrono::steady_clock::now();
        if (!spoke_) {
          spoke_ = true;
          spdlog::info("connected to manager {}", options_.manager);
          callbacks_.on_connected(true);
        }
        callbacks_.on_wanted({proto::ReadKinds(message.wanted().kinds()), message.wanted().revision()});
        double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - received).count();
        Answer(message.wanted().revision(), ms);
      } else if (message.has_agent_call()) {
        const v1::AgentCall& call = message.agent_call();
        callbacks_.on_agent_call(call.id(), call.operator_(), call.args_json());
      } else if (message.has_folds_taken()) {
        const bool waited = !folds_.has_room();
        folds_.Taken(message.folds_taken().sets());
        if (waited) node_->WakeWaiters();
      }
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      reader_done_ = true;
    }
    node_->WakeWaiters();
  }

  // What became of the wanted state in each rank of the node, as far as it is known; the others follow in a report.
  void Answer(uint64_t revision, double ms) {
    v1::NodeMessage message;
    message.mutable_applied()->set_revision(revision);
    for (RankAnswer& answer : node_->Answers(revision)) {
      if (answer.state == RankAnswer::State::kApplied) answer.ms = ms;
      proto::FillRankAnswer(answer, message.mutable_applied()->add_ranks());
    }
    Queue(std::move(message));
  }

  bool WriteQueued(Stream& stream) {
    while (true) {
      v1::NodeMessage message;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (queue_.empty()) return true;
        message = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!stream.Write(message)) return false;
    }
  }

  // `more`: another message follows at once.
  bool WriteFolds(Stream& stream, bool more) {
    grpc::WriteOptions options;
    if (more) options.set_buffer_hint();
    return folds_.Write([&](const v1::NodeMessage& message) { return stream.Write(message, options); });
  }

  static bool WriteAlive(Stream& stream) {
    v1::NodeMessage message;
    message.mutable_alive();
    return stream.Write(message);
  }

  bool WriteRanks(Stream& stream) {
    v1::NodeMessage message;
    v1::RankSet* ranks = message.mutable_ranks();
    for (const RankReport& report : node_->Reports()) proto::FillRankReport(report, ranks->add_ranks());
    return stream.Write(message);
  }

  const Options options_;
  proto::ManagerDial dial_;
  Node* const node_;
  FoldSender folds_;
  const uint64_t life_ = NewLife();
  const Callbacks callbacks_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  bool reader_done_ = false;
  std::atomic<bool> expects_end_{false};
  std::atomic<bool> ending_{false};  // what there is goes out at once, and nothing after it
  std::atomic<bool> spoke_{false};   // the manager, on the present stream
  grpc::ClientContext* context_ = nullptr;
  std::deque<v1::NodeMessage> queue_;
  std::string file_trouble_told_;  // on the present stream; the writer's
};

Uplink::Uplink(Options options, Node* node, Callbacks callbacks)
    : impl_(std::make_unique<Impl>(std::move(options), node, std::move(callbacks))) {}
Uplink::~Uplink() = default;
absl::Status Uplink::Start() { return impl_->Start(); }
void Uplink::Stop() { impl_->Stop(); }
void Uplink::ExpectEnd() { impl_->ExpectEnd(); }

void Uplink::SendAgentAnswer(const AgentAnswer& answer) {
  v1::NodeMessage message;
  message.mutable_agent_reply()->set_id(answer.id);
  message.mutable_agent_reply()->set_ok(answer.ok);
  message.mutable_agent_reply()->set_message(ValidUtf8(answer.message));
  impl_->Queue(std::move(message));
}

}  // namespace taskd::proxy
