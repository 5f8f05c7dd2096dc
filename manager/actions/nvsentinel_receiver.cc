#include "manager/actions/nvsentinel_receiver.h"

#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include "common/realtime.h"
#include "common/utf8.h"
#include "proto/node_event.h"

namespace taskd::manager {
namespace {

constexpr std::chrono::milliseconds kAnswerLook{50};
constexpr std::chrono::seconds kAnswerPatience{20};
constexpr size_t kMostEventText = 1024;
constexpr int64_t kNsInS = 1'000'000'000;

}  // namespace

datamodels::HealthEvents OrderEvents(const policy::Action& action, bool is_healthy, bool executes, int64_t now_ns) {
  datamodels::HealthEvents events;
  events.set_version(1);
  datamodels::HealthEvent* event = events.add_events();
  event->set_version(1);
  event->set_agent("taskd");
  event->set_componentclass("Node");
  event->set_checkname("TaskdSlowNode");
  event->set_isfatal(!is_healthy);
  event->set_ishealthy(is_healthy);
  event->set_message(ValidUtf8(CutUtf8(action.verdict.empty() ? action.reason : action.verdict, kMostEventText)));
  event->set_recommendedaction(is_healthy ? datamodels::NONE : datamodels::CONTACT_SUPPORT);
  if (!is_healthy) event->add_errorcode("TASKD_SLOW_NODE");
  datamodels::Entity* entity = event->add_entitiesimpacted();
  entity->set_entitytype("NODE");
  entity->set_entityvalue(action.node_name);
  (*event->mutable_metadata())["taskd_action_id"] = action.id;
  event->mutable_generatedtimestamp()->set_seconds(now_ns / kNsInS);
  event->set_nodename(action.node_name);
  event->set_processingstrategy(executes ? datamodels::EXECUTE_REMEDIATION : datamodels::STORE_ONLY);
  return events;
}

NvsentinelReceiver::NvsentinelReceiver(std::shared_ptr<ManagerCore> core, std::string socket, bool executes)
    : core_(std::move(core)), socket_(std::move(socket)), executes_(executes) {}

OrderAnswer NvsentinelReceiver::Tell(const policy::Action& action, bool is_healthy) {
  const AgentCall call{0, proto::kNodeEventOperator,
                       proto::RenderNodeEvent({socket_, OrderEvents(action, is_healthy, executes_, RealtimeNs())})};
  const auto answered = std::make_shared<std::promise<std::vector<NodeAnswer>>>();
  std::future<std::vector<NodeAnswer>> answers = answered->get_future();
  const uint64_t id = core_->CallAgents(
      call, {action.node}, [answered](std::vector<NodeAnswer> all) { answered->set_value(std::move(all)); });
  const auto deadline = std::chrono::steady_clock::now() + kAnswerPatience;
  while (answers.wait_for(kAnswerLook) != std::future_status::ready) {
    if (stopped_ || std::chrono::steady_clock::now() >= deadline) core_->ExpireCall(id);
  }
  OrderAnswer result{policy::Outcome::kSent, "the node's proxy has not answered"};
  for (const NodeAnswer& answer : answers.get()) {
    // An earlier proxy of the node may be known, too.
    if (result.outcome != policy::Outcome::kTaken) {
      result = {answer.ok ? policy::Outcome::kTaken : policy::Outcome::kSent, answer.message};
    }
  }
  return result;
}

}  // namespace taskd::manager
