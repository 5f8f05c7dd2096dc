#include "proxy/rank_fold.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "marks/parallel_group.h"
#include "proxy/folder.h"

namespace taskd::proxy {
namespace {

constexpr uint64_t kPollIntervalNs = 5'000'000'000;

}  // namespace

RankFold::RankFold(ProfilingDir dir, int rank)
    : dir_(std::move(dir)), rank_(rank), marks_([this](StepFold&& fold) { finished_.push_back(std::move(fold)); }) {}

void RankFold::PollGroups(uint64_t now_monotonic_ns) {
  if (now_monotonic_ns < next_poll_ns_) return;
  next_poll_ns_ = now_monotonic_ns + kPollIntervalNs;
  absl::StatusOr<UniqueFd> folder = dir_.FindRank(rank_);
  if (!folder.ok()) return;
  const std::string path = dir_.RankPath(rank_) + "/parallel_group.json";
  absl::StatusOr<UniqueFd> opened = OpenRegular(folder->get(), "parallel_group.json", O_RDONLY, path);
  struct stat info;
  if (!opened.ok() || fstat(opened->get(), &info) != 0) {
    if (absl::IsFailedPrecondition(opened.status())) LogTrouble(opened.status());
    return;
  }
  std::string file = absl::StrCat(info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec);
  if (file == groups_file_) return;
  groups_file_ = std::move(file);
  absl::StatusOr<std::vector<GroupInfo>> groups = ReadParallelGroups(*opened, path);
  if (groups.ok()) {
    marks_.SetGroups(*groups);
    trouble_said_ = false;
  } else {
    LogTrouble(groups.status());  // also while its writer is at work: then it changes once more
  }
}

void RankFold::LogTrouble(const absl::Status& trouble) {
  if (!trouble_said_) spdlog::warn("groups of a rank stay unknown: {}", trouble.message());
  trouble_said_ = true;
}

std::vector<StepFold> RankFold::TakeFinished() { return std::exchange(finished_, {}); }

}  // namespace taskd::proxy
