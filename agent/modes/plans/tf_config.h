// TF_CONFIG: the cluster of a TensorFlow job and this node's task in it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"

namespace taskd::modes {

struct TfConfig {
  // "worker", "chief" or "master" at least, no list empty. Of MultiWorkerMirroredStrategy there is no "ps".
  std::map<std::string, std::vector<HostPort>> cluster;
  std::string type;  // in `cluster`, or "evaluator", or "chief"
  int index = 0;     // in its list, where there is one
};

// INVALID_ARGUMENT names TF_CONFIG, the place, the value and the rule. Time and memory are bounded.
absl::StatusOr<TfConfig> ParseTfConfig(std::string_view text);

// The first `ps_count` of `hosts` are ps, the others workers; this is the one at `index`. 0 < ps_count < hosts.size(),
// 0 <= index < hosts.size(). INVALID_ARGUMENT: a host is not UTF-8.
absl::StatusOr<std::string> MakeTfConfig(const std::vector<std::string>& hosts, int ps_count, int index);

}  // namespace taskd::modes
