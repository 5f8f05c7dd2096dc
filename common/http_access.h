// Who may see what TaskD shows over HTTP (docs/security-model.md).
#pragma once

#include <string>

#include "common/http_server.h"

namespace taskd {

// Who may see more than /healthz.
struct HttpAccess {
  bool anyone = false;
  bool own_user = false;  // the process's own and root, over loopback
  std::string token;      // as a bearer token, or once as ?token=, for a cookie; empty: none is right
};
// The same pages; all but /healthz answer 401 to others.
HttpHandlers Protect(HttpHandlers pages, const HttpAccess& access);

}  // namespace taskd
