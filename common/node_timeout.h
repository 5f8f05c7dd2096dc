// How long a node of a job may be silent before it is lost: --node-timeout of `taskd run`.
#pragma once

namespace taskd {

inline constexpr double kNodeTimeoutS = 60;  // where it is not given and nodes do not come and go
// Launchers and nodes of modes say something each 2 s.
inline constexpr double kLeastNodeTimeoutS = 5;
inline constexpr double kMostNodeTimeoutS = 86400;

}  // namespace taskd
