#include "store/memory_budget.h"

#include "common/log.h"

namespace taskd::store {
namespace {

constexpr size_t kSmallBytes = 64 * 1024;          // what a client may send and wait for where memory is short
constexpr size_t kSmallFramesBytes = 1024 * 1024;  // the same, of a tier or the frame service's peer

}  // namespace

bool MemoryBudget::MayExecute(const StoreRequest& request) {
  const size_t list_bytes = backend_.core().list_bytes();
  const bool much = request.op == StoreOp::kWait && BytesOf(request.keys) > kSmallBytes;
  const bool list = request.op == StoreOp::kListKeys && list_bytes > kSmallBytes && bytes() + list_bytes > limit_bytes_;
  if (!list && !((much || MayGrow(request.op)) && bytes() > limit_bytes_)) return true;
  LogFull();
  return false;
}

void MemoryBudget::Charge(Connection& connection) {
  connections_.Count(connection);
  if (connection.doomed) return;
  // A tier or one of the frame service speaks for many: what it has begun to send may go beyond, so that only its
  // client is refused.
  const bool of_many = !connection.is_client();
  const uint64_t limit_bytes = limit_bytes_ + (of_many ? limit_bytes_ / 4 : 0);
  if (connection.received_bytes() > (of_many ? kSmallFramesBytes : kSmallBytes) && bytes() > limit_bytes) {
    LogFull();
    connections_.Doom(connection, "what it sends, for which the store has no memory left");
  }
}

void MemoryBudget::LogFull() {
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns - full_logged_ns_ < kLogIntervalNs) return;
  full_logged_ns_ = now_ns;
  spdlog::error(
      "store: {} MiB of memory are used and the limit is {} MiB (--memory-limit-mb): connections that write are "
      "closed",
      bytes() >> 20, limit_bytes_ >> 20);
}

}  // namespace taskd::store
