// Where TaskD puts what is one user's alone: sockets, run folders, stacks, state, job files. /tmp is shared with
// strangers, so a folder is trusted for its owners and modes, never for its name.
//
// The rule, from "/" on, each component opened below the descriptor of the one before:
//  1. Leading folders of root's are the system's: taken as they are, symbolic links of root's among them. They end with
//     the first folder that others may write to (/tmp, a world-writable volume) or that is not root's.
//  2. From there on no symbolic link is followed, and each folder belongs to this user or root and cannot be written to
//     by group or others; one with the sticky bit may have others below it, but cannot be the last.
//  3. The last folder always obeys 2.
// So /tmp/pytest-of-me/x is good where /tmp is root's and the rest mine; /tmp/x of another user, or x -> elsewhere, is
// not. After the check nobody but this user and root can replace a component, so the path may be used as it is, unless
// root made a folder world-writable without the sticky bit: whoever names a path there has chosen so.
//
// Thread safety: all of these may be called from any thread; they read the environment. Nothing is kept.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace taskd {

// Opens the folder for reading (and openat, flock, fchdir), CLOEXEC; `create` makes what is missing, mode 0700. A
// relative path is one below the working directory.
// INVALID_ARGUMENT: one line with the folder, its owner and mode and the rule, or the system's reason.
// NOT_FOUND: it, or a folder above it, is missing and not to be made.
absl::StatusOr<UniqueFd> OpenOwnDir(const std::string& path, bool create);

// Opens a folder that a person named, for state that outlives the process; what is missing is made, the folder itself with mode
// 0700. The person knows who owns the folders above it (a team's, on shared storage), up to the first that everybody may write
// to, such as /tmp: anybody may have made what lies below that one, so parents there belong to this user or root, and nobody
// else can write to them. A link is followed on the way, but not in a folder that others can write to, nor at the end. Who owns
// the folder itself is for the caller to check. INVALID_ARGUMENT as above.
absl::StatusOr<UniqueFd> OpenNamedDir(const std::string& path);

// The user's runtime folder, or `below` in it ("jobs", "a/b"), made where missing and checked:
// "$XDG_RUNTIME_DIR/taskd", else "/run/user/<uid>/taskd", else "/tmp/taskd-<uid>", else "/dev/shm/taskd-<uid>". One is
// passed over
//  * when XDG_RUNTIME_DIR is empty or not absolute (as the XDG specification has it);
//  * when the folder that "taskd" goes into is missing or breaks the rule: after `sudo -E` it is another user's;
//  * when "taskd" cannot be made in it (read-only);
//  * when it is in /tmp or /dev/shm, and others may write to that, which has no sticky bit (a container's volume);
//  * when it is longer than kMaxRuntimeDirBytes: the sockets below it would have no valid address.
// What exists and breaks the rule further down is an error. INVALID_ARGUMENT as above, also for `below` with ".."; if all
// are passed over, for what is wrong with /tmp.
absl::StatusOr<std::string> RuntimeDir(const std::string& below = "");

// Room for "/run-<pid>/proxy.sock" in the 107 bytes of a UNIX socket's path.
inline constexpr size_t kMaxRuntimeDirBytes = 80;

// Those of the four (in /dev/shm only where it exists) that are not passed over, best first; they may be missing or break the rule that OpenOwnDir
// checks. For finding what other processes of this user left: with and without a login session the first choice
// differs. Creates nothing.
std::vector<std::string> RuntimeDirCandidates();

// A new folder of this user alone, mode 0700: /tmp/taskd-new-XXXXXX, or in /dev/shm, for who goes on without a runtime folder. It is
// the caller's to remove. INVALID_ARGUMENT as above.
absl::StatusOr<std::string> MakeFreshDir();

}  // namespace taskd
