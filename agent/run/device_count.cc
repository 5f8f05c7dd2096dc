#include "agent/run/device_count.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/files.h"

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

// Render nodes of GPUs that compute. Graphics of the board and of virtual machines have them, too: what is Intel's at the place
// of a processor's own graphics (00:02.0), and what is of another maker than AMD and Intel. Of a device that sysfs
// does not describe nothing is known but that it was given to this container.
int CountRenderNodes(const std::string& root) {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(root + "dev/dri", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with("renderD")) continue;
    const fs::path device = fs::path(root + "sys/class/drm") / name / "device";
    const std::string vendor = FirstLineOfSystemFile(device / "vendor");
    std::error_code unknown;
    const std::string slot = fs::canonical(device, unknown).filename().string();
    const bool is_intel = vendor == "0x8086", is_of_processor = is_intel && slot.ends_with(":00:02.0");
    if (vendor.empty() || vendor == "0x1002" || (is_intel && !is_of_processor)) ++count;
  }
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
  const auto visible = [&](int devices, const char* variable) {
    return static_cast<int>(VisibleDevices(devices, environment, variable).size());
  };
  int gpus = CountNumbered(root + "dev", "nvidia");
  if (gpus == 0) gpus = CountEntries(root + "proc/driver/nvidia/gpus");
  if (gpus > 0) return visible(gpus, "CUDA_VISIBLE_DEVICES");
  if (const int npus = CountNumbered(root + "dev", "davinci"); npus > 0) {
    return visible(npus, "ASCEND_RT_VISIBLE_DEVICES");
  }
  const int nodes = CountRenderNodes(root);
  std::error_code error;
  if (!fs::exists(root + "dev/kfd", error)) return visible(nodes, "ZE_AFFINITY_MASK");
  // ROCm's runtime hides devices first, and HIP, or CUDA's name for it, of those that are left.
  const int of_runtime = visible(nodes, "ROCR_VISIBLE_DEVICES");
  return visible(of_runtime,
                 environment.contains("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
}

}  // namespace taskd::run
