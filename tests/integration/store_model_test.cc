// One operation at a time, by clients of all dialects at a root, its tiers and a tier of a tier: each answer is the
// reference's.
//
// TASKD_STORE_HISTORIES: how many histories of each kind; the first is TASKD_STORE_SEED.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/testing/deadline.h"
#include "store_client.h"
#include "store_describe.h"
#include "store_reference.h"
#include "store_topology.h"

namespace taskd::testing {
namespace {

using Nodes = std::vector<StoreTopology::Node>;
using Outcome = StoreReference::Outcome;

int FromEnvironment(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : atoi(text);
}

class History {
 public:
  History(uint32_t seed, const Nodes& nodes, int clients_per_node) : random_(seed), nodes_(nodes), topology_(nodes) {
    error_ = std::string(topology_.status().message());
    for (int node = 0; node < topology_.size(); ++node) {
      for (int i = 0; i < clients_per_node; ++i) AddClient(node, i % 2 == 0);
    }
    for (int node = 0; node < topology_.size(); ++node) AddClient(node, false);  // probes
  }

  // Empty, or what went wrong and the history until then.
  std::string Run(int steps) {
    for (int i = 0; i < steps && error_.empty(); ++i) Step();
    for (int node = 0; node < topology_.size() && error_.empty(); ++node) Probe(node);
    if (error_.empty()) return "";
    return absl::StrCat(error_, "\nhistory (node/client):\n", absl::StrJoin(trace_, "\n"));
  }

 private:
  struct Client {
    int node;
    store::StoreDialect dialect;
    std::optional<StoreClient> connection;
    std::optional<store::StoreRequest> pending;  // a WAIT or BARRIER that blocks
  };

  void AddClient(int node, bool unvalidated) {
    Client client{.node = node,
                  .dialect = unvalidated ? nodes_[static_cast<size_t>(node)].unvalidated : store::StoreDialect::k22,
                  .connection = std::nullopt,
                  .pending = std::nullopt};
    clients_.push_back(std::move(client));
    if (error_.empty()) Connect(static_cast<int>(clients_.size()) - 1);
  }

  void Connect(int index) {
    Client& client = clients_[static_cast<size_t>(index)];
    auto connection = StoreClient::Connect(topology_.port(client.node), client.dialect);
    if (connection.ok()) {
      client.connection.emplace(*std::move(connection));
    } else {
      error_ = std::string(connection.status().message());
    }
  }

  int Pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  bool Chance(int percent) { return Pick(100) < percent; }

  void Note(int index, const std::string& text) {
    const Client& client = clients_[static_cast<size_t>(index)];
    trace_.push_back(absl::StrCat(client.node, "/", index, " (", DialectName(client.dialect), ") ", text));
  }
  void Fail(int index, const std::string& text) {
    Note(index, "<-- " + text);
    if (error_.empty()) error_ = text;
  }

  std::string Key() { return absl::StrCat("/k", Pick(4)); }
  std::string Queue() { return absl::StrCat("/q", Pick(2)); }
  std::string Value() {
    if (Chance(1)) return std::string(static_cast<size_t>(100'000 + Pick(100'000)), 'v');
    static const char* const kValues[] = {"", "0", "1", "7", "-3", "x", "yy", "id\n"};
    return kValues[Pick(8)];
  }
  std::vector<std::string> Keys(int most) {
    std::vector<std::string> keys;
    for (int i = 1 + Pick(most); i > 0; --i) keys.push_back(Key());
    return keys;
  }

  store::StoreRequest Request(store::StoreDialect dialect) {
    while (true) {
      store::StoreRequest request = AnyRequest();
      std::string ignored;
      if (!store::AppendRequest(dialect, request, ignored).ok()) continue;
      if (request.op == store::StoreOp::kGet || request.op == store::StoreOp::kMultiGet) {
        // Clients wait for a key before they get it.
        if (!std::all_of(request.keys.begin(), request.keys.end(), [&](auto& key) { return reference_.Has(key); }))
          continue;
      }
      // PyTorch lets who asks now race with the woken one; a tier lets it wait for its turn.
      if (request.op == store::StoreOp::kWait && topology_.size() > 1 &&
          reference_.ElementsAreSpokenFor(request.keys[0]))
        continue;
      if (request.op == store::StoreOp::kAdd && reference_.Has(request.keys[0])) {
        const std::string value = reference_.Value(request.keys[0]);
        // Text that begins with digits is a number to PyTorch.
        if (!IsNumber(value) && !value.empty() && (value[0] == '-' || (value[0] >= '0' && value[0] <= '9'))) continue;
      }
      return request;
    }
  }

