// A root store with tiers in this process, each on an event loop and a thread of its own, over real connections.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/event_loop.h"
#include "store/server.h"

namespace taskd::testing {

class StoreTopology {
 public:
  // Each node: the index of its upstream (an earlier one), or -1 for the root; and what an unvalidated client speaks
  // there.
  struct Node {
    int upstream = -1;
    store::StoreDialect unvalidated = store::StoreDialect::k1x;
  };

  explicit StoreTopology(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      auto running = std::make_unique<Running>();
      store::StoreServer::Options options;
      options.listen = {"127.0.0.1", 0};
      if (node.upstream >= 0) options.upstream = "127.0.0.1:" + std::to_string(port(node.upstream));
      options.unvalidated = node.unvalidated;
      auto server = store::StoreServer::Start(&running->loop, options);
      if (!server.ok()) {
        status_ = server.status();
        return;
      }
      running->server = *std::move(server);
      running->port = running->server->port();
      running->thread = std::thread([loop = &running->loop] { loop->Run(); });
      nodes_.push_back(std::move(running));
    }
  }
  ~StoreTopology() {
    while (!nodes_.empty()) {  // tiers before the root
      nodes_.back()->loop.Stop();
      nodes_.back()->thread.join();
      nodes_.pop_back();
    }
  }
  StoreTopology(const StoreTopology&) = delete;
  StoreTopology& operator=(const StoreTopology&) = delete;

  const absl::Status& status() const { return status_; }
  int port(int node) const { return nodes_[static_cast<size_t>(node)]->port; }
  int size() const { return static_cast<int>(nodes_.size()); }

  // Runs it on the node's thread and waits for that.
  template <typename Function>
  void OnThread(int node, Function function) {
    Running& running = *nodes_[static_cast<size_t>(node)];
    std::mutex mutex;
    std::condition_variable done;
    bool ran = false;
    running.loop.Post([&] {
      function(*running.server);
      std::lock_guard lock(mutex);
      ran = true;
      done.notify_one();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return ran; });
  }

 private:
  struct Running {
    EventLoop loop;
    std::unique_ptr<store::StoreServer> server;
    std::thread thread;
    int port = 0;
  };
  std::vector<std::unique_ptr<Running>> nodes_;
  absl::Status status_;
};

}  // namespace taskd::testing
