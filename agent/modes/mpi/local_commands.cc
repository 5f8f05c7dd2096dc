#include "agent/modes/mpi/local_commands.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace taskd::modes {
namespace {

constexpr size_t kChunk = 64 * 1024;
constexpr size_t kMaxInput = 16 << 20;
constexpr int kCannotExecute = 127;

// One end for this process, which does not block; the other for the command.
bool MakePipe(UniqueFd* ours, UniqueFd* theirs, bool we_read) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  ours->reset(ends[we_read ? 0 : 1]);
  theirs->reset(ends[we_read ? 1 : 0]);
  return fcntl(ours->get(), F_SETFL, O_NONBLOCK) == 0;
}

}  // namespace

LocalCommands::LocalCommands(EventLoop* loop, process::ChildProcesses* children,
                             std::map<std::string, std::string> environment, std::function<void(v1::NodeReport)> send)
    : loop_(loop), children_(children), environment_(std::move(environment)), send_(std::move(send)) {}

LocalCommands::~LocalCommands() {
  *alive_ = false;
  for (int fd : watched_) loop_->Remove(fd);
}

v1::NodeReport LocalCommands::Report(uint64_t id) const {
  v1::NodeReport report;
  report.mutable_remote()->set_id(id);
  return report;
}

void LocalCommands::On(const v1::RemoteCommand& command) {
  const uint64_t id = command.id();
  if (command.kind_case() == v1::RemoteCommand::kStart) return Start(id, command.start());
  auto found = commands_.find(id);
  if (found == commands_.end()) return;
  Command& known = found->second;
  switch (command.kind_case()) {
    case v1::RemoteCommand::kInput:
      if (known.input.size() + command.input().size() <= kMaxInput) known.input += command.input();
      Write(id);
      break;
    case v1::RemoteCommand::kInputEnd:
      known.input_ends = true;
      Write(id);
      break;
    case v1::RemoteCommand::kCancel:
      children_->Signal(known.pid, SIGTERM);
      break;
    default:
      break;
  }
}

bool LocalCommands::AnyRuns() const {
  return std::any_of(commands_.begin(), commands_.end(), [](const auto& entry) { return entry.second.code < 0; });
}

bool LocalCommands::End(std::function<void()> done) {
  if (!AnyRuns()) return false;
  ended_ = std::move(done);
  for (const auto& [id, command] : commands_) {
    if (command.code < 0) children_->Signal(command.pid, SIGTERM);
  }
  return true;
}

void LocalCommands::Start(uint64_t id, const std::string& text) {
  if (commands_.contains(id)) return;
  Command command;
  UniqueFd in, out, err;
  absl::StatusOr<pid_t> pid = absl::UnavailableError("");
  if (MakePipe(&command.in, &in, false) && MakePipe(&command.out, &out, true) && MakePipe(&command.err, &err, true)) {
    pid = children_->Start(
        {"/bin/sh", "-c", text}, environment_,
        [this, id, alive = std::weak_ptr<bool>(alive_)](int code) {
          const std::shared_ptr<bool> here = alive.lock();
          if (!here || !*here) return;
          commands_[id].code = code;
          EndIfDone(id);
          if (ended_ && !AnyRuns()) std::exchange(ended_, nullptr)();
        },
        out.get(), err.get(), in.get(), false);
  } else {
    pid = absl::UnavailableError(std::strerror(errno));
  }
  if (!pid.ok()) {
    spdlog::warn("a command of node 0's mpirun cannot be started: {}", pid.status().message());
    v1::NodeReport error = Report(id);
    error.mutable_remote()->mutable_output()->set_err(absl::StrCat(std::string(pid.status().message()), "\n"));
    send_(error);
    v1::NodeReport ended = Report(id);
    ended.mutable_remote()->mutable_output()->set_ended(kCannotExecute);
    send_(ended);
    return;
  }
  command.pid = *pid;
  const int out_fd = command.out.get();
  const int err_fd = command.err.get();
  commands_[id] = std::move(command);
  Watch(out_fd, EPOLLIN, [this, id](uint32_t) { Read(id, true); });
  Watch(err_fd, EPOLLIN, [this, id](uint32_t) { Read(id, false); });
}

void LocalCommands::Watch(int fd, uint32_t events, EventLoop::FdCallback callback) {
  watched_.insert(fd);
  loop_->Add(fd, events, std::move(callback));
}

void LocalCommands::Unwatch(UniqueFd& fd) {
  if (watched_.erase(fd.get()) > 0) loop_->Remove(fd.get());
  fd.reset();
}

void LocalCommands::Write(uint64_t id) {
  Command& command = commands_[id];
  if (!command.in.valid()) return;
  while (!command.input.empty()) {
    const ssize_t sent = write(command.in.get(), command.input.data(), command.input.size());
    if (sent > 0) {
      command.input.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!watched_.contains(command.in.get())) {
        Watch(command.in.get(), EPOLLOUT, [this, id](uint32_t) { Write(id); });
      }
      return;
    } else if (errno != EINTR) {  // its reader is gone
      command.input.clear();
      return Unwatch(command.in);
    }
  }
  if (command.input_ends) return Unwatch(command.in);
  if (watched_.erase(command.in.get()) > 0) loop_->Remove(command.in.get());
}

void LocalCommands::Read(uint64_t id, bool is_out) {
  Command& command = commands_[id];
  UniqueFd& fd = is_out ? command.out : command.err;
  std::string bytes(kChunk, '\0');
  const ssize_t got = read(fd.get(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    Unwatch(fd);
    return EndIfDone(id);
  }
  bytes.resize(static_cast<size_t>(got));
  v1::NodeReport report = Report(id);
  v1::RemoteOutput* output = report.mutable_remote()->mutable_output();
  is_out ? output->set_out(std::move(bytes)) : output->set_err(std::move(bytes));
  send_(std::move(report));
}

void LocalCommands::EndIfDone(uint64_t id) {
  Command& command = commands_[id];
  if (command.code < 0 || command.out.valid() || command.err.valid()) return;
  v1::NodeReport report = Report(id);
  report.mutable_remote()->mutable_output()->set_ended(command.code);
  Unwatch(command.in);
  commands_.erase(id);
  send_(std::move(report));
}

}  // namespace taskd::modes
