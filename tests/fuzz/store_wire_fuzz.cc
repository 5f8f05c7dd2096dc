// What clients of the store send: however it is cut, the same requests come out, and a request that is sent on means
// the same. What is kept is never more than what came.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "store/wire.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::store::StoreDialect;
using taskd::store::StoreOp;
using taskd::store::StoreParser;
using taskd::store::StoreRequest;

bool Same(const StoreRequest& a, const StoreRequest& b) {
  return a.op == b.op && a.keys == b.keys && a.values == b.values && a.number == b.number;
}

constexpr uint32_t kServiceMagic = 0x314C4B54;  // "TKL1"

struct Outcome {
  std::vector<StoreRequest> requests;
  std::string error;
  std::string rest;
  StoreParser::Peer peer;
  StoreDialect dialect;
  size_t buffered;
};

Outcome Parse(std::string_view bytes, StoreDialect unvalidated, size_t piece) {
  StoreParser parser(unvalidated, kServiceMagic);
  Outcome outcome;
  auto take = [&] {
    StoreRequest request;
    while (true) {
      auto next = parser.Next(request);
      if (!next.ok()) {
        outcome.error = std::string(next.status().message());
        FUZZ_CHECK(!outcome.error.empty());
        return;
      }
      if (!*next) return;
      outcome.requests.push_back(request);
    }
  };
  for (size_t at = 0; at < bytes.size() && outcome.error.empty(); at += piece) {
    absl::Status status = parser.Feed(bytes.substr(at, piece));
    if (status.ok()) {
      take();
    } else {
      outcome.error = std::string(status.message());
      FUZZ_CHECK(!outcome.error.empty());
    }
    FUZZ_CHECK(parser.buffered_bytes() <= std::min(bytes.size(), at + piece));
  }
  outcome.peer = parser.peer();
  outcome.dialect = parser.dialect();
  outcome.buffered = parser.buffered_bytes();
  if (outcome.peer == StoreParser::Peer::kTier || outcome.peer == StoreParser::Peer::kService) {
    outcome.rest = parser.TakeRest();
    FUZZ_CHECK(parser.buffered_bytes() == 0);
  }
  return outcome;
}

void SendOn(const Outcome& outcome) {
  std::string bytes = outcome.dialect == StoreDialect::k22 ? std::string("\0\xCE\xF7\x85\x3C", 5) : "";
  std::vector<StoreRequest> sent;
  for (const StoreRequest& request : outcome.requests) {
    // 2.1 has no WATCH_KEY, releases of 1.x no APPEND: such were read before or because something proved the dialect.
    if (AppendRequest(outcome.dialect, request, bytes).ok()) sent.push_back(request);
  }
  const Outcome again = Parse(bytes, outcome.dialect, bytes.size());
  FUZZ_CHECK(again.error.empty());
  FUZZ_CHECK(again.buffered == 0);
  FUZZ_CHECK(again.requests.size() == sent.size());
  for (size_t i = 0; i < sent.size(); ++i) FUZZ_CHECK(Same(again.requests[i], sent[i]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (StoreDialect unvalidated : {StoreDialect::k1x, StoreDialect::k21}) {
    const Outcome whole = Parse(bytes, unvalidated, size + 1);
    for (size_t piece : {size_t{1}, size_t{2}, size_t{7}}) {
      const Outcome cut = Parse(bytes, unvalidated, piece);
      FUZZ_CHECK(cut.requests.size() == whole.requests.size());
      for (size_t i = 0; i < cut.requests.size(); ++i) FUZZ_CHECK(Same(cut.requests[i], whole.requests[i]));
      FUZZ_CHECK(cut.error == whole.error);
      FUZZ_CHECK(cut.peer == whole.peer);
      FUZZ_CHECK(cut.dialect == whole.dialect);
      FUZZ_CHECK(cut.rest == whole.rest);
      FUZZ_CHECK(!cut.error.empty() || cut.buffered == whole.buffered);
    }
    SendOn(whole);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  using Op = StoreOp;
  const StoreRequest requests[] = {
      {Op::kSet, {"/key"}, {"value"}, 0},    {Op::kCompareSet, {"/key"}, {"value", "next"}, 0},
      {Op::kGet, {"/key"}, {}, 0},           {Op::kAdd, {"init/"}, {}, 1},
      {Op::kCheck, {"/a", "/b"}, {}, 0},     {Op::kWait, {"/default_pg/0/store_based_barrier_key:1"}, {}, 0},
      {Op::kCancelWait, {}, {}, 0},          {Op::kNumKeys, {}, {}, 0},
      {Op::kDelete, {"/key"}, {}, 0},        {Op::kWatchKey, {"/key"}, {}, 0},
      {Op::kAppend, {"/key"}, {"more"}, 0},  {Op::kMultiSet, {"/a", "/b"}, {"1", std::string(100, 'x')}, 0},
      {Op::kMultiGet, {"/a", "/b"}, {}, 0},  {Op::kPing, {}, {}, 4711},
      {Op::kQueuePush, {"/q"}, {"item"}, 0}, {Op::kQueuePop, {"/q"}, {}, 0},
      {Op::kQueueLen, {"/q"}, {}, 0},        {Op::kListKeys, {}, {}, 0},
      {Op::kBarrier, {"/x"}, {}, 8},
  };
  std::vector<std::string> seeds = {std::string("\0TKS1frames", 11), std::string("\0TKL1\4\0\0\0body", 13),
                                    "GET / HTTP/1.1\r\n\r\n",
                                    // A build of the middle of 2023: WAIT, then CANCEL_WAIT, then MULTI_SET.
                                    std::string("\5\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0/k\14\13\0\0\0\0\0\0\0\0", 29)};
  for (StoreDialect dialect : {StoreDialect::k1x, StoreDialect::k21, StoreDialect::k22}) {
    const std::string start = dialect == StoreDialect::k22 ? std::string("\0\xCE\xF7\x85\x3C", 5) : "";
    std::string all = start;
    for (const StoreRequest& request : requests) {
      std::string one = start;
      if (!AppendRequest(dialect, request, one).ok()) continue;
      seeds.push_back(one);
      (void)AppendRequest(dialect, request, all);
    }
    seeds.push_back(all);
  }
  return seeds;
}
