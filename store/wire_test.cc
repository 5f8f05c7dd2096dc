#include "store/wire.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {
size_t biggest_allocation = 0;
}  // namespace

// If this were inlined, GCC would see malloc() without new, and warn. Clang's analyzer reports what matchers own as
// leaks of this function.
#ifndef __clang_analyzer__
__attribute__((noinline)) void* operator new(size_t size) {
  biggest_allocation = std::max(biggest_allocation, size);
  void* memory = malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { free(memory); }
#endif

namespace taskd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr StoreDialect k1x = StoreDialect::k1x;
constexpr StoreDialect k21 = StoreDialect::k21;
constexpr StoreDialect k22 = StoreDialect::k22;

// Converts "01 2F" to its bytes; blanks and | are for the reader.
std::string Hex(std::string_view text) {
  std::string bytes;
  std::string digits;
  for (char c : text) {
    if (c == ' ' || c == '|') continue;
    digits += c;
    if (digits.size() == 2) {
      bytes += static_cast<char>(std::stoi(digits, nullptr, 16));
      digits.clear();
    }
  }
  return bytes;
}

const std::string kValidate = Hex("00 CEF7853C");

std::string Number(uint64_t number) {
  std::string bytes(sizeof(number), '\0');
  memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string Text(std::string_view text) { return Number(text.size()) + std::string(text); }

std::string Describe(const StoreRequest& request) {
  std::string out = std::to_string(static_cast<int>(request.op));
  for (const std::string& key : request.keys) out += " k:" + key;
  for (const std::string& value : request.values) out += " v:" + value;
  return out + " " + std::to_string(request.number);
}

struct Parsed {
  std::vector<std::string> requests;
  absl::Status error;
};

// Feeds the pieces and collects the output after each.
Parsed Parse(StoreParser& parser, const std::vector<std::string>& pieces) {
  Parsed parsed;
  for (const std::string& piece : pieces) {
    parsed.error = parser.Feed(piece);
    if (!parsed.error.ok()) return parsed;
    StoreRequest request;
    while (true) {
      absl::StatusOr<bool> next = parser.Next(request);
      if (!next.ok()) {
        parsed.error = next.status();
        return parsed;
      }
      if (!*next) break;
      parsed.requests.push_back(Describe(request));
    }
  }
  return parsed;
}

Parsed Parse(StoreDialect unvalidated, const std::string& bytes) {
  StoreParser parser(unvalidated);
  return Parse(parser, {bytes});
}

StoreRequest Request(StoreOp op, std::vector<std::string> keys = {}, std::vector<std::string> values = {},
                     int64_t number = 0) {
  return {op, std::move(keys), std::move(values), number};
}

std::vector<StoreRequest> RequestsOf(StoreDialect dialect) {
  using Op = StoreOp;
  std::vector<StoreRequest> requests = {
      Request(Op::kSet, {"/a"}, {"b"}),
      Request(Op::kSet, {""}, {""}),
      Request(Op::kCompareSet, {"/a"}, {"old", ""}),
      Request(Op::kGet, {"/-key3"}),
      Request(Op::kAdd, {"init/"}, {}, 1),
      Request(Op::kAdd, {"/n"}, {}, -5),
      Request(Op::kCheck, {"/a", "", "/c"}),
      Request(Op::kCheck),
      Request(Op::kWait, {"/a", "/a"}),
      Request(Op::kNumKeys),
      Request(Op::kDelete, {"/a"}),
  };
  if (dialect == k1x) requests.push_back(Request(Op::kWatchKey, {"/w"}));
  if (dialect == k21 || dialect == k22) {
    requests.push_back(Request(Op::kAppend, {"/a"}, {"to"}));
    requests.push_back(Request(Op::kMultiGet, {"/a", "/b"}));
    requests.push_back(Request(Op::kMultiSet, {"/a", "/b", ""}, {"1", "", std::string("\0\1\2", 3)}));
    requests.push_back(Request(Op::kMultiSet));
    requests.push_back(Request(Op::kCancelWait));
  }
  if (dialect == k22) {
    requests.push_back(Request(Op::kPing, {}, {}, 0xFFFFFFFF));
    requests.push_back(Request(Op::kQueuePush, {"/q"}, {"item"}));
    requests.push_back(Request(Op::kQueuePop, {"/q"}));
    requests.push_back(Request(Op::kQueueLen, {"/q"}));
    requests.push_back(Request(Op::kListKeys));
    requests.push_back(Request(Op::kBarrier, {"/x"}, {}, 16384));
  }
  return requests;
}

std::string BytesOf(StoreDialect dialect, const std::vector<StoreRequest>& requests) {
  std::string bytes = dialect == k22 ? kValidate : "";
  for (const StoreRequest& request : requests) {
    absl::Status status = AppendRequest(dialect, request, bytes);
    EXPECT_TRUE(status.ok()) << status;
  }
  return bytes;
}

TEST(StoreWireTest, BytesOfEachOperation) {
  struct Case {
    StoreDialect dialect;
    StoreRequest request;
    const char* bytes;
  };
  using Op = StoreOp;
  const Case cases[] = {
      {k1x, Request(Op::kSet, {"/a"}, {"b"}), "00 | 0200000000000000 2F61 | 0100000000000000 62"},
      {k21, Request(Op::kSet, {"/a"}, {"b"}), "00 | 0200000000000000 2F61 | 0100000000000000 62"},
      {k22, Request(Op::kSet, {"/a"}, {"b"}), "01 | 0200000000000000 2F61 | 0100000000000000 62"},
      {k1x, Request(Op::kCompareSet, {"k"}, {"", "v"}),
       "01 | 0100000000000000 6B | 0000000000000000 | 0100000000000000 76"},
      {k1x, Request(Op::kGet, {"k"}), "02 | 0100000000000000 6B"},
      {k1x, Request(Op::kAdd, {"init/"}, {}, 1), "03 | 0500000000000000 696E69742F | 0100000000000000"},
      {k22, Request(Op::kAdd, {"init/"}, {}, 1), "04 | 0500000000000000 696E69742F | 0100000000000000"},
      {k22, Request(Op::kAdd, {"k"}, {}, -1), "04 | 0100000000000000 6B | FFFFFFFFFFFFFFFF"},
      {k1x, Request(Op::kCheck, {"k"}), "04 | 0100000000000000 | 0100000000000000 6B"},
      {k1x, Request(Op::kWait, {"k", "l"}), "05 | 0200000000000000 | 0100000000000000 6B | 0100000000000000 6C"},
      {k1x, Request(Op::kNumKeys), "06"},
      {k1x, Request(Op::kWatchKey, {"k"}), "07 | 0100000000000000 6B"},
      {k1x, Request(Op::kDelete, {"k"}), "08 | 0100000000000000 6B"},
      {k21, Request(Op::kDelete, {"k"}), "07 | 0100000000000000 6B"},
      {k21, Request(Op::kAppend, {"k"}, {"v"}), "08 | 0100000000000000 6B | 0100000000000000 76"},
      {k21, Request(Op::kMultiGet, {"k"}), "09 | 0100000000000000 | 0100000000000000 6B"},
      {k21, Request(Op::kMultiSet, {"k"}, {"v"}), "0A | 0100000000000000 | 0100000000000000 6B | 0100000000000000 76"},
      {k21, Request(Op::kCancelWait), "0B"},
      {k22, Request(Op::kCompareSet, {"k"}, {"", ""}), "02 | 0100000000000000 6B | 0000000000000000 0000000000000000"},
      {k22, Request(Op::kGet, {"k"}), "03 | 0100000000000000 6B"},
      {k22, Request(Op::kCheck, {"k"}), "05 | 0100000000000000 | 0100000000000000 6B"},
      {k22, Request(Op::kWait, {"k"}), "06 | 0100000000000000 | 0100000000000000 6B"},
      {k22, Request(Op::kNumKeys), "07"},
      {k22, Request(Op::kDelete, {"k"}), "08 | 0100000000000000 6B"},
      {k22, Request(Op::kAppend, {"k"}, {"v"}), "09 | 0100000000000000 6B | 0100000000000000 76"},
      {k22, Request(Op::kMultiGet, {"k"}), "0A | 0100000000000000 | 0100000000000000 6B"},
      {k22, Request(Op::kMultiSet, {"k", "l"}, {"v", "w"}),
       "0B | 0200000000000000 | 0100000000000000 6B | 0100000000000000 76 | 0100000000000000 6C | "
       "0100000000000000 77"},
      {k22, Request(Op::kCancelWait), "0C"},
      {k22, Request(Op::kPing, {}, {}, 0x1234), "0D | 34120000"},
      {k22, Request(Op::kQueuePush, {"k"}, {"v"}), "0E | 0100000000000000 6B | 0100000000000000 76"},
      {k22, Request(Op::kQueuePop, {"k"}), "0F | 0100000000000000 6B"},
      {k22, Request(Op::kQueueLen, {"k"}), "10 | 0100000000000000 6B"},
      {k22, Request(Op::kListKeys), "11"},
      {k22, Request(Op::kBarrier, {"k"}, {}, 2), "12 | 0100000000000000 6B | 0200000000000000"},
  };
  for (const Case& c : cases) {
    std::string bytes;
    ASSERT_TRUE(AppendRequest(c.dialect, c.request, bytes).ok()) << c.bytes;
    EXPECT_EQ(bytes, Hex(c.bytes)) << Describe(c.request);
    const Parsed parsed = Parse(c.dialect, (c.dialect == k22 ? kValidate : "") + Hex(c.bytes));
    EXPECT_TRUE(parsed.error.ok()) << parsed.error;
    EXPECT_THAT(parsed.requests, ElementsAre(Describe(c.request)));
  }
}

TEST(StoreWireTest, EveryRequestOfEveryDialectAtEverySplit) {
  for (StoreDialect dialect : {k1x, k21, k22}) {
    const std::vector<StoreRequest> requests = RequestsOf(dialect);
    const std::string bytes = BytesOf(dialect, requests);
    std::vector<std::string> wanted;
    for (const StoreRequest& request : requests) wanted.push_back(Describe(request));
    for (size_t split = 0; split <= bytes.size(); ++split) {
      StoreParser parser(dialect == k21 ? k21 : k1x);
      const Parsed parsed = Parse(parser, {bytes.substr(0, split), bytes.substr(split)});
      ASSERT_TRUE(parsed.error.ok()) << parsed.error;
      ASSERT_EQ(parsed.requests, wanted) << "split at " << split;
      EXPECT_EQ(parser.buffered_bytes(), 0u);
    }
    StoreParser parser(dialect == k21 ? k21 : k1x);
    std::vector<std::string> single;
    for (char c : bytes) single.emplace_back(1, c);
    EXPECT_EQ(Parse(parser, single).requests, wanted);
    EXPECT_EQ(parser.dialect(), dialect);
  }
}

TEST(StoreWireTest, TellsWhoItIs) {
  StoreParser nobody;
  EXPECT_EQ(nobody.peer(), StoreParser::Peer::kUnknown);
  EXPECT_EQ(nobody.dialect(), StoreDialect::kUnknown);
  // Up to here the peer is unknown.
  ASSERT_TRUE(nobody.Feed(kValidate.substr(0, 4)).ok());
  EXPECT_EQ(nobody.peer(), StoreParser::Peer::kUnknown);
  ASSERT_TRUE(nobody.Feed(kValidate.substr(4)).ok());
  EXPECT_EQ(nobody.peer(), StoreParser::Peer::kClient);
  EXPECT_EQ(nobody.dialect(), k22);

  StoreParser set;
  ASSERT_TRUE(set.Feed(Hex("00 02000000")).ok());
  EXPECT_EQ(set.peer(), StoreParser::Peer::kClient);
  EXPECT_EQ(set.dialect(), k1x);
}

constexpr uint32_t kServiceMagic = 0x314C4B54;  // "TKL1"

TEST(StoreWireTest, TierAndFrameServiceKeepWhatFollows) {
  for (const auto& [magic, peer] : {std::pair{std::string("TKS1"), StoreParser::Peer::kTier},
                                    std::pair{std::string("TKL1"), StoreParser::Peer::kService}}) {
    const std::string hello = std::string(1, '\0') + magic;
    for (size_t split = 0; split <= hello.size(); ++split) {
      StoreParser parser(k1x, kServiceMagic);
      ASSERT_TRUE(parser.Feed(hello.substr(0, split)).ok());
      ASSERT_TRUE(parser.Feed(hello.substr(split) + "frames").ok());
      EXPECT_EQ(parser.peer(), peer);
      StoreRequest request;
      auto next = parser.Next(request);
      ASSERT_TRUE(next.ok());
      EXPECT_FALSE(*next);
      EXPECT_EQ(parser.TakeRest(), "frames");
      EXPECT_EQ(parser.TakeRest(), "");
      EXPECT_EQ(parser.buffered_bytes(), 0u);
    }
  }
}

TEST(StoreWireTest, MagicOfAServiceThatIsNotThereIsRefused) {
  StoreParser parser;
  EXPECT_FALSE(parser.Feed(std::string("\0TKL1", 5)).ok());
}

TEST(StoreWireTest, AmbiguousTypesAreWhatTheOptionSays) {
  const std::string seven = Hex("07") + Text("k");
  const std::string eight = Hex("08") + Text("k");
  EXPECT_THAT(Parse(k1x, seven).requests, ElementsAre(Describe(Request(StoreOp::kWatchKey, {"k"}))));
  EXPECT_THAT(Parse(k1x, eight).requests, ElementsAre(Describe(Request(StoreOp::kDelete, {"k"}))));
  EXPECT_THAT(Parse(k21, seven).requests, ElementsAre(Describe(Request(StoreOp::kDelete, {"k"}))));
  EXPECT_THAT(Parse(k21, eight).requests, IsEmpty());
  EXPECT_THAT(Parse(k21, eight + Text("v")).requests, ElementsAre(Describe(Request(StoreOp::kAppend, {"k"}, {"v"}))));
}

TEST(StoreWireTest, NewTypesProveTheDialect) {
  // MULTI_GET proves the dialect, and from then on 7 is DELETE_KEY.
  StoreParser later(k1x);
  const Parsed parsed = Parse(later, {Hex("09") + Number(1) + Text("k") + Hex("07") + Text("k")});
  EXPECT_THAT(parsed.requests,
              ElementsAre(Describe(Request(StoreOp::kMultiGet, {"k"})), Describe(Request(StoreOp::kDelete, {"k"}))));
  EXPECT_EQ(later.dialect(), k21);
  later.ProveOneX();
  EXPECT_EQ(later.dialect(), k21);

  // Only builds of mid-2023 have type 12.
  StoreParser middle(k21);
  EXPECT_THAT(Parse(middle, {Hex("0C 0B") + Number(0)}).requests,
              ElementsAre(Describe(Request(StoreOp::kCancelWait)), Describe(Request(StoreOp::kMultiSet))));
  EXPECT_EQ(middle.dialect(), k1x);
}

TEST(StoreWireTest, SilentSecondConnectionProvesOneX) {
  StoreParser parser(k21);
  ASSERT_TRUE(parser.Feed(Hex("06")).ok());
  parser.ProveOneX();
  EXPECT_EQ(parser.dialect(), k1x);
  EXPECT_THAT(Parse(parser, {Hex("08") + Text("k") + Hex("09") + Text("k") + Text("v")}).requests,
              ElementsAre(Describe(Request(StoreOp::kNumKeys)), Describe(Request(StoreOp::kDelete, {"k"})),
                          Describe(Request(StoreOp::kAppend, {"k"}, {"v"}))));

  // VALIDATE is final.
  StoreParser validated;
  ASSERT_TRUE(validated.Feed(kValidate).ok());
  validated.ProveOneX();
  EXPECT_EQ(validated.dialect(), k22);
}

TEST(StoreWireTest, RefusesWhatNoClientSends) {
  struct Case {
    std::string bytes;
    const char* message;
  };
  const std::string max = Number(UINT64_MAX);
  const Case cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", "71"},
      {"POST /x HTTP/1.1\r\n", "80"},
      {Hex("16 0301 0200 01 0001FC 0303"), "22"},
      {"SSH-2.0-x\r\n", "83"},
      {Hex("0D"), "13"},
      {Hex("FF"), "255"},
      // These are the magics of nmap and others, and a VALIDATE in another byte order.
      {Hex("00 3C85F7CE"), "neither a magic"},
      {Hex("00 DEADBEEF"), "neither a magic"},
      {Hex("00 01400000 00000000"), "neither a magic"},  // a key of 16 KiB + 1
      {Hex("00 01000000 01000000"), "4294967297"},
      {Hex("02") + max, "18446744073709551615"},
      {Hex("03") + Number(1 << 20), "1048576"},
      {Hex("01") + Text("k") + Number(uint64_t{1} << 62), "4611686018427387904"},
      {Hex("00") + Text("k") + Number(kMaxValueBytes + 1), "limit of 9437184"},
      {Hex("04") + max, "18446744073709551615 keys"},
      {Hex("05") + Number(kMaxKeys + 1), "limit of 131072"},
      {Hex("05") + Number(2) + Text("k") + max, "18446744073709551615"},
      {kValidate + Hex("00"), "VALIDATE"},
      {kValidate + kValidate, "VALIDATE"},
      {kValidate + Hex("13"), "type 19"},
      {kValidate + "GET / HTTP/1.1", "type 71"},
      {kValidate + Hex("0B") + Number(uint64_t{1} << 63), "9223372036854775808 keys"},
      {kValidate + Hex("0E") + Text("q") + max, "QUEUE_PUSH"},
      {Hex("06 0D"), "type 13"},
      {Hex("09") + Number(0) + Hex("0C"), "2.1"},
  };
  for (const Case& c : cases) {
    for (const std::string& tail : {std::string(), std::string(100, '\7')}) {
      StoreParser parser;
      const Parsed parsed = Parse(parser, {c.bytes + tail});
      EXPECT_EQ(parsed.error.code(), absl::StatusCode::kInvalidArgument) << testing::PrintToString(c.bytes);
      EXPECT_THAT(std::string(parsed.error.message()), HasSubstr(c.message));
      // The parser stays in the error state.
      EXPECT_EQ(parser.Feed(Hex("06")), parsed.error);
      StoreRequest request;
      auto next = parser.Next(request);
      EXPECT_TRUE(next.ok() && !*next);
    }
  }
}

TEST(StoreWireTest, RequestsBeforeARefusedOneAreServed) {
  const Parsed parsed = Parse(k1x, Hex("06") + Hex("02") + Text("k") + Hex("55"));
  EXPECT_THAT(parsed.requests,
              ElementsAre(Describe(Request(StoreOp::kNumKeys)), Describe(Request(StoreOp::kGet, {"k"}))));
  EXPECT_FALSE(parsed.error.ok());
}

TEST(StoreWireTest, LimitsThemselvesAreServed) {
  const std::string key(kMaxKeyBytes, 'k');
  const std::string value(kMaxValueBytes, 'v');
  StoreParser parser;
  ASSERT_TRUE(parser.Feed(Hex("00") + Text(key) + Text(value)).ok());
  StoreRequest request;
  auto next = parser.Next(request);
  ASSERT_TRUE(next.ok() && *next);
  EXPECT_EQ(request.keys[0], key);
  EXPECT_EQ(request.values[0], value);

  std::string many = Hex("05") + Number(kMaxKeys);
  for (uint64_t i = 0; i < kMaxKeys; ++i) many += Text("");
  StoreParser waiting;
  ASSERT_TRUE(waiting.Feed(many).ok());
  next = waiting.Next(request);
  ASSERT_TRUE(next.ok() && *next);
  EXPECT_EQ(request.keys.size(), kMaxKeys);
}

TEST(StoreWireTest, OneRequestIsBounded) {
  StoreParser parser;
  ASSERT_TRUE(parser.Feed(kValidate + Hex("0B") + Number(16)).ok());
  const std::string pair = Text("k") + Text(std::string(kMaxValueBytes, 'v'));
  StoreRequest request;
  absl::Status error;
  for (int i = 0; i < 16 && error.ok(); ++i) {
    ASSERT_TRUE(parser.Feed(pair).ok());
    error = parser.Next(request).status();
    EXPECT_LE(parser.buffered_bytes(), kMaxRequestBytes + pair.size());
  }
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error.message()), HasSubstr("67108864"));
}

