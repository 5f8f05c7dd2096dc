// Many clients at once at a root, its tiers and a tier of a tier: together they are one store.
//
// TASKD_STORE_HISTORIES: how many histories; the first is TASKD_STORE_SEED.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/testing/deadline.h"
#include "store_client.h"
#include "store_describe.h"
#include "store_linearize.h"
#include "store_topology.h"

namespace taskd::testing {
namespace {

const std::vector<StoreTopology::Node>& Nodes() {
  static const auto* const nodes = new std::vector<StoreTopology::Node>{{}, {0}, {0}, {1}};
  return *nodes;
}

int FromEnvironment(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : atoi(text);
}

store::StoreRequest Request(store::StoreOp op, std::vector<std::string> keys, std::vector<std::string> values = {},
                            int64_t number = 0) {
  return {.op = op, .keys = std::move(keys), .values = std::move(values), .number = number};
}

// One client of a concurrent history: does random things and notes, by key, its requests, their answers, and when.
class Actor {
 public:
  Actor(int index, uint32_t seed, int port, store::StoreDialect dialect)
      : index_(index), random_(seed * 1000 + static_cast<uint32_t>(index)), port_(port), dialect_(dialect) {
    Connect();
  }

  void Run(int steps) {
    for (int i = 0; i < steps && error_.empty(); ++i) {
      Act();
      if (Pick(4) == 0) std::this_thread::yield();
    }
    // The last writes have happened once this is answered.
    Do(Request(store::StoreOp::kNumKeys, {}));
  }

  const std::string& error() const { return error_; }
  const std::map<std::string, std::vector<KeyEvent>>& events() const { return events_; }

 private:
  int Pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

  void Connect() {
    auto connection = StoreClient::Connect(port_, dialect_);
    if (connection.ok()) {
      connection_.emplace(*std::move(connection));
    } else {
      error_ = std::string(connection.status().message());
    }
  }

  // Numbers under "/n", texts under "/t", queues under "/q": ADD on a text ends the connection.
  void Act() {
    const std::string number = absl::StrCat("/n", Pick(2));
    const std::string text = absl::StrCat("/t", Pick(2));
    const std::string& key = Pick(2) == 0 ? number : text;
    const bool is_number = &key == &number;
    const std::string value =
        is_number ? std::to_string(index_ * 1000 + next_ * 10) : absl::StrCat("<", index_, ".", next_, ">");
    switch (Pick(dialect_ == store::StoreDialect::k1x ? 10 : 16)) {
      case 0:
      case 1:
        return Do(Request(store::StoreOp::kSet, {key}, {value}));
      case 2:
      case 3:
        return Do(Request(store::StoreOp::kGet, {key}));
      case 4:
        return Do(Request(store::StoreOp::kCheck, {key}));
      case 5:
      case 6:
        return Do(Request(store::StoreOp::kAdd, {number}, {}, Pick(3)));
      case 7:
        return Do(Request(store::StoreOp::kCompareSet, {key}, {Pick(3) == 0 ? "" : known_[key], value}));
      case 8:
      case 9:
        return Do(Request(store::StoreOp::kDelete, {key}));
      case 10:
        return Do(Request(store::StoreOp::kAppend, {text}, {value}));
      case 11:
        return Do(Request(store::StoreOp::kMultiGet, {number, text}));
      case 12:
        return Do(Request(store::StoreOp::kMultiSet, {number, text}, {std::to_string(index_), value}));
      case 13:
        return Wait(key);
      case 14:
        return dialect_ == store::StoreDialect::k22 ? Do(Request(store::StoreOp::kQueuePush, {"/q"}, {value}))
                                                    : Do(Request(store::StoreOp::kGet, {key}));
      default:
        return dialect_ == store::StoreDialect::k22
                   ? Do(Request(Pick(4) == 0 ? store::StoreOp::kQueueLen : store::StoreOp::kQueuePop, {"/q"}))
                   : Do(Request(store::StoreOp::kCheck, {key}));
    }
  }

