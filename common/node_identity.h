// How a node is called: by itself, by its pod, by the scheduler that placed the job, and by the kernel it runs on.
#pragma once

#include <string>

#include "common/environment.h"

namespace taskd {

struct NodeIdentity {
  std::string host;       // host name; of a pod the pod's own, unless it shares its node's network
  std::string pod;        // empty: not in a pod
  std::string node_name;  // what the scheduler calls the node; empty: not known
  // The kernel's boot id: the same for all containers of one machine. Other machines of the job cannot read it, so
  // it tells two machines apart even if one of them claims the other one's names. Never shown to anybody. Empty: not known.
  std::string machine;

  friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};

// TASKD_NODE_NAME, else SLURMD_NODENAME, else the host name. A pod's host name says nothing of its node, so in a pod
// (KUBERNETES_SERVICE_HOST is set) the name is unknown without one of the two variables. The pod is POD_NAME, else the
// host name.
NodeIdentity IdentityOf(const Environment& environment, const std::string& host, const std::string& machine);

// Reads the identity of this machine from the kernel and from this process's environment.
NodeIdentity OwnNodeIdentity();

// Whether `name` can be a scheduler's name of a node: 1 to 253 of A-Z a-z 0-9 . _ -, the first a letter or digit.
bool IsNodeName(const std::string& name);

}  // namespace taskd
