#include "proxy/state_file.h"

#include "absl/strings/str_cat.h"
#include "common/atomic_file.h"
#include "common/files.h"
#include "common/log.h"
#include "nlohmann/json.hpp"

namespace taskd::proxy {
namespace {

constexpr size_t kMaxBytes = 8192;

}  // namespace

std::string StateFilePath(const std::string& socket) { return absl::StrCat(socket, ".state"); }

std::optional<ProxyState> LoadProxyState(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes, {.only_own = true});
  if (!text.ok()) return std::nullopt;
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object() || !json["task_folder"].is_string()) return std::nullopt;
  ProxyState state;
  state.task_folder = json["task_folder"].get<std::string>();
  if (json["mark_folder"].is_string()) state.mark_folder = json["mark_folder"].get<std::string>();
  if (json["wanted"].is_number_unsigned()) state.wanted = json["wanted"].get<KindMask>() & kAllKindsMask;
  return state;
}

void SaveProxyState(const std::string& path, const ProxyState& state) {
  nlohmann::ordered_json json = {{"task_folder", state.task_folder}};
  if (state.wanted) json["wanted"] = *state.wanted;
  if (!state.rank_folders.empty()) json["rank_folders"] = state.rank_folders;
  if (!state.mark_folder.empty()) json["mark_folder"] = state.mark_folder;
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  absl::StatusOr<FreshFile> file = FreshFile::Create(path, 0600);
  absl::Status status = file.status();
  if (status.ok()) status = file->Write(text);
  if (status.ok()) status = file->Commit();
  if (status.ok()) return;
  static bool logged = false;
  if (!logged) {
    spdlog::warn("{}; a restarted proxy without a manager will not know the switch state", status.message());
  }
  logged = true;
}

}  // namespace taskd::proxy
