#include "agent/run/device_count.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;

// Entries of `folder` that are named `prefix` and a number. "nvidia0", not "nvidiactl".
int CountNumbered(const fs::path& folder, std::string_view prefix) {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || name.size() == prefix.size()) continue;
    if (name.find_first_not_of("0123456789", prefix.size()) == std::string::npos) ++count;
  }
  return count;
}

int CountEntries(const fs::path& folder) {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) ++count;
  return count;
}

}  // namespace

// As CUDA reads it: what follows the first entry that is no device is ignored. Names are believed.
std::vector<std::string> VisibleDevices(int devices, const std::map<std::string, std::string>& environment,
                                        const char* variable) {
  std::vector<std::string> visible;
  auto found = environment.find(variable);
  if (found == environment.end()) {
    for (int index = 0; index < devices; ++index) visible.push_back(std::to_string(index));
    return visible;
  }
  if (devices == 0) return visible;
  for (absl::string_view item : absl::StrSplit(found->second, ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(item);
    int index = 0;
    const bool is_index = absl::SimpleAtoi(entry, &index);
    if (entry.empty() || entry[0] == '-' || (is_index && index >= devices) ||
        (!is_index && !absl::ascii_isalpha(static_cast<unsigned char>(entry[0])))) {
      break;
    }
    visible.emplace_back(entry);
  }
  return visible;
}

int CountDevices(const std::string& root, const std::map<std::string, std::string>& environment) {
  int gpus = CountNumbered(root + "dev", "nvidia");
  if (gpus == 0) gpus = CountEntries(root + "proc/driver/nvidia/gpus");
  const std::vector<std::string> visible =
      gpus > 0 ? VisibleDevices(gpus, environment, "CUDA_VISIBLE_DEVICES")
               : VisibleDevices(CountNumbered(root + "dev", "davinci"), environment, "ASCEND_RT_VISIBLE_DEVICES");
  return static_cast<int>(visible.size());
}

}  // namespace taskd::run
