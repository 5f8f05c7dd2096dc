// The flags that commands about a job share: whom they ask, and how that is reached.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/commands/command_line.h"
#include "proto/security.h"

namespace taskd::commands {

inline constexpr char kManagerHelp[] = "HOST:PORT of the manager [the only job that this user runs on this machine]";

// --tls-dir and --tls-name.
void AddTlsFlags(Flags& flags, proto::Security& security);

// Of a daemon: who reaches it how, and when it ends.
template <typename Options>
void AddDaemonFlags(Flags& flags, Options& options) {
  flags.Add("--tls-dir", options.tls_dir, kTlsDirHelp);
  flags.Add("--tls-name", options.tls_name, kTlsNameHelp);
  flags.Add("--allow-plaintext", options.allow_plaintext,
            "ClusterD's service in plain text, to whoever reaches --listen");
  flags.Add("--exit-on-stdin-eof", options.exit_on_stdin_eof, "end when stdin is closed, and at no signal before");
}

inline constexpr char kFromHelp[] =
    "a task's folder of mark files, or what other tools wrote: files, folders, patterns; - for stdin";

// Files, or a manager.
class JobSource {
 public:
  std::vector<std::string> from;  // files, folders, patterns; empty: ask the manager
  std::string manager;            // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;  // of a manager: refuses any other job's; of files: what the job is called [the folder's name]

  void AddFlags(Flags& flags);
  // After the command line was read. In the environment both may stand; a flag wins over them. INVALID_ARGUMENT: both
  // were asked for.
  absl::Status Choose();
  // The command has been asked for something else, by that flag. INVALID_ARGUMENT: and for one of these.
  absl::Status ChooseNone(const std::string& flag);

 private:
  std::optional<Flag> from_flag_;
  std::optional<Flag> manager_flag_;
};

}  // namespace taskd::commands