  void Do(const store::StoreRequest& request) {
    ++next_;
    const int64_t begin_ns = EventLoop::NowNs();
    auto reply = connection_->Call(request);
    const int64_t end_ns = EventLoop::NowNs();
    bool closed = false;
    if (!reply.ok()) {
      // As PyTorch's servers of the time of 1.x answer a GET of a missing key.
      closed = dialect_ != store::StoreDialect::k22 &&
               (request.op == store::StoreOp::kGet || request.op == store::StoreOp::kMultiGet) &&
               absl::IsUnavailable(reply.status());
      if (!closed) {
        error_ = absl::StrCat("client ", index_, ": ", Describe(request), ": ", reply.status().message());
        return;
      }
      Connect();
    }
    const bool replied = StoreClient::HasReply(request.op);
    if (replied) EndWrites(end_ns);
    if (closed && request.op == store::StoreOp::kMultiGet) return;  // one of the keys was missing
    for (size_t i = 0; i < request.keys.size(); ++i) {
      KeyEvent event{.client = index_,
                     .number = next_,
                     .begin_ns = begin_ns,
                     .end_ns = replied ? end_ns : kNever,
                     .op = request.op,
                     .values = {},
                     .delta = request.number,
                     .answer = 0,
                     .value = std::nullopt};
      event.values = request.values;
      if (request.op == store::StoreOp::kMultiSet) {
        event.op = store::StoreOp::kSet;
        event.values = {request.values[i]};
      }
      if (request.op == store::StoreOp::kMultiGet) event.op = store::StoreOp::kGet;
      if (replied && !closed) {
        event.answer = reply->number;
        // No value in these histories is empty: that is how a server of 2.2 reports that there is none.
        const bool compared = request.op == store::StoreOp::kCompareSet;
        if (i < reply->values.size() && (compared || !reply->values[i].empty())) event.value = reply->values[i];
        if (event.value.has_value()) known_[request.keys[i]] = *event.value;
      }
      events_[request.keys[i]].push_back(std::move(event));
      if (!replied) open_.emplace_back(request.keys[i], events_[request.keys[i]].size() - 1);
    }
  }

  // A WAIT that is cancelled after a moment; what was cancelled says nothing about the key.
  void Wait(const std::string& key) {
    ++next_;
    KeyEvent event{.client = index_,
                   .number = next_,
                   .begin_ns = EventLoop::NowNs(),
                   .end_ns = kNever,
                   .op = store::StoreOp::kWait,
                   .values = {},
                   .delta = 0,
                   .answer = 0,
                   .value = std::nullopt};
    const store::StoreRequest wait = Request(store::StoreOp::kWait, {key});
    const store::StoreRequest cancel = Request(store::StoreOp::kCancelWait, {});
    absl::Status status = connection_->Send(wait);
    const bool cancelled = status.ok() && !connection_->Readable(std::chrono::milliseconds(Pick(3)));
    if (cancelled) status = connection_->Send(cancel);
    absl::StatusOr<store::StoreReply> reply = status.ok() ? connection_->Receive(wait) : status;
    const bool came = reply.ok() && reply->number == 0;
    event.end_ns = EventLoop::NowNs();
    if (came && cancelled) reply = connection_->Receive(cancel);
    if (!reply.ok() || (cancelled && reply->number != 1)) {
      error_ = absl::StrCat("client ", index_, ": WAIT of ", key, cancelled ? ", cancelled: " : ": ",
                            reply.status().message());
      return;
    }
    EndWrites(event.end_ns);
    if (came) events_[key].push_back(std::move(event));
  }

  void EndWrites(int64_t end_ns) {
    for (auto& [key, index] : open_) events_[key][index].end_ns = end_ns;
    open_.clear();
  }

