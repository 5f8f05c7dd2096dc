// Which of the connections that have not proven themselves yet may go on with a handshake, and which has to go.
//
// What a handshake costs is ours, before anybody has proven anything: memory, and half a millisecond of a processor. So
// only a number of handshakes is under way at a time, and of each peer a share; further connections wait, which costs a
// descriptor. One that failed, or was abandoned, keeps its peer's place until some time after it began: a peer that
// fails again and again gets a trickle, and one that succeeds is never slowed down. The newest of a peer begins first:
// those before it may have been left there to keep it waiting. Where something is full, the oldest of the
// peer that has most goes first: a new peer always gets in.
//
// One party may be thousands of peers, with the addresses of a network (NetworkOf() in peer_user.h). So networks take
// turns before peers do, and of peers that have as much the one whose network has most goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace taskd {

// No I/O, no clock; times are of one monotonic clock. Not thread safe.
class HandshakeBudget {
 public:
  using Id = uint64_t;  // the caller's: later ones are greater

  struct Limits {
    size_t connections = 1024;       // not proven yet, all together
    size_t handshakes = 256;         // of these, under way at a time
    size_t handshakes_of_peer = 64;  // a failed one counts for cool_ms from its beginning: 64 a second can fail
    int64_t cool_ms = 1'000;
    int64_t proof_ms = 10'000;   // from Add() to Proven()
    int64_t hurried_ms = 1'000;  // for a handshake while others of its peer wait for its place
  };

  explicit HandshakeBudget(const Limits& limits) : limits_(limits) {}

  // `peer`: whose it is, for shares. The result is the connection that has to be closed in its place, and is forgotten.
  std::optional<Id> Add(Id id, const std::string& peer, int64_t now_ns);
  // The connection that has to be closed where the process has no descriptor left, and is forgotten.
  std::optional<Id> MakeRoom(int64_t now_ns);
  // It has sent something: it wants to begin.
  void Wants(Id id);
  // The next that may begin its handshake: of the network, then of the peer, whose turn is longest ago. `drop`: has to
  // be closed for it, and is forgotten.
  struct Turn {
    Id begin;
    std::optional<Id> drop;
  };
  std::optional<Turn> Next(int64_t now_ns);
  // It is no longer of this budget: it has proven itself; it failed, or was closed. Unknown ones: nothing happens.
  void Proven(Id id);
  void Failed(Id id, int64_t now_ns);
  // Those whose time is over, which are forgotten.
  std::vector<Id> Expire(int64_t now_ns);
  // Nothing is left that time changes.
  bool idle() const { return connections_.empty() && cooling_.empty(); }
  size_t size() const { return connections_.size(); }

 private:
  // A network is kept while a peer of it has connections.
  struct Network {
    size_t connections = 0;
    size_t underway = 0;
    uint64_t turn = 0;  // the last; 0: it had none
  };
  using Networks = std::map<std::string, Network>;
  struct Peer {
    Networks::iterator network;
    uint64_t turn = 0;       // as the network's
    std::list<Id> idle;      // silent or waiting, the oldest first
    std::list<Id> waiting;   // of these, those that want to begin; the newest is the first to
    std::list<Id> underway;  // the oldest first

    size_t size() const { return idle.size() + underway.size(); }
  };
  using Peers = std::map<std::string, Peer>;
  enum class State : uint8_t { kSilent, kWaiting, kUnderway };
  struct Connection {
    Peers::iterator peer;
    State state = State::kSilent;
    int64_t since_ns = 0;
    int64_t began_ns = 0;
    std::list<Id>::iterator place;          // in idle or underway
    std::list<Id>::iterator waiting_place;  // kWaiting
  };

  static Id OldestOf(const Peer& peer);
  const Peer& Largest() const;
  static bool MayTakeFrom(const Peer& other, const Peer& own);
  void Remove(Id id, bool has_failed, int64_t now_ns);
  size_t CoolingOf(const std::string& peer) const;
  void Cool(int64_t now_ns);
  void ForgetFirstCooling();

  const Limits limits_;
  std::unordered_map<Id, Connection> connections_;
  Networks networks_;
  Peers peers_;                                         // that have connections
  std::multimap<int64_t, std::string> cooling_;         // until when, and whose
  std::unordered_map<std::string, size_t> cooling_of_;  // how many of a peer
  size_t underway_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace taskd
