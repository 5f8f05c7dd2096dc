// What a message costs a server of gRPC over mutual TLS: where gRPC ends it itself, and where GrpcListener does and relays.
//
// Each kind of server is a process of its own; the clients, of this one, are 256 connections. In one iteration each of them
// sends a message and gets it back. What is counted is the server's CPU time, all threads', user and system: "Time" is
// one iteration's, "per_message" a message's there and back.
#include <benchmark/benchmark.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <latch>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "benchmark_setup.h"
#include "common/unique_fd.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/channel.h"
#include "proto/grpc_listener.h"
#include "proto/test_credentials.h"

namespace {

using namespace taskd;  // NOLINT(google-build-using-namespace)

constexpr int kConnections = 256;
const proto::Security kSecurity{.tls_dir = {}, .secret = "of the benchmark"};

[[noreturn]] void Fail(const std::string& what) {
  fprintf(stderr, "tls_relay_benchmark: %s\n", what.c_str());
  exit(1);
}

class EchoService final : public grpc::CallbackGenericService {
  class Echo final : public grpc::ServerGenericBidiReactor {
   public:
    Echo() { StartRead(&message_); }
    void OnReadDone(bool ok) override { ok ? StartWrite(&message_) : Finish(grpc::Status::OK); }
    void OnWriteDone(bool ok) override { ok ? StartRead(&message_) : Finish(grpc::Status::OK); }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer message_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Echo; }
};

// Serves until it is killed. Writes its port to `out`.
[[noreturn]] void Serve(bool relayed, int out) {
  EchoService service;
  grpc::ServerBuilder builder;
  proto::SetServerLimits(builder, size_t{256} << 20);
  builder.RegisterCallbackGenericService(&service);
  int port = 0;
  std::unique_ptr<proto::FedServer> fed;
  if (relayed) {
    fed = std::make_unique<proto::FedServer>(builder);
  } else {
    builder.AddListeningPort("127.0.0.1:0", proto::TestCredentials(kSecurity.secret), &port);
  }
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::unique_ptr<proto::GrpcListener> listener;
  if (relayed) {
    listener = proto::GrpcListener::Listen({"127.0.0.1", 0}, {}, proto::MakeServerTls(kSecurity).value(),
                                           [&](auto, UniqueFd connection) { fed->Take(std::move(connection)); })
                   .value();
    port = listener->port();
  }
  if (write(out, &port, sizeof(port)) != sizeof(port)) Fail("a server cannot say where it is");
  while (true) pause();
}

// Before this process has used gRPC, which does not survive a fork.
class ServerProcess {
 public:
  explicit ServerProcess(bool relayed) {
    int ends[2];
    if (pipe(ends) != 0) Fail("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Serve(relayed, ends[1]);
    }
    close(ends[1]);
    if (pid_ < 0 || read(ends[0], &port_, sizeof(port_)) != sizeof(port_)) Fail("a server does not start");
    close(ends[0]);
    if (clock_getcpuclockid(pid_, &clock_) != 0) Fail("a server's CPU time cannot be read");
  }

  int port() const { return port_; }
  double CpuSeconds() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

 private:
  pid_t pid_ = -1;
  int port_ = 0;
  clockid_t clock_{};
};

// One connection with one stream.
class Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Stream(int port) : stub_(proto::MakeChannel("127.0.0.1:" + std::to_string(port), kSecurity).value()) {
    context_.set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(&context_, "/benchmark/Echo", {}, this);
    StartCall();
  }

  void Exchange(const grpc::ByteBuffer& message, std::latch* done) {
    done_ = done;
    message_ = message;
    StartWrite(&message_);
    StartRead(&answer_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok || answer_.Length() != message_.Length()) Fail("a connection is broken");
    done_->count_down();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) Fail("a connection is broken");
    done_->count_down();
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
  std::latch* done_ = nullptr;
};

void Exchange(std::span<const std::unique_ptr<Stream>> streams, const grpc::ByteBuffer& message) {
  std::latch done(2 * static_cast<ptrdiff_t>(streams.size()));  // written, and answered
  for (const std::unique_ptr<Stream>& stream : streams) stream->Exchange(message, &done);
  done.wait();
}

void Messages(benchmark::State& state, const ServerProcess& server) {
  // They are never ended: their connections end with this process.
  static std::map<const ServerProcess*, std::vector<std::unique_ptr<Stream>>> streams_of;
  std::vector<std::unique_ptr<Stream>>& streams = streams_of[&server];
  grpc::Slice bytes(std::string(static_cast<size_t>(state.range(0)), 'x'));
  const grpc::ByteBuffer message(&bytes, 1);
  while (streams.size() < kConnections) {
    streams.push_back(std::make_unique<Stream>(server.port()));
    Exchange({&streams.back(), 1}, message);  // it is connected
  }
  const double began = server.CpuSeconds();
  double last = began;
  for (auto _ : state) {
    Exchange(streams, message);
    const double now = server.CpuSeconds();
    state.SetIterationTime(now - std::exchange(last, now));
  }
  state.counters["per_message"] = benchmark::Counter((last - began) / kConnections, benchmark::Counter::kAvgIterations);
}

}  // namespace

int main(int argc, char** argv) {
  static const std::array<std::pair<const char*, ServerProcess>, 2> servers{
      {{"gRPC's TLS", ServerProcess(false)}, {"relayed", ServerProcess(true)}}};
  for (const auto& [name, server] : servers) {
    benchmark::RegisterBenchmark(name, [&server = server](benchmark::State& state) { Messages(state, server); })
        ->Arg(100)
        ->Arg(4'000)
        ->Arg(200'000)
        ->UseManualTime()
        ->ComputeStatistics("min",
                            [](const std::vector<double>& runs) { return *std::min_element(runs.begin(), runs.end()); })
        ->Unit(benchmark::kMicrosecond);
  }
  if (!SetUpBenchmarks(argc, argv,
                       {"--benchmark_repetitions=20", "--benchmark_enable_random_interleaving=true",
                        "--benchmark_min_time=0.05", "--benchmark_report_aggregates_only=true"})) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  std::_Exit(0);  // gRPC would wait for streams that do not end
}
