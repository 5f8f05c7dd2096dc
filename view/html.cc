#include "view/html.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/printable.h"

namespace taskd::view {

std::string Html(std::string_view text, size_t max_bytes) {
  std::string html;
  for (char c : Printable(text, max_bytes)) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string HtmlLines(std::string_view text) {
  std::string html;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    absl::StrAppend(&html, Html(text.substr(0, end)), "\n");
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return html;
}

std::string TimeText(int64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixNanos(unix_ns), absl::UTCTimeZone());
}

}  // namespace taskd::view
