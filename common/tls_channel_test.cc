#include "common/tls_channel.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

struct Ends {
  std::unique_ptr<TlsChannel> server;
  std::unique_ptr<TlsChannel> client;
  absl::Status server_status;
  absl::Status client_status;
  std::string at_server;
  std::string at_client;
  std::string wire;  // all that crossed it

  Ends(const std::string& server_secret, bool proves, const std::string& client_secret)
      : server(TlsContext::Server(server_secret, proves).value()->Open()),
        client(TlsContext::Client(client_secret).value()->Open()) {}

  // Until neither side has anything to send, `piece` bytes at once.
  void Run(const std::string& from_client, const std::string& from_server, size_t piece = 1 << 20) {
    std::string to_server;
    std::string to_client;
    client->Send(from_client, to_server);
    server->Send(from_server, to_client);
    while (!to_server.empty() || !to_client.empty()) {
      Step(*server, server_status, to_server, at_server, to_client, piece);
      Step(*client, client_status, to_client, at_client, to_server, piece);
    }
  }
  void Step(TlsChannel& end, absl::Status& status, std::string& in, std::string& plain, std::string& out,
            size_t piece) {
    const std::string bytes = in.substr(0, piece);
    in.erase(0, bytes.size());
    wire += bytes;
    if (status.ok() && !bytes.empty()) status = end.Receive(bytes, plain, out);
  }
};

TEST(TlsChannelTest, BothHaveTheSecret) {
  for (size_t piece : {size_t{1}, size_t{7}, size_t{1} << 20}) {
    Ends ends("of the job", true, "of the job");
    ends.Run("join me", std::string(100'000, 's'), piece);
    EXPECT_TRUE(ends.server_status.ok()) << ends.server_status;
    EXPECT_TRUE(ends.client_status.ok()) << ends.client_status;
    EXPECT_EQ(ends.at_server, "join me");
    EXPECT_EQ(ends.at_client, std::string(100'000, 's'));
    EXPECT_EQ(ends.wire.find("join me"), std::string::npos);
    EXPECT_EQ(ends.wire.find("of the job"), std::string::npos);
  }
}

TEST(TlsChannelTest, WithoutASecretOfTheClientTheServersIsNotChecked) {
  Ends ends("made by the server", false, "");
  ends.Run("join me", "the secret is");
  EXPECT_EQ(ends.at_server, "join me");
  EXPECT_EQ(ends.at_client, "the secret is");
  EXPECT_EQ(ends.wire.find("the secret is"), std::string::npos);
}

TEST(TlsChannelTest, AnotherSecretOrNoneIsRefusedOnBothSidesAndNothingGetsThrough) {
  for (const std::string client_secret : {"another", ""}) {
    Ends ends("of the job", true, client_secret);
    ends.Run("join me", "the secret is");
    EXPECT_FALSE(ends.server_status.ok()) << client_secret;
    EXPECT_TRUE(absl::IsPermissionDenied(ends.client_status)) << ends.client_status;
    EXPECT_EQ(ends.at_server, "");
    EXPECT_EQ(ends.at_client, "");
  }
  Ends ends("made by the server", false, "given to the client");
  ends.Run("join me", "the secret is");
  EXPECT_TRUE(absl::IsPermissionDenied(ends.client_status)) << ends.client_status;
  EXPECT_EQ(ends.at_server, "");
  EXPECT_EQ(ends.at_client, "");
}

TEST(TlsChannelTest, WhatIsNoTls) {
  for (const std::string bytes :
       {"GET / HTTP/1.1\r\n\r\n", "{\"type\":\"join\"}", "\x16\x03\x01\xff\xff\xff\xff\xff\xff"}) {
    auto server = TlsContext::Server("of the job", true).value()->Open();
    std::string plain;
    std::string out;
    EXPECT_TRUE(absl::IsInvalidArgument(server->Receive(bytes, plain, out))) << bytes;
    auto client = TlsContext::Client("of the job").value()->Open();
    client->Send("secret", out);
    EXPECT_TRUE(absl::IsInvalidArgument(client->Receive(bytes, plain, out))) << bytes;
    EXPECT_EQ(plain, "");
  }
}

TEST(TlsChannelTest, OneContextServesManyAndIsProvenOnlyAtTheEnd) {
  const auto context = TlsContext::Server("of the job", true).value();
  const auto clients = TlsContext::Client("of the job").value();
  for (int i = 0; i < 3; ++i) {
    auto server = context->Open();
    auto client = clients->Open();
    std::string to_server;
    std::string to_client;
    std::string plain;
    client->Send("hello", to_server);
    ASSERT_TRUE(server->Receive(to_server, plain, to_client).ok());
    EXPECT_FALSE(server->proven()) << "it has spoken, and shown nothing";
    to_server.clear();
    ASSERT_TRUE(client->Receive(to_client, plain, to_server).ok());
    to_client.clear();
    ASSERT_TRUE(server->Receive(to_server, plain, to_client).ok());
    EXPECT_TRUE(server->proven());
    EXPECT_EQ(plain, "hello");
    to_server.clear();
    client->End(to_server);
    EXPECT_TRUE(absl::IsOutOfRange(server->Receive(to_server, plain, to_client)));
  }
}

TEST(TlsChannelTest, AServerOfGrpcNamesWhatIsWrongWithItsFiles) {
  const JobCertificates good = IssueCertificates("of the job").value();
  EXPECT_TRUE(TlsContext::GrpcServer(good, "").ok());
  const JobCertificates other = IssueCertificates("another").value();
  for (const auto& [pem, what] : {std::pair{JobCertificates{"", good.certificate, good.key}, "authority"},
                                  std::pair{JobCertificates{good.authority, "x", good.key}, "certificate"},
                                  std::pair{JobCertificates{good.authority, good.certificate, other.key}, "key"}}) {
    const auto refused = TlsContext::GrpcServer(pem, "");
    ASSERT_FALSE(refused.ok()) << what;
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
    EXPECT_NE(refused.status().message().find(what), absl::string_view::npos) << refused.status();
  }
}

}  // namespace
}  // namespace taskd
