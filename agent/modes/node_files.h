// What a mode finds and leaves on its node: files, sshd, names, and the log lines of ModelArts' run_mpi.sh.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/modes/plans/mode_plan.h"

namespace taskd::modes {

// Replaces the file, whole or not at all; makes its folder. UNAVAILABLE names the path and the reason.
absl::Status WriteWholeFile(const std::string& path, const std::string& content);

// The configuration with {{MY_SSHD_PORT}} filled in: a file beside it, so that the next run can have another port; the
// file itself where nothing is to be filled in. NOT_FOUND, UNAVAILABLE.
absl::StatusOr<std::string> FillInSshdConfig(const std::string& path, int port);
// In PATH, else where distributions put it. sshd wants to be called by its whole path.
absl::StatusOr<std::string> FindSshd(const Environment& environment);

// The machine's name and its addresses but for loopback.
std::vector<std::string> OwnNamesAndAddresses();

// Whether the host is this node: a loopback address, or one that an interface here has. Asks the resolver, and blocks.
bool IsThisNode(const std::string& host);

// Lines of a process of `nvidia-smi -L`; -1: there is no nvidia-smi.
int CountNvidiaSmiLines();

// Before and after node 0's mpirun, on stdout.
void AnnounceMpirun(const ModePlan& plan);
void AnnounceMpirunEnd(int code);

}  // namespace taskd::modes
