// Folds in and reports out over real gRPC.
#include <unistd.h>

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/switch/state_db.h"
#include "manager/test_client.h"
#include "manager/test_job.h"
#include "manager/verdicts/diagnosis_core.h"
#include "proto/diagnosis_messages.h"
#include "proto/fold_messages.h"
#include "taskd/v1/diagnosis.grpc.pb.h"

namespace taskd::manager {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A client of WatchReports.
class TestWatcher : public TestListener<v1::DiagnosisReport> {
 public:
  explicit TestWatcher(std::shared_ptr<grpc::Channel> channel, const std::string& job = "", bool in_parts = false)
      : TestListener([&](grpc::ClientContext* context) {
          v1::GetReportRequest request;
          request.set_job(job);
          request.set_in_parts(in_parts);
          return v1::Diagnosis::NewStub(channel)->WatchReports(context, request);
        }) {}
  bool WaitForRank(int rank) {
    return WaitFor([&] {
      if (messages_.empty()) return false;
      for (const v1::Verdict& verdict : messages_.back().verdicts()) {
        if (verdict.open() && verdict.ids_size() == 1 && verdict.ids(0) == rank) return true;
      }
      return false;
    });
  }
};

class DiagnosisServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-diagnosis-service-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    options_.job = "ns/job";
    options_.listen = "127.0.0.1:0";
    options_.http = "";
    options_.state_dir = folder_ / "state";
    options_.switch_file = "";
    options_.secret = kTestSecret;
  }
  void TearDown() override {
    proxies_.clear();
    server_.reset();
    fs::remove_all(folder_);
  }
  void Start() {
    server_.reset();
    auto server = ManagerServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = Dial(server_->port());
    stub_ = v1::Diagnosis::NewStub(channel_);
  }
  // One proxy for every four ranks of the job.
  void ConnectProxies() {
    proxies_.clear();
    for (int node = 0; node < job_.ranks / 4; ++node) {
      proxies_.push_back(std::make_unique<TestProxy>(
          channel_, node, std::vector<int>{node * 4, node * 4 + 1, node * 4 + 2, node * 4 + 3}));
      v1::NodeMessage message;
      for (int rank = node * 4; rank < node * 4 + 4; ++rank) {
        v1::RankGroups* groups = message.mutable_folds()->add_groups();
        groups->set_rank(rank);
        proto::FillGroup(job_.Group(), groups->add_groups());
      }
      proxies_.back()->Write(message);
    }
  }
  // No proxy gets farther ahead of another than the engine waits for.
  void Run(int64_t steps) {
    for (int64_t i = 1; i <= steps; ++i) {
      std::vector<StepFold> folds = job_.Step(step_++, end_ns_);
      for (size_t node = 0; node < proxies_.size(); ++node) {
        v1::NodeMessage message;
        for (size_t rank = node * 4; rank < node * 4 + 4; ++rank) {
          proto::FillFold(static_cast<int>(rank), folds[rank], message.mutable_folds()->add_steps());
        }
        proxies_[node]->Write(message);
      }
      if (i % 32 == 0 || i == steps) WaitForStep(step_ - 2);
    }
  }
  void WaitForStep(int64_t step) {
    v1::DiagnosisReport report;
    EXPECT_TRUE(PollFor([&] { return Get("", &report).ok() && report.last_step() >= step; }))
        << "step " << step << " is not judged; the last one was " << report.last_step();
  }
  // 200 verdicts that name a quarter of 65,536 ranks each; for the next Start.
  void KeepLargeVerdicts() {
    auto db = StateDb::Open(options_.state_dir, {options_.job, options_.task_id, 0, 0});
    ASSERT_TRUE(db.ok()) << db.status();
    std::vector<std::string> rows;
    for (uint64_t id = 1; id <= DiagnosisCore::kMaxKeptVerdicts; ++id) {
      v1::Verdict verdict;
      verdict.set_id(id);
      verdict.set_scope("group");
      verdict.set_cause("compute");
      verdict.set_text("slow");
      for (int rank = 0; rank < 16384; ++rank) verdict.add_ids(3 * 16384 + rank);
      rows.push_back(verdict.SerializeAsString());
    }
    ASSERT_TRUE((*db)->SaveVerdicts(rows).ok());
  }
  static void ExpectLargeVerdicts(const v1::DiagnosisReport& report) {
    EXPECT_GT(report.ByteSizeLong(), size_t{proto::kMaxMessageBytes});
    EXPECT_EQ(report.job(), "ns/job");
    EXPECT_GE(report.verdicts_size(), 100);
    for (const v1::Verdict& verdict : report.verdicts()) EXPECT_EQ(verdict.ids_size(), 16384);
  }
  grpc::Status Get(const std::string& job, v1::DiagnosisReport* report) {
    v1::GetReportRequest request;
    request.set_job(job);
    Context context;
    return stub_->GetReport(&context, request, report);
  }

  fs::path folder_;
  ManagerOptions options_;
  TestJob job_;
  uint64_t end_ns_ = job_.begin_ns;
  int64_t step_ = 0;
  std::unique_ptr<ManagerServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Diagnosis::Stub> stub_;
  std::vector<std::unique_ptr<TestProxy>> proxies_;
};

