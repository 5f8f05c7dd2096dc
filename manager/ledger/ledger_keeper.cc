#include "manager/ledger/ledger_keeper.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log.h"

namespace taskd::manager {
namespace {

using Steady = std::chrono::steady_clock;

std::string TimeNow() { return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()); }

}  // namespace

struct LedgerKeeper::State {
  State(std::unique_ptr<LedgerStore> of, std::string at, std::chrono::milliseconds again)
      : store(std::move(of)), where(std::move(at)), retry(again), good_at(TimeNow()) {}

  void Run();
  // False: it is to end, or nothing will ever be kept.
  bool Open(std::unique_lock<std::mutex>& lock);
  // What was kept goes to whoever waits for it. False: nobody does.
  bool HandOver(std::unique_lock<std::mutex>& lock);
  void Write(std::unique_lock<std::mutex>& lock);
  // Runs it without the mutex, and notes for how long.
  template <typename Result>
  Result Ask(std::unique_lock<std::mutex>& lock, const std::function<Result()>& ask);
  void Tell(const absl::Status& status);

  std::unique_ptr<LedgerStore> store;  // the thread's
  const std::string where;
  const std::chrono::milliseconds retry;

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  bool stopping = false;
  bool done = false;      // the thread ends
  bool given_up = false;  // nothing more will be written
  bool asking = false;    // the store, since then
  Steady::time_point asked_at;
  std::optional<std::string> kept;  // waits to be taken
  bool taken = false;
  std::function<void(const std::string&)> on_late;
  std::optional<std::string> next;
  std::string good_at;  // what was then is kept
  std::string trouble;  // that was told; empty: none
};

template <typename Result>
Result LedgerKeeper::State::Ask(std::unique_lock<std::mutex>& lock, const std::function<Result()>& ask) {
  asking = true;
  asked_at = Steady::now();
  lock.unlock();
  Result result = ask();
  lock.lock();
  asking = false;
  return result;
}

// With the mutex.
void LedgerKeeper::State::Tell(const absl::Status& status) {
  if (status.ok()) {
    good_at = TimeNow();
    if (!std::exchange(trouble, "").empty()) spdlog::info("the ledger is kept again in {}", where);
    return;
  }
  if (std::exchange(trouble, std::string(status.message())) == status.message()) return;
  spdlog::error("the ledger is not kept in {}, and has a hole from {} on should this manager end: {}", where, good_at,
                status.message());
}

bool LedgerKeeper::State::Open(std::unique_lock<std::mutex>& lock) {
  while (!stopping) {
    auto opened = Ask<absl::StatusOr<std::string>>(lock, [this] { return store->Open(); });
    if (opened.ok()) {
      Tell(absl::OkStatus());
      kept = *std::move(opened);
      changed.notify_all();
      changed.wait(lock, [this] { return stopping || taken || on_late; });
      return taken || HandOver(lock);
    }
    Tell(opened.status());
    if (absl::IsFailedPrecondition(opened.status())) return false;
    changed.wait_for(lock, retry, [this] { return stopping; });
  }
  return false;
}

bool LedgerKeeper::State::HandOver(std::unique_lock<std::mutex>& lock) {
  if (!on_late) return false;
  const std::string text = *std::exchange(kept, std::nullopt);
  lock.unlock();
  on_late(text);
  lock.lock();
  next.reset();  // it is without what was before
  return true;
}

void LedgerKeeper::State::Write(std::unique_lock<std::mutex>& lock) {
  while (true) {
    changed.wait(lock, [this] { return stopping || next.has_value(); });
    if (!next.has_value()) return;
    const std::string text = *std::exchange(next, std::nullopt);
    const absl::Status saved = Ask<absl::Status>(lock, [&] { return store->Save(text); });
    Tell(saved);
    if (absl::IsAborted(saved)) return;
  }
}

void LedgerKeeper::State::Run() {
  std::unique_lock lock(mutex);
  if (Open(lock)) Write(lock);
  given_up = true;
  lock.unlock();
  store.reset();  // lets go of it
  lock.lock();
  done = true;
  changed.notify_all();
}

LedgerKeeper::LedgerKeeper(std::unique_ptr<LedgerStore> store, std::string where, std::chrono::milliseconds retry)
    : state_(std::make_shared<State>(std::move(store), std::move(where), retry)) {
  std::thread([state = state_] { state->Run(); }).detach();  // may hang in the store for ever
}

LedgerKeeper::~LedgerKeeper() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  if (state_->changed.wait_for(lock, kEndPatience, [this] { return state_->done; })) return;
  spdlog::error("the ledger's folder {} does not answer: it has a hole from {} on", state_->where, state_->good_at);
}

std::optional<std::string> LedgerKeeper::Await(std::chrono::milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, patience, [this] { return state_->kept.has_value() || state_->done; });
  if (!state_->kept.has_value()) return std::nullopt;
  state_->taken = true;
  state_->changed.notify_all();
  return std::exchange(state_->kept, std::nullopt);
}

void LedgerKeeper::OnLate(std::function<void(const std::string&)> take) {
  std::lock_guard lock(state_->mutex);
  state_->on_late = std::move(take);
  state_->changed.notify_all();
}

void LedgerKeeper::Save(std::string text) {
  std::lock_guard lock(state_->mutex);
  if (state_->given_up) return;
  state_->next = std::move(text);
  state_->changed.notify_all();
  if (state_->asking && Steady::now() - state_->asked_at >= kHangs) {
    state_->Tell(absl::UnavailableError("the folder does not answer"));
  }
}

}  // namespace taskd::manager
