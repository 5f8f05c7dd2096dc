#include "agent/modes/mpi/rsh.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/exit_code.h"
#include "common/address.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "proto/channel.h"
#include "taskd/v1/job_link.grpc.pb.h"

namespace taskd::modes {
namespace {

using std::chrono::steady_clock;

constexpr int kFailed = 255;  // as ssh
constexpr size_t kMaxInputBytes = 64 * 1024;
// Output is read on while stdout is full, or stderr would have to wait for stdout. This much, then the command fails.
constexpr size_t kMaxWaitingBytes = size_t{64} << 20;
// For a reader of the output that takes nothing: after the command's end, and after the call has failed.
constexpr std::chrono::seconds kDrainPatience{60};
constexpr std::chrono::seconds kFailedPatience{5};

}  // namespace

const char kRshHelp[] =
    "usage: taskd rsh [SSH OPTIONS] [USER@]HOST COMMAND...\n"
    "\n"
    "Runs COMMAND with /bin/sh on the node of the job that has HOST among its names and addresses, through the job's\n"
    "manager (TASKD_MANAGER, TASKD_TOKEN, TASKD_TLS_DIR). For mpirun --mca plm_rsh_agent 'taskd rsh'. Ssh's options "
    "and\n"
    "the user are ignored, but for -n (no input). The exit code is the command's; 255 if it could not be run.\n";

namespace {

// ssh(1).
constexpr std::string_view kFlags = "46AaCfGgKkMNnqsTtVvXxYy";
constexpr std::string_view kFlagsWithValue = "BbcDEeFIiJLlmOoPpQRSWw";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// One end of the relay: what waits to be written to stdout or stderr.
class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {}

  size_t waiting() const { return waiting_; }
  int fd() const { return fd_; }
  void Push(std::string bytes) {
    if (broken_ || bytes.empty()) return;
    waiting_ += bytes.size();
    chunks_.push_back(std::move(bytes));
  }
  // Called after poll() reported room, with no more than always fits then, so it does not block.
  bool Write() {
    std::string& chunk = chunks_.front();
    const ssize_t written = write(fd_, chunk.data() + offset_, std::min<size_t>(chunk.size() - offset_, PIPE_BUF));
    if (written < 0) {
      if (errno == EINTR || errno == EAGAIN) return false;
      // The reader is gone. The command goes on and its output is discarded.
      broken_ = true;
      chunks_.clear();
      waiting_ = offset_ = 0;
      return true;
    }
    offset_ += static_cast<size_t>(written);
    waiting_ -= static_cast<size_t>(written);
    if (offset_ == chunk.size()) {
      chunks_.pop_front();
      offset_ = 0;
    }
    return written > 0;
  }

 private:
  const int fd_;
  bool broken_ = false;
  std::deque<std::string> chunks_;
  size_t offset_ = 0;  // in the first
  size_t waiting_ = 0;
};

// The call. Its reactions only take note and wake the relay's loop.
class Call final : public grpc::ClientBidiReactor<v1::RemoteInput, v1::RemoteOutput> {
 public:
  Call(v1::JobLink::Stub& stub, grpc::ClientContext* context, int wake_fd, v1::RemoteInput first)
      : wake_fd_(wake_fd), input_(std::move(first)) {
    stub.async()->Remote(context, this);
    AddHold();  // for the writes, which the loop starts
    StartWrite(&input_);
    StartRead(&output_);
    StartCall();
  }

  // From the loop. At most one at a time, and none after DoneWriting.
  void Write(v1::RemoteInput input) {
    {
      std::lock_guard lock(mutex_);
      can_write_ = false;
    }
    input_ = std::move(input);
    StartWrite(&input_);
  }
  void DoneWriting() {
    if (!std::exchange(released_, true)) RemoveHold();
  }
  bool can_write() {
    std::lock_guard lock(mutex_);
    return can_write_;
  }
  bool read_over() {
    std::lock_guard lock(mutex_);
    return read_over_;
  }
  std::deque<v1::RemoteOutput> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(outputs_, {});
  }
  std::optional<grpc::Status> status() {
    std::lock_guard lock(mutex_);
    return status_;
  }

  void OnReadDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      if (ok) {
        outputs_.push_back(std::move(output_));
      } else {
        read_over_ = true;
      }
    }
    if (ok) StartRead(&output_);
    Wake();
  }
  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      can_write_ = ok;
    }
    Wake();
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);  // whoever sees the status may destroy this
    status_ = status;
    Wake();
  }

 private:
  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  }

  const int wake_fd_;
  v1::RemoteInput input_;
  v1::RemoteOutput output_;
  bool released_ = false;

  std::mutex mutex_;  // guards from here
  bool can_write_ = false;
  bool read_over_ = false;
  std::deque<v1::RemoteOutput> outputs_;
  std::optional<grpc::Status> status_;
};

