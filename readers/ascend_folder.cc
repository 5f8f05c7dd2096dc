#include "readers/ascend_folder.h"

#include <dirent.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "readers/json_stream.h"
#include "readers/number_text.h"
#include "readers/trace_events.h"

namespace taskd::readers {
namespace {

constexpr std::string_view kOutput = "ASCEND_PROFILER_OUTPUT";

std::string_view NameOf(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }
std::string FolderOf(std::string_view path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string_view::npos ? "." : std::string(path.substr(0, slash));
}

// Example: "parallel_group_info": {"<name>": {"group_name": "dp", "group_rank": 0, "global_ranks": [0, 1]}, …}
class MetadataHandler : public JsonHandler<MetadataHandler> {
 public:
  MetadataHandler(JsonStream& stream, AscendRank& rank) : JsonHandler(stream), rank_(rank) {}

  bool Name(std::string_view name) {
    if (depth() == 1) in_groups_ = name == "parallel_group_info";
    if (!in_groups_) return true;
    if (depth() == 2) {
      group_ = {.name = CutUtf8(ValidUtf8(std::string(name)), kMaxNameBytes), .label = "", .members = {}};
      ranks_.clear();
      is_usable_ = true;
    }
    if (depth() == 3) key_ = std::string(name.substr(0, 16));
    return true;
  }
  bool Text(std::string_view text) {
    if (in_groups_ && depth() == 3 && key_ == "group_name")
      group_.label = CutUtf8(ValidUtf8(std::string(text)), kMaxNameBytes);
    return true;
  }
  bool Number(std::string_view text) {
    if (!in_groups_ || depth() != 4 || key_ != "global_ranks") return true;
    const int rank = ReadNumber(text, -1);
    is_usable_ = is_usable_ && rank >= 0 && rank < diagnosis::kMaxRanks && ranks_.size() < diagnosis::kMaxRanks;
    if (is_usable_) ranks_.push_back(rank);
    return true;
  }
  bool End(bool is_array) {
    if (in_groups_ && depth() == 2 && !is_array) AddGroup();
    return true;
  }

 private:
  void AddGroup() {
    members_ += ranks_.size();
    if (rank_.groups.size() >= kMaxGroups || members_ > kMaxMembers) return;
    if (is_usable_) group_.members = CompressMembers(ranks_);
    const bool is_default = group_.label == "default_group" || group_.label == "hccl_world_group";
    if (is_default && is_usable_) rank_.world_size = static_cast<int>(ranks_.size());
    if (is_default) group_.label.clear();
    rank_.groups.push_back(std::move(group_));
  }

  AscendRank& rank_;
  bool in_groups_ = false;
  std::string key_;  // in a group
  GroupInfo group_;
  std::vector<int> ranks_;
  bool is_usable_ = true;
  size_t members_ = 0;
};

// The N of "profiler_info_N.json".
int RankOfInfo(std::string_view name) {
  constexpr std::string_view kBegin = "profiler_info_", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) return -1;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(kEnd.size());
  const int rank = ReadNumber(name, -1);
  return rank < diagnosis::kMaxRanks ? rank : -1;
}

int RankOfFolder(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.c_str()), ::closedir);
  if (opened == nullptr) return -1;
  while (const dirent* entry = ::readdir(opened.get())) {
    if (const int rank = RankOfInfo(entry->d_name); rank >= 0) return rank;
  }
  return -1;
}

// The host in "<host>_<pid>_<time>_ascend_pt".
std::string HostOfFolder(std::string_view name) {
  for (std::string_view end : {"_ascend_pt", "_ascend_ms"}) {
    if (!name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    for (int number = 0; number < 2; ++number) {
      const size_t last = name.find_last_not_of("0123456789");
      if (last == std::string_view::npos || last + 1 == name.size() || name[last] != '_') return "";
      name = name.substr(0, last);
    }
    return std::string(name);
  }
  return "";
}

// The profiler's number of a process group: two polynomials over the bytes of the name.
std::string HashOfGroup(std::string_view name) {
  uint32_t high = 0, low = 0;
  for (char c : name) {
    high = high * 29 + static_cast<unsigned char>(c);
    low = low * 131 + static_cast<unsigned char>(c);
  }
  return std::to_string(uint64_t{high} << 32 | low);
}

}  // namespace

std::vector<SourceFile> JoinAscendFolders(std::vector<SourceFile> files) {
  std::map<std::string, SourceFile> joined;  // by folder
  std::set<std::string> ranks;               // folders with an output folder
  std::erase_if(files, [&](SourceFile& file) {
    const std::string_view name = NameOf(file.path);
    if (name != "communication.json" && name != "step_trace_time.csv" && name != "trace_view.json") return false;
    const std::string folder = FolderOf(file.path);
    SourceFile& whole = joined[folder];
    whole.path = folder;
    whole.bytes += file.bytes;
    whole.parts.push_back(std::move(file.path));
    if (NameOf(folder) == kOutput) ranks.insert(FolderOf(folder));
    return true;
  });
  if (joined.empty()) return files;
  std::erase_if(files, [&](const SourceFile& file) {
    for (size_t slash = file.path.find('/', 1); slash != std::string::npos; slash = file.path.find('/', slash + 1)) {
      if (ranks.contains(file.path.substr(0, slash))) return true;
    }
    return false;
  });
  for (auto& [folder, whole] : joined) {
    if (whole.parts.size() == 1) whole.path = whole.parts[0];
    files.push_back(std::move(whole));
  }
  std::sort(files.begin(), files.end(), [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::string AscendRankPath(const std::string& path) {
  if (NameOf(path) == kOutput) return FolderOf(path);
  const std::string folder = FolderOf(path);
  return NameOf(folder) == kOutput ? FolderOf(folder) : path;
}

AscendRank FindAscendRank(const std::string& path) {
  AscendRank rank;
  const std::string folder = FolderOf(path);
  const bool is_output = NameOf(folder) == kOutput;
  const std::string above = is_output ? FolderOf(folder) : folder;  // a user may have put all files into one folder
  rank.rank = RankOfFolder(above);
  rank.host = HostOfFolder(NameOf(above));
  absl::StatusOr<ByteSource> metadata = ByteSource::Open(absl::StrCat(above, "/profiler_metadata.json"));
  if (metadata.ok()) ReadAscendMetadata(*metadata, rank);
  return rank;
}

void ReadAscendMetadata(ByteSource& source, AscendRank& rank) {
  auto stream = std::make_unique<JsonStream>(source);
  MetadataHandler handler(*stream, rank);
  ReadJson(source, *stream, handler);
}

void NameAscendGroups(const std::vector<GroupInfo>& known, std::vector<GroupInfo>& groups) {
  constexpr size_t kShort = 3;
  std::map<std::string, const GroupInfo*> by_hash;
  std::map<std::string, const GroupInfo*> by_end;  // null: several groups end so
  for (const GroupInfo& group : known) {
    const std::string hash = HashOfGroup(group.name);
    by_hash[hash] = by_hash[group.name] = &group;
    if (hash.size() < kShort) continue;
    const auto [found, is_new] = by_end.try_emplace(hash.substr(hash.size() - kShort), &group);
    if (!is_new) found->second = nullptr;
  }
  for (GroupInfo& group : groups) {
    auto found = by_hash.find(group.name);
    if (found == by_hash.end() && ((found = by_end.find(group.name)) == by_end.end() || found->second == nullptr))
      continue;
    group.label = found->second->label;
    group.members = found->second->members;
  }
}

}  // namespace taskd::readers
