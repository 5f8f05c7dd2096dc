// Tokens of clients that bring theirs in a header: ClusterD's in plain text, and HTTP.
#pragma once

#include <cstddef>
#include <string_view>

namespace taskd {

inline constexpr std::string_view kBearer = "Bearer ";

// Takes as long for each wrong token of one length, so that an answer's time reveals nothing about the right one. No
// token is the empty one.
inline bool SameToken(std::string_view given, std::string_view right) {
  if (right.empty()) return false;
  unsigned difference = given.size() == right.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(right[i % right.size()]);
  }
  return difference == 0;
}

}  // namespace taskd