volatile sig_atomic_t caught_signal = 0;
int signal_wake_fd = -1;

void OnSignal(int signal) {
  const int saved = errno;
  caught_signal = signal;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(signal_wake_fd, &one, sizeof(one));
  errno = saved;
}

// Without SA_RESTART: a write that blocks after all ends too. What our parent had ignored stays so.
void CatchSignals(int wake_fd) {
  signal_wake_fd = wake_fd;
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = OnSignal;
    sigaction(signal, &action, nullptr);
  }
  signal(SIGPIPE, SIG_IGN);
}

// mpirun may have closed some of the standard files. The next file that is opened must not take their place, and what
// a library's initialization has put there already (it closes on exec, so it was not given to us) is not ours to use.
std::array<int, 3> StandardFiles() {
  std::array<int, 3> files = {};
  for (int fd = 0; fd <= 2; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    const bool is_ours = flags >= 0 && (flags & FD_CLOEXEC) == 0;
    files[static_cast<size_t>(fd)] = is_ours ? fd : open("/dev/null", O_RDWR);
  }
  return files;
}

class Relay {
 public:
  Relay(v1::JobLink::Stub& stub, const RshOptions& options, const std::array<int, 3>& files)
      : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        in_fd_(files[0]),
        input_open_(!options.no_input),
        out_(files[1]),
        err_(files[2]) {
    CatchSignals(wake_fd_);
    v1::RemoteInput start;
    start.mutable_start()->set_host(ValidUtf8(options.host));
    start.mutable_start()->set_command(options.command);
    call_.emplace(stub, &context_, wake_fd_, std::move(start));
  }

  // The command's exit code.
  absl::StatusOr<int> Run() {
    steady_clock::time_point progress = steady_clock::now();
    while (caught_signal == 0) {
      if (TakeOutputs()) progress = steady_clock::now();
      if (out_.waiting() + err_.waiting() > kMaxWaitingBytes) {
        return End(absl::ResourceExhaustedError(
            absl::StrCat(kMaxWaitingBytes >> 20, " MiB of output wait for somebody who does not take them")));
      }
      const bool drained = out_.waiting() + err_.waiting() == 0;
      const bool over = code_ || call_->read_over();
      if (over && drained && TakeOutputs()) continue;  // the last came in between
      if (over && drained) return End(absl::OkStatus());
      if (over && !code_ && steady_clock::now() > progress + kFailedPatience) return End(absl::OkStatus());
      if (over && steady_clock::now() > progress + kDrainPatience) {
        return End(absl::DeadlineExceededError(
            absl::StrCat("its output was not taken for ", kDrainPatience.count(), " s after its end")));
      }
      if (Poll(over)) progress = steady_clock::now();
    }
    return End(absl::CancelledError(""));
  }

 private:
  bool TakeOutputs() {
    bool any = false;
    for (v1::RemoteOutput& output : call_->Take()) {
      any = true;
      switch (output.kind_case()) {
        case v1::RemoteOutput::kOut:
          out_.Push(std::move(*output.mutable_out()));
          break;
        case v1::RemoteOutput::kErr:
          err_.Push(std::move(*output.mutable_err()));
          break;
        case v1::RemoteOutput::kEnded:
          code_ = output.ended();
          break;
        case v1::RemoteOutput::KIND_NOT_SET:  // a later release's
          break;
      }
    }
    return any;
  }

  // Waits until something can be done, and does it. True: some output was written.
  bool Poll(bool over) {
    const bool can_write = !over && call_->can_write();
    if (can_write && !input_open_ && !std::exchange(input_end_said_, true)) {
      v1::RemoteInput end;
      end.set_input_end(true);
      call_->Write(std::move(end));
      return false;
    }
    // poll skips negative ones.
    std::array<pollfd, 4> files = {pollfd{wake_fd_, POLLIN, 0},
                                   pollfd{can_write && input_open_ ? in_fd_ : -1, POLLIN, 0},
                                   pollfd{out_.waiting() > 0 ? out_.fd() : -1, POLLOUT, 0},
                                   pollfd{err_.waiting() > 0 ? err_.fd() : -1, POLLOUT, 0}};
    if (poll(files.data(), files.size(), over ? 1000 : -1) <= 0) return false;
    uint64_t count = 0;
    if (files[0].revents != 0) [[maybe_unused]]
      const ssize_t bytes = read(wake_fd_, &count, sizeof(count));
    if (files[1].revents != 0) ReadInput();
    bool progress = false;
    if (files[2].revents != 0) progress = out_.Write();
    if (files[3].revents != 0) progress = err_.Write() || progress;
    return progress;
  }

