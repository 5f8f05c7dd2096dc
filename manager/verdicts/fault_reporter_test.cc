// Contract §1.4, PubFault: what the manager says of slow nodes, by ClusterD's own rules.
#include "manager/verdicts/fault_reporter.h"

#include <filesystem>
#include <regex>
#include <set>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/test_client.h"
#include "pubfault.grpc.pb.h"

namespace taskd::manager {
namespace {

using diagnosis::Cause;
using diagnosis::Scope;
using diagnosis::Verdict;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kNowMs = 1'790'000'123'456;

bool Matches(const std::string& text, const char* regex) { return std::regex_match(text, std::regex(regex)); }

// Empty: ClusterD takes it. Else the first rule that it breaks.
std::string BrokenRule(const PublicFaultRequest& request) {
  constexpr char kId[] = "[a-zA-Z0-9\\-_.]{8,128}";
  auto time = [](int64_t ms) { return ms >= 1'735'689'600'000 && ms <= 9'999'999'999'999; };
  if (!Matches(request.id(), kId)) return "id";
  if (!time(request.timestamp())) return "timestamp";
  if (request.version() != "1.0") return "version";
  if (request.resource() != "fd-online") return "resource";
  if (request.faults_size() < 1 || request.faults_size() > 100) return "faults";
  for (const Fault& fault : request.faults()) {
    if (!Matches(fault.faultid(), kId)) return "faultId";
    if (fault.faulttype() != "Node") return "faultType";
    if (fault.faultcode() != "110001010" && fault.faultcode() != "100001011") return "faultCode";
    if (!time(fault.faulttime())) return "faultTime";
    if (fault.assertion() != "once") return "assertion";
    if (fault.faultlocation_size() > 10) return "faultLocation";
    for (const auto& [key, value] : fault.faultlocation()) {
      if (key.size() > 16 || value.size() > 128) return "faultLocation: " + key;
    }
    if (fault.influence_size() < 1 || fault.influence_size() > 1000) return "influence";
    for (const PubFaultInfo& info : fault.influence()) {
      if (!Matches(info.nodename(), "[a-z0-9]([a-z0-9\\-.]{0,251}[a-z0-9])?")) return "nodeName";
      std::set<int> devices(info.deviceids().begin(), info.deviceids().end());
      if (devices.empty() || devices.size() != static_cast<size_t>(info.deviceids_size())) return "deviceIds";
      if (*devices.begin() < 0 || *devices.rbegin() > 31) return "deviceIds";
    }
    if (fault.description().size() > 512 || !Matches(fault.description(), "[^\\t\\n\\f\\r\\v]*")) return "description";
  }
  return "";
}

Verdict SlowRank(int rank = 9) {
  Verdict verdict;
  verdict.id = 4;
  verdict.ids = {rank};
  verdict.cause = Cause::kCompute;
  verdict.since_step = 100;
  verdict.since_ns = 1'790'000'000'123'456'789;
  verdict.text = "rank 9 (node 1) computes 21 % longer than its 15 peers since step 100";
  return verdict;
}

JobSnapshot TwoNodes() {
  JobSnapshot job;
  for (int node = 0; node < 2; ++node) {
    job.nodes.push_back({node, "pod-" + std::to_string(node), true, {}});
    job.nodes.back().node_name = "worker-" + std::to_string(node);
    for (int rank = node * 8; rank < node * 8 + 8; ++rank) job.nodes.back().ranks.emplace_back().rank = rank;
  }
  return job;
}

TEST(FaultReporterTest, OnlyWhatLastsAndIsKnownIsReported) {
  EXPECT_TRUE(IsReportable(SlowRank(), 100 + kOpenSteps));
  EXPECT_FALSE(IsReportable(SlowRank(), 99 + kOpenSteps));
  auto changed = [](auto edit) {
    Verdict verdict = SlowRank();
    edit(verdict);
    return IsReportable(verdict, 1000);
  };
  EXPECT_TRUE(changed([](Verdict& v) { v.scope = Scope::kNode; }));
  EXPECT_FALSE(changed([](Verdict& v) { v.open = false; }));
  EXPECT_FALSE(changed([](Verdict& v) { v.cause = Cause::kUnknown; }));
  EXPECT_FALSE(changed([](Verdict& v) { v.ids.clear(); }));
  for (Scope scope : {Scope::kLink, Scope::kGroup, Scope::kJob}) {
    EXPECT_FALSE(changed([scope](Verdict& v) { v.scope = scope; }));
  }
}

TEST(FaultReporterTest, PlacesAreNodesAndTheirDevices) {
  EXPECT_THAT(FaultPlaces(SlowRank(), TwoNodes()), ElementsAre(FaultPlace{"worker-1", {1}}));
  Verdict node = SlowRank(1);
  node.scope = Scope::kNode;
  EXPECT_THAT(FaultPlaces(node, TwoNodes()), ElementsAre(FaultPlace{"worker-1", {0, 1, 2, 3, 4, 5, 6, 7}}));
  Verdict three = SlowRank();
  three.ids = {9, 0, 15};
  EXPECT_THAT(FaultPlaces(three, TwoNodes()), ElementsAre(FaultPlace{"worker-0", {0}}, FaultPlace{"worker-1", {1, 7}}));
  EXPECT_THAT(FaultPlaces(SlowRank(99), TwoNodes()), IsEmpty());

  JobSnapshot mixed = TwoNodes();
  mixed.nodes[1].ranks.erase(mixed.nodes[1].ranks.begin() + 4);
  EXPECT_THAT(FaultPlaces(SlowRank(), mixed), ElementsAre(FaultPlace{"worker-1", {0, 1, 2, 3, 4, 5, 6}}))
      << "which device it is cannot be told: all";
  for (const char* name : {"", "Worker-1", "worker_1", "-worker", "worker.", "wörker", "a\nb"}) {
    JobSnapshot unnamed = TwoNodes();
    unnamed.nodes[1].node_name = name;
    EXPECT_THAT(FaultPlaces(SlowRank(), unnamed), IsEmpty()) << name;
  }
  // The rank has moved; the proxy where it was has gone.
  JobSnapshot moved = TwoNodes();
  moved.nodes[0].ranks = moved.nodes[1].ranks;
  moved.nodes[1].connected = false;
  EXPECT_THAT(FaultPlaces(SlowRank(), moved), ElementsAre(FaultPlace{"worker-0", {1}}));
}

TEST(FaultReporterTest, AMessageSaysWhatClusterdAsksFor) {
  JobShape job{"ns/job", "task-1", 2, 8};
  PublicFaultRequest request = FaultRequest(SlowRank(), {{"worker-1", {1}}}, job, kNowMs);
  EXPECT_EQ(BrokenRule(request), "");
  EXPECT_EQ(request.id(), "taskd-task-1-1790000000123-4");
  EXPECT_EQ(request.timestamp(), kNowMs);
  const Fault& fault = request.faults(0);
  EXPECT_EQ(fault.faultid(), request.id());
  EXPECT_EQ(fault.faultcode(), "110001010");
  EXPECT_EQ(fault.faulttime(), 1'790'000'000'123);
  EXPECT_EQ(fault.faultlocation().at("cause"), "compute");
  EXPECT_EQ(fault.faultlocation().at("ranks"), "9");
  EXPECT_EQ(fault.faultlocation().at("job"), "ns/job");
  EXPECT_EQ(fault.description(), SlowRank().text);

  PublicFaultRequest recovery = RecoveryRequest(request, kNowMs + 5000);
  EXPECT_EQ(BrokenRule(recovery), "");
  EXPECT_NE(recovery.id(), request.id());
  EXPECT_NE(recovery.faults(0).faultid(), fault.faultid());
  EXPECT_EQ(recovery.faults(0).faultcode(), "100001011");
  EXPECT_EQ(recovery.faults(0).faulttime(), fault.faulttime()) << "when it began, of a recovery too";
  EXPECT_EQ(recovery.faults(0).influence(0).nodename(), "worker-1");
}

TEST(FaultReporterTest, NoNameOrTextMakesAnIllegalMessage) {
  Verdict verdict = SlowRank();
  verdict.id = UINT64_MAX;
  verdict.ids.assign(500, 16383);
  for (const std::string& text : {std::string(), std::string("a\tb\r\nc\fd\ve") + '\0' + "f",
                                  std::string(511, 'x') + "\xe6\x85\xa2", std::string(5000, ' ')}) {
    for (const std::string& name : {std::string(), std::string("\xe4\xbb\xbb\xe5\x8a\xa1/\xe4\xbd\x9c\xe4\xb8\x9a"),
                                    std::string(300, 'a'), std::string("a b\nc/'\"")}) {
      for (uint64_t since_ns : {uint64_t{0}, uint64_t{1}, UINT64_MAX, verdict.since_ns}) {
        Verdict tried = verdict;
        tried.text = text;
        tried.since_ns = since_ns;
        PublicFaultRequest request =
            FaultRequest(tried, {{"worker-1", {0, 31}}}, {name, name.substr(0, 200), 0, 0}, kNowMs);
        EXPECT_EQ(BrokenRule(request), "") << request.DebugString();
        EXPECT_EQ(BrokenRule(RecoveryRequest(request, kNowMs)), "");
        EXPECT_EQ(request.faults(0).faulttime() <= kNowMs, true) << "not before it began";
      }
    }
  }
}

// ClusterD: takes what keeps the rules; answers with `code` otherwise while that is set.
class FakeClusterd final : public PubFault::Service, public Watched {
 public:
  explicit FakeClusterd(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status SendPublicFault(grpc::ServerContext*, const PublicFaultRequest* request, RespStatus* reply) override {
    std::lock_guard lock(mutex_);
    std::string broken = BrokenRule(*request);
    EXPECT_EQ(broken, "");
    reply->set_code(code_);
    seen_.push_back(*request);
    changed_.notify_all();
    return grpc::Status::OK;
  }
  void Answer(int code) {
    std::lock_guard lock(mutex_);
    code_ = code;
  }
  std::vector<std::string> WaitForCodes(size_t count) {
    WaitFor([&] { return seen_.size() >= count; });
    std::lock_guard lock(mutex_);
    std::vector<std::string> codes;
    for (const PublicFaultRequest& request : seen_) codes.push_back(request.faults(0).faultcode());
    return codes;
  }
  int port() const { return port_; }

 private:
  int port_ = 0;
  int code_ = 0;
  std::vector<PublicFaultRequest> seen_;
  std::unique_ptr<grpc::Server> server_;
};

class ReporterTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kPeriod{5};

