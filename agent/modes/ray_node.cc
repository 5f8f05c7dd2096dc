#include "agent/modes/ray_node.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/process_tree.h"

namespace taskd::modes {
namespace {

constexpr int64_t kStopNs = 8'000'000'000;

std::string NameOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

RayNode::RayNode(EventLoop* loop, process::ChildProcesses* children, Options options)
    : loop_(loop), children_(children), options_(std::move(options)) {}

RayNode::~RayNode() { CancelTimer(); }

void RayNode::WaitForHead(std::function<void()> done) {
  if (is_head()) return done();
  head_ = std::make_unique<PortWait>(loop_, *options_.head, [this, done = std::move(done)] {
    const std::unique_ptr<PortWait> held = std::move(head_);  // it holds this function
    done();
  });
}

std::string RayNode::Missing() const {
  return absl::StrCat("Ray's head at ", FormatHostPort(*options_.head), " does not answer (",
                      head_ == nullptr ? "" : head_->last_error(), ")");
}

absl::Status RayNode::Start(std::function<void(int code)> done) {
  return children_->Start(options_.start, options_.environment, std::move(done)).status();
}

void RayNode::Started() {
  started_ = true;
  for (const process::ProcessInfo& process : process::Descendants(getpid(), {})) {
    const std::string name = NameOf(process.pid);
    if (name == "raylet" || name == "gcs_server") processes_[process.pid] = name;
  }
}

std::string RayNode::WhyEnded(pid_t pid) const {
  auto process = processes_.find(pid);
  return process == processes_.end() ? "" : absl::StrCat("Ray's ", process->second, " has ended by itself");
}

bool RayNode::Stop(std::function<void()> done) {
  absl::StatusOr<pid_t> pid =
      children_->Start({"ray", "stop"}, options_.environment, [this, done = std::move(done)](int) {
        CancelTimer();
        done();
      });
  if (!pid.ok()) return false;
  stop_timer_ = loop_->RunAfter(kStopNs, [this, pid = *pid] {
    stop_timer_.reset();
    children_->Signal(pid, SIGKILL);
  });
  return true;
}

void RayNode::CancelTimer() {
  if (stop_timer_) loop_->Cancel(*stop_timer_);
  stop_timer_.reset();
}

}  // namespace taskd::modes
