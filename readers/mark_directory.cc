#include "readers/mark_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/unique_fd.h"
#include "diagnosis/rank_place.h"
#include "nlohmann/json.hpp"

namespace taskd::readers {
namespace {

constexpr int kMaxRank = diagnosis::kMaxRanks - 1;
constexpr size_t kMaxPlaceBytes = 4096;  // for .rank.json
constexpr size_t kTasksNamed = 8;

bool IsDigits(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

// -1: not a rank's folder.
int RankOf(const std::string& name) {
  int rank = -1;
  bool canonical = IsDigits(name) && (name.size() == 1 || name[0] != '0');
  return canonical && name.size() <= 6 && absl::SimpleAtoi(name, &rank) && rank <= kMaxRank ? rank : -1;
}

struct Entry {
  std::string name;
  bool is_folder = false;
};

class Folder {
 public:
  static absl::StatusOr<Folder> Open(const std::string& path) {
    Folder folder(::opendir(path.c_str()));
    if (folder.dir_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
    }
    return folder;
  }

  int fd() const { return ::dirfd(dir_.get()); }

  // Returns false at the end. Skips names that begin with a dot.
  bool Next(Entry& entry) {
    while (dirent* found = ::readdir(dir_.get())) {
      if (found->d_name[0] == '.') continue;
      entry.name = found->d_name;
      entry.is_folder = found->d_type == DT_DIR;
      if (found->d_type == DT_UNKNOWN) {
        struct stat status;
        entry.is_folder = ::fstatat(fd(), found->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode);
      }
      return true;
    }
    return false;
  }

 private:
  struct Close {
    void operator()(DIR* dir) const { ::closedir(dir); }
  };
  explicit Folder(DIR* dir) : dir_(dir) {}

  std::unique_ptr<DIR, Close> dir_;
};

// A task's folder contains ranks' folders, and these contain no further folders with digits as names. The second
// condition is needed because a task's own name may be digits.
bool IsTask(const std::string& path) {
  absl::StatusOr<Folder> folder = Folder::Open(path);
  if (!folder.ok()) return false;
  for (Entry entry; folder->Next(entry);) {
    if (!entry.is_folder || RankOf(entry.name) < 0) continue;
    absl::StatusOr<Folder> rank = Folder::Open(absl::StrCat(path, "/", entry.name));
    bool nested = false;
    for (Entry inner; rank.ok() && !nested && rank->Next(inner);) nested = inner.is_folder && IsDigits(inner.name);
    if (!nested) return true;
  }
  return false;
}

// The "<date>-<time>" of a job's own folder in a working directory, taskd-<job>-<date>-<time> (marks/mark_folder.h).
// The newest is the largest. Empty: it is not such a folder.
std::string_view DateOf(std::string_view name) {
  constexpr std::string_view kPattern = "-00000000-000000";
  if (!name.starts_with("taskd-") || name.size() <= kPattern.size()) return "";
  const std::string_view end = name.substr(name.size() - kPattern.size());
  for (size_t i = 0; i < end.size(); ++i) {
    if (kPattern[i] == '-' ? end[i] != '-' : !absl::ascii_isdigit(static_cast<unsigned char>(end[i]))) return "";
  }
  return end.substr(1);
}

// `choice`: as MarkDirectory::choice.
absl::StatusOr<std::string> FindTask(const std::string& path, std::string& choice) {
  absl::StatusOr<Folder> folder = Folder::Open(path);
  if (!folder.ok()) return folder.status();
  if (IsTask(path)) return path;
  std::vector<std::string> tasks;
  bool files_of_digits = false;
  for (Entry entry; folder->Next(entry);) {
    files_of_digits |= !entry.is_folder && IsDigits(entry.name);
    if (entry.is_folder && IsTask(absl::StrCat(path, "/", entry.name))) tasks.push_back(entry.name);
  }
  if (tasks.size() == 1) return absl::StrCat(path, "/", tasks[0]);
  if (tasks.empty()) {
    if (files_of_digits) {
      return absl::InvalidArgumentError(absl::StrCat(path, " holds one rank's files; name the folder above it"));
    }
    return absl::NotFoundError(absl::StrCat(path, " holds no marks: there is no <rank>/<unix seconds> in it"));
  }
  const auto newest = std::max_element(tasks.begin(), tasks.end(), [](const std::string& a, const std::string& b) {
    return std::pair(DateOf(a), a) < std::pair(DateOf(b), b);
  });
  if (!DateOf(*newest).empty()) {
    const auto jobs = std::count_if(tasks.begin(), tasks.end(), [](const auto& name) { return !DateOf(name).empty(); });
    if (jobs > 1) {
      choice = absl::StrCat(path, " holds the folders of ", jobs, " jobs; this is the newest, ", *newest, ": --from ",
                            path, "/FOLDER names another");
    }
    return absl::StrCat(path, "/", *newest);
  }
  std::sort(tasks.begin(), tasks.end());
  std::string more = tasks.size() > kTasksNamed ? absl::StrCat(" and ", tasks.size() - kTasksNamed, " more") : "";
  size_t tasks_found = tasks.size();
  tasks.resize(std::min(tasks.size(), kTasksNamed));
  return absl::InvalidArgumentError(
      absl::StrCat(path, " holds ", tasks_found, " tasks, name one: ", absl::StrJoin(tasks, ", "), more));
}

void ReadPlace(int folder_fd, RankMarks& marks) {
  UniqueFd fd(::openat(folder_fd, ".rank.json", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd.valid()) return;
  std::string text(kMaxPlaceBytes, '\0');
  ssize_t length = ::read(fd.get(), text.data(), text.size());
  text.resize(length < 0 ? 0 : static_cast<size_t>(length));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return;
  auto integer = [&json](const char* key, int most) {
    auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) return -1;
    auto value = found->get<int64_t>();
    return value < 0 || value > most ? -1 : static_cast<int>(value);
  };
  marks.node = integer("node", 1 << 24);
  marks.local_rank = integer("local_rank", kMaxRank);
  auto host = json.find("host");
  if (host != json.end() && host->is_string()) marks.host = host->get<std::string>();
}

absl::StatusOr<RankMarks> ListRank(int rank, const std::string& path) {
  absl::StatusOr<Folder> folder = Folder::Open(path);
  if (!folder.ok()) return folder.status();
  RankMarks marks;
  marks.rank = rank;
  marks.folder = path;
  std::vector<std::pair<uint64_t, MarkFile>> files;
  for (Entry entry; folder->Next(entry);) {
    uint64_t number = 0;
    struct stat status;
    if (!IsDigits(entry.name) || !absl::SimpleAtoi(entry.name, &number) ||
        ::fstatat(folder->fd(), entry.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) {
      continue;
    }
    files.push_back({number, {absl::StrCat(path, "/", entry.name), static_cast<uint64_t>(status.st_size)}});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.path) < std::tie(b.first, b.second.path);
  });
  for (auto& [number, file] : files) marks.files.push_back(std::move(file));
  ReadPlace(folder->fd(), marks);
  return marks;
}

}  // namespace

absl::StatusOr<MarkDirectory> ListMarkDirectory(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  std::string choice;
  absl::StatusOr<std::string> task = FindTask(trimmed, choice);
  if (!task.ok()) return task.status();
  absl::StatusOr<Folder> folder = Folder::Open(*task);
  if (!folder.ok()) return folder.status();

  MarkDirectory directory;
  directory.folder = *task;
  directory.choice = std::move(choice);
  directory.task = task->substr(task->find_last_of('/') + 1);
  directory.places = {DateOf(directory.task).empty() ? path : *task};
  for (Entry entry; folder->Next(entry);) {
    int rank = entry.is_folder ? RankOf(entry.name) : -1;
    if (rank < 0) continue;
    absl::StatusOr<RankMarks> marks = ListRank(rank, absl::StrCat(*task, "/", entry.name));
    if (!marks.ok()) {
      directory.problems.push_back(std::string(marks.status().message()));
      continue;
    }
    for (const MarkFile& file : marks->files) directory.bytes += file.bytes;
    directory.ranks.push_back(*std::move(marks));
  }
  std::sort(directory.problems.begin(), directory.problems.end());
  std::sort(directory.ranks.begin(), directory.ranks.end(),
            [](const RankMarks& a, const RankMarks& b) { return a.rank < b.rank; });
  if (directory.bytes == 0) {
    return absl::InvalidArgumentError(
        directory.problems.empty() ? absl::StrCat(*task, " holds no marks: its mark files are empty or not there")
                                   : directory.problems[0]);
  }
  return directory;
}

absl::StatusOr<MarkDirectory> ListMarkDirectories(const std::vector<std::string>& paths,
                                                  std::vector<std::string>& others) {
  std::optional<MarkDirectory> all;
  absl::Status without_marks;
  for (const std::string& path : paths) {
    absl::StatusOr<MarkDirectory> one = ListMarkDirectory(path);
    if (!one.ok()) {
      without_marks.Update(one.status());
      others.push_back(path);
    } else if (!all) {
      all = *std::move(one);
    } else {
      for (RankMarks& marks : one->ranks) all->ranks.push_back(std::move(marks));
      all->problems.insert(all->problems.end(), one->problems.begin(), one->problems.end());
      all->places.insert(all->places.end(), one->places.begin(), one->places.end());
      all->bytes += one->bytes;
    }
  }
  if (!all) return without_marks;
  std::stable_sort(all->ranks.begin(), all->ranks.end(),
                   [](const RankMarks& a, const RankMarks& b) { return a.rank < b.rank; });
  const auto twice = std::adjacent_find(all->ranks.begin(), all->ranks.end(),
                                        [](const RankMarks& a, const RankMarks& b) { return a.rank == b.rank; });
  if (twice == all->ranks.end()) return *std::move(all);
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", twice->rank, " is in ", twice->folder, " and in ", std::next(twice)->folder));
}

std::vector<int> NodesOfRanks(const std::vector<RankMarks>& ranks, const std::vector<int>& device_ids) {
  std::vector<int> nodes(ranks.size(), -1);
  bool have_places = std::any_of(ranks.begin(), ranks.end(), [](const RankMarks& marks) { return marks.node >= 0; });
  if (have_places) {
    for (size_t i = 0; i < ranks.size(); ++i) nodes[i] = ranks[i].node;
    return nodes;
  }
  // If each process sees only one device, all ids are 0 and show nothing.
  if (std::none_of(device_ids.begin(), device_ids.end(), [](int id) { return id > 0; })) return nodes;
  int node = 0, last = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (device_ids[i] < 0) continue;
    if (device_ids[i] <= last) ++node;
    last = device_ids[i];
    nodes[i] = node;
  }
  return nodes;
}

}  // namespace taskd::readers
