#include "agent/commands/job_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::commands {

void AddTlsFlags(Flags& flags, proto::Security& security) {
  flags.Add("--tls-dir", security.tls_dir, kTlsDirHelp);
  flags.Add("--tls-name", security.tls_name, kTlsNameHelp);
}

void JobSource::AddFlags(Flags& flags) {
  from_flag_ = flags.Add("--from", from, absl::StrCat(kFromHelp, "; instead of a manager"));
  manager_flag_ = flags.Add("--manager", manager, kManagerHelp);
  flags.Add("--job", job,
            "NAMESPACE/NAME; without --manager the job to find, a manager refuses any other one; of files the name");
}

absl::Status JobSource::Choose() {
  if (manager_flag_->on_command_line()) {
    if (from_flag_->on_command_line()) {
      return absl::InvalidArgumentError("--from and --manager: only one of them can be asked");
    }
    from.clear();
  }
  if (from.empty()) job = FullJobName(job);
  return absl::OkStatus();
}

absl::Status JobSource::ChooseNone(const std::string& flag) {
  for (const auto& [name, other] : {std::pair("--from", &from_flag_), std::pair("--manager", &manager_flag_)}) {
    if (!(*other)->on_command_line()) continue;
    return absl::InvalidArgumentError(absl::StrCat(flag, " and ", name, ": only one of them can be asked"));
  }
  from.clear();
  manager.clear();
  job = FullJobName(job);
  return absl::OkStatus();
}

}  // namespace taskd::commands
