// Runs code of a test as another user, or with a /tmp, a /run and a /dev/shm of its own: in a child process, so that
// neither the test nor the machine changes. For root only: others skip.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace taskd::testing {

inline constexpr uid_t kVictim = 2001;
inline constexpr uid_t kStranger = 2002;

// Whether `body` returned true in a child of this user.
inline bool AsUser(uid_t uid, const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const bool done = setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0 && body();
    _exit(done ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Whether `body` returned true in a child (of root) that has an empty /tmp, /run and /dev/shm, and no XDG_RUNTIME_DIR.
inline bool InOwnMounts(const std::function<bool()>& body) {
  return AsUser(0, [&] {
    unsetenv("XDG_RUNTIME_DIR");
    umask(022);
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("none", "/tmp", "tmpfs", 0, "mode=1777") == 0 && mount("none", "/run", "tmpfs", 0, "mode=755") == 0 &&
           mount("none", "/dev/shm", "tmpfs", 0, "mode=1777") == 0 && mkdir("/run/user", 0755) == 0 && body();
  });
}

}  // namespace taskd::testing