  const int index_;
  std::mt19937 random_;
  const int port_;
  const store::StoreDialect dialect_;
  std::optional<StoreClient> connection_;
  int next_ = 0;
  std::string error_;
  std::map<std::string, std::string> known_;  // values that it saw last
  std::map<std::string, std::vector<KeyEvent>> events_;
  std::vector<std::pair<std::string, size_t>> open_;  // writes that may not have happened yet: key, index in events_
};

TEST(StoreConcurrentTest, EveryKeyIsLinearizable) {
  constexpr int kSteps = 14;
  const int first = FromEnvironment("TASKD_STORE_SEED", 1);
  const int histories = FromEnvironment("TASKD_STORE_HISTORIES", 150);
  printf("seeds %d to %d\n", first, first + histories - 1);
  for (int seed = first; seed < first + histories; ++seed) {
    StoreTopology topology(Nodes());
    ASSERT_TRUE(topology.status().ok()) << topology.status();
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 6; ++i) {
      const store::StoreDialect dialect = i == 1 ? store::StoreDialect::k1x : store::StoreDialect::k22;
      actors.push_back(std::make_unique<Actor>(i, static_cast<uint32_t>(seed),
                                               topology.port((i + seed) % topology.size()), dialect));
    }
    std::barrier start(static_cast<ptrdiff_t>(actors.size()));
    std::vector<std::thread> threads;
    for (auto& actor : actors) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        actor->Run(kSteps);
      });
    }
    for (std::thread& thread : threads) thread.join();

    std::map<std::string, std::vector<KeyEvent>> by_key;
    for (auto& actor : actors) {
      ASSERT_EQ(actor->error(), "") << "seed " << seed;
      for (const auto& [key, events] : actor->events())
        by_key[key].insert(by_key[key].end(), events.begin(), events.end());
    }
    for (auto& [key, events] : by_key) {
      if (events.size() > 64) continue;  // rare: as many as a word has bits
      std::sort(events.begin(), events.end(), [](auto& a, auto& b) { return a.begin_ns < b.begin_ns; });
      if (Linearizer(events).Explains()) continue;
      std::string history;
      for (const KeyEvent& event : events) absl::StrAppend(&history, Describe(event), "\n");
      absl::StrAppend(&history, "all that was done with other keys, too:\n");
      for (const auto& [other, its_events] : by_key) {
        for (const KeyEvent& event : its_events) absl::StrAppend(&history, other, " ", Describe(event), "\n");
      }
      FAIL() << "seed " << seed << ", key " << key << ": no order explains\n"
             << history << "clients 0.. are at node (client + seed) % 4";
    }
  }
}

// However the function is left.
struct SetAtEnd {
  std::atomic<bool>& done;
  ~SetAtEnd() { done = true; }
};

// Each thread its own client, at the nodes in turns.
void OnClients(const StoreTopology& topology, int count,
               const std::function<void(int index, StoreClient& client)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      auto client = StoreClient::Connect(topology.port(i % topology.size()),
                                         i % 3 == 0 ? store::StoreDialect::k1x : store::StoreDialect::k22);
      ASSERT_TRUE(client.ok()) << client.status();
      body(i, *client);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StoreConcurrentTest, TicketsAreAPermutation) {
  constexpr int kClients = 16, kRounds = 200;
  StoreTopology topology(Nodes());
  ASSERT_TRUE(topology.status().ok()) << topology.status();
  std::mutex mutex;
  std::vector<int64_t> tickets;
  OnClients(topology, kClients, [&](int index, StoreClient& client) {
    int64_t last = 0;
    for (int round = 0; round < kRounds; ++round) {
      auto ticket = client.Call(Request(store::StoreOp::kAdd, {"/counter"}, {}, 1));
      ASSERT_TRUE(ticket.ok()) << index << ": " << ticket.status();
      ASSERT_GT(ticket->number, last);
      auto now = client.Call(Request(store::StoreOp::kAdd, {"/counter"}, {}, 0));
      ASSERT_TRUE(now.ok()) << index << ": " << now.status();
      ASSERT_GE(now->number, ticket->number) << "client " << index << " does not see its own ADD";
      last = now->number;
      std::lock_guard lock(mutex);
      tickets.push_back(ticket->number);
    }
  });
  std::sort(tickets.begin(), tickets.end());
  ASSERT_EQ(tickets.size(), size_t{kClients * kRounds});
  for (size_t i = 0; i < tickets.size(); ++i) ASSERT_EQ(tickets[i], static_cast<int64_t>(i) + 1);
}

