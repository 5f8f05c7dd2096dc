// Untrusted text (a host's name, a peer's message, a mark's name), made safe for a line of a log or of a terminal. All
// such text passes here; a log line does so once more as a whole (common/log.h).
//
// A terminal obeys C0, DEL and C1 characters, and the controls of bidirectional text make a line read as what it is
// not; a line feed begins a forged line. They are shown instead: \n, \t, \r, \xHH for other single bytes and
// bytes that are no UTF-8, \uHHHH for other characters. What is printable stays, backslashes too: this is for reading,
// not for reading back.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace taskd {

// Of a name or a message within a line; and of a line.
inline constexpr size_t kShownBytes = 200;
inline constexpr size_t kShownLineBytes = 4096;

// At most `max_bytes` bytes of UTF-8, and "…" where that is not all of it. Never cuts a character or an escape.
std::string Printable(std::string_view text, size_t max_bytes = kShownBytes);

// JSON as it is, but the characters that Printable shows are escaped as JSON does (a JSON library escapes C0 alone).
// The value is the same.
std::string PrintableJson(std::string json);

}  // namespace taskd
