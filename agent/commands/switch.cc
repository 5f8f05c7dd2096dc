#include "agent/commands/switch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "agent/commands/control_client.h"
#include "agent/commands/job_flags.h"
#include "common/option_words.h"
#include "common/ranges_text.h"
#include "common/switch.h"
#include "common/utf8.h"
#include "proto/channel.h"

namespace taskd::commands {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

struct SwitchOptions {
  std::string manager;                   // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;                       // namespace/name; empty: whatever job the manager has
  std::vector<std::string> assignments;  // "step=on", "all=off", ...
  double timeout_s = 10;                 // for the ranks' answers; above 0, at most 600
  double wait_s = 0;                     // for ranks to come, at most kMaxWaitS; 0: only those that are there
  bool json = false;
  proto::Security security;
};

// For the way there and back, above the time that the ranks are given.
constexpr std::chrono::milliseconds kExtraTimeout{5000};
constexpr double kMaxWaitS = 7 * 86400;
constexpr std::chrono::milliseconds kStatusTimeout{5000}, kShortestPause{200}, kLongestPause{10000};

void Set(SwitchKind kind, bool on, v1::SetSwitchRequest& request) {
  switch (kind) {
    case SwitchKind::kStep:
      request.set_step(on);
      break;
    case SwitchKind::kSaveCheckpoint:
      request.set_save_checkpoint(on);
      break;
    case SwitchKind::kForward:
      request.set_fp(on);
      break;
    case SwitchKind::kDataLoader:
      request.set_dataloader(on);
      break;
    case SwitchKind::kCommunication:
      request.set_communication(on);
      break;
  }
}

constexpr char kAll[] = "all";

// "; did you mean all=on?", or "" if nothing is near.
std::string Suggestion(const std::string& name, const std::string& value) {
  std::vector<std::string> names = {kAll};
  for (int i = 0; i < kNumSwitches; ++i) names.emplace_back(SwitchKindWord(static_cast<SwitchKind>(i)));
  const std::string lower = absl::AsciiStrToLower(name);
  const std::string near_name = SwitchKindFromName(lower) ? lower : NearestWord(lower, names);
  const std::string near_value = NearestWord(absl::AsciiStrToLower(value), std::vector<std::string>{"on", "off"});
  return near_name.empty() || near_value.empty() ? ""
                                                 : absl::StrCat("; did you mean ", near_name, "=", near_value, "?");
}

absl::Status Read(const std::string& assignment, v1::SetSwitchRequest& request) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  const auto& [name, value] = parts;
  const bool on = value == "on";
  if (!on && value != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", assignment, "' is not KIND=on or KIND=off", Suggestion(name, value)));
  }
  if (name == kAll) {
    for (int i = 0; i < kNumSwitches; ++i) Set(static_cast<SwitchKind>(i), on, request);
    return absl::OkStatus();
  }
  std::optional<SwitchKind> kind = SwitchKindFromName(name);
  if (!kind.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind '", name, "' is not step, forward, dataloader, checkpoint, communication or all",
                     Suggestion(name, value)));
  }
  Set(*kind, on, request);
  return absl::OkStatus();
}

const char* StateName(v1::RankAnswer::State state) {
  switch (state) {
    case v1::RankAnswer::APPLIED:
      return "applied";
    case v1::RankAnswer::FAILED:
      return "failed";
    default:
      return "unreachable";
  }
}

// No rank has ever attached: nobody could apply it, and nobody has not.
bool IsKept(const v1::SetSwitchReply& reply) { return reply.awaited() == reply.total(); }

void PrintJson(const v1::SetSwitchReply& reply) {
  nlohmann::ordered_json json;
  json["job"] = reply.job();
  json["wanted"] = KindsJson(reply.wanted().kinds());
  json["total"] = reply.total();
  json["applied"] = reply.applied();
  json["kept"] = IsKept(reply);
  json["ranks"] = nlohmann::ordered_json::array();
  for (const v1::RankAnswer& rank : reply.ranks()) {
    nlohmann::ordered_json row;
    row["rank"] = rank.rank();
    row["node"] = rank.node();
    row["state"] = StateName(rank.state());
    row["ms"] = std::round(rank.ms() * 1000) / 1000;
    row["reason"] = rank.reason();
    json["ranks"].push_back(std::move(row));
  }
  std::cout << PrintableJson(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) << std::endl;
}

