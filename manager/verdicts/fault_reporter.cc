#include "manager/verdicts/fault_reporter.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/utf8.h"
#include "grpcpp/grpcpp.h"
#include "proto/plain_link.h"
#include "pubfault.grpc.pb.h"

namespace taskd::manager {
namespace {

using diagnosis::Scope;
using diagnosis::Verdict;
using std::chrono::milliseconds;

// ClusterD's words (TaskD contract §1.4 and §8.1).
constexpr char kVersion[] = "1.0";
constexpr char kResource[] = "fd-online";
constexpr char kSubHealth[] = "110001010";
constexpr char kRecovery[] = "100001011";
constexpr char kFaultType[] = "Node";
// ClusterD forgets such a fault by itself after some seconds: no node stays marked when this manager ends.
constexpr char kAssertion[] = "once";
constexpr int kTaken = 0;
constexpr int kCodeBadParameter = 409;

constexpr size_t kMaxIdBytes = 128;
constexpr size_t kMaxNodeNameBytes = 253;
constexpr size_t kMaxLocationBytes = 128;
constexpr size_t kMaxDescriptionBytes = 512;
constexpr size_t kMaxInfluences = 1000;
constexpr int kMaxDevices = 32;
constexpr int64_t kFirstTimeMs = 1'735'689'600'000;  // 2025-01-01, the first that ClusterD takes

constexpr milliseconds kLastBackOff{60'000};
constexpr std::chrono::seconds kCallDeadline{10};

int64_t NowMs() {
  return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool IsLowerAlnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Spaces are the only white space that ClusterD takes.
std::string OneLine(std::string text, size_t bytes) {
  for (char& c : text) {
    if (c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v' || c == '\0') c = ' ';
  }
  CutUtf8(&text, bytes);
  return text;
}

// Of the job, the verdict and the moment since when, so that no two faults of a cluster share it.
std::string FaultId(const Verdict& verdict, const JobShape& job) {
  std::string tail = absl::StrCat("-", verdict.since_ns / 1'000'000, "-", verdict.id);
  std::string id = "taskd-" + (job.task_id.empty() ? job.job : job.task_id);
  for (char& c : id) {
    bool legal = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    if (!legal) c = '_';
  }
  constexpr size_t kRoom = 10;  // for what a recovery adds
  if (id.size() + tail.size() + kRoom > kMaxIdBytes) id.resize(kMaxIdBytes - kRoom - tail.size());
  return id + tail;
}

// The node's lowest rank where its ranks are consecutive and begin at a multiple of their number; else -1.
int FirstRank(const std::vector<RankReport>& ranks) {
  if (ranks.empty()) return -1;
  int count = static_cast<int>(ranks.size());
  int first = ranks.front().rank;
  return ranks.back().rank == first + count - 1 && first % count == 0 ? first : -1;
}

}  // namespace

bool IsClusterdName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNodeNameBytes && IsLowerAlnum(name.front()) && IsLowerAlnum(name.back()) &&
         std::all_of(name.begin(), name.end(), [](char c) { return IsLowerAlnum(c) || c == '-' || c == '.'; });
}

absl::Status SendPublicFault(const std::string& address, const PublicFaultRequest& request, StoppableCalls& calls) {
  // ClusterD speaks plain text only (docs/security-model.md). Faults are rare: each has a connection of its own.
  absl::StatusOr<proto::PlainLink> link = proto::PlainLink::Begin(address);
  if (!link.ok()) return absl::UnavailableError(link.status().message());
  std::unique_ptr<PubFault::Stub> stub = PubFault::NewStub(link->channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  if (!calls.Begin(&context)) return absl::CancelledError();
  RespStatus reply;
  grpc::Status status = link->Explain(stub->SendPublicFault(&context, request, &reply));
  calls.End();
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat(status.error_message(), " (gRPC status ", static_cast<int>(status.error_code()), ")"));
  }
  if (reply.code() == kTaken) return absl::OkStatus();
  // It would answer the same again: the code is not in its list, or its rules are newer than ours.
  if (reply.code() == kCodeBadParameter) return absl::InvalidArgumentError(reply.info());
  return absl::UnavailableError(absl::StrCat("code ", reply.code(), ", ", reply.info()));
}

bool IsReportable(const Verdict& verdict, int64_t last_step) {
  return verdict.open && verdict.cause != diagnosis::Cause::kUnknown &&
         (verdict.scope == Scope::kNode || verdict.scope == Scope::kRank) && !verdict.ids.empty() &&
         last_step - verdict.since_step >= kOpenSteps;
}

std::vector<FaultPlace> FaultPlaces(const Verdict& verdict, const JobSnapshot& job) {
  std::map<std::string, std::set<int>> places;
  for (int id : verdict.ids) {
    const JobSnapshot::Node* node = nullptr;
    int best = 0;
    for (const JobSnapshot::Node& candidate : job.nodes) {
      const auto rank = std::find_if(candidate.ranks.begin(), candidate.ranks.end(),
                                     [id](const RankReport& report) { return report.rank == id; });
      const bool has_rank = verdict.scope == Scope::kRank && rank != candidate.ranks.end();
      if (!has_rank && (verdict.scope != Scope::kNode || candidate.node != id)) continue;
      // Of two lives of a node, or of a rank that has moved, the one that is there; of two nodes that report a rank, the
      // one that has it.
      const int score = 1 + (candidate.connected ? 2 : 0) + (has_rank && rank->attached ? 4 : 0);
      if (score >= best) node = &candidate;
      best = std::max(best, score);
    }
    if (node == nullptr || !IsClusterdName(node->node_name) || node->ranks.empty()) return {};
    int first = FirstRank(node->ranks);
    std::set<int>& devices = places[node->node_name];
    if (verdict.scope == Scope::kRank && first >= 0 && id - first < kMaxDevices) {
      devices.insert(id - first);
    } else {
      int count = std::min(static_cast<int>(node->ranks.size()), kMaxDevices);
      for (int device = 0; device < count; ++device) devices.insert(device);
    }
  }
  if (places.size() > kMaxInfluences) return {};
  std::vector<FaultPlace> result;
  for (const auto& [name, devices] : places) result.push_back({name, {devices.begin(), devices.end()}});
  return result;
}

PublicFaultRequest FaultRequest(const Verdict& verdict, const std::vector<FaultPlace>& places, const JobShape& job,
                                int64_t now_ms) {
  PublicFaultRequest request;
  std::string id = FaultId(verdict, job);
  request.set_id(id);
  request.set_timestamp(now_ms);
  request.set_version(kVersion);
  request.set_resource(kResource);
  Fault* fault = request.add_faults();
  fault->set_faultid(id);
  fault->set_faulttype(kFaultType);
  fault->set_faultcode(kSubHealth);
  // By the reference node's clock, which may be wrong, or not set at all.
  auto since_ms = static_cast<int64_t>(verdict.since_ns / 1'000'000);
  fault->set_faulttime(since_ms < kFirstTimeMs || since_ms > now_ms ? now_ms : since_ms);
  fault->set_assertion(kAssertion);
  auto& location = *fault->mutable_faultlocation();
  if (!job.job.empty()) location["job"] = OneLine(job.job, kMaxLocationBytes);
  location["cause"] = Name(verdict.cause);
  std::string ids;
  for (int entity : verdict.ids) absl::StrAppend(&ids, ids.empty() ? "" : ",", entity);
  location[verdict.scope == Scope::kNode ? "node_ranks" : "ranks"] = OneLine(ids, kMaxLocationBytes);
  for (const FaultPlace& place : places) {
    PubFaultInfo* info = fault->add_influence();
    info->set_nodename(place.node);
    for (int device : place.devices) info->add_deviceids(device);
  }
  fault->set_description(OneLine(verdict.text, kMaxDescriptionBytes));
  return request;
}

PublicFaultRequest RecoveryRequest(const PublicFaultRequest& reported, int64_t now_ms) {
  PublicFaultRequest request = reported;
  request.set_id(reported.id() + "-cleared");
  request.set_timestamp(now_ms);
  for (Fault& fault : *request.mutable_faults()) {
    // An id of its own: under the first one ClusterD would take it for the same event sent twice.
    fault.set_faultid(request.id());
    fault.set_faultcode(kRecovery);
  }
  return request;
}

class FaultReporter::Impl {
 public:
  Impl(Options options, StateDb* db, std::function<std::shared_ptr<const diagnosis::Report>()> report,
       std::function<JobSnapshot()> snapshot)
      : options_(std::move(options)), db_(db), report_(std::move(report)), snapshot_(std::move(snapshot)) {
    if (db_ != nullptr) {
      absl::StatusOr<std::vector<KeptFault>> kept = db_->LoadFaults();
      if (!kept.ok()) spdlog::warn("faults that were reported are not known: {}", kept.status().message());
      if (kept.ok()) {
        for (KeptFault& fault : *kept) faults_[fault.verdict] = std::move(fault);
      }
    }
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    calls_.Stop();
    thread_.join();
  }

