#include "proxy/aging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/log.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

namespace fs = std::filesystem;

struct MarkFile {
  int64_t modified_ns;
  int64_t bytes;
  std::string path;
};

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// <path>/<task>/<rank>/<digits>
bool IsMarkFile(const fs::recursive_directory_iterator& entry) {
  const fs::path& path = entry->path();
  return entry.depth() == 2 && IsDigits(path.filename().native()) && IsDigits(path.parent_path().filename().native());
}

// Proxies hold a lock on the file that they append to, which tells across the nodes of a shared file system. On a local
// one the kernel also knows of everybody else who has the file open: it grants no lease then.
bool InUse(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return true;
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
  return fcntl(fd.get(), F_SETLEASE, F_WRLCK) != 0 && errno == EAGAIN;
}

}  // namespace

AgingResult AgeProfilingDir(const std::string& path, int64_t limit_bytes, const std::atomic<bool>& stop) {
  AgingResult result;
  if (limit_bytes <= 0) return result;
  std::vector<MarkFile> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(path, fs::directory_options::skip_permission_denied, error);
  for (; !error && !stop && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    struct stat info;
    if (lstat(entry->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    result.bytes += info.st_size;
    if (IsMarkFile(entry)) {
      files.push_back(
          {info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_size, entry->path().native()});
    }
  }
  if (result.bytes <= limit_bytes || stop) return result;
  std::erase_if(files, [](const MarkFile& file) { return InUse(file.path); });
  std::sort(files.begin(), files.end(), [](const MarkFile& a, const MarkFile& b) {
    return std::tie(a.modified_ns, a.path) < std::tie(b.modified_ns, b.path);
  });
  auto oldest = files.begin();
  while (result.bytes > limit_bytes && oldest != files.end() && !stop) {
    std::ptrdiff_t fifth = std::max<std::ptrdiff_t>(1, (files.end() - oldest) / 5);
    for (auto end = oldest + fifth; oldest != end; ++oldest) {
      if (unlink(oldest->path.c_str()) != 0) continue;
      result.bytes -= oldest->bytes;
      ++result.removed;
    }
  }
  result.over = result.bytes > limit_bytes;
  return result;
}

}  // namespace taskd