// A length alone allocates nothing: memory follows the bytes that have come.
TEST(StoreWireTest, ALengthAllocatesNothing) {
  for (const std::string& bytes : {Hex("00") + Text("k") + Number(kMaxValueBytes) + "x",
                                   Hex("04") + Number(kMaxKeys) + Text("k"), Hex("02") + Number(kMaxKeyBytes) + "x"}) {
    StoreParser parser;
    StoreRequest request;
    biggest_allocation = 0;
    ASSERT_TRUE(parser.Feed(bytes).ok());
    auto next = parser.Next(request);
    ASSERT_TRUE(next.ok() && !*next);
    EXPECT_EQ(parser.buffered_bytes(), bytes.size());
    EXPECT_LT(biggest_allocation, 1024u);
  }
}

// A value comes in pieces, and further requests come in the same piece as its end.
TEST(StoreWireTest, BigValueInPieces) {
  std::string value;
  for (int i = 0; value.size() < 1 << 20; ++i) value += std::to_string(i) + ",";
  const std::string bytes = kValidate + Hex("01") + Text("k") + Text(value) + Hex("07 07");
  for (size_t size : {1u, 7u, 1440u, 65536u}) {
    StoreParser parser;
    StoreRequest request;
    std::vector<StoreRequest> got;
    for (size_t at = 0; at < bytes.size(); at += size) {
      ASSERT_TRUE(parser.Feed(std::string_view(bytes).substr(at, size)).ok());
      while (true) {
        auto next = parser.Next(request);
        ASSERT_TRUE(next.ok());
        if (!*next) break;
        got.push_back(std::move(request));
      }
    }
    ASSERT_EQ(got.size(), 3u);
    EXPECT_EQ(got[0].values[0], value);
    EXPECT_LT(got[0].values[0].capacity(), value.size() * 2);
  }
}

