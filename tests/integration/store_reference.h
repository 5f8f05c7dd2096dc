// What PyTorch's own server (libuv) does with each request, on plain maps: the reference that tests hold our servers
// against.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "store/request.h"

namespace taskd::testing {

// A whole decimal number, or nothing: what ADD takes without question. PyTorch also takes "5a" for 5; tests leave that
// out.
inline bool IsNumber(const std::string& text) {
  const size_t first = !text.empty() && text[0] == '-' ? 1 : 0;
  return text.size() > first && text.size() < 18 && text.find_first_not_of("0123456789", first) == std::string::npos;
}

class StoreReference {
 public:
  struct Outcome {
    enum Kind : uint8_t { kDone, kBlocked, kClosed } kind = kDone;
    store::StoreReply reply;    // as StoreClient::Receive gives it
    std::vector<int> released;  // clients, other than the caller, whose WAIT or BARRIER is over now
    // One of these is to be released, PyTorch's choice being the first; Released() records which one it was.
    std::vector<int> release_one_of;
  };

  // `client` has nothing pending, unless the request is kCancelWait. kGet and kMultiGet: the keys must exist.
  Outcome Apply(int client, const store::StoreRequest& request) {
    Outcome outcome;
    switch (request.op) {
      case store::StoreOp::kSet:
        Put(request.keys[0], request.values[0], outcome);
        break;
      case store::StoreOp::kCompareSet:
        outcome.reply.values = {CompareSet(request.keys[0], request.values[0], request.values[1], outcome)};
        break;
      case store::StoreOp::kGet:
      case store::StoreOp::kMultiGet:
        for (const std::string& key : request.keys) outcome.reply.values.push_back(keys_.at(key));
        break;
      case store::StoreOp::kAdd: {
        auto found = keys_.find(request.keys[0]);
        if (found != keys_.end() && !IsNumber(found->second)) {
          outcome.kind = Outcome::kClosed;
          break;
        }
        const int64_t before = found == keys_.end() ? 0 : atoll(found->second.c_str());
        outcome.reply.number = before + request.number;
        Put(request.keys[0], std::to_string(outcome.reply.number), outcome);
        break;
      }
      case store::StoreOp::kCheck:
        outcome.reply.number = std::all_of(request.keys.begin(), request.keys.end(),
                                           [this](const std::string& key) { return Exists(key); });
        break;
      case store::StoreOp::kWait:
        Wait(client, request.keys, outcome);
        break;
      case store::StoreOp::kCancelWait:
        Leave(client);
        outcome.reply.number = 1;
        break;
      case store::StoreOp::kNumKeys:
        outcome.reply.number = static_cast<int64_t>(keys_.size());
        break;
      case store::StoreOp::kDelete:
        outcome.reply.number = static_cast<int64_t>(keys_.erase(request.keys[0]));
        break;
      case store::StoreOp::kAppend: {
        auto found = keys_.find(request.keys[0]);
        Put(request.keys[0], (found == keys_.end() ? "" : found->second) + request.values[0], outcome);
        break;
      }
      case store::StoreOp::kMultiSet:
        for (size_t i = 0; i < request.keys.size(); ++i) Put(request.keys[i], request.values[i], outcome);
        break;
      case store::StoreOp::kQueuePush:
        queues_[request.keys[0]].push_back(request.values[0]);
        outcome.release_one_of = waiters_[request.keys[0]];
        break;
      case store::StoreOp::kQueuePop: {
        std::deque<std::string>& queue = queues_[request.keys[0]];
        outcome.reply.number = static_cast<int64_t>(queue.size());
        if (!queue.empty()) {
          outcome.reply.values.push_back(std::move(queue.front()));
          queue.pop_front();
        }
        break;
      }
      case store::StoreOp::kQueueLen:
        outcome.reply.number = static_cast<int64_t>(queues_[request.keys[0]].size());
        break;
      case store::StoreOp::kListKeys:
        for (const auto& [key, value] : keys_) outcome.reply.values.push_back(key);
        break;
      case store::StoreOp::kBarrier: {
        auto found = keys_.find(request.keys[0]);
        const int64_t count = (found == keys_.end() ? 0 : atoll(found->second.c_str())) + 1;
        Put(request.keys[0], std::to_string(count), outcome);
        std::vector<int>& inside = barriers_[request.keys[0]];
        if (count >= request.number) {
          outcome.released.insert(outcome.released.end(), inside.begin(), inside.end());
          inside.clear();
        } else {
          inside.push_back(client);
          outcome.kind = Outcome::kBlocked;
        }
        break;
      }
      case store::StoreOp::kPing:
        outcome.reply.number = request.number;
        break;
      case store::StoreOp::kWatchKey:
        outcome.kind = Outcome::kClosed;
        break;
    }
    return outcome;
  }

  // The client's WAIT or BARRIER, if it has one, is given up. What a BARRIER has counted stays counted.
  void Leave(int client) {
    missing_.erase(client);
    for (auto* waiters : {&waiters_, &barriers_}) {
      for (auto& [key, clients] : *waiters) std::erase(clients, client);
    }
  }

  // It waited for a queue, alone or among others (release_one_of).
  void Released(int client) { Leave(client); }

  // A queue that holds elements while others still wait for it: those whom its pushes have woken have not popped yet.
  bool ElementsAreSpokenFor(const std::string& queue) const {
    auto waiters = waiters_.find(queue);
    return Exists(queue) && waiters != waiters_.end() && !waiters->second.empty();
  }

  bool Has(const std::string& key) const { return keys_.contains(key); }
  // Nothing if the key is missing.
  std::string Value(const std::string& key) const {
    auto found = keys_.find(key);
    return found == keys_.end() ? "" : found->second;
  }

 private:
  bool Exists(const std::string& key) const {
    auto queue = queues_.find(key);
    return keys_.contains(key) || (queue != queues_.end() && !queue->second.empty());
  }

  void Put(const std::string& key, std::string value, Outcome& outcome) {
    keys_[key] = std::move(value);
    auto found = waiters_.find(key);
    if (found == waiters_.end()) return;
    const std::vector<int> clients = std::move(found->second);
    waiters_.erase(found);
    for (int client : clients) CountDown(client, outcome);
  }

  std::string CompareSet(const std::string& key, const std::string& expected, const std::string& desired,
                         Outcome& outcome) {
    auto found = keys_.find(key);
    if (found == keys_.end() && !expected.empty()) return expected;
    if (found != keys_.end() && found->second != expected) return found->second;
    Put(key, desired, outcome);
    return desired;
  }

  // Keys that are missing now are counted, each once as often as it is named; a key that goes again later is not
  // counted again.
  void Wait(int client, const std::vector<std::string>& keys, Outcome& outcome) {
    size_t missing = 0;
    for (const std::string& key : keys) {
      if (Exists(key)) continue;
      waiters_[key].push_back(client);
      ++missing;
    }
    if (missing == 0) return;
    missing_[client] = missing;
    outcome.kind = Outcome::kBlocked;
  }

  void CountDown(int client, Outcome& outcome) {
    if (--missing_.at(client) > 0) return;
    missing_.erase(client);
    outcome.released.push_back(client);
  }

  std::map<std::string, std::string> keys_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::map<std::string, std::vector<int>> waiters_;   // by missing key
  std::map<std::string, std::vector<int>> barriers_;  // by key
  std::map<int, size_t> missing_;                     // of a client that waits: keys still to come
};

}  // namespace taskd::testing
