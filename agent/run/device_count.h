// How many accelerators a launcher may use, counted without their libraries.
#pragma once

#include <map>
#include <string>

namespace taskd::run {

// GPUs below CUDA_VISIBLE_DEVICES, or where there are none, NPUs below ASCEND_RT_VISIBLE_DEVICES. Nodes in <root>dev
// count (a container has those it was given), else <root>proc/driver/nvidia/gpus. `root` ends in a slash.
int CountDevices(const std::string& root, const std::map<std::string, std::string>& environment);

}  // namespace taskd::run
