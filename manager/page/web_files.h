// The files of the page (manager/page/web), as they are in the program.
#pragma once

#include <span>
#include <string_view>

namespace taskd::manager {

struct WebFile {
  const char* path;  // in an address: "/", "/app.js", ...
  const char* type;  // Content-Type
  std::string_view content;
};

extern const std::span<const WebFile> kWebFiles;

}  // namespace taskd::manager
