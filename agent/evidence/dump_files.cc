#include "agent/evidence/dump_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "readers/byte_source.h"
#include "readers/flight_recorder.h"
#include "readers/hang_tables.h"
#include "readers/source_files.h"
#include "taskd/own_user.h"

namespace taskd::evidence {
namespace {

using readers::ByteSource;
using readers::FlightDump;
using readers::HangTables;
using readers::Source;
using readers::SourceFormat;

constexpr size_t kBeginBytes = size_t{64} << 10;  // to see what it is

// Of its own user or root, a plain file, not a link to one.
UniqueFd OpenOwn(const std::string& path, struct stat* status) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  const bool is_own =
      fd.valid() && fstat(fd.get(), status) == 0 && S_ISREG(status->st_mode) && IsOwnUserOrRoot(status->st_uid);
  return is_own ? std::move(fd) : UniqueFd();
}

int64_t ChangedNs(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

// Where it is another format: unknown, and the dump says so.
FlightDump ReadDump(ByteSource& source, HangTables& tables, readers::DumpMemory& memory) {
  std::string begin(kBeginBytes, '\0');
  size_t length = 0;
  while (const size_t got = source.Read(begin.data() + length, begin.size() - length)) length += got;
  begin.resize(length);
  const SourceFormat format = readers::FormatOf(begin);
  source.PutBack(std::move(begin));
  if (format == SourceFormat::kFlightRecorder) return readers::ReadFlightDump(source, tables, memory);
  FlightDump dump;
  dump.note = "it is no dump of a flight recorder";
  return dump;
}

}  // namespace

std::vector<std::string> DumpPrefixes(const Environment& environment) {
  std::vector<std::string> prefixes;
  const auto add = [&prefixes](std::string prefix) {
    if (std::find(prefixes.begin(), prefixes.end(), prefix) == prefixes.end()) prefixes.push_back(std::move(prefix));
  };
  const std::string hccl = ValueOf(environment, "TORCH_HCCL_DEBUG_INFO_TEMP_FILE");
  add(hccl.empty() ? "/tmp/hccl_trace_rank_" : hccl);
  bool is_given = false;
  for (const char* variable : {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
    const std::string prefix = ValueOf(environment, variable);
    if (prefix.empty()) continue;
    add(prefix);
    is_given = true;
  }
  if (is_given) return prefixes;
  const std::string home = ValueOf(environment, "HOME");
  const std::string cache = (home.empty() ? "/tmp" : home) + "/.cache";
  const std::string xdg_cache = ValueOf(environment, "XDG_CACHE_HOME");
  for (const std::string& root : {xdg_cache.empty() ? cache : xdg_cache, cache}) {
    add(root + "/torch/comm_lib_trace_rank_");
  }
  add("/tmp/nccl_trace_rank_");
  return prefixes;
}

DumpFiles::DumpFiles(std::vector<std::string> prefixes, std::vector<int> ranks, int world_size, int64_t since_ns)
    : prefixes_(std::move(prefixes)), ranks_(std::move(ranks)), world_size_(world_size), since_ns_(since_ns) {}

std::map<int, DumpFiles::Found> DumpFiles::Find() const {
  std::map<int, Found> found;
  for (int rank : ranks_) {
    for (const std::string& prefix : prefixes_) {
      const std::string path = absl::StrCat(prefix, rank);
      struct stat status {};
      if (!OpenOwn(path, &status).valid()) continue;
      const Seen seen{status.st_ino, ChangedNs(status), status.st_size};
      if (seen.changed_ns < since_ns_) continue;  // it tells of something else
      Found& newest = found[rank];
      if (newest.path.empty() || seen.changed_ns > newest.seen.changed_ns) newest = {path, seen};
    }
  }
  return found;
}

bool DumpFiles::Look() {
  std::map<std::string, Seen> now, taken;
  std::map<int, Found> whole;
  bool changes_again = false;  // until it is whole, what was in it before counts
  for (auto& [rank, file] : Find()) {
    now[file.path] = file.seen;
    const auto before = before_.find(file.path);
    const bool grows = before == before_.end() || before->second != file.seen || file.seen.bytes == 0;
    changes_again |= grows && taken_.contains(file.path);
    if (grows) continue;
    taken[file.path] = file.seen;
    whole.emplace(rank, std::move(file));
  }
  before_ = std::move(now);
  if (changes_again || taken == taken_) return false;
  taken_ = std::move(taken);
  ReadAll(whole);
  return true;
}

void DumpFiles::ReadAll(const std::map<int, Found>& found) {
  sources_.clear();
  HangTables tables;
  readers::DumpMemory memory;
  std::map<int, diagnosis::HangRank> ranks;
  bool leaves_out_messages = false;
  for (const auto& [rank, file] : found) {
    Source& source = sources_.emplace_back();
    source.path = file.path;
    source.format = SourceFormat::kFlightRecorder;
    source.rank = rank;
    struct stat status {};
    UniqueFd fd = OpenOwn(file.path, &status);
    absl::StatusOr<ByteSource> bytes =
        fd.valid() ? ByteSource::Of(std::move(fd), file.path) : absl::NotFoundError("it has gone");
    if (!bytes.ok()) {
      source.note = std::string(bytes.status().message());
      continue;
    }
    FlightDump dump = ReadDump(*bytes, tables, memory);
    source.records = dump.records;
    source.note = dump.note;
    const bool is_empty = dump.records == 0 && !dump.note.empty();
    if (dump.world_size > 0 && dump.world_size != world_size_) {
      source.note = absl::StrCat("left out: it is of a job of ", dump.world_size, " ranks");
    } else if (dump.rank >= 0 && dump.rank != rank) {
      source.note = absl::StrCat("left out: it is of rank ", dump.rank);
    } else if (!is_empty) {
      leaves_out_messages |= dump.leaves_out_messages;
      ranks.emplace(rank, std::move(dump.known));
    }
  }
  for (auto& [rank, known] : ranks) known.is_partial |= leaves_out_messages;
  facts_ = tables.Copy(std::move(ranks));
}

}  // namespace taskd::evidence