  void ReadInput() {
    std::string bytes(kMaxInputBytes, '\0');
    const ssize_t count = read(in_fd_, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count <= 0) {
      input_open_ = false;
      return;
    }
    bytes.resize(static_cast<size_t>(count));
    v1::RemoteInput input;
    input.set_input(std::move(bytes));
    call_->Write(std::move(input));
  }

  // Ends the call and returns how it ended: `status` if that is not OK.
  absl::StatusOr<int> End(const absl::Status& status) {
    if (!status.ok()) context_.TryCancel();
    call_->DoneWriting();
    std::optional<grpc::Status> ended;
    while (!(ended = call_->status())) {
      if (caught_signal != 0) context_.TryCancel();
      pollfd file = {wake_fd_, POLLIN, 0};
      uint64_t count = 0;
      if (poll(&file, 1, -1) > 0) [[maybe_unused]]
        const ssize_t bytes = read(wake_fd_, &count, sizeof(count));
    }
    if (!status.ok()) return status;
    if (code_) return *code_ >= 0 && *code_ <= 255 ? *code_ : kFailed;
    if (caught_signal != 0) return absl::CancelledError("");
    if (ended->ok()) return absl::InternalError("the manager did not say how it ended");
    return absl::Status(static_cast<absl::StatusCode>(ended->error_code()), ended->error_message());
  }

  const int wake_fd_;
  const int in_fd_;
  grpc::ClientContext context_;
  std::optional<Call> call_;
  bool input_open_;
  bool input_end_said_ = false;
  Sink out_, err_;
  std::optional<int> code_;
};

int Fail(int code, std::string line) {
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  std::cerr << absl::StrCat("taskd rsh: ", Printable(line, kShownLineBytes), "\n") << std::flush;
  return code;
}

}  // namespace

absl::StatusOr<RshOptions> ParseRshOptions(const std::vector<std::string>& arguments) {
  RshOptions options;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word == "--help" || word == "-h") {
      options.help = true;
      return options;
    }
    if (word.size() < 2 || word[0] != '-') break;
    for (size_t at = 1; at < word.size(); ++at) {
      if (kFlagsWithValue.find(word[at]) != std::string_view::npos) {
        if (at + 1 == word.size() && ++i == arguments.size()) {
          return absl::InvalidArgumentError(absl::StrCat("-", std::string(1, word[at]), ": a value is missing"));
        }
        break;
      }
      if (kFlags.find(word[at]) == std::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("'", word, "': ssh has no such option"));
      }
      options.no_input = options.no_input || word[at] == 'n';
    }
  }
  if (i < arguments.size()) options.host = arguments[i++];
  options.host = options.host.substr(options.host.rfind('@') + 1);  // npos + 1 is 0
  if (options.host.empty()) return absl::InvalidArgumentError("HOST is missing");
  for (size_t first = i; i < arguments.size(); ++i)
    absl::StrAppend(&options.command, i > first ? " " : "", arguments[i]);
  if (options.command.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(options.host, ": COMMAND is missing (there is no login)"));
  }
  return options;
}

int RunRshCommand(const std::vector<std::string>& arguments) {
  const std::array<int, 3> files = StandardFiles();
  absl::StatusOr<RshOptions> options = ParseRshOptions(arguments);
  if (!options.ok()) return Fail(process::kWrongUsage, std::string(options.status().message()));
  if (options->help) {
    std::cout << kRshHelp << std::flush;
    return 0;
  }
  const std::string manager = Variable("TASKD_MANAGER");
  if (manager.empty()) return Fail(process::kWrongUsage, "TASKD_MANAGER is not set: HOST:PORT of the job's manager");
  absl::StatusOr<HostPort> address = ParseHostPort("TASKD_MANAGER", manager);
  if (!address.ok()) return Fail(process::kWrongUsage, std::string(address.status().message()));
  const proto::Security security{
      .tls_dir = Variable("TASKD_TLS_DIR"), .secret = Variable("TASKD_TOKEN"), .tls_name = Variable("TASKD_TLS_NAME")};
  InitLog("rsh");
  proto::InitGrpcLog();
  // The node's `taskd run` watches the manager, and ends mpirun with all that it has started.
  proto::ManagerDial dial(manager, security, proto::Silence::kIsWatched);
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = dial.Channel();
  if (!channel.ok()) return Fail(process::kWrongUsage, std::string(channel.status().message()));
  std::unique_ptr<v1::JobLink::Stub> stub = v1::JobLink::NewStub(*channel);
  absl::StatusOr<int> code = Relay(*stub, *options, files).Run();
  if (code.ok()) return *code;
  if (caught_signal != 0) return kFailed;  // mpirun ends its agents so: no news
  const absl::Status why = dial.Explain(code.status().code(), std::string(code.status().message()));
  return Fail(kFailed, absl::StrCat(options->host, ": ", std::string(why.message())));
}

}  // namespace taskd::modes
