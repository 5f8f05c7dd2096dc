#include "manager/actions/clusterd_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "pubfault.grpc.pb.h"

namespace taskd::manager {
namespace {

using policy::Outcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

policy::Action OrderAgainst(const std::string& node_name) {
  policy::Action action;
  action.id = "0123456789abcdef";
  action.verdict_id = 4;
  action.node = 1;
  action.node_name = node_name;
  action.ranks = {8, 15};
  action.time_ns = 1'790'000'000'123'456'789;
  action.reason = "a person has asked for it";
  return action;
}

// A ClusterD that answers with `code`.
class PublicFaults final : public PubFault::Service {
 public:
  PublicFaults() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status SendPublicFault(grpc::ServerContext*, const PublicFaultRequest* request, RespStatus* reply) override {
    std::lock_guard lock(mutex_);
    reply->set_code(code);
    reply->set_info("as told");
    ids.push_back(absl::StrCat(request->faults(0).faultid(), " ", request->faults(0).faultcode()));
    return grpc::Status::OK;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  int code = 0;
  std::vector<std::string> ids;

 private:
  std::mutex mutex_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(ClusterdReceiverTest, AnOrderIsOneFaultOfTheWholeNode) {
  diagnosis::Report report;
  const policy::Action action = OrderAgainst("worker-1");
  PublicFaultRequest request = OrderRequest(action, report, {"ns/job", "task-1", 2, 8}, 1'790'000'123'456);
  EXPECT_EQ(request.id(), "taskd-order-0123456789abcdef");
  const Fault& fault = request.faults(0);
  EXPECT_EQ(fault.faultid(), request.id());
  EXPECT_EQ(fault.faultcode(), "110001010");
  EXPECT_EQ(fault.influence(0).nodename(), "worker-1");
  EXPECT_THAT(fault.influence(0).deviceids(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(fault.description(), "a person has asked for it");
  diagnosis::Verdict verdict;
  verdict.id = 4;
  verdict.ids = {9};
  verdict.cause = diagnosis::Cause::kCompute;
  report.verdicts = {verdict};
  request = OrderRequest(action, report, {"ns/job", "task-1", 2, 8}, 1'790'000'123'456);
  EXPECT_EQ(request.faults(0).faultlocation().at("cause"), "compute");
  EXPECT_EQ(request.faults(0).influence(0).deviceids_size(), 8);
}

TEST(ClusterdReceiverTest, AnswersOfClusterd) {
  PublicFaults clusterd;
  ClusterdReceiver receiver(clusterd.address(), {"ns/job", "task-1", 2, 8},
                            [] { return std::make_shared<const diagnosis::Report>(); });
  EXPECT_EQ(receiver.Send(OrderAgainst("worker-1")).outcome, Outcome::kTaken);
  EXPECT_EQ(receiver.Withdraw(OrderAgainst("worker-1")).outcome, Outcome::kTaken);
  EXPECT_THAT(clusterd.ids,
              ElementsAre("taskd-order-0123456789abcdef 110001010", "taskd-order-0123456789abcdef-cleared 100001011"));
  clusterd.code = 410;
  EXPECT_EQ(receiver.Send(OrderAgainst("worker-1")).outcome, Outcome::kSent) << "too fast";
  clusterd.code = 409;
  const OrderAnswer refused = receiver.Send(OrderAgainst("worker-1"));
  EXPECT_EQ(refused.outcome, Outcome::kFailed);
  EXPECT_THAT(refused.text, HasSubstr("as told"));
  EXPECT_EQ(receiver.Send(OrderAgainst("Worker_1")).outcome, Outcome::kFailed);
  EXPECT_EQ(clusterd.ids.size(), 4u);
  receiver.Stop();
  receiver.Send(OrderAgainst("worker-1"));
  EXPECT_EQ(clusterd.ids.size(), 4u);
}

}  // namespace
}  // namespace taskd::manager
