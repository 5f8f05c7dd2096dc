// How many descriptors this process may have.
#pragma once

#include <sys/resource.h>

#include <optional>

namespace taskd {

// Raises the soft limit to the hard one: a daemon takes one descriptor a peer, and the usual 1,024 are few. For
// programs of ours only, which never call select(): those that a launcher starts get back what it had itself. Call it
// once, at the start, before there are threads.
void RaiseDescriptorLimit();

// What this process had before it was raised; nothing if it was not.
std::optional<rlimit> DescriptorLimitBefore();

}  // namespace taskd
