#include "manager/actions/nvrx_receiver.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/atomic_file.h"
#include "common/files.h"
#include "policy/render.h"

namespace taskd::manager {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 20;
constexpr char kLineBegin[] = "{\"id\":\"";  // of an action's JSON

}  // namespace

NvrxReceiver::NvrxReceiver(std::string folder, std::string name)
    : folder_(std::move(folder)), name_(std::move(name)), path_(absl::StrCat(folder_, "/", name_)) {}

OrderAnswer NvrxReceiver::Send(const policy::Action& action) { return Change(action, true); }

OrderAnswer NvrxReceiver::Withdraw(const policy::Action& action) { return Change(action, false); }

OrderAnswer NvrxReceiver::Change(const policy::Action& action, bool add) {
  using policy::Outcome;
  const absl::StatusOr<UniqueFd> folder = OpenFolder(folder_, {.follow_links = true});
  if (!folder.ok()) return {Outcome::kSent, std::string(folder.status().message())};
  const absl::StatusOr<std::string> before = ReadFile(name_, kMostFileBytes, {.folder = folder->get(), .shown = path_});
  if (!before.ok() && !absl::IsNotFound(before.status())) {
    return {absl::IsUnavailable(before.status()) ? Outcome::kSent : Outcome::kFailed,
            std::string(before.status().message())};
  }
  std::string lines;
  bool had = false;
  for (const absl::string_view line : absl::StrSplit(before.value_or(""), '\n', absl::SkipEmpty())) {
    if (!absl::StartsWith(line, kLineBegin)) {
      return {Outcome::kTaken, absl::StrCat(path_, " is somebody else's, and stays as it is")};
    }
    if (absl::StartsWith(line, absl::StrCat(kLineBegin, action.id, "\""))) {
      had = true;
    } else {
      absl::StrAppend(&lines, line, "\n");
    }
  }
  if (add) absl::StrAppend(&lines, policy::RenderJson(action), "\n");
  if (!add && !had) return {Outcome::kTaken, absl::StrCat(path_, " has been removed already")};
  if (lines.empty()) {
    if (::unlinkat(folder->get(), name_.c_str(), 0) == 0 || errno == ENOENT) {
      return {Outcome::kTaken, absl::StrCat("removed ", path_)};
    }
    return {Outcome::kSent, absl::StrCat(path_, ": ", std::strerror(errno))};
  }
  const absl::Status written = WriteFileAtomically(folder->get(), name_, lines, path_);
  if (!written.ok()) return {Outcome::kSent, std::string(written.message())};
  return {Outcome::kTaken, absl::StrCat(add ? "wrote " : "removed the order from ", path_)};
}

}  // namespace taskd::manager
