// Who decides on the switch: the manager while it is there, the node's own file once it has been away for a while.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/switch.h"
#include "proxy/node.h"
#include "proxy/state_file.h"

namespace taskd::proxy {

// Thread-safe. What is decided is set in the node and kept for the next proxy (proxy/state_file.h).
class SwitchAuthority {
 public:
  // `node` outlives this. `state`: what is kept beside what is decided here.
  SwitchAuthority(Node* node, std::string state_path, ProxyState state);

  void OnManagerWanted(const WantedKinds& wanted);
  void OnManagerConnected(bool connected);
  void OnFileChange(const SwitchChange& change);
  // To be called a few times a second.
  void Tick();

  // Until it is known whether marks are wanted, or `patience` is over.
  void WaitUntilDecided(std::chrono::milliseconds patience);

 private:
  void Apply(const WantedKinds& wanted);

  Node* const node_;
  const std::string state_path_;
  std::mutex mutex_;  // guards all below
  ProxyState state_;
  std::condition_variable decided_;
  bool connected_ = false;
  bool file_applied_ = false;
  uint64_t alone_since_ns_;
  std::optional<SwitchState> file_state_;
  std::optional<WantedKinds> applied_;
};

}  // namespace taskd::proxy
