#include "proxy/cpu_wait.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace taskd::proxy {
namespace {

constexpr double kStays = 0.9;  // of what a thread ran, from one look to the next

// Of the thread whose folder that is.
std::optional<Schedstat> ReadSchedstat(int tasks, const char* thread) {
  const UniqueFd file(openat(tasks, absl::StrCat(thread, "/schedstat").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return std::nullopt;
  std::array<char, 96> text;
  const ssize_t size = read(file.get(), text.data(), text.size());
  if (size <= 0) return std::nullopt;
  return ParseSchedstat({text.data(), static_cast<size_t>(size)});
}

}  // namespace

// "time on a CPU, time that it waited for one, time slices".
std::optional<Schedstat> ParseSchedstat(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  Schedstat stat;
  if (fields.size() < 3 || !absl::SimpleAtoi(fields[0], &stat.ran_ns) ||
      !absl::SimpleAtoi(fields[1], &stat.waited_ns)) {
    return std::nullopt;
  }
  return stat;
}

void CpuWaits::Add(uint64_t now_ns, uint64_t waited_ns) {
  if (!looks_.empty() && (now_ns <= looks_.back().at_ns || waited_ns < looks_.back().waited_ns)) return;
  if (looks_.size() == kMostLooks) {
    // Every second one goes; the first one stays.
    size_t kept = 0;
    for (size_t i = 0; i < looks_.size(); i += 2) looks_[kept++] = looks_[i];
    looks_.resize(kept);
  }
  looks_.push_back({now_ns, waited_ns});
}

double CpuWaits::Until(uint64_t time_ns) const {
  const auto after = std::lower_bound(looks_.begin(), looks_.end(), time_ns,
                                      [](const Look& look, uint64_t time) { return look.at_ns < time; });
  if (after->at_ns == time_ns) return static_cast<double>(after->waited_ns);
  const auto before = after - 1;
  const double share = static_cast<double>(time_ns - before->at_ns) / static_cast<double>(after->at_ns - before->at_ns);
  return static_cast<double>(before->waited_ns) + share * static_cast<double>(after->waited_ns - before->waited_ns);
}

std::optional<uint64_t> CpuWaits::Between(uint64_t begin_ns, uint64_t end_ns) const {
  if (looks_.empty() || begin_ns < looks_.front().at_ns || end_ns > looks_.back().at_ns || end_ns < begin_ns) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(std::max(0.0, Until(end_ns) - Until(begin_ns)));
}

absl::flat_hash_map<int, CpuWaitMeter::Thread> CpuWaitMeter::ReadThreads() const {
  absl::flat_hash_map<int, Thread> threads;
  // Another description of the folder, which begins at its begin.
  const int folder = openat(tasks_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = folder < 0 ? nullptr : fdopendir(folder);
  if (listing == nullptr) return threads;
  while (const dirent* entry = readdir(listing)) {
    int id = 0;
    if (!absl::SimpleAtoi(entry->d_name, &id) || threads.size() == kMostThreads) continue;
    const std::optional<Schedstat> now = ReadSchedstat(folder, entry->d_name);
    if (!now) continue;
    Thread thread;  // a new one has begun since the last look
    if (const auto known = threads_.find(id); known != threads_.end()) thread = known->second;
    if (now->ran_ns < thread.now.ran_ns || now->waited_ns < thread.now.waited_ns) thread = Thread();
    thread.ran_of_late = kStays * thread.ran_of_late + static_cast<double>(now->ran_ns - thread.now.ran_ns);
    thread.waited_ns = now->waited_ns - thread.now.waited_ns;
    thread.now = *now;
    threads.emplace(id, thread);
  }
  closedir(listing);
  return threads;
}

void CpuWaitMeter::Look(pid_t pid, uint64_t now_ns) {
  if (!std::exchange(opened_, true)) {
    tasks_ = UniqueFd(open(absl::StrCat("/proc/", pid, "/task").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  absl::flat_hash_map<int, Thread> threads = ReadThreads();
  last_look_ns_ = now_ns;
  next_look_ns_ = now_ns + std::max(kLookEveryNs, kPerThreadNs * threads.size());
  next_of_step_ns_ = now_ns + kPerThreadOfStepNs * threads.size();
  if (threads.empty()) return;
  if (!threads_.empty()) {  // else it is of a time before
    double most_ran = 0;
    for (const auto& [id, thread] : threads) most_ran = std::max(most_ran, thread.ran_of_late);
    uint64_t most_waited_ns = 0;
    for (const auto& [id, thread] : threads) {
      if (thread.ran_of_late >= most_ran / 2) most_waited_ns = std::max(most_waited_ns, thread.waited_ns);
    }
    waited_ns_ += most_waited_ns;
  }
  waits_.Add(now_ns, waited_ns_);
  threads_ = std::move(threads);
}

}  // namespace taskd::proxy
