#include "common/switch_file.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/log.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

constexpr int kPollMs = 1000;
constexpr size_t kMaxFileBytes = size_t{1024} * 1024;

// The whole file, or nothing where there is none to read. One byte above the limit is kept, so that the parser sees
// that there was more.
std::optional<std::string> ReadSwitchFile(const std::string& path) {
  // O_NONBLOCK: a FIFO in its place must not hold the thread.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!fd.valid() || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::string content;
  char buffer[4096];
  while (content.size() <= kMaxFileBytes) {
    ssize_t got = read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    content.append(buffer, static_cast<size_t>(got));
  }
  return content;
}

}  // namespace

class SwitchFileWatcher::Impl {
 public:
  Impl(std::string path, std::function<void(const SwitchChange&)> on_change)
      : path_(std::move(path)), on_change_(std::move(on_change)) {
    size_t slash = path_.rfind('/');
    folder_ = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
    name_ = slash == std::string::npos ? path_ : path_.substr(slash + 1);
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      WatchFolder();
      Look();
      if (!WaitForEvent()) return;
    }
  }

  // The folder may appear, vanish or be replaced at any time; a watch that is already there is only confirmed.
  void WatchFolder() {
    if (!inotify_.valid()) return;
    inotify_add_watch(inotify_.get(), folder_.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_ONLYDIR);
  }

  void Look() {
    std::optional<std::string> content = ReadSwitchFile(path_);
    // Empty: it is being written right now.
    if (!content.has_value() || content->empty() || content == last_content_) return;
    last_content_ = std::move(content);
    absl::StatusOr<SwitchChange> change = ParseSwitchJson(*last_content_);
    if (!change.ok()) {
      spdlog::warn("{} is ignored: {}", path_, change.status().message());
      return;
    }
    if (last_change_ == *change) return;
    last_change_ = *change;
    on_change_(*change);
  }

  // Waits for something that may concern the file, at most kPollMs. False: stop.
  bool WaitForEvent() {
    timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    int left_ms = kPollMs;
    while (true) {
      pollfd fds[2] = {{stop_.get(), POLLIN, 0}, {inotify_.get(), POLLIN, 0}};
      int ready = poll(fds, inotify_.valid() ? 2 : 1, left_ms);
      if (fds[0].revents != 0) return false;
      if (ready == 0) return true;
      if (ready > 0 && DrainEvents()) return true;
      timespec now;
      clock_gettime(CLOCK_MONOTONIC, &now);
      left_ms =
          kPollMs - static_cast<int>((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000);
      if (left_ms <= 0) return true;
    }
  }

  // True if one of the events is about the file, or about Kubernetes' own links beside it ("..data").
  bool DrainEvents() {
    alignas(inotify_event) char buffer[4096];
    ssize_t got = read(inotify_.get(), buffer, sizeof buffer);
    bool ours = false;
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      std::string_view name = event->len > 0 ? std::string_view(event->name) : std::string_view();
      ours = ours || name == name_ || name.substr(0, 2) == ".." || (event->mask & IN_Q_OVERFLOW) != 0;
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
    return ours;
  }

  const std::string path_;
  const std::function<void(const SwitchChange&)> on_change_;
  std::string folder_;
  std::string name_;
  UniqueFd stop_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  UniqueFd inotify_{inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};  // without one there is still the poll
  std::optional<std::string> last_content_;
  std::optional<SwitchChange> last_change_;
  std::thread thread_;
};

SwitchFileWatcher::SwitchFileWatcher(std::string path, std::function<void(const SwitchChange&)> on_change)
    : impl_(std::make_unique<Impl>(std::move(path), std::move(on_change))) {}

SwitchFileWatcher::~SwitchFileWatcher() = default;

}  // namespace taskd
