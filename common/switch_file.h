// Watches the ConfigMap file `profilingSwitch`: inotify where the mount supports it, and a look every second where it
// does not (Kubernetes swaps a symbolic link above the file; some mounts never notify).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/switch.h"

namespace taskd {

class SwitchFileWatcher {
 public:
  // Calls `on_change` from its own thread: once for what the file holds when it is first readable, and whenever its
  // content has become different and valid. A missing, unreadable or broken file changes nothing; a broken one is
  // logged once per content. `on_change` must not destroy the watcher.
  SwitchFileWatcher(std::string path, std::function<void(const SwitchChange&)> on_change);
  ~SwitchFileWatcher();  // stops and joins the thread

  SwitchFileWatcher(const SwitchFileWatcher&) = delete;
  SwitchFileWatcher& operator=(const SwitchFileWatcher&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd
