// Access to what TaskD shows over HTTP (docs/security-model.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http_server.h"

namespace taskd {

// To more than /healthz.
struct HttpAccess {
  bool anyone = false;
  bool own_user = false;  // the process's own and root, over loopback
  std::string token{};    // ViewToken: as a bearer token, or once as ?token=, for a cookie; empty: none is right
  std::string secret{};   // the job's, which is refused with a word about the token; empty: none
  std::vector<std::string> hosts{};  // names under which a browser may ask, besides this machine's own
};

// The same pages; all but /healthz answer 401 to others. A request without the token as a bearer, with a cookie too, has
// to ask under a name of this machine (IsOwnHost), else the answer is 403: the page of a stranger, whose name has been
// told to lead here (DNS rebinding), asks under that name.
HttpHandlers Protect(HttpHandlers pages, const HttpAccess& access);

// "a.example.com,b" as lower-case names. INVALID_ARGUMENT names `what` and the one that is no host name.
absl::StatusOr<std::vector<std::string>> ParseHttpHosts(std::string_view what, std::string_view value);

// Whether the value of a Host header ("name", "name:port") is an IP address, IPv6 in brackets, "localhost" or one of
// `names`, which are in lower case. None is too: no browser leaves it out.
bool IsOwnHost(std::string_view host, const std::vector<std::string>& names);

}  // namespace taskd