 private:
  void Run() {
    BackOff back_off(options_.period, kLastBackOff);
    bool failure_said = false;
    milliseconds pause{0};
    while (calls_.Pause(pause)) {
      std::string failure = Turn();
      if (calls_.stopped()) return;
      if (failure.empty()) {
        pause = options_.period;
        back_off.Reset();
        failure_said = false;
      } else {
        if (!failure_said) spdlog::warn("ClusterD at {} takes no faults: {}; trying again", options_.address, failure);
        failure_said = true;
        pause = back_off.Next();
      }
    }
  }

  // Sends the first message that is due. Not empty: why it was not taken, though it may be later.
  std::string Turn() {
    std::shared_ptr<const diagnosis::Report> report = report_();
    std::set<uint64_t> open;
    for (const Verdict& verdict : report->verdicts) {
      if (verdict.open || verdict.unjudged) open.insert(verdict.id);  // nobody knows that it is over
    }
    for (auto& [verdict, fault] : faults_) {
      if (fault.state != KeptFault::State::kReported || open.count(verdict) != 0) continue;
      PublicFaultRequest reported;
      reported.ParseFromString(fault.request);
      return Send(verdict, RecoveryRequest(reported, NowMs()), KeptFault::State::kRecovered);
    }
    for (const Verdict& verdict : report->verdicts) {
      if (!IsReportable(verdict, report->last_step) || faults_.count(verdict.id) != 0) continue;
      std::vector<FaultPlace> places = FaultPlaces(verdict, snapshot_());
      if (places.empty()) {
        if (unplaced_.insert(verdict.id).second) {
          spdlog::warn(
              "verdict {} is not reported to ClusterD while its node is not connected or has no node name that "
              "ClusterD takes (TASKD_NODE_NAME; taskd status shows the names): {}",
              verdict.id, verdict.text);
        }
        continue;
      }
      return Send(verdict.id, FaultRequest(verdict, places, options_.job, NowMs()), KeptFault::State::kReported);
    }
    return "";
  }