TEST_F(DiagnosisServiceTest, FoldsBecomeAVerdictThatOutlivesTheManager) {
  Start();
  v1::DiagnosisReport report;
  ASSERT_TRUE(Get("ns/job", &report).ok());
  EXPECT_EQ(report.job(), "ns/job");
  EXPECT_EQ(report.state(), v1::DiagnosisReport::UNKNOWN);
  EXPECT_EQ(report.last_step(), -1);
  {
    TestWatcher watcher(channel_);
    ConnectProxies();
    Run(80);
    job_.slow[6] = 1.5;
    Run(80);
    ASSERT_TRUE(watcher.WaitForRank(6));
  }
  ASSERT_TRUE(Get("", &report).ok());
  EXPECT_EQ(report.state(), v1::DiagnosisReport::SLOW);
  EXPECT_EQ(report.ranks(), 8u);
  proxies_.clear();

  Start();
  TestWatcher watcher(channel_, "", /*in_parts=*/true);
  EXPECT_TRUE(watcher.WaitForRank(6)) << "before any proxy has come back";
  // The job runs on, and the rank is as slow as it was.
  ConnectProxies();
  Run(80);
  ASSERT_TRUE(watcher.WaitForRank(6));
  server_.reset();
  EXPECT_EQ(watcher.Ended().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(DiagnosisServiceTest, TellsWhatItDecidedOfARank) {
  Start();
  const auto why = [&](int rank, const std::string& job, v1::RankTrace* trace) {
    v1::WhyRequest request;
    request.set_rank(rank);
    request.set_job(job);
    Context context;
    return stub_->Why(&context, request, trace);
  };
  v1::RankTrace trace;
  EXPECT_EQ(why(0, "", &trace).error_code(), grpc::StatusCode::OUT_OF_RANGE) << "no rank is known yet";
  ConnectProxies();
  Run(80);
  job_.slow[6] = 1.5;
  Run(80);
  ASSERT_TRUE(why(6, "ns/job", &trace).ok());
  EXPECT_EQ(trace.rank(), 6);
  EXPECT_THAT(trace.text(), HasSubstr("; verdict: rank 6"));
  EXPECT_EQ(trace.detectors(0).state(), v1::DetectorTrace::VERDICT);
  EXPECT_GE(trace.detectors(0).since_step(), 78);
  ASSERT_TRUE(why(5, "", &trace).ok());
  EXPECT_EQ(trace.detectors(0).state(), v1::DetectorTrace::BELOW_THRESHOLD);
  EXPECT_EQ(why(8, "", &trace).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(why(6, "ns/other", &trace).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(DiagnosisServiceTest, MetricsTellOfVerdictsAndFolds) {
  options_.http = "127.0.0.1:0";
  Start();
  TestWatcher watcher(channel_);
  ConnectProxies();
  EXPECT_THAT(HttpGet(server_->http_port(), "/metrics"), HasSubstr("\ntaskd_verdicts_open 0\n"));
  Run(80);
  job_.slow[6] = 1.5;
  Run(80);
  ASSERT_TRUE(watcher.WaitForRank(6));
  EXPECT_THAT(HttpGet(server_->http_port(), "/api/v1/rank/6"), HasSubstr("; verdict: rank 6")) << "its why";
  std::string metrics = HttpGet(server_->http_port(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("\ntaskd_verdicts_open 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntaskd_diagnosis_coverage_ratio 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntaskd_diagnosis_live_ranks 8\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntaskd_folds_dropped_total{kind=\"overload\"} 0\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntaskd_folds_received_total "));
}

TEST_F(DiagnosisServiceTest, OtherJobs) {
  Start();
  v1::DiagnosisReport report;
  EXPECT_TRUE(Get("ns/job", &report).ok());
  EXPECT_EQ(Get("ns/other", &report).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Get("nonsense", &report).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DiagnosisServiceTest, WatchersOfOtherJobsAreSentAway) {
  Start();
  TestWatcher other(channel_, "ns/other");
  EXPECT_EQ(other.Ended().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(other.messages().size(), 0u);
}

TEST_F(DiagnosisServiceTest, FoldsThatMakeNoSenseCostNothingElse) {
  Start();
  ConnectProxies();
  v1::NodeMessage message;
  v1::FoldSet* folds = message.mutable_folds();
  folds->add_groups()->set_rank(-7);
  folds->add_groups()->add_groups()->add_runs(1);  // half a run
  for (int rank : {0, -1, 1 << 30, INT32_MIN}) {
    v1::RankStep* step = folds->add_steps();
    step->set_rank(rank);
    step->set_step(INT64_MIN);
    for (int i = 0; i < 7; ++i) step->add_ops(INT64_MAX);  // half an operation
  }
  for (int i = 0; i < 70'000; ++i) folds->add_steps();
  proxies_[0]->Write(message);
  Run(20);
  v1::DiagnosisReport report;
  ASSERT_TRUE(Get("", &report).ok());
  EXPECT_GE(report.last_step(), 18) << "the stream goes on";
  EXPECT_EQ(report.ranks(), 8u);
}

TEST_F(DiagnosisServiceTest, AReportOfAnySizeComesInParts) {
  KeepLargeVerdicts();
  Start();
  Context context;
  v1::DiagnosisReport report, part;
  size_t parts = 0;
  auto reader = stub_->ReportInParts(&context, {});
  for (; reader->Read(&part); ++parts) report.MergeFrom(part);
  grpc::Status status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(parts, 1u);
  ExpectLargeVerdicts(report);
}

TEST_F(DiagnosisServiceTest, AWatchedReportOfAnySizeComesInParts) {
  KeepLargeVerdicts();
  Start();
  Context context;
  v1::GetReportRequest request;
  request.set_in_parts(true);
  auto reader = stub_->WatchReports(&context, request);
  v1::DiagnosisReport report, part;
  size_t parts = 0;
  do {
    ASSERT_TRUE(reader->Read(&part)) << reader->Finish().error_message();
    report.MergeFrom(part);
    ++parts;
  } while (part.more());
  EXPECT_GT(parts, 1u);
  ExpectLargeVerdicts(report);
  context.TryCancel();
}

}  // namespace
}  // namespace taskd::manager
