#include "manager/http_pages.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/job_secret.h"
#include "fmt/format.h"
#include "manager/bearer.h"
#include "manager/web_files.h"

namespace taskd::manager {
namespace {

// One metric of the Prometheus text format. The label values are names of ours and need no escaping.
class MetricsText {
 public:
  void Begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename Number>
  void Add(Number value) {
    text_ += fmt::format("{} {}\n", name_, value);
  }
  void Add(std::string_view kind, uint64_t value) {
    text_ += fmt::format("{}{{kind=\"{}\"}} {}\n", name_, kind, value);
  }
  template <typename Number>
  void Gauge(std::string_view name, std::string_view help, Number value) {
    Begin(name, "gauge", help);
    Add(value);
  }
  template <typename Number>
  void Counter(std::string_view name, std::string_view help, Number value) {
    Begin(name, "counter", help);
    Add(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string_view name_;
  std::string text_;
};

// Sums over the job only: a series a rank would be 16,384 of each for whoever collects them.
std::string Metrics(const JobShape& shape, const JobSnapshot& snapshot, const DiagnosisCore::Stats& diagnosis,
                    const SupervisionSnapshot& supervision) {
  uint64_t connected = 0, attached = 0, known = 0, lost = 0;
  std::array<uint64_t, kNumMarkCounts> marks{};
  for (const JobSnapshot::Node& node : snapshot.nodes) {
    connected += node.connected ? 1 : 0;
    for (const RankReport& rank : node.ranks) {
      ++known;
      attached += node.connected && rank.attached ? 1 : 0;
      lost += rank.lost;
      for (int i = 0; i < kNumMarkCounts; ++i) marks[i] += rank.marks[i];
    }
  }
  MetricsText metrics;
  metrics.Gauge("taskd_nodes_connected", "Nodes whose proxy is connected.", connected);
  metrics.Gauge("taskd_ranks_known", "Ranks that proxies have reported.", known);
  metrics.Gauge("taskd_ranks_attached", "Ranks that can be switched now.", attached);
  metrics.Gauge("taskd_ranks_expected", "Ranks of the job as configured, 0 if not.",
                static_cast<uint64_t>(shape.nodes) * shape.procs_per_node);
  metrics.Gauge("taskd_switch_revision", "Revision of the wanted switch state.", snapshot.wanted.revision);
  metrics.Begin("taskd_switch_on", "gauge", "1 where marks of the kind are wanted.");
  for (int i = 0; i < kNumSwitches; ++i) {
    metrics.Add(SwitchKindName(static_cast<SwitchKind>(i)), snapshot.wanted.effective >> i & 1);
  }
  metrics.Begin("taskd_marks_total", "counter", "Marks and ranges written to the files.");
  for (int i = 0; i < kNumMarkCounts; ++i) {
    metrics.Add(i < kNumSwitches ? SwitchKindName(static_cast<SwitchKind>(i)) : "other", marks[i]);
  }
  metrics.Counter("taskd_marks_lost_total", "Marks overwritten before they were read, or without a ring.", lost);
  metrics.Gauge("taskd_verdicts_open", "Open verdicts of the diagnosis.", diagnosis.open_verdicts);
  metrics.Gauge("taskd_verdicts_cost_ms_per_step", "What the dearest open verdict costs a step.",
                diagnosis.cost_ms_per_step);
  metrics.Gauge("taskd_diagnosis_coverage_ratio",
                "Ranks whose own time the marks show, of all in the last steps; below 1 nobody can be called healthy.",
                diagnosis.coverage);
  metrics.Gauge("taskd_diagnosis_live_ranks", "Ranks that steps wait for.", diagnosis.feed.live_ranks);
  metrics.Counter("taskd_folds_received_total", "Steps of single ranks that proxies have sent.", diagnosis.received);
  metrics.Begin("taskd_folds_dropped_total", "counter", "Steps of single ranks that were not judged.");
  metrics.Add("overload", diagnosis.dropped);
  metrics.Add("refused", diagnosis.feed.refused);
  metrics.Gauge("taskd_folds_unsent", "Steps that the connected proxies could not send, since they started.",
                diagnosis.feed.proxy_dropped);
  metrics.Gauge("taskd_diagnosis_lag_seconds", "From the arrival of the last folds to their judgement.",
                diagnosis.lag_s);
  metrics.Counter("taskd_diagnosis_busy_seconds_total", "Time spent on judging.", diagnosis.busy_s);
  metrics.Counter("taskd_restarts_total", "Restarts of the ranks that the launcher has reported.",
                  supervision.restarts);
  metrics.Counter("taskd_rank_exits_total", "Ends of ranks that the launcher has reported.", supervision.rank_exits);
  metrics.Gauge("taskd_hung_ranks", "Live ranks of a job that hangs, else 0.", supervision.hung_ranks);
  return metrics.text();
}

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
    if (user && (*user == geteuid() || *user == 0)) return true;
  }
  const std::string_view bearer = HeaderOf(request, "authorization");
  if (bearer.starts_with(kBearer) && SameToken(bearer.substr(kBearer.size()), access.token)) return true;
  return HasCookie(HeaderOf(request, "cookie"), cookie);
}

HttpHandler GiveFile(std::string_view content, const char* type) {
  return [body = std::make_shared<const std::string>(content), type](const HttpRequest&) {
    HttpResponse response;
    response.content_type = type;
    response.body = body;
    return response;
  };
}

}  // namespace

HttpHandlers Protect(HttpHandlers pages, const HttpAccess& access) {
  auto refusal = std::make_shared<const std::string>(
      "This is for the manager's user on its machine, or needs 'Authorization: Bearer <TASKD_TOKEN>'. For a browser: "
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

HttpHandlers MakePage() {
  HttpHandlers pages;
  for (const WebFile& file : kWebFiles) pages[file.path] = GiveFile(file.content, file.type);
  return pages;
}

HttpHandlers MakeHttpPages(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis,
                           std::shared_ptr<SupervisionCore> supervision, std::function<bool()> serving) {
  HttpHandlers pages;
  pages["/healthz"] = [serving = std::move(serving), ok = std::make_shared<const std::string>("ok\n"),
                       bad = std::make_shared<const std::string>("gRPC does not answer\n")](const HttpRequest&) {
    HttpResponse response;
    const bool serves = serving && serving();
    response.status = serves ? 200 : 503;
    response.body = serves ? ok : bad;
    return response;
  };
  pages["/metrics"] = [core = std::move(core), diagnosis = std::move(diagnosis),
                       supervision = std::move(supervision)](const HttpRequest&) {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = std::make_shared<const std::string>(
        Metrics(core->shape(), core->Snapshot(), diagnosis->stats(), supervision->Snapshot()));
    return response;
  };
  return pages;
}

}  // namespace taskd::manager
