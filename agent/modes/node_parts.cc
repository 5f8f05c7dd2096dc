#include "agent/modes/node_parts.h"

#include "absl/strings/str_cat.h"

namespace taskd::modes {

Environment NodeParts::CommandEnvironment(const Environment& of_mode) const {
  Environment result = run.environment;
  for (const auto& [name, value] : of_mode) result[name] = value;
  if (mpi) mpi->AddTo(&result);
  // An outer launcher's guard has to find these, too.
  std::string& cookies = result[process::kCookieVariable];
  absl::StrAppend(&cookies, cookies.empty() ? "" : ",", cookie);
  return result;
}

bool NodeParts::UsesTaskdRsh() const {
  if (plan.manager.empty() || run.environment.contains("OMPI_MCA_plm_rsh_agent")) return false;  // the user's own way
  const bool has_secret = !run.security.secret.empty() || !run.security.tls_dir.empty();
  return run.options.remote_start == RemoteStart::kTaskd ||
         (run.options.remote_start == RemoteStart::kAuto && has_secret);
}

}  // namespace taskd::modes