  std::string Send(uint64_t verdict, const PublicFaultRequest& request, KeptFault::State state) {
    const absl::Status sent = SendPublicFault(options_.address, request, calls_);
    if (absl::IsCancelled(sent)) return "";
    const bool refused = absl::IsInvalidArgument(sent);
    if (!sent.ok() && !refused) return std::string(sent.message());
    const Fault& fault = request.faults(0);
    Keep({verdict, refused ? KeptFault::State::kRefused : state, request.SerializeAsString()});
    if (refused) {
      spdlog::error("ClusterD refuses fault {}, code {}: {}", fault.faultid(), fault.faultcode(), sent.message());
    } else {
      spdlog::info("reported to ClusterD: fault {}, code {}, node {}", fault.faultid(), fault.faultcode(),
                   fault.influence(0).nodename());
    }
    return "";
  }

  void Keep(KeptFault fault) {
    if (db_ != nullptr) {
      absl::Status status = db_->SaveFault(fault);
      if (!status.ok()) {
        spdlog::error("that a fault was reported cannot be kept, a restarted manager would report it again: {}",
                      status.message());
      }
    }
    faults_[fault.verdict] = std::move(fault);
    if (faults_.size() > static_cast<size_t>(StateDb::kMaxKeptFaults)) faults_.erase(faults_.begin());
  }

  const Options options_;
  StateDb* const db_;
  const std::function<std::shared_ptr<const diagnosis::Report>()> report_;
  const std::function<JobSnapshot()> snapshot_;

  // Of the thread alone.
  std::map<uint64_t, KeptFault> faults_;  // by verdict
  std::set<uint64_t> unplaced_;           // verdicts of which that was logged

  StoppableCalls calls_;
  std::thread thread_;  // last: it uses the others
};

FaultReporter::FaultReporter(Options options, StateDb* db,
                             std::function<std::shared_ptr<const diagnosis::Report>()> report,
                             std::function<JobSnapshot()> snapshot)
    : impl_(std::make_unique<Impl>(std::move(options), db, std::move(report), std::move(snapshot))) {}

FaultReporter::~FaultReporter() = default;

}  // namespace taskd::manager
