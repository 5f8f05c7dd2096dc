#include "common/http_access.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
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
#include "common/utf8.h"
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

// "name:port", "[::1]:port": the port is "" where there is none. Nothing: it is neither.
struct HostHeader {
  std::string_view name;  // with its brackets
  std::string_view port;
};
std::optional<HostHeader> SplitHost(std::string_view host) {
  const size_t name_end = host.starts_with('[') ? host.find(']') + 1 : std::min(host.find(':'), host.size());
  if (name_end == 0) return std::nullopt;  // a bracket that does not close
  const std::string_view rest = host.substr(name_end);
  const bool has_port =
      rest.size() > 1 && rest[0] == ':' && std::all_of(rest.begin() + 1, rest.end(), absl::ascii_isdigit);
  if (!rest.empty() && !has_port) return std::nullopt;
  return HostHeader{host.substr(0, name_end), rest.empty() ? rest : rest.substr(1)};
}

bool IsAddress(std::string_view name) {
  in6_addr v6;
  in_addr v4;
  if (!name.starts_with('[')) return inet_pton(AF_INET, std::string(name).c_str(), &v4) == 1;
  return inet_pton(AF_INET6, std::string(name.substr(1, name.size() - 2)).c_str(), &v6) == 1;
}

// What this machine is called: its host name, whole and without a domain, and what /etc/hosts has beside it, where
// Kubernetes writes a pod's full name.
std::vector<std::string> MachineNames() {
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0') return {};
  std::vector<std::string> names = {absl::AsciiStrToLower(host)};
  names.push_back(names[0].substr(0, names[0].find('.')));
  std::ifstream file("/etc/hosts");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(absl::AsciiStrToLower(line.substr(0, line.find('#'))),
                                                          absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() > 1 && std::find(words.begin() + 1, words.end(), names[0]) != words.end()) {
      names.insert(names.end(), words.begin() + 1, words.end());
    }
  }
  return names;
}

// A browser does not keep cookies apart by port, so the name has that which it asks at.
std::string CookieName(std::string_view host) {
  const std::optional<HostHeader> split = SplitHost(host);
  const std::string_view port = split && !split->port.empty() ? split->port : "80";
  return absl::StrCat("taskd_", View(port));
}

bool HasCookie(std::string_view cookies, std::string_view name, std::string_view value) {
  for (absl::string_view part : absl::StrSplit(View(cookies), "; ")) {
    const std::string_view pair(part.data(), part.size());
    const size_t end = pair.find('=');
    if (end != std::string_view::npos && pair.substr(0, end) == name && SameToken(pair.substr(end + 1), value)) {
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

std::string_view BearerOf(const HttpRequest& request) {
  const std::string_view value = HeaderOf(request, "authorization");
  return value.starts_with(kBearer) ? value.substr(kBearer.size()) : std::string_view();
}

constexpr char kForOthers[] =
    "This is for TaskD's user on its machine, or needs 'Authorization: Bearer TOKEN' with what 'taskd token' "
    "prints. For a browser: 'taskd ui' prints the address with it.\n";
constexpr char kIsSecret[] =
    "This is the job's secret, which commands the job and is not for plain HTTP: HTTP takes what 'taskd token' "
    "prints.\n";
constexpr char kWrongHost[] =
    "The Host header is no name of this machine: ask by its address, its host name or localhost, or list the name in "
    "--http-host.\n";

// What goes for all pages of a process.
struct Gate {
  HttpAccess access;
  std::vector<std::string> names;
  std::string cookie = NewSecret();  // what a browser keeps in the token's place: for this life of this process

  HttpResponse Refuse(int status, const char* why) const {
    HttpResponse response;
    response.status = status;
    if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
    response.body = std::make_shared<const std::string>(why);
    return response;
  }

  HttpResponse Answer(const HttpRequest& request, const HttpHandler& page) const {
    const std::string_view host = HeaderOf(request, "host");
    const std::string query_token = TokenOfQuery(request.query);
    const bool own_host = IsOwnHost(host, names);
    if (SameToken(query_token, access.token)) {
      if (!own_host) return Refuse(403, kWrongHost);
      // Not to stay in the address, which people send to each other.
      HttpResponse response;
      response.status = 303;
      response.headers.emplace_back("Location", request.path);
      response.headers.emplace_back("Set-Cookie",
                                    absl::StrCat(CookieName(host), "=", cookie, "; Path=/; HttpOnly; SameSite=Strict"));
      return response;
    }
    const std::string_view bearer = BearerOf(request);
    if (SameToken(bearer, access.secret) || SameToken(query_token, access.secret)) return Refuse(401, kIsSecret);
    // A page cannot send a token that it does not know. So whoever brings one may ask under any name, as scrapers do
    // that reach this by a service's.
    if (SameToken(bearer, access.token)) return page(request);
    if (HasCookie(HeaderOf(request, "cookie"), CookieName(host), cookie)) {
      return own_host ? page(request) : Refuse(403, kWrongHost);
    }
    if (!access.anyone && !access.own_user) return Refuse(401, kForOthers);
    if (!own_host) return Refuse(403, kWrongHost);
    if (access.anyone) return page(request);
    const std::optional<uid_t> user = request.loopback_user;
    return user && IsOwnUserOrRoot(*user) ? page(request) : Refuse(401, kForOthers);
  }
};

}  // namespace

bool IsOwnHost(std::string_view host, const std::vector<std::string>& names) {
  if (host.empty()) return true;
  const std::optional<HostHeader> split = SplitHost(host);
  if (!split) return false;
  if (IsAddress(split->name)) return true;
  std::string name = absl::AsciiStrToLower(View(split->name));
  if (name.ends_with('.')) name.pop_back();  // the root of all names
  return name == "localhost" || std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<std::vector<std::string>> ParseHttpHosts(std::string_view what, std::string_view value) {
  std::vector<std::string> hosts;
  if (value.empty()) return hosts;
  for (absl::string_view part : absl::StrSplit(View(value), ',')) {
    std::string host = absl::AsciiStrToLower(absl::StripAsciiWhitespace(part));
    if (host.empty() || !std::all_of(host.begin(), host.end(), [](unsigned char c) {
          return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
        })) {
      return absl::InvalidArgumentError(
          absl::StrCat(View(what), ": '", CutUtf8(host, 64), "' is no host name; several are separated by commas"));
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

HttpHandlers Protect(HttpHandlers pages, const HttpAccess& access) {
  Gate gate{.access = access, .names = MachineNames()};
  gate.names.insert(gate.names.end(), access.hosts.begin(), access.hosts.end());
  const auto shared = std::make_shared<const Gate>(std::move(gate));
  for (auto& [path, handler] : pages) {
    if (path == "/healthz") continue;  // for probes; it shows that a manager is there and nothing of the job
    handler = [page = std::move(handler), shared](const HttpRequest& request) { return shared->Answer(request, page); };
  }
  return pages;
}

}  // namespace taskd