TEST(StoreConcurrentTest, OthersSeeOneConnectionsWritesInTheirOrder) {
  constexpr int kVersions = 400, kPairs = 3;
  StoreTopology topology(Nodes());
  ASSERT_TRUE(topology.status().ok()) << topology.status();
  for (int writer_node = 0; writer_node < topology.size(); ++writer_node) {
    std::atomic<bool> done = false;
    std::vector<std::string> keys;  // written in this order, read the other way round
    for (int i = 0; i < kPairs; ++i) keys.push_back(absl::StrCat("/order", writer_node, ".", i));
    std::thread writer([&] {
      const SetAtEnd at_end{done};
      auto client = StoreClient::Connect(topology.port(writer_node), store::StoreDialect::k22);
      ASSERT_TRUE(client.ok()) << client.status();
      for (int version = 1; version <= kVersions; ++version) {
        for (const std::string& key : keys) {
          ASSERT_TRUE(client->Send(Request(store::StoreOp::kSet, {key}, {std::to_string(version)})).ok());
        }
        // Pauses and bursts: most of the writes follow each other without any reply between.
        if (version % 8 == 0) {
          ASSERT_TRUE(client->Call(Request(store::StoreOp::kCheck, {keys[0]})).ok());
        }
      }
      ASSERT_TRUE(client->Call(Request(store::StoreOp::kNumKeys, {})).ok());
    });
    OnClients(topology, 4, [&](int index, StoreClient& client) {
      while (!done) {
        int64_t later = 0;
        for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
          auto exists = client.Call(Request(store::StoreOp::kCheck, {*key}));
          ASSERT_TRUE(exists.ok()) << exists.status();
          int64_t version = 0;
          if (exists->number == 1) {
            auto value = client.Call(Request(store::StoreOp::kGet, {*key}));
            ASSERT_TRUE(value.ok()) << value.status();
            version = atoll(value->values[0].c_str());
          }
          ASSERT_GE(version, later) << "a client at node " << index << ", " << *key << ", writer at node "
                                    << writer_node;
          later = version;
        }
      }
    });
    writer.join();
  }
}

// A writer makes a change, asks something (so the change has happened), and only then notifies the readers otherwise.
// A key has a copy at every tier as often as not when it is changed.
TEST(StoreConcurrentTest, NobodyReadsWhatWasOverwrittenOrDeleted) {
  constexpr int kChanges = 400;
  StoreTopology topology(Nodes());
  ASSERT_TRUE(topology.status().ok()) << topology.status();
  for (int writer_node = 0; writer_node < topology.size(); ++writer_node) {
    // A key for a few changes, then it is deleted and the next one comes: a key that changes for ever is not copied.
    const auto key = [&](int64_t number) { return absl::StrCat("/change", writer_node, ".", number); };
    std::atomic<int64_t> truth = 0;      // number of the key << 32 | its version: 0 before it is set
    std::atomic<int64_t> deleting = -1;  // from just before this key's deletion on it may be missing
    std::atomic<bool> done = false;
    std::thread writer([&] {
      const SetAtEnd at_end{done};
      std::mt19937 random(static_cast<uint32_t>(writer_node) + 1);
      auto client = StoreClient::Connect(topology.port(writer_node), store::StoreDialect::k22);
      ASSERT_TRUE(client.ok()) << client.status();
      int64_t number = 0, version = 0;
      for (int i = 0; i < kChanges; ++i) {
        const std::string name = key(number);
        const std::string before = std::to_string(version), after = std::to_string(version + 1);
        const uint32_t how = version == 0 ? 0 : random() % 4;
        if (how == 3) {
          deleting = number;
          auto gone = client->Call(Request(store::StoreOp::kDelete, {name}));
          ASSERT_TRUE(gone.ok()) << gone.status();
          ASSERT_EQ(gone->number, 1);
          version = 0;
          truth = ++number << 32;
          continue;
        }
        if (how == 2) {
          auto swapped = client->Call(Request(store::StoreOp::kCompareSet, {name}, {before, after}));
          ASSERT_TRUE(swapped.ok()) << swapped.status();
          ASSERT_EQ(swapped->values[0], after);
        } else {
          ASSERT_TRUE(
              client->Send(Request(how == 0 ? store::StoreOp::kSet : store::StoreOp::kMultiSet, {name}, {after})).ok());
          const uint32_t flush = random() % 4;
          auto flushed = client->Call(flush == 0   ? Request(store::StoreOp::kNumKeys, {})
                                      : flush == 1 ? Request(store::StoreOp::kCheck, {name})
                                      : flush == 2 ? Request(store::StoreOp::kCheck, {"/elsewhere"})
                                                   : Request(store::StoreOp::kPing, {}, {}, 77));
          ASSERT_TRUE(flushed.ok()) << flushed.status();
        }
        truth = number << 32 | ++version;
        // Time for the readers to get copies.
        for (uint32_t pause = random() % 6; pause > 0; --pause) {
          ASSERT_TRUE(client->Call(Request(store::StoreOp::kNumKeys, {})).ok());
        }
      }
    });
    std::vector<std::thread> readers;
    for (int node = 0; node < topology.size(); ++node) {
      readers.emplace_back([&, node] {
        auto client = StoreClient::Connect(topology.port(node), store::StoreDialect::k22);
        ASSERT_TRUE(client.ok()) << client.status();
        while (!done) {
          const int64_t now = truth;
          const int64_t number = now >> 32, version = now & 0xffffffff;
          if (number > 0) {
            auto exists = client->Call(Request(store::StoreOp::kCheck, {key(number - 1)}));
            ASSERT_TRUE(exists.ok()) << exists.status();
            ASSERT_EQ(exists->number, 0) << "node " << node << " has a key that was deleted at node " << writer_node;
          }
          auto value = client->Call(Request(store::StoreOp::kGet, {key(number)}));
          ASSERT_TRUE(value.ok()) << value.status();
          if (value->values[0].empty()) {
            ASSERT_TRUE(version == 0 || deleting >= number)
                << "node " << node << " misses a key of node " << writer_node;
          } else {
            ASSERT_GE(atoll(value->values[0].c_str()), version)
                << "node " << node << ", written at node " << writer_node;
          }
        }
      });
    }
    writer.join();
    for (std::thread& reader : readers) reader.join();
  }
}

