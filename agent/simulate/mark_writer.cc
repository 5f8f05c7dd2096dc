#include "agent/simulate/mark_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/simulate/faults.h"
#include "common/files.h"
#include "common/unique_fd.h"
#include "marks/mark_line.h"

namespace taskd::simulate {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{10} * 1024 * 1024;
constexpr size_t kMaxBufferBytes = size_t{256} * 1024 * 1024;  // of all ranks together
constexpr size_t kMaxRankBufferBytes = size_t{1} * 1024 * 1024;

absl::Status Failed(const std::string& what, const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(error)));
}

bool IsRankName(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

absl::Status WriteFile(const std::string& path, const std::string& text, int flags) {
  absl::StatusOr<UniqueFd> fd = OpenOrCreateFile(path, O_WRONLY | (flags & O_APPEND), 0644);
  if (!fd.ok()) return absl::UnavailableError(absl::StrCat("cannot open ", fd.status().message()));
  if ((flags & O_TRUNC) != 0 && ftruncate(fd->get(), 0) != 0) return Failed("cannot write", path, errno);
  const int error = WriteAll(fd->get(), text);
  return error == 0 ? absl::OkStatus() : Failed("cannot write", path, error);
}

// As group_info.py writes it: an indent of 4.
std::string GroupsJson(const Simulator& simulator, int rank) {
  std::string json = "{";
  for (const GroupInfo& group : simulator.groups(rank)) {
    const std::vector<int> members = ExpandMembers(group.members, static_cast<size_t>(simulator.ranks()));
    const auto at = std::find(members.begin(), members.end(), rank) - members.begin();
    absl::StrAppend(&json, json.size() > 1 ? "," : "", "\n    \"", group.name, "\": {\n        \"group_name\": \"",
                    group.label, "\",\n        \"group_rank\": ", at, ",\n        \"global_ranks\": [\n            ",
                    absl::StrJoin(members, ",\n            "), "\n        ]\n    }");
  }
  return json + "\n}\n";
}

}  // namespace

std::string LabelsJson(const Simulator& simulator) {
  const Job& job = simulator.job();
  const Layout& layout = job.layout;
  std::string json = absl::StrCat(
      "{\"job\":\"", job.name, "\",\"seed\":", job.seed, ",\"steps\":", job.steps,
      ",\"layout\":{\"ranks\":", layout.ranks(), ",\"tp\":", layout.tp, ",\"cp\":", layout.cp, ",\"dp\":", layout.dp,
      ",\"pp\":", layout.pp, ",\"ep\":", layout.ep, ",\"ranks_per_node\":", layout.ranks_per_node, "},\"faults\":[");
  bool first = true;
  for (const Label& label : simulator.labels()) {
    absl::StrAppend(&json, first ? "" : ",", "{\"kind\":\"", Name(label.kind), "\",\"scope\":\"", label.scope,
                    "\",\"ids\":[", absl::StrJoin(label.ids, ","), "],\"causes\":[\"",
                    absl::StrJoin(label.causes, "\",\""), "\"],\"first_step\":", label.first_step,
                    ",\"last_step\":", label.last_step, ",\"severity\":", label.severity, ",\"effect\":", label.effect,
                    "}");
    first = false;
  }
  return json + "]}\n";
}

absl::Status CheckOutput(const std::string& dir) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(dir, error);
  if (status.type() == std::filesystem::file_type::not_found) return absl::OkStatus();
  if (status.type() != std::filesystem::file_type::directory) {
    return absl::InvalidArgumentError(absl::StrCat("--out ", dir, " is no folder"));
  }
  for (std::filesystem::directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (IsRankName(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--out ", dir, " holds rank ", name, " already: a job needs a folder of its own"));
    }
  }
  if (error) return absl::InvalidArgumentError(absl::StrCat("--out ", dir, ": ", error.message()));
  return absl::OkStatus();
}

