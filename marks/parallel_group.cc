#include "marks/parallel_group.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json_scanner.h"
#include "common/json_unescape.h"

namespace taskd {
namespace {

constexpr size_t kMaxNameBytes = 512;
// This limits all groups together. A rank of a job of 16,384 is in a few dozen groups.
constexpr size_t kMaxMembers = 1 << 21;
constexpr int kMaxDepth = 16;  // nesting of values that are ignored

// A job of 16,384 ranks has as many of these files, each with a list of 16,384 members. So a list is not kept: it
// becomes runs at once.
class Groups {
 public:
  explicit Groups(std::string_view text) : scanner_(text) {}

  absl::StatusOr<std::vector<GroupInfo>> Read() {
    if (scanner_.Members([this](std::string_view name) { return Group(name); }) && scanner_.End()) {
      return std::move(groups_);
    }
    return absl::InvalidArgumentError(absl::StrCat("parallel_group.json: byte ", scanner_.at(), ": ", scanner_.why()));
  }

 private:
  bool Group(std::string_view name) {
    if (groups_.size() == kMaxParallelGroups)
      return scanner_.Fail(absl::StrCat("more than ", kMaxParallelGroups, " groups"));
    GroupInfo& group = groups_.emplace_back();
    members_.clear();
    if (!Name(name, &group.name) || !scanner_.Members([&](std::string_view key) { return Property(key, &group); })) {
      return false;
    }
    group.members = CompressMembers(members_);
    return true;
  }

  bool Property(std::string_view inside, GroupInfo* group) {
    std::string key;
    std::string_view label;
    if (!Name(inside, &key)) return false;
    const char first = scanner_.Peek();
    if (key == "global_ranks" && first == '[') return scanner_.Elements([this] { return Member(); });
    if (key == "group_name" && first == '"') return scanner_.String(&label) && Name(label, &group->label);
    return scanner_.Skip(kMaxDepth);
  }

  bool Member() {
    const char first = scanner_.Peek();
    if (first < '0' || first > '9') return scanner_.Skip(kMaxDepth);
    std::string_view number;
    if (!scanner_.Number(&number)) return false;
    constexpr int64_t kMaxRank = std::numeric_limits<int>::max();
    int64_t rank = 0;
    for (const char c : number) {
      if (c < '0' || c > '9') return true;  // a fraction, or an exponent
      rank = std::min(rank * 10 + (c - '0'), kMaxRank + 1);
    }
    if (rank > kMaxRank) return true;
    if (++all_members_ > kMaxMembers) return scanner_.Fail(absl::StrCat("more than ", kMaxMembers, " members"));
    members_.push_back(static_cast<int>(rank));
    return true;
  }

  bool Name(std::string_view inside, std::string* name) {
    name->clear();
    AppendJsonUnescaped(inside, *name);
    return name->size() <= kMaxNameBytes ||
           scanner_.Fail(absl::StrCat("a name has more than ", kMaxNameBytes, " bytes"));
  }

  JsonScanner scanner_;
  std::vector<GroupInfo> groups_;
  std::vector<int> members_;  // members of the group that is being read
  size_t all_members_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<GroupInfo>> ParseParallelGroups(std::string_view text) {
  if (text.size() > kMaxParallelGroupBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel_group.json: ", text.size(), " bytes, the limit is ", kMaxParallelGroupBytes));
  }
  return Groups(text).Read();
}

absl::StatusOr<std::vector<GroupInfo>> ReadParallelGroups(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    const int error = errno;
    std::string message = absl::StrCat("'", path, "': ", strerror(error));
    if (error == ENOENT) return absl::NotFoundError(message);
    return error == ELOOP ? absl::FailedPreconditionError(message) : absl::UnavailableError(message);
  }
  return ReadParallelGroups(file, path);
}

absl::StatusOr<std::vector<GroupInfo>> ReadParallelGroups(const UniqueFd& file, const std::string& path) {
  struct stat info;
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("'", path, "': not a regular file"));
  }
  std::string text;
  text.reserve(std::min(static_cast<size_t>(info.st_size), kMaxParallelGroupBytes));
  char block[1 << 16];
  while (text.size() <= kMaxParallelGroupBytes) {
    const ssize_t got = read(file.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::UnavailableError(absl::StrCat("'", path, "': ", strerror(errno)));
    if (got == 0) break;
    text.append(block, static_cast<size_t>(got));
  }
  absl::StatusOr<std::vector<GroupInfo>> groups = ParseParallelGroups(text);
  if (!groups.ok())
    return absl::Status(groups.status().code(), absl::StrCat("'", path, "': ", std::string(groups.status().message())));
  return groups;
}

}  // namespace taskd
