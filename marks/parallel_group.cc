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
#include "nlohmann/json.hpp"

namespace taskd {
namespace {

constexpr size_t kMaxNameBytes = 512;
// Of all groups together. A rank of a job of 16,384 is in a few dozen groups.
constexpr size_t kMaxMembers = 1 << 21;
constexpr int kMaxDepth = 16;

// Events instead of a tree: a list of 16,384 members is 16,384 numbers then, and nothing else.
class Groups : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<GroupInfo> groups;
  std::string error;

  bool start_object(size_t) override {
    if (depth_ == 1) {
      if (groups.size() >= kMaxParallelGroups) return Fail(absl::StrCat("more than ", kMaxParallelGroups, " groups"));
      members_.clear();
      groups.emplace_back();
      groups.back().name = key_;
    }
    return Enter();
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1) groups.back().members = CompressMembers(members_);
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return Fail("not an object");
    if (depth_ == 1) return Fail("a group is not an object");
    if (depth_ == 2 && key_ == "global_ranks") members_here_ = true;
    return Enter();
  }
  bool end_array() override {
    --depth_;
    if (depth_ == 2) members_here_ = false;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ > 2) return true;
    if (text.size() > kMaxNameBytes) return Fail(absl::StrCat("a name has more than ", kMaxNameBytes, " bytes"));
    key_ = text;
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && key_ == "group_name") {
      if (text.size() > kMaxNameBytes) return Fail(absl::StrCat("a name has more than ", kMaxNameBytes, " bytes"));
      groups.back().label = text;
    }
    return Scalar();
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 3 && members_here_ && value <= static_cast<uint64_t>(std::numeric_limits<int>::max())) {
      if (++all_members_ > kMaxMembers) return Fail(absl::StrCat("more than ", kMaxMembers, " members"));
      members_.push_back(static_cast<int>(value));
    }
    return Scalar();
  }
  bool number_integer(number_integer_t) override { return Scalar(); }
  bool number_float(number_float_t, const string_t&) override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool null() override { return Scalar(); }
  bool binary(binary_t&) override { return Scalar(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("not JSON at byte ", position));
  }

 private:
  bool Fail(std::string message) {
    if (error.empty()) error = std::move(message);
    return false;
  }
  bool Enter() { return ++depth_ <= kMaxDepth || Fail("too deep"); }
  bool Scalar() {
    if (depth_ == 0) return Fail("not an object");
    return depth_ > 1 || Fail("a group is not an object");
  }

  int depth_ = 0;
  std::string key_;
  bool members_here_ = false;
  std::vector<int> members_;
  size_t all_members_ = 0;
};

// The form that everybody writes, ten times as fast as the above: a job of 16,384 ranks has as many of these files,
// each with a list of 16,384 members. It knows plain strings, unsigned integers and lists of them; false on anything
// else, wrong or only unusual, which is then for `Groups` to read.
class PlainScanner {
 public:
  explicit PlainScanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool Scan() {
    if (!Take('{')) return false;
    if (!Take('}')) {
      do {
        if (groups.size() >= kMaxParallelGroups || !Group()) return false;
      } while (Take(','));
      if (!Take('}')) return false;
    }
    SkipSpace();
    return at_ == end_;
  }

  std::vector<GroupInfo> groups;

 private:
  bool Group() {
    std::string_view name;
    if (!Key(&name) || !Take('{')) return false;
    GroupInfo& group = groups.emplace_back();
    group.name = name;
    members_.clear();
    if (!Take('}')) {
      do {
        if (!Property(&group)) return false;
      } while (Take(','));
      if (!Take('}')) return false;
    }
    group.members = CompressMembers(members_);
    return true;
  }
  bool Property(GroupInfo* group) {
    std::string_view key;
    if (!Key(&key)) return false;
    if (Take('[')) return Ranks(key == "global_ranks");
    std::string_view text;
    int number;
    if (at_ == end_ || *at_ != '"') return Number(&number);
    if (!String(&text) || (key == "group_name" && text.size() > kMaxNameBytes)) return false;
    if (key == "group_name") group->label = text;
    return true;
  }
  bool Ranks(bool keep) {
    if (Take(']')) return true;
    do {
      int rank;
      SkipSpace();
      if (!Number(&rank)) return false;
      if (!keep) continue;
      if (++all_members_ > kMaxMembers) return false;
      members_.push_back(rank);
    } while (Take(','));
    return Take(']');
  }
  bool Key(std::string_view* key) {
    SkipSpace();
    return String(key) && key->size() <= kMaxNameBytes && Take(':');
  }
  // Without escapes, and ASCII only.
  bool String(std::string_view* text) {
    if (at_ == end_ || *at_ != '"') return false;
    const char* begin = ++at_;
    while (at_ < end_ && *at_ >= ' ' && *at_ <= '~' && *at_ != '"' && *at_ != '\\') ++at_;
    if (at_ == end_ || *at_ != '"') return false;
    *text = std::string_view(begin, static_cast<size_t>(at_ - begin));
    ++at_;
    return true;
  }
  bool Number(int* number) {
    const char* begin = at_;
    int64_t value = 0;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9' && at_ - begin < 10) value = value * 10 + (*at_++ - '0');
    *number = static_cast<int>(value);
    // What may follow (a further digit, a fraction, an exponent) is refused by who calls: it is no ',', ']' or '}'.
    return at_ > begin && (*begin != '0' || at_ - begin == 1) && value <= std::numeric_limits<int>::max();
  }
  bool Take(char wanted) {
    SkipSpace();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    SkipSpace();
    return true;
  }
  void SkipSpace() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  const char* at_;
  const char* const end_;
  std::vector<int> members_;
  size_t all_members_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<GroupInfo>> ParseParallelGroups(std::string_view text) {
  if (text.size() > kMaxParallelGroupBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel_group.json: ", text.size(), " bytes, the limit is ", kMaxParallelGroupBytes));
  }
  PlainScanner plain(text);
  if (plain.Scan()) return std::move(plain.groups);
  Groups groups;
  if (!nlohmann::json::sax_parse(text, &groups)) {
    return absl::InvalidArgumentError(absl::StrCat("parallel_group.json: ", groups.error));
  }
  return std::move(groups.groups);
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