// One WAIT at every node, released by one SET, over and over: no waiter is forgotten, whoever cancels meanwhile.
TEST(StoreConcurrentTest, EverybodyWhoWaitsIsReleased) {
  constexpr int kRounds = 150, kClients = 12;
  StoreTopology topology(Nodes());
  ASSERT_TRUE(topology.status().ok()) << topology.status();
  std::barrier round_over(kClients);
  OnClients(topology, kClients, [&](int index, StoreClient& client) {
    std::mt19937 random(static_cast<uint32_t>(index));
    for (int round = 0; round < kRounds; ++round) {
      const std::string key = absl::StrCat("/round", round);
      bool fine = true;
      if (index == round % kClients) {
        fine = client.Send(Request(store::StoreOp::kSet, {key}, {"id"})).ok();
      } else {
        const store::StoreRequest wait = Request(store::StoreOp::kWait, {key});
        if (client.dialect() == store::StoreDialect::k22 && random() % 3 == 0) {  // gives up once, then waits again
          const store::StoreRequest cancel = Request(store::StoreOp::kCancelWait, {});
          fine = client.Send(wait).ok() && client.Send(cancel).ok();
          auto reply = client.Receive(cancel);
          if (reply.ok() && reply->number == 0) reply = client.Receive(cancel);
          fine = fine && reply.ok() && reply->number == 1;
        }
        auto released = client.Call(wait);
        auto value = client.Call(Request(store::StoreOp::kGet, {key}));
        fine = fine && released.ok() && released->number == 0 && value.ok() && value->values[0] == "id";
      }
      if (!fine) {
        ADD_FAILURE() << "client " << index << " at node " << index % topology.size() << ", round " << round;
        round_over.arrive_and_drop();
        return;
      }
      round_over.arrive_and_wait();
    }
  });
}

// What is written for one try of the job is gone for the next one, at every tier; who waits goes on waiting.
TEST(StoreConcurrentTest, ForgetTryReachesTheCopies) {
  StoreTopology topology(Nodes());
  ASSERT_TRUE(topology.status().ok()) << topology.status();
  std::vector<StoreClient> clients;
  for (int node = 0; node < topology.size(); ++node) {
    auto client = StoreClient::Connect(topology.port(node), store::StoreDialect::k22);
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
  }
  for (int attempt = 0; attempt < 20; ++attempt) {
    const std::string value = absl::StrCat("try ", attempt);
    ASSERT_TRUE(clients[static_cast<size_t>(attempt) % clients.size()]
                    .Call(Request(store::StoreOp::kSet, {"/id"}, {value}))
                    .ok());
    for (StoreClient& client : clients) {
      auto released = client.Call(Request(store::StoreOp::kWait, {"/id"}));
      ASSERT_TRUE(released.ok()) << released.status();
      auto read = client.Call(Request(store::StoreOp::kGet, {"/id"}));
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(read->values[0], value);
    }
    topology.OnThread(0, [](store::StoreServer& root) { root.ForgetTry(false); });
    for (StoreClient& client : clients) {
      // The copies go soon, not at once: no rank runs between two tries.
      const Deadline deadline;
      while (true) {
        const bool is_over = deadline.IsOver();
        auto exists = client.Call(Request(store::StoreOp::kCheck, {"/id"}));
        ASSERT_TRUE(exists.ok()) << exists.status();
        if (exists->number == 0) break;
        ASSERT_FALSE(is_over) << "a copy of the last try stays";
      }
    }
  }
}

}  // namespace
}  // namespace taskd::testing
