#include "common/order_to.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/printable.h"
#include "common/runtime_dir.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

using ReceiverKind = OrderTo::Kind;

constexpr char kExecute[] = "+execute";
constexpr char kNvsentinelSocket[] = "/var/run/nvsentinel.sock";
constexpr size_t kMaxSocketPath = 107;

absl::Status Wrong(std::string_view receiver, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat("--order-to: '", Printable(receiver), "' ", rule));
}

absl::StatusOr<OrderTo> ParseOne(std::string_view word) {
  std::string_view rest = word;
  const bool executes = rest.ends_with(kExecute);
  if (executes) rest.remove_suffix(std::size(kExecute) - 1);
  const size_t colon = rest.find(':');
  const std::string_view name = rest.substr(0, colon);
  OrderTo one;
  if (colon != std::string_view::npos) one.path = rest.substr(colon + 1);
  bool is_known = false;
  for (const ReceiverKind kind :
       {ReceiverKind::kCommand, ReceiverKind::kNvrx, ReceiverKind::kClusterd, ReceiverKind::kNvsentinel}) {
    if (name != Name(kind)) continue;
    one.kind = kind;
    is_known = true;
  }
  if (!is_known) return Wrong(word, "is not a receiver; receivers are command:PATH, nvrx:DIR, clusterd and nvsentinel");
  one.executes = executes;
  if (executes && one.kind != ReceiverKind::kNvsentinel) return Wrong(word, "has +execute, which only nvsentinel has");
  if (one.kind == ReceiverKind::kNvsentinel && colon == std::string_view::npos) one.path = kNvsentinelSocket;
  if (one.kind == ReceiverKind::kNvsentinel && one.path.size() > kMaxSocketPath) {
    return Wrong(word, absl::StrCat("has a path of more than ", kMaxSocketPath, " bytes"));
  }
  if (one.kind == ReceiverKind::kClusterd) {
    return colon == std::string_view::npos ? absl::StatusOr<OrderTo>(one)
                                           : Wrong(word, "has more than its name; --clusterd gives the address");
  }
  if (one.path.empty() || one.path[0] != '/' || one.path.find('\0') != std::string::npos) {
    return Wrong(word, "has no absolute path behind its colon");
  }
  return one;
}

absl::Status CheckNvrxFolder(const std::string& path, const Environment& environment) {
  const absl::StatusOr<UniqueFd> folder = OpenFolder(path, {.follow_links = true});
  if (!folder.ok()) return folder.status();
  if (::faccessat(folder->get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": no file can be made there: ", std::strerror(errno)));
  }
  if (!NvrxFileName(environment).empty()) return absl::OkStatus();
  return absl::FailedPreconditionError("NVRx names its files after the Slurm job, and SLURM_JOB_ID is not set");
}

}  // namespace

std::string NvrxFileName(const Environment& environment) {
  const auto number = [&](const char* of_array) {
    const std::string value = ValueOf(environment, of_array);
    return value.empty() ? ValueOf(environment, "SLURM_JOB_ID") : value;
  };
  const std::string job = number("SLURM_ARRAY_JOB_ID");
  const std::string task = number("SLURM_ARRAY_TASK_ID");
  for (const std::string& part : {job, task}) {
    if (part.empty() || part.find_first_not_of("0123456789") != std::string::npos) return "";
  }
  return absl::StrCat("segment_health_check.", job, ".", task);
}

const char* Name(OrderTo::Kind kind) {
  switch (kind) {
    case OrderTo::Kind::kCommand:
      return "command";
    case OrderTo::Kind::kNvrx:
      return "nvrx";
    case OrderTo::Kind::kClusterd:
      return "clusterd";
    case OrderTo::Kind::kNvsentinel:
      return "nvsentinel";
  }
  return "";
}

absl::StatusOr<std::vector<OrderTo>> ParseOrderTo(const std::string& list) {
  std::vector<OrderTo> receivers;
  if (list.empty()) return receivers;
  for (const absl::string_view piece : absl::StrSplit(list, ',')) {
    const std::string word(piece);
    absl::StatusOr<OrderTo> one = ParseOne(word);
    if (!one.ok()) return one.status();
    if (std::ranges::find(receivers, one->kind, &OrderTo::kind) != receivers.end()) {
      return Wrong(word,
                   absl::StrCat("is a second receiver of the kind ", Name(one->kind), "; each may be given once"));
    }
    receivers.push_back(*std::move(one));
  }
  return receivers;
}

absl::Status CheckOrderTo(const std::vector<OrderTo>& receivers, const Environment& environment, bool knows_clusterd) {
  for (const OrderTo& one : receivers) {
    absl::Status checked;
    if (one.kind == ReceiverKind::kCommand) checked = CheckCommand(one.path);
    if (one.kind == ReceiverKind::kNvrx) checked = CheckNvrxFolder(one.path, environment);
    if (one.kind == ReceiverKind::kClusterd && !knows_clusterd) {
      checked = absl::InvalidArgumentError("there is no ClusterD to send to; give --clusterd HOST:PORT");
    }
    if (!checked.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--order-to: ", Name(one.kind), ": ", checked.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCommand(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string name = path.substr(slash + 1);
  const absl::StatusOr<UniqueFd> folder = OpenOwnDir(slash == 0 ? "/" : path.substr(0, slash), false);
  if (!folder.ok()) return folder.status();
  const absl::StatusOr<UniqueFd> file =
      OpenFile(name, O_RDONLY, {.folder = folder->get(), .shown = path, .only_own = true});
  if (!file.ok()) return file.status();
  if (::faccessat(folder->get(), name.c_str(), X_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be executed: ", std::strerror(errno)));
}

}  // namespace taskd
