#include "store/connections.h"

#include "common/listen.h"
#include "common/log.h"

namespace taskd::store {

Connections::~Connections() {
  for (const auto& [id, connection] : map_) loop_.Remove(connection->fd.get());
}

Connection& Connections::Add(std::unique_ptr<Connection> connection) {
  const uint64_t id = connection->id = next_id_++;
  loop_.Add(connection->fd.get(), connection->interest,
            [this, id](uint32_t events) { callbacks_.on_event(id, events); });
  ++of_owner_[connection->owner].connections;
  return *(map_[id] = std::move(connection));
}

size_t Connections::of(const OwnerKey& owner) const {
  auto found = of_owner_.find(owner);
  return found == of_owner_.end() ? 0 : found->second.connections;
}

size_t Connections::unread_bytes_of(const OwnerKey& owner) const {
  auto found = of_owner_.find(owner);
  return found == of_owner_.end() ? 0 : found->second.unread_bytes;
}

void Connections::Disown(const Connection& connection) {
  auto of_owner = of_owner_.find(connection.owner);
  of_owner->second.unread_bytes -= connection.charged_unread;
  if (--of_owner->second.connections == 0) of_owner_.erase(of_owner);
}

void Connections::SetOwner(Connection& connection, const OwnerKey& owner) {
  Disown(connection);
  connection.owner = owner;
  OfOwner& of_owner = of_owner_[owner];
  ++of_owner.connections;
  of_owner.unread_bytes += connection.charged_unread;
}

Connection* Connections::Find(uint64_t id) {
  auto found = map_.find(id);
  return found == map_.end() || found->second->doomed ? nullptr : found->second.get();
}

void Connections::Doom(Connection& connection, absl::string_view why) {
  if (connection.doomed) return;
  connection.doomed = true;
  buffered_bytes_ -= std::exchange(connection.charged, 0);
  unread_bytes_ -= connection.charged_unread;
  of_owner_.at(connection.owner).unread_bytes -= std::exchange(connection.charged_unread, 0);
  std::string().swap(connection.out);  // it may be big, and others are answered before this is closed
  connection.written = 0;
  doomed_.push_back(connection.id);
  loop_.Remove(connection.fd.get());
  if (!why.empty()) {
    ++refused_;
    // The client only sees that its connection is lost.
    const int64_t now_ns = EventLoop::NowNs();
    const bool is_quiet = refusal_logged_ns_ && now_ns - *refusal_logged_ns_ < kRefusalLogIntervalNs;
    if (!is_quiet) refusal_logged_ns_ = now_ns;
    spdlog::log(is_quiet ? spdlog::level::debug : spdlog::level::warn, "store: the connection of {} is closed: {}",
                PeerAddress(connection.fd.get()), why);
  }
  Schedule();
}

void Connections::DoomAll() {
  for (const auto& [id, connection] : map_) Doom(*connection);
}

std::unique_ptr<Connection> Connections::TakeDoomed() {
  if (doomed_.empty()) return nullptr;
  auto found = map_.find(doomed_.front());
  doomed_.pop_front();
  std::unique_ptr<Connection> connection = std::move(found->second);
  map_.erase(found);
  Disown(*connection);
  return connection;
}

void Connections::MarkDirty(Connection& connection) {
  if (!connection.dirty) dirty_.push_back(connection.id);
  connection.dirty = true;
  Schedule();
}

void Connections::HoldBack(Connection& connection) {
  connection.blocked = true;
  held_back_.push_back(connection.id);
}

void Connections::LeaveDirty(Ids::const_iterator begin, Ids::const_iterator end) {
  dirty_.insert(dirty_.end(), begin, end);
  if (!dirty_.empty()) Schedule();
}

void Connections::LeaveHeldBack(Ids::const_iterator begin, Ids::const_iterator end) {
  held_back_.insert(held_back_.end(), begin, end);
  if (begin != end) Schedule();
}

void Connections::BeginNextRound() {
  ready_.insert(ready_.end(), later_.begin(), later_.end());
  later_.clear();
  if (any_ready_or_doomed()) Schedule();
}

void Connections::ForgetReady() {
  ready_.clear();
  later_.clear();
  held_back_.clear();
}

void Connections::Schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  loop_.AtRoundEnd([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    scheduled_ = false;
    callbacks_.on_round_end();
  });
}

void Connections::Count(Connection& connection) {
  const size_t bytes = connection.doomed ? 0 : connection.bytes();
  buffered_bytes_ += bytes - connection.charged;
  connection.charged = bytes;
  const bool asks = connection.is_client() || connection.tier != nullptr;
  const size_t unread = connection.doomed || !asks ? 0 : connection.unread();
  if (unread == connection.charged_unread) return;
  of_owner_.at(connection.owner).unread_bytes += unread - connection.charged_unread;
  unread_bytes_ += unread - connection.charged_unread;
  connection.charged_unread = unread;
}

}  // namespace taskd::store
