// sd_notify(3) without libsystemd: a daemon that a service manager has started (systemd, Type=notify) reports its state.
#pragma once

#include <string_view>

namespace taskd {

// Sends `state` ("READY=1": the daemon serves; "STOPPING=1": it ends) to the socket that NOTIFY_SOCKET names, a path or
// "@" and an abstract name. Does nothing where no such socket is.
void NotifyServiceManager(std::string_view state);

}  // namespace taskd