  void SetUp() override {
    char name[] = "/tmp/taskd-fault-reporter-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    Show({SlowRank()});
  }
  void TearDown() override {
    reporter_.reset();
    std::filesystem::remove_all(folder_);
  }
  void Show(std::vector<Verdict> verdicts) {
    auto report = std::make_shared<diagnosis::Report>();
    report->last_step = 1000;
    report->verdicts = std::move(verdicts);
    std::lock_guard lock(mutex_);
    report_ = std::move(report);
  }
  // Until it is noted, too: a manager that ends between the answer and the note says it again.
  bool WaitForNote(uint64_t verdict, KeptFault::State state) {
    return testing::WaitUntil([&] {
      const std::vector<KeptFault> faults = db_->LoadFaults().value();
      for (const KeptFault& fault : faults) {
        if (fault.verdict == verdict && fault.state == state) return true;
      }
      return false;
    });
  }
  // As a manager that starts anew.
  void Start() {
    reporter_.reset();
    db_.reset();  // one manager a folder
    db_ = StateDb::Open(folder_, job_).value();
    reporter_ = std::make_unique<FaultReporter>(
        FaultReporter::Options{"127.0.0.1:" + std::to_string(clusterd_.port()), job_, kPeriod}, db_.get(),
        [this] {
          std::lock_guard lock(mutex_);
          return report_;
        },
        [] { return TwoNodes(); });
  }

