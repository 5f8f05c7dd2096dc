// Tests stores and their peers over real connections on one loop.
#include "store/server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/testing/deadline.h"
#include "common/unique_fd.h"
#include "store/tier_frame.h"

namespace taskd::store {
namespace {

template <typename Number>
std::string Bytes(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

std::string Text(const std::string& text) { return absl::StrCat(Bytes(uint64_t{text.size()}), text); }

class StoreServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<StoreServer> Start(const StoreServer* upstream) {
    StoreServer::Options options;
    options.listen = {"127.0.0.1", 0};
    if (upstream != nullptr) options.upstream = absl::StrCat("127.0.0.1:", upstream->port());
    absl::StatusOr<std::unique_ptr<StoreServer>> server = StoreServer::Start(&loop_, options);
    EXPECT_TRUE(server.ok()) << server.status();
    (*server)->SetPeerTimeout(5'000);  // the minimum
    return *std::move(server);
  }

  // Runs the loop until `condition` holds.
  void RunUntil(const std::function<bool()>& condition) {
    const taskd::testing::Deadline deadline;
    std::function<void()> look = [&] {
      if (condition() || deadline.IsOver()) {
        loop_.Stop();
      } else {
        loop_.RunAfter(1'000'000, look);
      }
    };
    loop_.Post(look);
    loop_.Run();
    ASSERT_TRUE(condition());
  }

  static UniqueFd Connect(const StoreServer& server) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static void Send(const UniqueFd& fd, const std::string& bytes) {
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  EventLoop loop_;
};

TEST_F(StoreServerTest, OneThatKeepsItsCopyIsGivenUpAndNotTheTierAboveIt) {
  const std::unique_ptr<StoreServer> root = Start(nullptr);
  const std::unique_ptr<StoreServer> tier = Start(root.get());
  const UniqueFd writer = Connect(*root);
  const auto set = [](const std::string& value) { return absl::StrCat("\1", Text("k"), Text(value)); };
  Send(writer, absl::StrCat(std::string(1, '\0'), Bytes(uint32_t{0x3C85F7CE}), set("old")));
  RunUntil([&] { return root->stats().keys == 1 && root->stats().tiers == 1; });

  const UniqueFd keeps = Connect(*tier);
  std::string frames = absl::StrCat(std::string(1, '\0'), "TKS1");
  TierFrame frame;
  frame.number = kTierProtocol;
  AppendFrame(frame, frames);
  frame.type = TierFrame::Type::kRequest;
  frame.op = StoreOp::kMultiGet;
  frame.id = 1;
  frame.keys = {"k"};
  AppendFrame(frame, frames);
  Send(keeps, frames);
  RunUntil([&] { return tier->stats().tiers == 1 && tier->stats().keys == 1; });

  const uint64_t requests = root->stats().requests;
  Send(writer, set("new"));
  RunUntil([&] { return root->stats().requests > requests; });
  EXPECT_EQ(tier->stats().tiers, 0u);
  EXPECT_EQ(root->stats().tiers, 1u);
  EXPECT_EQ(root->stats().connections, 2u);
}

}  // namespace
}  // namespace taskd::store
