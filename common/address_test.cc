#include "common/address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using ::testing::HasSubstr;

TEST(AddressTest, ReadsNamesAndAddresses) {
  struct Case {
    const char* text;
    const char* host;
    int port;
  };
  for (const Case& c : {Case{"127.0.0.1:9601", "127.0.0.1", 9601}, Case{"[::1]:0", "::1", 0},
                        Case{"node-0.svc:65535", "node-0.svc", 65535}, Case{"localhost:1", "localhost", 1}}) {
    auto parsed = ParseHostPort("--listen", c.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, c.host);
    EXPECT_EQ(parsed->port, c.port);
    EXPECT_EQ(FormatHostPort(*parsed), c.text);
  }
}

TEST(AddressTest, RefusesWithWhatWhichAndWhy) {
  for (const char* bad : {"", ":", ":9601", "host", "host:", "host:x", "host:-1", "host:65536", "host:99999999999",
                          "::1:9601", "[::1]", "[]:1", "[::1:9601", "[x]:1", "host: 1"}) {
    auto parsed = ParseHostPort("--listen", bad);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--listen")) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(bad));
  }
}

TEST(AddressTest, Loopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) EXPECT_TRUE(IsLoopback({host, 1})) << host;
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost.example", "127.0.0.1.example"}) {
    EXPECT_FALSE(IsLoopback({host, 1})) << host;
  }
}

}  // namespace
}  // namespace taskd
