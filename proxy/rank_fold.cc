#include "proxy/rank_fold.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/parallel_group.h"

namespace taskd {
namespace {

constexpr uint64_t kPollIntervalNs = 5'000'000'000;

}  // namespace

RankFold::RankFold(const std::string& rank_dir)
    : groups_path_(rank_dir + "/parallel_group.json"),
      marks_([this](StepFold&& fold) { finished_.push_back(std::move(fold)); }) {}

void RankFold::PollGroups(uint64_t now_monotonic_ns) {
  if (now_monotonic_ns < next_poll_ns_) return;
  next_poll_ns_ = now_monotonic_ns + kPollIntervalNs;
  struct stat info;
  if (lstat(groups_path_.c_str(), &info) != 0) return;
  std::string file = absl::StrCat(info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec);
  if (file == groups_file_) return;
  groups_file_ = std::move(file);
  absl::StatusOr<std::vector<GroupInfo>> groups = ReadParallelGroups(groups_path_);
  if (groups.ok()) {
    marks_.SetGroups(*groups);
    trouble_said_ = false;
  } else if (!trouble_said_) {
    // Also while its writer is at work: then it changes once more.
    trouble_said_ = true;
    spdlog::warn("groups of a rank stay unknown: {}", groups.status().message());
  }
}

std::vector<StepFold> RankFold::TakeFinished() { return std::exchange(finished_, {}); }

}  // namespace taskd
