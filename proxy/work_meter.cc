#include "proxy/work_meter.h"

#include <dirent.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "proxy/stop_meter.h"

namespace taskd::proxy {
namespace {

constexpr size_t kMaxThreads = 1024;

// Each child is listed with the thread that started it.
void AddChildren(pid_t pid, std::set<pid_t>& found) {
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(tasks.c_str()), closedir);
  size_t threads = 0;
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    if (entry->d_name[0] == '.' || ++threads > kMaxThreads) continue;
    const std::string list = ReadSystemFile(absl::StrCat(tasks, "/", entry->d_name, "/children"));
    for (const absl::string_view word : absl::StrSplit(list, ' ', absl::SkipWhitespace())) {
      pid_t child = 0;
      if (absl::SimpleAtoi(word, &child) && found.size() < WorkMeter::kMaxProcesses) found.insert(child);
    }
  }
}

}  // namespace

uint64_t ParseIoBytes(absl::string_view text) {
  uint64_t sum = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ": ");
    uint64_t bytes = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &bytes)) continue;
    for (const char* name : {"rchar", "wchar", "read_bytes", "write_bytes"}) sum += words[0] == name ? bytes : 0;
  }
  return sum;
}

ProcessWork ReadWork(pid_t pid) {
  ProcessWork work;
  std::set<pid_t> found = {pid};
  std::set<pid_t> done;
  while (done.size() < found.size()) {
    for (const pid_t one : std::set<pid_t>(found)) {
      if (!done.insert(one).second) continue;
      AddChildren(one, found);
      const std::optional<ProcessLook> look = ReadProcess(one);
      if (!look) continue;
      work.cpu_ns += look->cpu_ns + look->reaped_cpu_ns;
      work.on_disk = work.on_disk || look->on_disk;
      work.io_bytes += ParseIoBytes(ReadSystemFile(absl::StrCat("/proc/", one, "/io")));
    }
  }
  return work;
}

WorkMeter::Busy WorkMeter::Look(const ProcessWork& work, uint64_t now_ns) {
  Busy busy;
  const uint64_t gap_ns = now_ns - looked_ns_;
  // Where the looks are far apart nobody knows what was before.
  if (looked_ns_ != 0 && gap_ns > 0 && gap_ns < 5 * kLookEveryNs) {
    const auto grew_by = [](uint64_t before, uint64_t now) {
      return static_cast<double>(now > before ? now - before : 0);
    };
    const auto gap = static_cast<double>(gap_ns);
    if (grew_by(last_.cpu_ns, work.cpu_ns) >= kCpuShare * gap) busy.cpu_ns = gap_ns;
    if (work.on_disk || grew_by(last_.io_bytes, work.io_bytes) >= kBytesPerS * gap / 1e9) busy.io_ns = gap_ns;
  }
  looked_ns_ = now_ns;
  last_ = work;
  return busy;
}

}  // namespace taskd::proxy
