#include "readers/source_marks.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "marks/mark_file_reader.h"
#include "marks/parallel_group.h"
#include "readers/read_source.h"
#include "readers/trace_fold.h"

namespace taskd::readers {
namespace {

constexpr size_t kMaxEvents = (size_t{256} << 20) / sizeof(TraceEvent);  // per file

absl::Status ForEachMarkOfFolder(const std::string& folder, const UseMark& use) {
  absl::StatusOr<MarkFileReader> reader = MarkFileReader::Open(folder);
  if (!reader.ok()) return absl::IsNotFound(reader.status()) ? absl::OkStatus() : reader.status();
  MarkRecord record;
  while (reader->Next(record)) {
    if (!use(record, reader->read_bytes())) return absl::OkStatus();
  }
  return reader->status();
}

}  // namespace

size_t IndexOf(int rank, const std::vector<SourceRank>& ranks) {
  const auto found =
      std::partition_point(ranks.begin(), ranks.end(), [rank](const SourceRank& source) { return source.rank < rank; });
  const bool is_there = found != ranks.end() && found->rank == rank;
  return is_there ? static_cast<size_t>(found - ranks.begin()) : ranks.size();
}

std::vector<int> AccusedBy(const diagnosis::Verdict& verdict, const std::vector<SourceRank>& ranks) {
  std::vector<int> accused;
  if (verdict.scope == diagnosis::Scope::kRank || verdict.scope == diagnosis::Scope::kGroup) accused = verdict.ids;
  for (const diagnosis::Link& link : verdict.links) accused.insert(accused.end(), {link.a, link.b});
  if (verdict.scope == diagnosis::Scope::kNode) {
    for (const SourceRank& source : ranks) {
      if (std::count(verdict.ids.begin(), verdict.ids.end(), source.node) != 0) accused.push_back(source.rank);
    }
  }
  std::erase_if(accused, [&ranks](int rank) { return IndexOf(rank, ranks) == ranks.size(); });
  return accused;
}

void AddPeers(const diagnosis::Report& report, const diagnosis::Engine& engine, std::vector<SourceRank>& ranks) {
  for (const diagnosis::Verdict& verdict : report.verdicts) {
    for (int rank : AccusedBy(verdict, ranks)) ranks[IndexOf(rank, ranks)].peers = engine.Peers(rank);
  }
}

absl::Status ForEachMark(const SourceRank& rank, const UseMark& use) {
  if (!rank.folder.empty()) return ForEachMarkOfFolder(rank.folder, use);
  uint64_t bytes = 0;
  bool wanted = true;
  for (const SourceFile& file : rank.files) {
    if (!wanted) break;
    bytes += file.bytes;
    UseTraceMarks(ReadEvents(file, kMaxEvents), [&](const MarkRecord& mark) {
      wanted = use(mark, bytes);
      return wanted;
    });
  }
  return absl::OkStatus();
}

std::vector<GroupInfo> GroupsOf(const SourceRank& rank) {
  if (rank.folder.empty()) return rank.groups;
  absl::StatusOr<std::vector<GroupInfo>> groups = ReadParallelGroups(absl::StrCat(rank.folder, "/parallel_group.json"));
  return groups.ok() ? *std::move(groups) : std::vector<GroupInfo>();
}

}  // namespace taskd::readers
