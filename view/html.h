// Texts of anybody as HTML.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace taskd::view {

// As text, whatever is in it: what is not printable as an escape, at most `max_bytes` of it.
std::string Html(std::string_view text, size_t max_bytes = 4096);

// The same of several lines.
std::string HtmlLines(std::string_view text);

// "2026-11-25 10:00:00 UTC"
std::string TimeText(int64_t unix_ns);

}  // namespace taskd::view
