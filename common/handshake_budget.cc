#include "common/handshake_budget.h"

#include <algorithm>
#include <tuple>

#include "common/peer_user.h"

namespace taskd {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
// Failures that are remembered: of more peers than that none is slowed down any longer.
constexpr size_t kMostCooling = 16'384;

}  // namespace

std::optional<HandshakeBudget::Id> HandshakeBudget::Add(Id id, const std::string& peer, int64_t now_ns) {
  std::optional<Id> victim;
  if (connections_.size() >= limits_.connections) victim = MakeRoom(now_ns);
  const auto [found, is_new] = peers_.try_emplace(peer);
  if (is_new) found->second.network = networks_.try_emplace(NetworkOf(peer)).first;
  ++found->second.network->second.connections;
  Connection connection{.peer = found, .since_ns = now_ns, .place = {}, .waiting_place = {}};
  connection.place = found->second.idle.insert(found->second.idle.end(), id);
  connections_.emplace(id, connection);
  return victim;
}

std::optional<HandshakeBudget::Id> HandshakeBudget::MakeRoom(int64_t now_ns) {
  if (connections_.empty()) return std::nullopt;
  const Id victim = OldestOf(Largest());
  Remove(victim, true, now_ns);
  return victim;
}

// Something was spent on handshakes, and they end by themselves.
HandshakeBudget::Id HandshakeBudget::OldestOf(const Peer& peer) {
  return peer.idle.empty() ? peer.underway.front() : peer.idle.front();
}

// Among equal peers it returns the one with the oldest connection, which has had the most time.
const HandshakeBudget::Peer& HandshakeBudget::Largest() const {
  const auto place = [](const Peer& peer) {
    return std::tuple(peer.size(), peer.network->second.connections, ~OldestOf(peer));
  };
  return std::max_element(peers_.begin(), peers_.end(),
                          [&](const auto& a, const auto& b) { return place(a.second) < place(b.second); })
      ->second;
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
  const Peer* most = nullptr;  // of handshakes, where there is no place for another one
  if (underway_ >= limits_.handshakes) {
    const auto share = [](const Peer& peer) { return std::tuple(peer.network->second.underway, peer.underway.size()); };
    most = &std::max_element(peers_.begin(), peers_.end(), [&](const auto& a, const auto& b) {
              return share(a.second) < share(b.second);
            })->second;
  }
  const auto turn = [](const Peer& peer) {
    return std::tuple(peer.network->second.turn, peer.turn, peer.waiting.front());
  };
  Peer* next = nullptr;
  for (auto& [name, peer] : peers_) {
    if (peer.waiting.empty() || peer.underway.size() + CoolingOf(name) >= limits_.handshakes_of_peer) continue;
    if (most != nullptr && !MayTakeFrom(*most, peer)) continue;
    if (next == nullptr || turn(peer) < turn(*next)) next = &peer;
  }
  if (next == nullptr) return std::nullopt;
  const std::optional<Id> drop = most == nullptr ? std::nullopt : std::optional(most->underway.front());
  const Id id = next->waiting.back();
  Connection& connection = connections_.at(id);
  next->waiting.pop_back();
  next->idle.erase(connection.place);
  connection.place = next->underway.insert(next->underway.end(), id);
  connection.state = State::kUnderway;
  connection.began_ns = now_ns;
  ++underway_;
  ++next->network->second.underway;
  next->turn = next->network->second.turn = ++turns_;
  if (drop) Remove(*drop, true, now_ns);
  return Turn{id, drop};
}

// It has two more, or its network has.
bool HandshakeBudget::MayTakeFrom(const Peer& other, const Peer& own) {
  if (other.network == own.network) return other.underway.size() > own.underway.size() + 1;
  return other.network->second.underway > own.network->second.underway + 1;
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
    --peer->second.network->second.underway;
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
  if (--peer->second.network->second.connections == 0) networks_.erase(peer->second.network);
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