  store::StoreRequest AnyRequest() {
    switch (Pick(22)) {
      case 0:
      case 1:
      case 2:
        return {.op = store::StoreOp::kSet, .keys = {Key()}, .values = {Value()}, .number = 0};
      case 3:
      case 4: {
        const std::string key = Key();
        return {.op = store::StoreOp::kCompareSet,
                .keys = {key},
                .values = {Chance(60) ? reference_.Value(key) : Value(), Value()},
                .number = 0};
      }
      case 5:
      case 6:
        return {.op = store::StoreOp::kGet, .keys = {Key()}, .values = {}, .number = 0};
      case 7:
      case 8:
        return {.op = store::StoreOp::kAdd, .keys = {Key()}, .values = {}, .number = Pick(4) - 1};
      case 9:
      case 10:
        return {.op = store::StoreOp::kCheck,
                .keys = Chance(10) ? std::vector<std::string>{Queue()} : Keys(3),
                .values = {},
                .number = 0};
      case 11:
      case 12:
        return {.op = store::StoreOp::kWait,
                .keys = Chance(25) ? std::vector<std::string>{Queue()} : Keys(3),
                .values = {},
                .number = 0};
      case 13:
        return {.op = store::StoreOp::kNumKeys, .keys = {}, .values = {}, .number = 0};
      case 14:
      case 15:
      case 16:
        return {.op = store::StoreOp::kDelete, .keys = {Key()}, .values = {}, .number = 0};
      case 17:
        return {.op = store::StoreOp::kAppend, .keys = {Key()}, .values = {Value()}, .number = 0};
      case 18: {
        if (Chance(50)) return {.op = store::StoreOp::kMultiGet, .keys = Keys(3), .values = {}, .number = 0};
        store::StoreRequest request{.op = store::StoreOp::kMultiSet, .keys = Keys(3), .values = {}, .number = 0};
        for (size_t i = 0; i < request.keys.size(); ++i) request.values.push_back(Value());
        return request;
      }
      case 19: {
        if (Chance(60)) return {.op = store::StoreOp::kQueuePush, .keys = {Queue()}, .values = {Value()}, .number = 0};
        if (Chance(70)) return {.op = store::StoreOp::kQueuePop, .keys = {Queue()}, .values = {}, .number = 0};
        return {.op = store::StoreOp::kQueueLen, .keys = {Queue()}, .values = {}, .number = 0};
      }
      case 20:
        if (Chance(50)) return {.op = store::StoreOp::kListKeys, .keys = {}, .values = {}, .number = 0};
        return {.op = store::StoreOp::kCancelWait, .keys = {}, .values = {}, .number = 0};
      default:
        // A barrier of three; once full, the next one has another key, as PyTorch's have.
        if (atoi(reference_.Value(BarrierKey()).c_str()) >= 3) ++barrier_;
        return {.op = store::StoreOp::kBarrier, .keys = {BarrierKey()}, .values = {}, .number = 3};
    }
  }
  std::string BarrierKey() const { return absl::StrCat("/b", barrier_); }

  void Step() {
    const int index = Pick(static_cast<int>(clients_.size()) - topology_.size());
    Client& client = clients_[static_cast<size_t>(index)];
    if (client.pending.has_value()) {
      if (!Chance(35)) return;
      if (Chance(20)) {
        Note(index, "disconnects while it waits");
        reference_.Leave(index);
        client.pending.reset();
        client.connection.reset();
        Connect(index);
        Probe(client.node);  // the server has seen that the connection is gone
        return;
      }
      const bool silent =
          client.dialect == store::StoreDialect::k1x;  // cannot cancel; gives up and asks for something else
      reference_.Leave(index);
      client.pending.reset();
      Do(index, silent ? Request(client.dialect)
                       : store::StoreRequest{.op = store::StoreOp::kCancelWait, .keys = {}, .values = {}, .number = 0});
      return;
    }
    if (client.dialect != store::StoreDialect::k1x && Chance(3)) {
      WaitAndCancel(index);
      return;
    }
    Do(index, Request(client.dialect));
  }

