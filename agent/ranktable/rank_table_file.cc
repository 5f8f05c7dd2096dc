#include "agent/ranktable/rank_table_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/hash/hash.h"
#include "agent/ranktable/errors.h"
#include "common/unique_fd.h"
#include "fmt/format.h"

namespace taskd::ranktable {

// As editors of Windows write it before UTF-8.
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

absl::StatusOr<std::string> ReadRankTableFile(const std::string& path, size_t max_bytes) {
  const auto fail = [&](std::string_view why) { return absl::InvalidArgumentError(fmt::format("{}: {}", path, why)); };
  // O_NONBLOCK: opening a FIFO without a writer would block.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    if (errno == ENOENT) return absl::NotFoundError(fmt::format("{}: there is no such file", path));
    return fail(strerror(errno));
  }
  struct stat facts = {};
  if (fstat(fd.get(), &facts) != 0) return fail(strerror(errno));
  if (!S_ISREG(facts.st_mode)) return fail("is not a file");
  const auto too_big = [&] {
    InputBudget budget(max_bytes);
    budget.Take(max_bytes + 1);
    return absl::ResourceExhaustedError(fmt::format("{}: {}", path, std::string(budget.status().message())));
  };
  if (facts.st_size > static_cast<off_t>(max_bytes)) return too_big();
  std::string text;
  // Files of /proc have a size of 0.
  size_t step = std::max<size_t>(static_cast<size_t>(facts.st_size) + 1, 4096);
  while (text.size() <= max_bytes) {
    const size_t had = text.size();
    text.resize(had + step);
    const ssize_t got = read(fd.get(), text.data() + had, step);
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
    if (got < 0 && errno != EINTR) return fail(strerror(errno));
    step = 65536;
  }
  return too_big();
}

namespace {

absl::StatusOr<RankTableCheck> CheckText(const std::string& path, std::string text, ChipRules chip, size_t max_bytes) {
  absl::StatusOr<RankTableCheck> check = CheckRankTable(std::move(text), chip, max_bytes);
  if (!check.ok()) {
    return absl::Status(check.status().code(), fmt::format("{}: {}", path, std::string(check.status().message())));
  }
  if (!path.ends_with(".json")) {
    check->errors.insert(check->errors.begin(),
                         {"", fmt::format("the file's name {} does not end in .json", QuoteValue(path))});
    check->table.reset();
    check->initializing = false;  // the name will not change
  }
  return check;
}

}  // namespace

absl::StatusOr<RankTableCheck> CheckRankTableFile(const std::string& path, ChipRules chip, size_t max_bytes) {
  absl::StatusOr<std::string> text = ReadRankTableFile(path, max_bytes);
  if (!text.ok()) return text.status();
  return CheckText(path, *std::move(text), chip, max_bytes);
}

absl::StatusOr<RankTable> WaitForRankTable(const std::string& path, ChipRules chip, const std::function<bool()>& pause,
                                           size_t max_bytes) {
  std::string missing;
  size_t last_look = 0;
  int same_looks = 0;
  do {
    absl::StatusOr<std::string> text = ReadRankTableFile(path, max_bytes);
    if (absl::IsResourceExhausted(text.status())) return text.status();
    if (!text.ok()) {
      missing = std::string(text.status().message());
      if (!absl::IsNotFound(text.status())) return absl::InvalidArgumentError(missing);
      same_looks = 0;
      continue;
    }
    const size_t look = absl::HashOf(*text);
    same_looks = same_looks > 0 && look == last_look ? same_looks + 1 : 1;
    last_look = look;
    absl::StatusOr<RankTableCheck> check = CheckText(path, *std::move(text), chip, max_bytes);
    if (absl::IsResourceExhausted(check.status())) return check.status();
    if (!check.ok()) {
      // It may be written just now.
      missing = std::string(check.status().message());
      if (same_looks == kRankTableLooks) return absl::InvalidArgumentError(missing);
    } else if (check->ok()) {
      return *std::move(check->table);
    } else {
      const RankTableError& error = check->errors.front();
      missing = fmt::format("{}: {}{}{}", path, error.path, error.path.empty() ? "" : ": ", error.text);
      if (!check->initializing) return absl::InvalidArgumentError(missing);
    }
  } while (pause());
  return absl::DeadlineExceededError(missing);
}

}  // namespace taskd::ranktable
