#include "proxy/state_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "nlohmann/json.hpp"

namespace taskd::proxy {

std::string StateFilePath(const std::string& socket) { return absl::StrCat(socket, ".state"); }

std::optional<ProxyState> LoadProxyState(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  char text[8192];
  ssize_t length = fd.valid() ? read(fd.get(), text, sizeof(text)) : -1;
  if (length <= 0) return std::nullopt;
  nlohmann::json json = nlohmann::json::parse(text, text + length, nullptr, false);
  if (!json.is_object() || !json["task_folder"].is_string()) return std::nullopt;
  ProxyState state;
  state.task_folder = json["task_folder"].get<std::string>();
  if (json["wanted"].is_number_unsigned()) state.wanted = json["wanted"].get<KindMask>() & kAllKindsMask;
  return state;
}

void SaveProxyState(const std::string& path, const ProxyState& state) {
  nlohmann::ordered_json json = {{"task_folder", state.task_folder}};
  if (state.wanted) json["wanted"] = *state.wanted;
  if (!state.rank_folders.empty()) json["rank_folders"] = state.rank_folders;
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string temporary = absl::StrCat(path, ".new");
  unlink(temporary.c_str());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd.valid() && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      rename(temporary.c_str(), path.c_str()) == 0) {
    return;
  }
  static bool logged = false;
  if (!logged)
    spdlog::warn("{}: {}; a restarted proxy without a manager will not know the switch state", path, strerror(errno));
  logged = true;
}

}  // namespace taskd::proxy