  void Do(int index, const store::StoreRequest& request) {
    Client& client = clients_[static_cast<size_t>(index)];
    Note(index, Describe(request));
    const Outcome expected = reference_.Apply(index, request);
    if (auto status = client.connection->Send(request); !status.ok()) return Fail(index, std::string(status.message()));
    if (expected.kind == Outcome::kClosed) {
      if (!client.connection->Readable(kHangLimit)) return Fail(index, "the connection should be closed");
      if (auto reply = client.connection->Receive(request); reply.ok())
        return Fail(index, "answered: " + Describe(*reply));
      client.connection.reset();
      return Connect(index);
    }
    if (expected.kind == Outcome::kBlocked) {
      client.pending = request;
      Probe(client.node);  // has gone up behind the WAIT, so the WAIT is known there
    } else if (StoreClient::HasReply(request.op)) {
      Expect(index, request, expected.reply);
    } else {
      Flush(index);
    }
    Settle(expected);
  }

  // Writes have no reply: what follows on the same connection has one.
  void Flush(int index) {
    const store::StoreDialect dialect = clients_[static_cast<size_t>(index)].dialect;
    store::StoreRequest request;
    switch (Pick(4)) {
      case 0:
        request = {.op = store::StoreOp::kNumKeys, .keys = {}, .values = {}, .number = 0};
        break;
      case 1:
        request = {.op = store::StoreOp::kCheck, .keys = Keys(2), .values = {}, .number = 0};
        break;
      case 2:
        request = {.op = store::StoreOp::kDelete, .keys = {"/never"}, .values = {}, .number = 0};
        break;
      default:
        if (dialect == store::StoreDialect::k22) {
          request = {.op = store::StoreOp::kPing, .keys = {}, .values = {}, .number = Pick(1 << 30)};
        } else {
          request = {.op = store::StoreOp::kAdd, .keys = {"/flush"}, .values = {}, .number = 1};
        }
    }
    Note(index, "flush: " + Describe(request));
    const Outcome expected = reference_.Apply(index, request);
    auto& connection = *clients_[static_cast<size_t>(index)].connection;
    if (auto status = connection.Send(request); !status.ok()) return Fail(index, std::string(status.message()));
    Expect(index, request, expected.reply);
  }

  void Expect(int index, const store::StoreRequest& request, store::StoreReply expected) {
    auto reply = clients_[static_cast<size_t>(index)].connection->Receive(request);
    if (!reply.ok()) return Fail(index, absl::StrCat(reply.status().message(), "; expected ", Describe(expected)));
    if (request.op == store::StoreOp::kListKeys) std::sort(reply->values.begin(), reply->values.end());
    if (reply->number != expected.number || reply->values != expected.values) {
      Fail(index, absl::StrCat("got ", Describe(*reply), "; expected ", Describe(expected)));
    }
  }

  // Exactly the released waiters got an answer.
  void Settle(const Outcome& outcome) {
    std::vector<int> all_released = outcome.released;
    if (!outcome.release_one_of.empty()) {
      const int released = AwaitOneOf(outcome.release_one_of);
      if (released < 0) return Fail(outcome.release_one_of.front(), "one of the queue's waiters should be released");
      reference_.Released(released);
      all_released.push_back(released);
    }
    for (int released : all_released) {
      Client& client = clients_[static_cast<size_t>(released)];
      auto reply = client.connection->Receive(*client.pending);
      if (!reply.ok()) return Fail(released, absl::StrCat("should be released: ", reply.status().message()));
      if (reply->number != 0) return Fail(released, absl::StrCat("should be released, got byte ", reply->number));
      Note(released, "is released");
      client.pending.reset();
    }
    NobodyElse();
  }

  // Who has something to receive first; with a single server that is who has waited longest, behind tiers anybody.
  int AwaitOneOf(const std::vector<int>& candidates) {
    if (topology_.size() == 1) return candidates.front();
    int first = -1;
    WaitUntil([&] {
      for (int index : candidates) {
        if (first < 0 && clients_[static_cast<size_t>(index)].connection->Readable()) first = index;
      }
      return first >= 0;
    });
    return first;
  }

  void NobodyElse() {
    for (size_t i = 0; i < clients_.size() && error_.empty(); ++i) {
      if (clients_[i].connection.has_value() && clients_[i].connection->Readable()) {
        Fail(static_cast<int>(i), clients_[i].pending.has_value()
                                      ? "is released too early, or its connection was closed"
                                      : "has received something that it did not ask for");
      }
    }
  }

