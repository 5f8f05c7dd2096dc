// What the command line means for the rendezvous.
#pragma once

#include <optional>
#include <string>

#include "agent/run/options.h"
#include "agent/run/rendezvous.h"

namespace taskd::run {

// Whether the nodes of such a job bring their ranks, and rank 0 hosts the store (static). Else the rendezvous gives
// ranks.
bool HasNodeRanks(const RunOptions& options);

// Whether this node's launcher hosts the root store. Nothing: it does if the endpoint names this machine.
std::optional<bool> HostsStore(const RunOptions& options);

// `manager`: HOST:PORT for every Assignment, empty for none.
Rendezvous::Options RendezvousOptions(const RunOptions& options, const std::string& manager);

// This node as it joins; what only the launcher knows (nonce, tier_port) is left out. `host`: what people call
// it.
NodeInfo DescribeNode(const RunOptions& options, const std::string& host);

}  // namespace taskd::run
