// The little that a proxy leaves for the next one on its socket, beside the rings themselves: the task's folder and the
// switch state that holds while no manager answers. Used only where ranks of the same socket are still there; otherwise
// it is an earlier job's. And for the ranks: below which folder they leave their groups.
#pragma once

#include <optional>
#include <string>

#include "common/switch.h"

namespace taskd::proxy {

struct ProxyState {
  std::string task_folder;
  std::optional<KindMask> wanted;
  std::string rank_folders;  // <rank>/parallel_group.json is looked for in it; written only
  std::string mark_folder;   // MarkFolder::Name()
};

// "<socket>.state"
std::string StateFilePath(const std::string& socket);

// Nothing if there is none or it is not readable as one.
std::optional<ProxyState> LoadProxyState(const std::string& path);

// Replaces the file as a whole. A failure is logged once per process: the state is a convenience, not a promise.
void SaveProxyState(const std::string& path, const ProxyState& state);

}  // namespace taskd::proxy
