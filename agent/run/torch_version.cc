#include "agent/run/torch_version.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/environment.h"
#include "common/files.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;

fs::path FindPython(const Environment& environment) {
  std::string python = ValueOf(environment, "PYTHON_EXEC");
  if (python.empty()) python = "python3";
  if (absl::StrContains(python, '/')) return python;
  std::error_code ignored;
  for (absl::string_view folder : absl::StrSplit(ValueOf(environment, "PATH"), ':')) {
    fs::path path = fs::path(std::string(folder)) / python;
    if (!folder.empty() && fs::exists(path, ignored)) return path;
  }
  return {};
}

constexpr size_t kMaxVersionBytes = 65536;

// From "__version__ = '2.11.0+cu130'"; 0: there is no such line.
int MajorOf(const fs::path& version_file) {
  const std::string text = ReadFile(version_file, kMaxVersionBytes, {.follow_links = true}).value_or("");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "__version__")) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, absl::ByAnyChar("'\"."));
    int major = 0;
    return parts.size() > 2 && absl::SimpleAtoi(parts[1], &major) ? major : 0;
  }
  return 0;
}

}  // namespace

bool HasTorch2(const Environment& environment) {
  const fs::path python = FindPython(environment);
  if (python.empty()) return false;
  std::error_code error;
  // A virtual environment's Python is a link to the one that it was made from, whose packages it may see, too.
  std::set<fs::path> prefixes = {python.parent_path().parent_path(),
                                 fs::canonical(python, error).parent_path().parent_path()};
  prefixes.erase("");  // there is no such Python, or it lies in the working folder
  if (prefixes.contains("/usr")) prefixes.insert("/usr/local");
  if (const std::string home = ValueOf(environment, "HOME"); !home.empty()) prefixes.insert(fs::path(home) / ".local");
  bool found = false;
  for (const fs::path& prefix : prefixes) {
    for (fs::directory_iterator at(prefix / "lib", error), end; !error && at != end; at.increment(error)) {
      if (!absl::StartsWith(at->path().filename().string(), "python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        const int major = MajorOf(at->path() / packages / "torch" / "version.py");
        if (major == 1) return false;
        found = found || major > 1;
      }
    }
  }
  return found;
}

}  // namespace taskd::run