  // A write through the node up to the root and back.
  void Probe(int node) {
    const int index = static_cast<int>(clients_.size()) - topology_.size() + node;
    const store::StoreRequest request{
        .op = store::StoreOp::kAdd, .keys = {absl::StrCat("/probe", node)}, .values = {}, .number = 1};
    const Outcome expected = reference_.Apply(index, request);
    auto reply = clients_[static_cast<size_t>(index)].connection->Call(request);
    if (!reply.ok()) return Fail(index, absl::StrCat("probe: ", reply.status().message()));
    if (reply->number != expected.reply.number) {
      Fail(index, absl::StrCat("probe: ", reply->number, " instead of ", expected.reply.number));
    }
    NobodyElse();
  }

  // Both in one piece: STOP_WAITING may or may not come before WAIT_CANCELED when the keys exist, and must not
  // otherwise.
  void WaitAndCancel(int index) {
    Client& client = clients_[static_cast<size_t>(index)];
    const store::StoreRequest wait{.op = store::StoreOp::kWait, .keys = Keys(2), .values = {}, .number = 0};
    const store::StoreRequest cancel{.op = store::StoreOp::kCancelWait, .keys = {}, .values = {}, .number = 0};
    Note(index, "at once: " + Describe(wait) + " and CANCEL");
    const bool exist = reference_.Apply(index, wait).kind == Outcome::kDone;
    reference_.Leave(index);
    std::string bytes;
    bool ok = store::AppendRequest(client.dialect, wait, bytes).ok();
    ok = store::AppendRequest(client.dialect, cancel, bytes).ok() && ok;
    if (!ok || !client.connection->Write(bytes).ok()) return Fail(index, "cannot send");
    auto reply = client.connection->Receive(cancel);
    if (reply.ok() && reply->number == 0 && exist) reply = client.connection->Receive(cancel);
    if (!reply.ok()) return Fail(index, std::string(reply.status().message()));
    if (reply->number != 1) return Fail(index, absl::StrCat("got byte ", reply->number, " instead of WAIT_CANCELED"));
    Flush(index);  // a byte too many would be its reply
    NobodyElse();
  }

  std::mt19937 random_;
  Nodes nodes_;
  StoreTopology topology_;
  StoreReference reference_;
  std::vector<Client> clients_;  // the last ones are the probes, one a node
  std::vector<std::string> trace_;
  std::string error_;
  int barrier_ = 0;
};

struct Shape {
  const char* name;
  Nodes nodes;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

class StoreModelTest : public ::testing::TestWithParam<Shape> {
 protected:
  // Many short histories (what they find is easy to read), then a few long ones.
  void Run(int histories, int steps) {
    const int first = FromEnvironment("TASKD_STORE_SEED", 1);
    histories = FromEnvironment("TASKD_STORE_HISTORIES", histories);
    printf("seeds %d to %d, %d steps\n", first, first + histories - 1, steps);
    for (int seed = first; seed < first + histories; ++seed) {
      History history(static_cast<uint32_t>(seed), GetParam().nodes, 3);
      const std::string error = history.Run(steps);
      if (!error.empty()) FAIL() << "seed " << seed << ", " << steps << " steps: " << error;
    }
  }
};

TEST_P(StoreModelTest, ShortHistories) { Run(60, 25); }
TEST_P(StoreModelTest, LongHistories) { Run(10, 600); }

INSTANTIATE_TEST_SUITE_P(, StoreModelTest,
                         ::testing::Values(Shape{"Root", {{}}},
                                           Shape{"RootOfTwoPointOne", {{-1, store::StoreDialect::k21}}},
                                           Shape{"Tier", {{}, {0}}},
                                           Shape{"TwoTiersAndATierOfATier", {{}, {0}, {0}, {1}}},
                                           Shape{"MixedFlavours",
                                                 {{-1, store::StoreDialect::k1x},
                                                  {0, store::StoreDialect::k21},
                                                  {0, store::StoreDialect::k1x},
                                                  {2, store::StoreDialect::k21}}}),
                         [](const ::testing::TestParamInfo<Shape>& info) { return info.param.name; });

}  // namespace
}  // namespace taskd::testing