// Next() clears the caller's request, so that no field of an earlier request is left in it.
TEST(StoreWireTest, RequestHoldsNothingOfTheLastOne) {
  StoreParser parser;
  StoreRequest request = Request(StoreOp::kMultiSet, {"x", "y"}, {"1", "2"}, 9);
  ASSERT_TRUE(parser.Feed(kValidate + Hex("04") + Text("k") + Number(5) + Hex("07") + Hex("03") + Text("g")).ok());
  for (const std::string& wanted : {Describe(Request(StoreOp::kAdd, {"k"}, {}, 5)),
                                    Describe(Request(StoreOp::kNumKeys)), Describe(Request(StoreOp::kGet, {"g"}))}) {
    auto next = parser.Next(request);
    ASSERT_TRUE(next.ok() && *next);
    EXPECT_EQ(Describe(request), wanted);
  }
}

TEST(StoreWireTest, RepliesAsClientsReadThem) {
  struct Case {
    StoreOp op;
    StoreReply reply;
    std::string bytes;
  };
  using Op = StoreOp;
  const Case cases[] = {
      {Op::kSet, {}, ""},
      {Op::kAppend, {}, ""},
      {Op::kMultiSet, {}, ""},
      {Op::kQueuePush, {}, ""},
      {Op::kWatchKey, {}, ""},
      {Op::kCompareSet, {0, {"now"}}, Text("now")},
      {Op::kGet, {0, {"value"}}, Hex("0500000000000000 76616C7565")},
      {Op::kGet, {0, {""}}, Number(0)},
      {Op::kAdd, {21, {}}, Hex("1500000000000000")},
      {Op::kAdd, {-1, {}}, Hex("FFFFFFFFFFFFFFFF")},
      {Op::kCheck, {1, {}}, Hex("00")},
      {Op::kCheck, {0, {}}, Hex("01")},
      {Op::kWait, {}, Hex("00")},
      {Op::kBarrier, {}, Hex("00")},
      {Op::kCancelWait, {}, Hex("01")},
      {Op::kNumKeys, {6, {}}, Number(6)},
      {Op::kDelete, {1, {}}, Number(1)},
      {Op::kMultiGet, {0, {"a", "", "ccc"}}, Text("a") + Text("") + Text("ccc")},
      {Op::kMultiGet, {}, ""},
      {Op::kQueuePop, {2, {"first"}}, Number(2) + Text("first")},
      {Op::kQueuePop, {0, {}}, Number(0)},
      {Op::kQueueLen, {3, {}}, Number(3)},
      {Op::kListKeys, {0, {"/a", "init/"}}, Number(2) + Text("/a") + Text("init/")},
      {Op::kPing, {0xDEADBEEF, {}}, Hex("EFBEADDE")},
  };
  for (const Case& c : cases) {
    std::string out = "before";
    AppendReply(c.op, c.reply, out);
    EXPECT_EQ(out, "before" + c.bytes) << static_cast<int>(c.op);
  }
}

