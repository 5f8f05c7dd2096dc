#include "common/node_identity.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "common/files.h"
#include "common/utf8.h"

namespace taskd {
namespace {

constexpr size_t kMaxNameBytes = 253;  // of a DNS name, as Kubernetes' nodes have them
constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";

}  // namespace

NodeIdentity IdentityOf(const Environment& environment, const std::string& host, const std::string& machine) {
  NodeIdentity identity = {host, "", "", machine};
  const bool in_pod = !ValueOf(environment, "KUBERNETES_SERVICE_HOST").empty();
  if (in_pod) {
    const std::string pod = ValueOf(environment, "POD_NAME");
    identity.pod = pod.empty() ? host : pod;
  }
  identity.node_name = ValueOf(environment, "TASKD_NODE_NAME");
  if (identity.node_name.empty()) identity.node_name = ValueOf(environment, "SLURMD_NODENAME");
  if (identity.node_name.empty() && !in_pod) identity.node_name = host;
  return identity;
}

NodeIdentity OwnNodeIdentity() {
  char name[256] = {};
  const std::string host = gethostname(name, sizeof(name) - 1) == 0 ? ValidUtf8(name) : "unknown";
  return IdentityOf(OwnEnvironment(), host, FirstLineOfSystemFile(kBootId));
}

bool IsNodeName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && absl::ascii_isalnum(static_cast<unsigned char>(name[0])) &&
         std::ranges::all_of(name, [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace taskd
