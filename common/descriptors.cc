#include "common/descriptors.h"

namespace taskd {
namespace {

std::optional<rlimit> before;

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const rlimit raised = {limit.rlim_max, limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) before = limit;
}

std::optional<rlimit> DescriptorLimitBefore() { return before; }

}  // namespace taskd