  const JobShape job_{"ns/job", "task-1", 2, 8};
  std::string folder_;
  FakeClusterd clusterd_;
  std::unique_ptr<StateDb> db_;
  std::mutex mutex_;
  std::shared_ptr<const diagnosis::Report> report_;
  std::unique_ptr<FaultReporter> reporter_;
};

TEST_F(ReporterTest, EachStateOnceAlsoOverRestarts) {
  Start();
  ASSERT_TRUE(WaitForNote(4, KeptFault::State::kReported));
  Start();
  // Another verdict, which is reported after whatever the restart would repeat.
  Verdict second = SlowRank(3);
  second.id = 5;
  Show({SlowRank(), second});
  ASSERT_TRUE(WaitForNote(5, KeptFault::State::kReported));
  EXPECT_THAT(clusterd_.WaitForCodes(2), ElementsAre("110001010", "110001010"));
  Verdict cleared = SlowRank();
  cleared.open = false;
  Show({second, cleared});
  ASSERT_TRUE(WaitForNote(4, KeptFault::State::kRecovered));
  EXPECT_THAT(clusterd_.WaitForCodes(3), ElementsAre("110001010", "110001010", "100001011"));
  Start();
  Show({});
  ASSERT_TRUE(WaitForNote(5, KeptFault::State::kRecovered)) << "a verdict that is not there any more is over, too";
  EXPECT_THAT(clusterd_.WaitForCodes(4), ElementsAre("110001010", "110001010", "100001011", "100001011"))
      << "and the first one was not cleared twice";
}

TEST_F(ReporterTest, TooFastIsTriedAgainARefusalIsNot) {
  clusterd_.Answer(410);
  Start();
  EXPECT_EQ(clusterd_.WaitForCodes(2).size(), 2u);
  clusterd_.Answer(409);
  ASSERT_TRUE(WaitForNote(4, KeptFault::State::kRefused));
  const size_t seen = clusterd_.WaitForCodes(3).size();
  clusterd_.Answer(0);
  Verdict second = SlowRank(3);
  second.id = 5;
  Show({SlowRank(), second});
  ASSERT_TRUE(WaitForNote(5, KeptFault::State::kReported));
  Show({});
  ASSERT_TRUE(WaitForNote(5, KeptFault::State::kRecovered));
  EXPECT_EQ(clusterd_.WaitForCodes(0).size(), seen + 2) << "the refused one has no end to tell either";
  std::vector<KeptFault> faults = db_->LoadFaults().value();
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0].state, KeptFault::State::kRefused);
  EXPECT_EQ(faults[1].verdict, 5u);
}

}  // namespace
}  // namespace taskd::manager
