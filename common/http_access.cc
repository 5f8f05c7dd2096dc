#include "common/http_access.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/bearer.h"
#include "common/job_secret.h"
#include "taskd/own_user.h"

namespace taskd {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string_view HeaderOf(const HttpRequest& request, std::string_view name) {
  for (const auto& [header, value] : request.headers) {
    if (absl::EqualsIgnoreCase(header, View(name))) return value;
  }
  return {};
}

// A name of the internet that leads here is somebody else's page, which the own user's browser has open.
bool IsForeignName(std::string_view host) {
  const bool is_name = !host.starts_with('[') && std::any_of(host.begin(), host.end(), absl::ascii_isalpha);
  return is_name && host.find('.') != std::string_view::npos;
}

// What a browser keeps in the token's place: good for this life of this manager, and for looking only.
struct Cookie {
  std::string name = "taskd_" + NewSecret().substr(0, 8);  // cookies are not kept apart by port
  std::string value = NewSecret();
};

bool HasCookie(std::string_view cookies, const Cookie& cookie) {
  for (absl::string_view part : absl::StrSplit(View(cookies), "; ")) {
    const std::string_view pair(part.data(), part.size());
    const size_t end = pair.find('=');
    if (end != std::string_view::npos && pair.substr(0, end) == cookie.name &&
        SameToken(pair.substr(end + 1), cookie.value)) {
      return true;
    }
  }
  return false;
}

// Of "a=b&token=...", its escapes resolved.
std::string TokenOfQuery(std::string_view query) {
  constexpr std::string_view kName = "token=";
  for (absl::string_view part : absl::StrSplit(View(query), '&')) {
    const std::string_view pair(part.data(), part.size());
    if (!pair.starts_with(kName)) continue;
    std::string token;
    for (size_t i = kName.size(); i < pair.size(); ++i) {
      int byte = 0;
      const bool escape = pair[i] == '%' && i + 2 < pair.size() && absl::ascii_isxdigit(pair[i + 1]) &&
                          absl::ascii_isxdigit(pair[i + 2]) && absl::SimpleHexAtoi(View(pair.substr(i + 1, 2)), &byte);
      token += escape ? static_cast<char>(byte) : pair[i];
      if (escape) i += 2;
    }
    return token;
  }
  return {};
}

bool MaySee(const HttpRequest& request, const HttpAccess& access, const Cookie& cookie) {
  if (access.anyone) return true;
  if (access.own_user && !IsForeignName(HeaderOf(request, "host"))) {
    const std::optional<uid_t> user = request.loopback_user();
    if (user && IsOwnUserOrRoot(*user)) return true;
  }
  const std::string_view bearer = HeaderOf(request, "authorization");
  if (bearer.starts_with(kBearer) && SameToken(bearer.substr(kBearer.size()), access.token)) return true;
  return HasCookie(HeaderOf(request, "cookie"), cookie);
}

}  // namespace

HttpHandlers Protect(HttpHandlers pages, const HttpAccess& access) {
  auto refusal = std::make_shared<const std::string>(
      "This is for TaskD's user on its machine, or needs 'Authorization: Bearer <TASKD_TOKEN>'. For a browser: "
      "'taskd ui' prints the address with the token.\n");
  auto cookie = std::make_shared<const Cookie>();
  for (auto& [path, handler] : pages) {
    if (path == "/healthz") continue;  // for probes; it shows that a manager is there and nothing of the job
    handler = [page = std::move(handler), access, refusal, cookie](const HttpRequest& request) {
      HttpResponse response;
      if (SameToken(TokenOfQuery(request.query), access.token)) {
        // Not to stay in the address, which people send to each other.
        response.status = 303;
        response.headers.emplace_back("Location", request.path);
        response.headers.emplace_back(
            "Set-Cookie", absl::StrCat(cookie->name, "=", cookie->value, "; Path=/; HttpOnly; SameSite=Strict"));
        return response;
      }
      if (MaySee(request, access, *cookie)) return page(request);
      response.status = 401;
      response.headers.emplace_back("WWW-Authenticate", "Bearer");
      response.body = refusal;
      return response;
    };
  }
  return pages;
}

}  // namespace taskd
