#include "common/handshake_budget.h"

#include <algorithm>

namespace taskd {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
// Failures that are remembered: of more peers than that none is slowed down any longer.
constexpr size_t kMostCooling = 16'384;

}  // namespace

std::optional<HandshakeBudget::Id> HandshakeBudget::Add(Id id, const std::string& peer, int64_t now_ns) {
  std::optional<Id> victim;
  if (connections_.size() >= limits_.connections) victim = MakeRoom(now_ns);
  const auto found = peers_.try_emplace(peer).first;
  Connection connection{.peer = found, .since_ns = now_ns, .place = {}, .waiting_place = {}};
  connection.place = found->second.idle.insert(found->second.idle.end(), id);
  connections_.emplace(id, connection);
  return victim;
}

std::optional<HandshakeBudget::Id> HandshakeBudget::MakeRoom(int64_t now_ns) {
  if (connections_.empty()) return std::nullopt;
  const auto most = std::max_element(peers_.begin(), peers_.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  // Something was spent on handshakes, and they end by themselves.
  const Peer& owner = most->second;
  const Id victim = owner.idle.empty() ? owner.underway.front() : owner.idle.front();
  Remove(victim, true, now_ns);
  return victim;
}

void HandshakeBudget::Wants(Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.state != State::kSilent) return;
  Connection& connection = found->second;
  std::list<Id>& waiting = connection.peer->second.waiting;
  connection.state = State::kWaiting;
  connection.waiting_place = waiting.insert(waiting.end(), id);
}

std::optional<HandshakeBudget::Turn> HandshakeBudget::Next(int64_t now_ns) {
  Cool(now_ns);
  // In turn: the first after the last one.
  auto peer = peers_.upper_bound(last_);
  for (size_t i = 0; i < peers_.size(); ++i, ++peer) {
    if (peer == peers_.end()) peer = peers_.begin();
    Peer& own = peer->second;
    if (own.waiting.empty() || own.underway.size() + CoolingOf(peer->first) >= limits_.handshakes_of_peer) continue;
    std::optional<Id> drop;
    if (underway_ >= limits_.handshakes) {
      const auto most = std::max_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
        return a.second.underway.size() < b.second.underway.size();
      });
      if (most->second.underway.size() <= own.underway.size() + 1) continue;
      drop = most->second.underway.front();
    }
    last_ = peer->first;
    const Id id = own.waiting.back();
    Connection& connection = connections_.at(id);
    own.waiting.pop_back();
    own.idle.erase(connection.place);
    connection.place = own.underway.insert(own.underway.end(), id);
    connection.state = State::kUnderway;
    connection.began_ns = now_ns;
    ++underway_;
    if (drop) Remove(*drop, true, now_ns);
    return Turn{id, drop};
  }
  return std::nullopt;
}

void HandshakeBudget::Proven(Id id) { Remove(id, false, 0); }

void HandshakeBudget::Failed(Id id, int64_t now_ns) { Remove(id, true, now_ns); }

std::vector<HandshakeBudget::Id> HandshakeBudget::Expire(int64_t now_ns) {
  std::vector<Id> over;
  for (const auto& [id, connection] : connections_) {
    const bool is_awaited = connection.state == State::kUnderway && !connection.peer->second.waiting.empty();
    if (now_ns - connection.since_ns >= limits_.proof_ms * kMillisecondNs ||
        (is_awaited && now_ns - connection.began_ns >= limits_.hurried_ms * kMillisecondNs)) {
      over.push_back(id);
    }
  }
  for (const Id id : over) Failed(id, now_ns);
  Cool(now_ns);
  return over;
}

void HandshakeBudget::Remove(Id id, bool has_failed, int64_t now_ns) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  const auto peer = connection.peer;
  if (connection.state == State::kUnderway) {
    peer->second.underway.erase(connection.place);
    --underway_;
    const int64_t until_ns = connection.began_ns + limits_.cool_ms * kMillisecondNs;
    if (has_failed && until_ns > now_ns) {
      ++cooling_of_[peer->first];
      cooling_.emplace(until_ns, peer->first);
    }
  } else {
    if (connection.state == State::kWaiting) peer->second.waiting.erase(connection.waiting_place);
    peer->second.idle.erase(connection.place);
  }
  connections_.erase(found);
  if (peer->second.size() == 0) peers_.erase(peer);
  if (cooling_.size() > kMostCooling) ForgetFirstCooling();
}

void HandshakeBudget::Cool(int64_t now_ns) {
  while (!cooling_.empty() && cooling_.begin()->first <= now_ns) ForgetFirstCooling();
}

void HandshakeBudget::ForgetFirstCooling() {
  const auto of_peer = cooling_of_.find(cooling_.begin()->second);
  if (--of_peer->second == 0) cooling_of_.erase(of_peer);
  cooling_.erase(cooling_.begin());
}

size_t HandshakeBudget::CoolingOf(const std::string& peer) const {
  const auto found = cooling_of_.find(peer);
  return found == cooling_of_.end() ? 0 : found->second;
}

}  // namespace taskd
