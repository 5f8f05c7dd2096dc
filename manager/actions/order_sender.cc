#include "manager/actions/order_sender.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "manager/rpc/call_again.h"

namespace taskd::manager {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{60'000};
constexpr milliseconds kStopPatience{1'000};

}  // namespace

// Owned by the sender and its thread, which may be left behind.
struct OrderSender::Share {
  Share(std::string to, std::unique_ptr<OrderReceiver> receiver, std::shared_ptr<ActionCore> actions,
        milliseconds period)
      : to(std::move(to)), receiver(std::move(receiver)), actions(std::move(actions)), period(period) {}

  void Run() {
    BackOff back_off(period, kLongestPause);
    std::unique_lock lock(mutex);
    milliseconds pause{0};
    while (!changed.wait_for(lock, pause, [this] { return stopped; })) {
      if (Turn(lock)) {
        back_off.Reset();
        pause = period;
      } else {
        pause = back_off.Next();
      }
    }
    ended = true;
    changed.notify_all();
  }

  // False: something waits, and is to be tried again.
  bool Turn(std::unique_lock<std::mutex>& lock) {
    const absl::StatusOr<std::optional<ActionCore::DueOrder>> due = actions->TakeOrder(to);
    if (!due.ok()) return false;
    if (!due->has_value()) return true;
    const ActionCore::DueOrder& order = **due;
    lock.unlock();
    const OrderAnswer answer = order.withdraw ? receiver->Withdraw(order.action) : receiver->Send(order.action);
    lock.lock();
    if (stopped) return true;
    const std::string text = Printable(answer.text);
    const bool again = answer.outcome == policy::Outcome::kSent;
    if (!again || text != last_said) {
      spdlog::log(answer.outcome == policy::Outcome::kTaken ? spdlog::level::info : spdlog::level::warn,
                  "action {}: {} {}: {}: {}", order.action.id, order.withdraw ? "withdrawn from" : "order to", to,
                  again ? "to be tried again" : Name(answer.outcome), text);
    }
    last_said = again ? text : "";
    actions->EndOrder(to, order, answer.outcome, again ? absl::StrCat("to be tried again: ", text) : text);
    return !again;
  }

  const std::string to;
  const std::unique_ptr<OrderReceiver> receiver;
  const std::shared_ptr<ActionCore> actions;
  const milliseconds period;

  std::mutex mutex;  // not held while the receiver is called; with it, `actions` is called only before `stopped`
  std::condition_variable changed;
  bool stopped = false;
  bool ended = false;
  std::string last_said;  // of the order that is tried again
};

OrderSender::OrderSender(std::string to, std::unique_ptr<OrderReceiver> receiver, std::shared_ptr<ActionCore> actions,
                         milliseconds period)
    : share_(std::make_shared<Share>(std::move(to), std::move(receiver), std::move(actions), period)),
      thread_([share = share_] { share->Run(); }) {}

OrderSender::~OrderSender() {
  std::unique_lock lock(share_->mutex);
  share_->stopped = true;
  share_->changed.notify_all();
  share_->receiver->Stop();
  const bool ended = share_->changed.wait_for(lock, kStopPatience, [this] { return share_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace taskd::manager