absl::Status MarkWriter::BeginLife(const Simulator& simulator) {
  for (size_t rank = 0; rank < files_.size(); ++rank) {
    absl::Status status = Flush(static_cast<int>(rank), files_[rank]);
    if (!status.ok()) return status;
    files_[rank].open_without_stream.clear();
  }
  files_.resize(std::max(files_.size(), static_cast<size_t>(simulator.ranks())));
  for (int rank = 0; rank < simulator.ranks(); ++rank) {
    const std::string folder = absl::StrCat(dir_, "/", rank);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return absl::UnavailableError(absl::StrCat("cannot make ", folder, ": ", error.message()));
    const int node = simulator.node(rank);
    absl::Status status = WriteFile(folder + "/parallel_group.json", GroupsJson(simulator, rank), O_TRUNC);
    if (status.ok()) {
      status = WriteFile(folder + "/.rank.json",
                         absl::StrCat("{\"node\":", node, ",\"host\":\"node", node,
                                      "\",\"local_rank\":", simulator.local_rank(rank), "}\n"),
                         O_TRUNC);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void MarkWriter::Append(const MarkRecord& mark, RankFile& file) {
  MarkLine line;
  line.timestamp_ns = mark.time_ns;
  line.id = mark.id;
  line.process_id = mark.process_id;
  line.thread_id = mark.thread_id;
  line.name = mark.name;
  line.domain = mark.domain;
  if (mark.phase == MarkRecord::Phase::kInstant) {
    line.flag = kMarkInstant;
    AppendMarkLine(line, file.lines);
    return;
  }
  const bool start = mark.phase == MarkRecord::Phase::kStart;
  // Dataloader and checkpoint are marked on no stream (TaskD contract §4.4). An end has no name: by its id.
  auto& open = file.open_without_stream;
  bool without_stream = false;
  if (start && (mark.name == "dataloader" || mark.name == "save_checkpoint")) {
    open.push_back(mark.id);
    without_stream = true;
  } else if (!start && !mark.device) {
    const auto found = std::find(open.begin(), open.end(), mark.id);
    without_stream = found != open.end();
    if (without_stream) open.erase(found);
  }
  line.flag = without_stream ? (start ? kMarkStart : kMarkEnd) : (start ? kMarkStartStream : kMarkEndStream);
  line.device = mark.device;
  AppendMarkLine(line, file.lines);
}

absl::Status MarkWriter::Flush(int rank, RankFile& file) {
  if (file.lines.empty()) return absl::OkStatus();
  absl::Status status = WriteFile(absl::StrCat(dir_, "/", rank, "/", file.name), file.lines, O_APPEND);
  file.size += file.lines.size();
  file.lines.clear();
  return status;
}

absl::Status MarkWriter::WriteStep(Simulator& simulator) {
  if (!begun_ || simulator.restarted()) {
    absl::Status status = BeginLife(simulator);
    if (!status.ok()) return status;
    begun_ = true;
  }
  const size_t limit = std::min(kMaxRankBufferBytes, kMaxBufferBytes / static_cast<size_t>(simulator.ranks()));
  for (int rank = 0; rank < simulator.ranks(); ++rank) {
    RankFile& file = files_[static_cast<size_t>(rank)];
    for (const MarkRecord& mark : simulator.Marks(rank)) {
      if (file.name == 0 || (file.lines.empty() && file.size > kMaxFileBytes)) {
        file.name = std::max(file.name + 1, mark.time_ns / 1'000'000'000);
        file.size = 0;
      }
      Append(mark, file);
      ++records_;
      if (file.lines.size() < limit && file.size + file.lines.size() <= kMaxFileBytes) continue;
      absl::Status status = Flush(rank, file);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status MarkWriter::Finish(const Simulator& simulator) {
  for (size_t rank = 0; rank < files_.size(); ++rank) {
    absl::Status status = Flush(static_cast<int>(rank), files_[rank]);
    if (!status.ok()) return status;
  }
  return WriteFile(dir_ + "/labels.json", LabelsJson(simulator), O_TRUNC);
}

}  // namespace taskd::simulate
