// What keeps a daemon's secrets from other processes of its user (docs/security-model.md).
#pragma once

#include <string>

namespace taskd {

// In the environment of a rank of `taskd run`, and of what that starts: by its value the launcher's guard finds them
// (agent/process/guard.h).
inline constexpr char kCookieVariable[] = "TASKD_RUN_COOKIE";

// The value of an environment variable, which is gone then: from /proc/PID/environ too, where it is overwritten. Empty:
// it is not set. Before any other thread runs: the environment belongs to nobody while it changes.
std::string TakeVariable(const char* name);

// Takes the secrets (TASKD_TOKEN, TASKD_SECRET) out of the environment, where the caller has read them, and closes the
// process: no core file, no debugger, and its environ, maps, mem and fd in /proc are root's (PR_SET_DUMPABLE,
// prctl(2)). Programs that it starts are as open as ever. Before any other thread runs.
// What has a guard's cookie stays open, for the guard.
void CloseProcess();

}  // namespace taskd