TEST(StoreWireTest, RequestsThatADialectLacks) {
  struct Case {
    StoreDialect dialect;
    StoreRequest request;
  };
  using Op = StoreOp;
  const Case cases[] = {
      {k1x, Request(Op::kAppend, {"k"}, {"v"})},
      {k1x, Request(Op::kMultiGet, {"k"})},
      {k1x, Request(Op::kCancelWait)},
      {k1x, Request(Op::kPing)},
      {k21, Request(Op::kWatchKey, {"k"})},
      {k21, Request(Op::kQueueLen, {"k"})},
      {k22, Request(Op::kWatchKey, {"k"})},
      {StoreDialect::kUnknown, Request(Op::kGet, {"k"})},
      // These requests are incomplete.
      {k22, Request(Op::kSet, {"k"})},
      {k22, Request(Op::kGet)},
      {k22, Request(Op::kMultiSet, {"a", "b"}, {"1"})},
      {k22, Request(Op::kWait, {"a"}, {"1"})},
  };
  for (const Case& c : cases) {
    std::string out;
    EXPECT_EQ(AppendRequest(c.dialect, c.request, out).code(), absl::StatusCode::kInvalidArgument)
        << Describe(c.request);
    EXPECT_EQ(out, "");
  }
}

}  // namespace
}  // namespace taskd::store
