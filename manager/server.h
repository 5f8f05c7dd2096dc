// A running manager: the core with everything around it. RunManager (manager.h) is this plus signals.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "manager/options.h"
#include "taskd/v1/ended_job.pb.h"

namespace taskd::manager {

class ManagerServer {
 public:
  // http_port: 0 if there is no HTTP.
  using Bound = std::function<void(int port, int http_port)>;

  // `options` are resolved ones. Returns once gRPC answers; on any error nothing is left running. `bound` is called
  // when the ports are known, before gRPC answers anybody.
  static absl::StatusOr<std::unique_ptr<ManagerServer>> Start(const ManagerOptions& options, const Bound& bound = {});
  ~ManagerServer();  // ends everything within a few seconds, whatever the clients do
  ManagerServer(const ManagerServer&) = delete;
  ManagerServer& operator=(const ManagerServer&) = delete;

  int port() const;       // of gRPC
  int http_port() const;  // 0: no HTTP
  // Returns the manager's present answers, to be kept when the job ends (proto/ended_jobs.h). Nullopt: no rank has ever
  // attached, and no launcher has reported an event. Takes at most a second.
  std::optional<v1::EndedJob> LastAnswers() const;

 private:
  class Impl;
  explicit ManagerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::manager
