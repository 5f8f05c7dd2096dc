#include "manager/page/http_pages.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "manager/page/web_files.h"

namespace taskd::manager {
namespace {

HttpHandler GiveFile(std::string_view content, const char* type) {
  return [body = std::make_shared<const std::string>(content), type](const HttpRequest&) {
    HttpResponse response;
    response.content_type = type;
    response.body = body;
    return response;
  };
}

}  // namespace

HttpHandlers MakePage() {
  HttpHandlers pages;
  for (const WebFile& file : kWebFiles) pages[file.path] = GiveFile(file.content, file.type);
  return pages;
}

HttpHandler MakeHealth(std::function<bool()> serving) {
  return [serving = std::move(serving), ok = std::make_shared<const std::string>("ok\n"),
          bad = std::make_shared<const std::string>("gRPC does not answer\n")](const HttpRequest&) {
    HttpResponse response;
    const bool serves = serving && serving();
    response.status = serves ? 200 : 503;
    response.body = serves ? ok : bad;
    return response;
  };
}

}  // namespace taskd::manager
