// --numa-binding: the CPUs of each rank, as torch's binding.py chooses them, but never others than the launcher itself
// may use: the CPU set of a container or of a scheduler's step often ends in the middle of a NUMA node.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace taskd::run {

using CpuSet = std::set<int>;

struct NumaMachine {
  struct Cpu {
    int node = 0;          // NUMA node
    int socket = 0;        // physical_package_id
    int core = 0;          // the lowest CPU of its physical core
    int cache = 0;         // the lowest CPU that shares its last-level cache
    bool allowed = false;  // to this process
  };
  std::map<int, Cpu> cpus;
  // NUMA node of each accelerator that ranks see, in the order of their indexes; -1: not known.
  std::vector<int> device_nodes;
};

// The CPUs that the calling thread may use: its affinity, which is within its cgroup's set.
CpuSet AllowedCpus();

// From sysfs, procfs and device nodes below `root`, which ends in a slash. `environment`: for the devices' visibility.
// Where the kernel says nothing a CPU is its own core, and shares its last-level cache with its NUMA node.
NumaMachine ReadNumaMachine(const std::string& root, const CpuSet& allowed,
                            const std::map<std::string, std::string>& environment);

struct NumaBinding {
  std::vector<CpuSet> cpus;  // by local rank; empty: the rank is not bound
  std::string warning;       // ranks that are not bound, and why; else empty
};

// `how`: node, socket, exclusive or core-complex. Local rank R belongs to the NUMA node of accelerator R; where that is
// not known of every rank, ranks are spread evenly over the NUMA nodes with CPUs that may be used, the first ranks on
// the first node. On a machine with CPUs on one NUMA node nobody is bound. INVALID_ARGUMENT: `exclusive` where there
// are fewer cores than ranks.
absl::StatusOr<NumaBinding> BindRanks(const std::string& how, const NumaMachine& machine, int local_world_size);

}  // namespace taskd::run