void PrintTable(const v1::SetSwitchReply& reply) {
  std::cout << "wanted: " << KindsText(reply.wanted().kinds()) << "\n";
  if (IsKept(reply)) {
    std::cout << "kept: applies to ranks as they come";
    if (reply.total() != 0) std::cout << " (" << reply.total() << " expected, none has attached yet)";
    std::cout << std::endl;
    return;
  }
  std::cout << absl::StrFormat("%6s %5s  %-11s %9s  %s\n", "rank", "node", "state", "ms", "reason");
  for (const v1::RankAnswer& rank : reply.ranks()) {
    std::string ms = rank.state() == v1::RankAnswer::APPLIED ? absl::StrFormat("%.1f", rank.ms()) : "-";
    std::string line = absl::StrFormat("%6d %5d  %-11s %9s  %s", rank.rank(), rank.node(), StateName(rank.state()), ms,
                                       Printable(rank.reason()));
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << "\n";
  }
  std::cout << reply.applied() << " of " << CountOf(reply.total(), "rank") << " applied it";
  if (reply.awaited() != 0) std::cout << ", kept for " << reply.awaited() << " that have never attached";
  std::cout << std::endl;
}

bool AllApplied(const v1::SetSwitchReply& reply) { return reply.total() != 0 && reply.applied() == reply.total(); }

// Brings the answers up to what the ranks say now. `elapsed_ms`: since the request.
void Update(const v1::JobStatus& status, double elapsed_ms, v1::SetSwitchReply& reply) {
  std::map<int, v1::RankAnswer> answers;
  for (const v1::RankAnswer& answer : reply.ranks()) answers[answer.rank()] = answer;
  std::set<int> awaited;
  for (const auto& [rank, answer] : answers) awaited.insert(rank);
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::RankStatus& rank : node.ranks()) {
      awaited.erase(rank.rank());
      v1::RankAnswer& answer = answers[rank.rank()];
      const bool there = node.connected() && rank.attached();
      const bool applied = there && rank.failed_revision() == 0 && rank.applied_revision() >= reply.wanted().revision();
      if (applied && answer.state() == v1::RankAnswer::APPLIED) continue;
      answer.set_rank(rank.rank());
      answer.set_node(node.node());
      answer.set_state(applied                                ? v1::RankAnswer::APPLIED
                       : there && rank.failed_revision() != 0 ? v1::RankAnswer::FAILED
                                                              : v1::RankAnswer::UNREACHABLE);
      answer.set_ms(applied ? elapsed_ms : 0);
      answer.set_reason(applied                 ? ""
                        : !node.connected()     ? "its proxy is not connected"
                        : rank.reason().empty() ? "no answer yet"
                                                : rank.reason());
    }
  }
  reply.clear_ranks();
  uint32_t applied = 0;
  for (const auto& [rank, answer] : answers) {
    if (answer.state() == v1::RankAnswer::APPLIED) ++applied;
    *reply.add_ranks() = answer;
  }
  reply.set_total(static_cast<uint32_t>(reply.ranks_size()));
  reply.set_applied(applied);
  reply.set_awaited(static_cast<uint32_t>(awaited.size()));
}

// Until every rank that is known or expected has applied it, and at least one has. An error: what the manager said last,
// when the time was over.
absl::Status WaitForAll(const ControlClient& client, SteadyTime asked, SteadyTime until, v1::SetSwitchReply& reply) {
  grpc::Status called;
  while (!AllApplied(reply) && std::chrono::steady_clock::now() < until) {
    const auto began = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    ControlClient::SetTimeout(context, kStatusTimeout);
    v1::JobStatus status;
    called = ReadParts(client.stub().StatusInParts(&context, {}), &status);
    const auto now = std::chrono::steady_clock::now();
    if (called.ok()) Update(status, std::chrono::duration<double, std::milli>(now - asked).count(), reply);
    if (AllApplied(reply)) break;
    // A large job is asked less often.
    constexpr int kShare = 20;
    const auto pause = std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(kShare * (now - began)),
                                  kShortestPause, kLongestPause);
    std::this_thread::sleep_until(std::min(until, now + pause));
  }
  return called.ok() ? absl::OkStatus() : absl::UnavailableError(client.Describe(called));
}

