#include "common/http_access.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/http_server.h"
#include "common/testing/deadline.h"
#include "common/unique_fd.h"
#include "gmock/gmock.h"

namespace taskd {
namespace {

using ::testing::HasSubstr;

TEST(HttpAccessTest, OnlyNamesOfThisMachineAreItsOwn) {
  const std::vector<std::string> names = {"node-0", "taskd.example.com"};
  for (const char* host :
       {"", "127.0.0.1", "127.0.0.1:9603", "10.2.3.4:80", "[::1]", "[::1]:9603", "[fe80::1]:9603", "localhost",
        "LocalHost:9603", "node-0", "NODE-0:9603", "node-0.", "taskd.example.com:443"}) {
    EXPECT_TRUE(IsOwnHost(host, names)) << host;
  }
  for (const char* host : {"evil.com",
                           "evil.com:9603",
                           "node-1",
                           "[::1].evil.com",
                           "[::1].evil.com:9603",
                           "[::1",
                           "[]",
                           "[evil.com]",
                           "[127.0.0.1]",
                           "127.0.0.1.evil.com",
                           "1.2.3",
                           "1.2.3.4.5",
                           "::1",
                           "localhost.evil.com",
                           "localhost:x",
                           "localhost:",
                           "127.0.0.1:80.evil.com",
                           "x@127.0.0.1",
                           "taskd.example.com.evil.com",
                           " localhost",
                           "localhost/"}) {
    EXPECT_FALSE(IsOwnHost(host, names)) << host;
  }
}

TEST(HttpAccessTest, NamesAreReadOnce) {
  EXPECT_EQ(ParseHttpHosts("--http-host", "A.example.com, b").value(),
            (std::vector<std::string>{"a.example.com", "b"}));
  EXPECT_TRUE(ParseHttpHosts("--http-host", "")->empty());
  for (const char* wrong : {",", "a,", "a b", "http://a", "a:80", "*"}) {
    const absl::Status status = ParseHttpHosts("--http-host", wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--http-host: ")) << wrong;
  }
}

class ProtectTest : public ::testing::Test {
 protected:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  HttpResponse Ask(const Headers& headers, const std::string& query = "", const std::string& path = "/page") {
    if (pages_.empty()) {
      HttpHandlers pages;
      pages["/page"] = pages["/healthz"] = [](const HttpRequest&) { return HttpResponse(); };
      pages_ = Protect(std::move(pages), access_);
    }
    return pages_.at(path)({.path = path, .query = query, .headers = headers, .loopback_user = user_});
  }
  static std::string Text(const HttpResponse& response) { return response.body == nullptr ? "" : *response.body; }

  HttpAccess access_;
  HttpHandlers pages_;
  std::optional<uid_t> user_;
};

TEST_F(ProtectTest, TheTokenOpensUnderAnyName) {
  access_ = {.token = "view", .secret = "secret"};
  EXPECT_EQ(Ask({}).status, 401);
  EXPECT_EQ(Ask({{"Authorization", "Bearer view"}}).status, 200);
  EXPECT_EQ(Ask({{"authorization", "Bearer view"}, {"host", "taskd.example.com"}}).status, 200);
  EXPECT_EQ(Ask({{"Authorization", "Bearer views"}}).status, 401);
  EXPECT_EQ(Ask({{"Authorization", "view"}}).status, 401);
  user_ = geteuid();
  EXPECT_EQ(Ask({{"Host", "localhost"}}).status, 401) << "the operator has set a token up";
  EXPECT_EQ(Ask({{"Host", "evil.com"}}, "", "/healthz").status, 200);
}

TEST_F(ProtectTest, TheSecretIsRefusedWithAWord) {
  access_ = {.token = "view", .secret = "secret"};
  for (const HttpResponse& response : {Ask({{"Authorization", "Bearer secret"}}), Ask({}, "token=secret")}) {
    EXPECT_EQ(response.status, 401);
    EXPECT_THAT(Text(response), HasSubstr("taskd token"));
    EXPECT_THAT(Text(response), HasSubstr("the job's secret"));
  }
  access_.own_user = true;  // also to who needs none
  pages_.clear();
  user_ = geteuid();
  EXPECT_EQ(Ask({{"Authorization", "Bearer secret"}}).status, 401);
  EXPECT_EQ(Ask({}).status, 200);
}

TEST_F(ProtectTest, ABrowserKeepsACookieOfThePortItAsksAt) {
  access_ = {.token = "view", .hosts = {"node-0"}};
  const HttpResponse given = Ask({{"Host", "node-0:9603"}}, "token=view&x=y");
  EXPECT_EQ(given.status, 303);
  ASSERT_EQ(given.headers.size(), 2u);
  EXPECT_EQ(given.headers[0].second, "/page");
  const std::string set = given.headers[1].second;
  EXPECT_THAT(set, ::testing::MatchesRegex("taskd_9603=[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Strict"));
  const std::string cookie = set.substr(0, set.find(';'));
  EXPECT_EQ(Ask({{"Host", "node-0:9603"}, {"Cookie", "a=b; " + cookie}}).status, 200);
  EXPECT_EQ(Ask({{"Host", "node-0:9604"}, {"Cookie", cookie}}).status, 401);
  EXPECT_EQ(Ask({{"Host", "node-0:9603"}, {"Cookie", "taskd_9603=view"}}).status, 401);
}

// A name that has been told to lead here: its page has no token, and may not use what a browser keeps either.
TEST_F(ProtectTest, ACookieIsForThisMachinesNames) {
  access_ = {.token = "view", .hosts = {"taskd.example.com"}};
  const std::string set = Ask({{"Host", "taskd.example.com:9603"}}, "token=view").headers.at(1).second;
  const std::string cookie = set.substr(0, set.find(';'));
  EXPECT_EQ(Ask({{"Host", "taskd.example.com:9603"}, {"Cookie", cookie}}).status, 200);
  EXPECT_EQ(Ask({{"Host", "evil.com:9603"}, {"Cookie", cookie}}).status, 403);
  EXPECT_EQ(Ask({{"Host", "evil.com:9603"}}, "token=view").status, 403) << "no cookie for such a name either";
  EXPECT_EQ(Ask({{"Host", "evil.com:9603"}, {"Authorization", "Bearer view"}}).status, 200)
      << "a page cannot send what it does not know";
}

TEST_F(ProtectTest, WithoutATokenTheNameHasToBeThisMachines) {
  for (const bool anyone : {true, false}) {
    access_ = {.anyone = anyone, .own_user = !anyone, .hosts = {"taskd.example.com"}};
    pages_.clear();
    user_ = geteuid();
    char name[256] = {};
    ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
    for (const std::string& host : {std::string("127.0.0.1:9603"), std::string("[::1]:9603"), std::string("localhost"),
                                    std::string(name), std::string("taskd.example.com")}) {
      EXPECT_EQ(Ask({{"Host", host}}).status, 200) << host;
    }
    for (const char* host : {"rebound.example.com:9603", "[::1].evil.com"}) {
      EXPECT_EQ(Ask({{"Host", host}}).status, 403) << host;
      EXPECT_THAT(Text(Ask({{"Host", host}})), HasSubstr("--http-host")) << host;
    }
    user_ = geteuid() + 1;
    EXPECT_EQ(Ask({{"Host", "localhost"}}).status, anyone ? 200 : 401);
  }
}

// A connection that has asked for `path`.
UniqueFd Ask(int port, const std::string& path) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  timeval limit{.tv_sec = testing::kHangLimitMs / 1000, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  return fd;
}

std::string ReadAll(const UniqueFd& fd) {
  std::string all;
  char buffer[1024];
  for (ssize_t size = 0; (size = recv(fd.get(), buffer, sizeof(buffer), 0)) > 0;) {
    all.append(buffer, static_cast<size_t>(size));
  }
  return all;
}

HttpResponse Page(const std::string& text) {
  HttpResponse response;
  response.body = std::make_shared<const std::string>(text);
  return response;
}

// Clients that do not wait for their pages, whose connections make room for others, leave no work behind without end.
TEST(HttpServerTest, AnswersAProbeWhilePagesAreMade) {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_made = false, may_end = false;
  size_t made = 0;
  HttpHandlers handlers;
  handlers["/page"] = [&](const HttpRequest&) {
    std::unique_lock lock(mutex);
    is_made = true;
    ++made;
    changed.notify_all();
    testing::WaitFor(changed, lock, [&] { return may_end; });
    return Page("page");
  };
  handlers["/healthz"] = [](const HttpRequest&) { return Page("well"); };
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start({"127.0.0.1", 0}, handlers);
  ASSERT_TRUE(server.ok()) << server.status();
  const UniqueFd page = Ask((*server)->port(), "/page");
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(testing::WaitFor(changed, lock, [&] { return is_made; }));
  }
  EXPECT_THAT(ReadAll(Ask((*server)->port(), "/healthz")), HasSubstr("well"));
  for (size_t i = 1; i < HttpServer::kMaxConnections; ++i) Ask((*server)->port(), "/page");
  EXPECT_TRUE(testing::WaitUntil([&] {
    const UniqueFd more = Ask((*server)->port(), "/page");
    pollfd ready{more.get(), POLLIN, 0};
    return poll(&ready, 1, 10) == 1 && ReadAll(more).find("503 ") != std::string::npos;
  }));
  EXPECT_THAT(ReadAll(Ask((*server)->port(), "/healthz")), HasSubstr("well"));
  {
    std::lock_guard lock(mutex);
    may_end = true;
  }
  changed.notify_all();
  EXPECT_TRUE(
      testing::WaitUntil([&] { return ReadAll(Ask((*server)->port(), "/page")).find("page") != std::string::npos; }));
  std::lock_guard lock(mutex);
  EXPECT_LE(made, HttpServer::kMaxConnections + 1);
}

}  // namespace
}  // namespace taskd
