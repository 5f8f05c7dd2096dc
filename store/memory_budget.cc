#include "store/memory_budget.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/listen.h"
#include "common/log.h"
#include "common/peer_user.h"

namespace taskd::store {
namespace {

constexpr size_t kSmallBytes = 64 * 1024;  // limit of what a client may send and wait for when memory is short
constexpr size_t kSmallAnswerBytes = 64 * 1024;
constexpr int64_t kReaderTimeoutNs = 10'000'000'000;
constexpr size_t kSmallFramesBytes = 1024 * 1024;  // the same for a tier or a peer of the frame service

}  // namespace

bool MemoryBudget::MayExecute(const StoreRequest& request) {
  const size_t list_bytes = backend_.core().list_bytes();
  const size_t wait_bytes = request.op == StoreOp::kWait ? UnderWayBytesOf(request.keys) : 0;
  const bool wait = wait_bytes > kSmallBytes && bytes() + wait_bytes > limit_bytes_;
  const bool list = request.op == StoreOp::kListKeys && list_bytes > kSmallBytes && bytes() + list_bytes > limit_bytes_;
  if (!wait && !list && !(MayGrow(request.op) && bytes() > limit_bytes_)) return true;
  LogFull();
  return false;
}

void MemoryBudget::Charge(Connection& connection) {
  connections_.Count(connection);
  if (connection.doomed) return;
  // A tier or a peer of the frame service acts for many clients. A frame that it has begun may exceed the limit, so
  // that only the client in question is refused.
  const bool of_many = !connection.is_client();
  const uint64_t limit_bytes = limit_bytes_ + (of_many ? limit_bytes_ / 4 : 0);
  if (connection.received_bytes() > (of_many ? kSmallFramesBytes : kSmallBytes) && bytes() > limit_bytes) {
    LogFull();
    connections_.Doom(connection, "what it sends, for which the store has no memory left");
  }
}

// An owner may not have more of `most` bytes than are still free. So one owner with many readers leaves room for
// others.
bool MemoryBudget::HasRoom(const Connection& connection, size_t most) const {
  const size_t free = most - std::min<size_t>(most, connections_.unread_bytes());
  return connections_.unread_bytes_of(connection.owner) <= free;
}

bool MemoryBudget::HasRoomForAnswer(Connection& connection, const StoreRequest& request) {
  const size_t answer_bytes = backend_.core().AnswerBytes(request, kSmallAnswerBytes);
  if (connection.unread() + answer_bytes <= kSmallAnswerBytes) return true;
  if (round_is_full()) return false;
  FindUser(connection);
  if (HasRoom(connection, max_unread_bytes())) return true;
  somebody_waits_ = true;
  return false;
}

// Asks for the user once for each reader of a big answer.
void MemoryBudget::FindUser(Connection& connection) {
  if (std::exchange(connection.user_asked, true)) return;
  if (std::optional<uid_t> user = UserOfLoopbackPeer(connection.fd.get())) {
    connections_.SetOwner(connection, OwnerKey{{}, user});
  }
}

void MemoryBudget::Answered(Connection& connection) {
  const size_t before = connection.charged_unread;
  connections_.Count(connection);
  if (connection.charged_unread <= before) return;
  connection.answered_ns = clock_.Look(EventLoop::NowNs());
  round_bytes_ += connection.charged_unread - before;
  // A tier acts for many clients, which would lose their connections with it. Its calls have waited for room.
  if (!connection.is_client() || connection.unread() <= kSmallAnswerBytes) return;
  // Answers from the store above have not waited for room.
  FindUser(connection);
  if (HasRoom(connection, std::min<size_t>(limit_bytes_, 4 * kMaxUnreadBytes))) return;
  LogFull();
  connections_.Doom(connection, "answers that it does not read, for which the store has no memory left");
}

void MemoryBudget::CloseIdleReaders() {
  if (!std::exchange(somebody_waits_, false)) return;
  const int64_t now_ns = clock_.time_ns();
  for (const auto& [id, connection] : connections_.all()) {
    if (connection->charged_unread == 0 || now_ns - connection->answered_ns < kReaderTimeoutNs) continue;
    spdlog::warn("store: {} has not read its answers for 10 s, and others wait for theirs: its connection is closed",
                 PeerAddress(connection->fd.get()));
    connections_.Doom(*connection);
  }
}

void MemoryBudget::LogFull() {
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns - full_logged_ns_ < kLogIntervalNs) return;
  full_logged_ns_ = now_ns;
  spdlog::error(
      "store: {} MiB of memory are used and the limit is {} MiB (--memory-limit-mb): connections that need more "
      "are closed",
      bytes() >> 20, limit_bytes_ >> 20);
}

}  // namespace taskd::store