// Prints to stdout. Returns whether all ranks applied it. INVALID_ARGUMENT: wrong usage, nothing was asked for.
absl::StatusOr<bool> RunSwitch(const SwitchOptions& options) {
  v1::SetSwitchRequest request;
  if (options.assignments.empty()) {
    return absl::InvalidArgumentError("nothing to switch: name at least one KIND=on or KIND=off");
  }
  for (const std::string& assignment : options.assignments) {
    absl::Status read = Read(assignment, request);
    if (!read.ok()) return read;
  }
  if (!(options.timeout_s > 0 && options.timeout_s <= 600)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout: ", options.timeout_s, " is not above 0 and at most 600 s"));
  }
  if (!(options.wait_s >= 0 && options.wait_s <= kMaxWaitS)) {
    return absl::InvalidArgumentError(absl::StrCat("--wait: ", options.wait_s, " is not 0 to ", kMaxWaitS, " s"));
  }
  const double timeout_s = options.wait_s > 0 ? std::min(options.timeout_s, options.wait_s) : options.timeout_s;
  auto timeout = std::chrono::milliseconds(std::max<int64_t>(1, std::llround(timeout_s * 1000)));
  request.set_job(ValidUtf8(options.job));
  request.set_timeout_ms(static_cast<uint32_t>(timeout.count()));

  SteadyTime asked = std::chrono::steady_clock::now();
  const SteadyTime until = asked + std::chrono::milliseconds(std::llround(options.wait_s * 1000));
  absl::StatusOr<ControlClient> client = ControlClient::Await(options.manager, options.job, options.security, until);
  if (!client.ok()) return client.status();
  bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal) fprintf(stderr, "waiting for the ranks' answers ...");
  v1::SetSwitchReply reply;
  grpc::Status status;
  while (true) {
    asked = std::chrono::steady_clock::now();
    reply.Clear();
    grpc::ClientContext context;
    client->SetTimeout(context, timeout + kExtraTimeout);
    status = ReadParts(client->stub().SwitchInParts(&context, request), &reply);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(kShortestPause);
    absl::StatusOr<ControlClient> again = ControlClient::Await(options.manager, options.job, options.security, until);
    if (again.ok()) client = std::move(again);  // a manager that has come meanwhile
  }
  absl::Status waited;
  if (status.ok() && options.wait_s > 0) waited = WaitForAll(*client, asked, until, reply);
  if (terminal) fprintf(stderr, "\r\033[K");
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
    return absl::InvalidArgumentError(Printable(status.error_message()));
  }
  if (!status.ok()) return absl::UnavailableError(client->Describe(status));
  if (!waited.ok()) return waited;
  options.json ? PrintJson(reply) : PrintTable(reply);
  return options.wait_s > 0 ? AllApplied(reply) : IsKept(reply) || AllApplied(reply);
}

class SwitchCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--manager", options_.manager, kManagerHelp);
    flags
        .Add("--job", options_.job,
             "NAMESPACE/NAME; without --manager the job to find, a manager refuses any other one")
        .JobName();
    flags.AddPositional("KIND", options_.assignments,
                        "as KIND=on or KIND=off: step, forward, dataloader, checkpoint, communication or all");
    flags.Add("--timeout", options_.timeout_s, "seconds that the ranks have to answer").ShowDefault();
    flags
        .Add("--wait", options_.wait_s,
             "seconds in which the job and all its ranks are to come and apply it; 0: those that are there")
        .ShowDefault();
    flags.Add("--json", options_.json, "print one JSON object");
    AddTlsFlags(flags, options_.security);
  }

  absl::StatusOr<bool> Run() override {
    options_.security.secret = TokenOfEnvironment();
    return RunSwitch(options_);
  }

 private:
  SwitchOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeSwitchCommand() { return std::make_unique<SwitchCommand>(); }

}  // namespace taskd::commands
