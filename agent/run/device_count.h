// The accelerators that a launcher may use, without their libraries.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace taskd::run {

// NVIDIA's GPUs below CUDA_VISIBLE_DEVICES; where there are none NPUs below ASCEND_RT_VISIBLE_DEVICES; else GPUs of AMD below
// ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, or of Intel below ZE_AFFINITY_MASK (whole devices). Nodes in <root>dev count (a
// container has those it was given), else <root>proc/driver/nvidia/gpus. `root` ends in a slash.
int CountDevices(const std::string& root, const std::map<std::string, std::string>& environment);

// What `variable` (CUDA_VISIBLE_DEVICES) shows of so many devices: indexes, or names (GPU-<uuid>). Not set: all.
std::vector<std::string> VisibleDevices(int devices, const std::map<std::string, std::string>& environment,
                                        const char* variable);

}  // namespace taskd::run
