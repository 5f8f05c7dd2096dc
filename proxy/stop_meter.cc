#include "proxy/stop_meter.h"

#include <unistd.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"

namespace taskd::proxy {
namespace {

// After the name in parentheses, which may have any character: state is the first field, utime the 12th, stime the 13th,
// cutime and cstime the next.
constexpr size_t kState = 0, kUserTicks = 11, kSystemTicks = 12, kReapedUserTicks = 13, kReapedSystemTicks = 14;

uint64_t NsPerTick() {
  static const auto ns = static_cast<uint64_t>(1'000'000'000 / sysconf(_SC_CLK_TCK));
  return ns;
}

}  // namespace

std::optional<ProcessLook> ParseProcessStat(absl::string_view line) {
  const size_t name_end = line.rfind(')');
  if (name_end == absl::string_view::npos) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line.substr(name_end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  uint64_t user = 0, system = 0, reaped_user = 0, reaped_system = 0;
  if (fields.size() <= kReapedSystemTicks || !absl::SimpleAtoi(fields[kUserTicks], &user) ||
      !absl::SimpleAtoi(fields[kSystemTicks], &system) || !absl::SimpleAtoi(fields[kReapedUserTicks], &reaped_user) ||
      !absl::SimpleAtoi(fields[kReapedSystemTicks], &reaped_system)) {
    return std::nullopt;
  }
  return ProcessLook{fields[kState] == "T" || fields[kState] == "t", (user + system) * NsPerTick(),
                     (reaped_user + reaped_system) * NsPerTick(), fields[kState] == "D"};
}

std::optional<ProcessLook> ReadProcess(pid_t pid) {
  return ParseProcessStat(ReadSystemFile(absl::StrCat("/proc/", pid, "/stat")));
}

std::string ReadCgroups(pid_t pid) { return ReadSystemFile(absl::StrCat("/proc/", pid, "/cgroup")); }

// Lines are "0::/path" of version 2, "6:freezer:/path" of version 1.
bool IsFrozen(absl::string_view cgroups, const std::string& mounts) {
  for (const absl::string_view line : absl::StrSplit(cgroups, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    // A process of another cgroup namespace has its path from there.
    if (fields.size() < 3 || absl::StrContains(fields[2], "/..")) continue;
    if (fields[1] == "freezer") {
      const std::string state = ReadSystemFile(absl::StrCat(mounts, "/freezer", fields[2], "/freezer.state"));
      if (absl::StartsWith(state, "FROZEN")) return true;
    }
    if (!fields[1].empty()) continue;
    for (const char* mount : {"", "/unified"}) {
      const std::string events = ReadSystemFile(absl::StrCat(mounts, mount, fields[2], "/cgroup.events"));
      if (absl::StrContains(events, "frozen 1")) return true;
    }
  }
  return false;
}

bool StopMeter::SleptThrough(const ProcessLook& look, uint64_t gap_ns) const {
  // Before the gap began and after its end, until this look, it may have run as it did before.
  return look.cpu_ns - last_.cpu_ns <= gap_ns / 10 + 2 * last_cpu_ns_;
}

uint64_t StopMeter::Look(const ProcessLook& look, uint64_t now_ns) {
  uint64_t stopped_ns = 0;
  if (looked_ns_ != 0 && now_ns > looked_ns_ && look.cpu_ns >= last_.cpu_ns) {
    const uint64_t gap_ns = now_ns - looked_ns_;
    if (gap_ns > kGapNs) {
      stopped_ns = SleptThrough(look, gap_ns) ? gap_ns : 0;
    } else if (look.stopped || last_.stopped) {
      stopped_ns = look.stopped && last_.stopped ? gap_ns : gap_ns / 2;
    }
    last_cpu_ns_ = look.cpu_ns - last_.cpu_ns;
  }
  looked_ns_ = now_ns;
  last_ = look;
  return stopped_ns;
}

}  // namespace taskd::proxy
