#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/engine/placement.h"
#include "common/utf8.h"

namespace taskd::engine {
namespace {

constexpr int kMaxNodes = 65536;
constexpr size_t kExcerptBytes = 80;                   // of a variable, in a message
constexpr absl::string_view kShutdownTimeoutS = "20";  // ends, with its report, within the default grace period of 30 s

std::string Excerpt(absl::string_view value) {
  return value.size() <= kExcerptBytes ? std::string(value)
                                       : absl::StrCat(CutUtf8(std::string(value), kExcerptBytes), "...");
}

std::string FirstLabel(absl::string_view name) { return std::string(name.substr(0, name.find('.'))); }

// What kubelet tells a pod of its own name: a line of /etc/hosts, "10.1.2.3 train-1.train.default.svc.cluster.local
// train-1", whose long name it has only with a subdomain.
class PodName {
 public:
  explicit PodName(const EngineMachine& machine) : machine_(machine), host_(FirstLabel(machine.host)) {
    // With setHostnameAsFQDN the host name is the long one.
    if (const size_t dot = machine.host.find('.'); dot != std::string::npos) domain_ = machine.host.substr(dot + 1);
    if (domain_.empty()) ReadHosts();
    namespace_ = ReadNamespace();
  }

  const std::string& host() const { return host_; }                // "train-1"
  std::string subdomain() const { return FirstLabel(domain_); }    // "train"; empty: the pod has none
  const std::string& pod_namespace() const { return namespace_; }  // "default" where nothing tells it

 private:
  void ReadHosts() {
    for (absl::string_view line : absl::StrSplit(machine_.read_file("/etc/hosts"), '\n')) {
      const std::vector<std::string> words =
          absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t"), absl::SkipEmpty());
      for (size_t i = 1; i < words.size(); ++i) {
        if (!absl::StartsWith(words[i], absl::StrCat(host_, ".")) || words[i].size() == host_.size() + 1) continue;
        domain_ = words[i].substr(host_.size() + 1);
        return;
      }
    }
  }

  std::string ReadNamespace() const {
    const std::vector<std::string> labels = absl::StrSplit(domain_, '.');
    if (labels.size() > 2 && labels[2] == "svc") return labels[1];
    // "search default.svc.cluster.local svc.cluster.local cluster.local"
    for (absl::string_view line : absl::StrSplit(machine_.read_file("/etc/resolv.conf"), '\n')) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
      if (words.size() < 2 || words[0] != "search") continue;
      const std::vector<std::string> searched = absl::StrSplit(words[1], '.');
      if (searched.size() > 1 && searched[1] == "svc") return searched[0];
    }
    const std::string mounted = machine_.read_file("/var/run/secrets/kubernetes.io/serviceaccount/namespace");
    const absl::string_view name = absl::StripAsciiWhitespace(mounted);
    return name.empty() || name.find('/') != absl::string_view::npos ? "default" : std::string(name);
  }

  const EngineMachine& machine_;
  std::string host_;
  std::string domain_;
  std::string namespace_;
};

class Kubernetes {
 public:
  Kubernetes(const Environment& environment, const EngineMachine& machine)
      : environment_(environment), machine_(machine) {}

  absl::StatusOr<Placement> Place() {
    for (const auto& [name, value] : environment_) {
      if (absl::StartsWith(name, "VC_") && absl::EndsWith(name, "_HOSTS")) host_lists_.push_back(name);
    }
    const std::string volcano = Has("VC_TASK_INDEX") ? "VC_TASK_INDEX" : host_lists_.empty() ? "" : host_lists_[0];
    const std::string lws = Has("LWS_LEADER_ADDRESS") ? "LWS_LEADER_ADDRESS" : "";
    const std::string job = Has("JOB_COMPLETION_INDEX") ? "JOB_COMPLETION_INDEX" : "";
    if (absl::Status one = CheckOne({{"Volcano", volcano}, {"LeaderWorkerSet", lws}, {"an Indexed Job", job}});
        !one.ok()) {
      return one;
    }
    const bool recognised = !volcano.empty() || !lws.empty() || !job.empty();
    // Kubeflow gives a launcher its place in torchrun's own words; a PyTorchJob nothing else.
    const bool by_kubeflow = Has("PET_NNODES") && (Has("PET_NODE_RANK") || Has("PET_RDZV_ENDPOINT"));
    if (by_kubeflow && (recognised || Has("KUBERNETES_SERVICE_HOST"))) AddShutdownTimeout();
    if (!recognised || by_kubeflow) return placement_;
    pod_.emplace(machine_);
    absl::Status read = !volcano.empty() ? ReadVolcano() : !lws.empty() ? ReadLeaderWorkerSet() : ReadIndexedJob();
    if (!read.ok()) return read;
    AddShutdownTimeout();
    return placement_;
  }

 private:
  bool Has(const std::string& name) const { return environment_.contains(name); }
  std::string Value(const std::string& name) const { return ValueOf(environment_, name); }

  void Add(std::string option, std::string value, std::string source) {
    placement_.defaults.push_back({std::move(option), std::move(value), std::move(source)});
  }

  void AddShutdownTimeout() {
    Add("shutdown-timeout", std::string(kShutdownTimeoutS), "Kubernetes' grace period of 30 s");
  }

  absl::Status Wrong(const std::string& variable, absl::string_view rule) const {
    return absl::InvalidArgumentError(absl::StrCat(variable, " '", Excerpt(Value(variable)), "': ", rule));
  }

  absl::Status CheckOne(const std::vector<std::pair<std::string, std::string>>& engines) const {
    std::vector<std::string> found;
    for (const auto& [engine, variable] : engines) {
      if (!variable.empty()) found.push_back(absl::StrCat(variable, " '", Excerpt(Value(variable)), "' of ", engine));
    }
    if (found.size() < 2) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        absl::StrJoin(found, " and "), ": a pod has its place from one of them; unset what the other one has set"));
  }

  absl::Status ReadNumber(const std::string& variable, int least, int most, int* number) const {
    int value = 0;
    const std::string text = Value(variable);
    const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    if (!digits || !absl::SimpleAtoi(text, &value) || value < least || value > most) {
      return Wrong(variable, absl::StrCat("has to be a number from ", least, " to ", most));
    }
    *number = value;
    return absl::OkStatus();
  }

  // "a:8,b:8": names or addresses, without what follows a colon.
  absl::StatusOr<std::vector<std::string>> ReadHosts(const std::string& variable) const {
    std::vector<std::string> hosts;
    const std::string value = Value(variable);
    for (absl::string_view item : absl::StrSplit(value, ',')) {
      item = absl::StripAsciiWhitespace(item);
      hosts.emplace_back(item.substr(0, item.find(':')));
      if (hosts.back().empty()) return Wrong(variable, "has to be names of hosts with commas between them");
      if (hosts.size() > kMaxNodes) return Wrong(variable, absl::StrCat("at most ", kMaxNodes, " hosts"));
    }
    return hosts;
  }

  void Name(const std::string& kind, const std::string& name) {
    placement_.job = absl::StrCat(pod_->pod_namespace(), "/", name);
    placement_.where = absl::StrCat(kind, " ", placement_.job);
    placement_.task_id = name;
  }

  absl::Status SetNodes(int nodes, const std::string& source, int rank, const std::string& rank_source) {
    placement_.nodes = nodes;
    placement_.nodes_source = source;
    if (rank >= nodes) {
      return Wrong(rank_source, absl::StrCat("has to be 0 to ", nodes - 1, " where there are ", nodes,
                                             nodes == 1 ? " node (" : " nodes (", source, ")"));
    }
    Add("nnodes", absl::StrCat(nodes), source);
    return absl::OkStatus();
  }

  // ---- An Indexed Job, of a JobSet or by itself

  absl::Status ReadIndexedJob() {
    int index = 0;
    if (absl::Status read = ReadNumber("JOB_COMPLETION_INDEX", 0, kMaxNodes - 1, &index); !read.ok()) return read;
    // The host name of the pod; with hostNetwork, or a host name of its own, it tells nothing.
    const std::string end = absl::StrCat("-", index);
    const std::string& host = pod_->host();
    const bool named = absl::EndsWith(host, end) && host.size() > end.size();
    const std::string job = named ? host.substr(0, host.size() - end.size()) : "";
    for (const char* name : {"JOBSET_JOB_GLOBAL_INDEX", "JOBSET_REPLICAS", "JOBSET_PODS_PER_JOB"}) {
      if (Has(name)) return ReadJobSet(index);
    }
    const std::string set = Value("JOBSET_NAME");
    Name(set.empty() ? "Kubernetes Indexed Job" : "Kubernetes JobSet", !set.empty() ? set : named ? job : host);
    std::vector<std::string> listed;
    if (Has("NODE_LIST")) {
      absl::StatusOr<std::vector<std::string>> read = ReadHosts("NODE_LIST");
      if (!read.ok()) return read.status();
      listed = *std::move(read);
      const auto nodes = static_cast<int>(listed.size());
      if (absl::Status set_nodes = SetNodes(nodes, "NODE_LIST", index, "JOB_COMPLETION_INDEX"); !set_nodes.ok()) {
        return set_nodes;
      }
    } else {
      placement_.nodes_needed = true;
    }
    Add("node-rank", absl::StrCat(index), "JOB_COMPLETION_INDEX");
    if (named && !pod_->subdomain().empty()) {
      AddMaster(absl::StrCat(job, "-0.", pod_->subdomain()), "the pod's host name");
    } else if (!listed.empty()) {
      AddMaster(listed[0], "NODE_LIST");
    } else {
      // A pod finds itself by its own name alone.
      AddMaster(index == 0 || !named ? host : absl::StrCat(job, "-0"), "the pod's host name");
      if (index > 0) {
        placement_.warnings.push_back(
            absl::StrCat("the pod ", host,
                         " has no domain by which pods find each other: give its template a "
                         "subdomain and the job a headless Service of that name, or taskd run --master-addr"));
      }
    }
    Add("rdzv-id", placement_.task_id, "the name of the job");
    return absl::OkStatus();
  }

  // Jobs of one or several pods each, numbered through: deploy/kubernetes/jobset.yaml says where the variables are from.
  absl::Status ReadJobSet(int index) {
    int job = 0;
    int jobs = 1;
    int pods = 1;
    absl::Status read = ReadNumber("JOBSET_JOB_GLOBAL_INDEX", 0, kMaxNodes - 1, &job);
    if (Has("JOBSET_REPLICAS")) read.Update(ReadNumber("JOBSET_REPLICAS", 1, kMaxNodes, &jobs));
    if (Has("JOBSET_PODS_PER_JOB")) read.Update(ReadNumber("JOBSET_PODS_PER_JOB", 1, kMaxNodes, &pods));
    if (!read.ok()) return read;
    const std::string set = Value("JOBSET_NAME");
    const std::string replicated = Value("JOBSET_REPLICATED_JOB_NAME");
    for (const char* name : {"JOBSET_NAME", "JOBSET_REPLICATED_JOB_NAME"}) {
      if (Value(name).empty()) return Wrong(name, "has to be the pod's label, beside JOBSET_JOB_GLOBAL_INDEX");
    }
    if (index >= pods) {
      return Wrong("JOB_COMPLETION_INDEX", absl::StrCat("has to be 0 to ", pods - 1, " where a job has ", pods,
                                                        pods == 1 ? " pod" : " pods", " (JOBSET_PODS_PER_JOB)"));
    }
    if (Has("JOBSET_REPLICAS") && job >= jobs) {
      return Wrong("JOBSET_JOB_GLOBAL_INDEX", absl::StrCat("has to be 0 to ", jobs - 1, " where there are ", jobs,
                                                           jobs == 1 ? " job" : " jobs", " (JOBSET_REPLICAS)"));
    }
    if (std::max(job, jobs) > kMaxNodes / pods) {
      return Wrong("JOBSET_PODS_PER_JOB", absl::StrCat("at most ", kMaxNodes, " nodes"));
    }
    Name("Kubernetes JobSet", set);
    if (absl::Status nodes = ReadNodesOfJobSet(jobs * pods, job * pods + index); !nodes.ok()) return nodes;
    Add("node-rank", absl::StrCat(job * pods + index), "JOBSET_JOB_GLOBAL_INDEX");
    const std::string domain = pod_->subdomain().empty() ? set : pod_->subdomain();
    if (const std::string coordinator = Value("JOBSET_COORDINATOR"); !coordinator.empty()) {
      AddMaster(coordinator, "JOBSET_COORDINATOR");
    } else {
      AddMaster(absl::StrCat(set, "-", replicated, "-0-0.", domain), "JOBSET_NAME");
    }
    // Pods of an attempt that is over meet those of the next one no more.
    const std::string attempt = Value("JOBSET_RESTART_ATTEMPT");
    Add("rdzv-id", attempt.empty() ? set : absl::StrCat(set, ".", attempt), "JOBSET_NAME");
    return absl::OkStatus();
  }

  absl::Status ReadNodesOfJobSet(int nodes, int rank) {
    std::vector<std::string> listed;
    if (Has("NODE_LIST")) {
      absl::StatusOr<std::vector<std::string>> read = ReadHosts("NODE_LIST");
      if (!read.ok()) return read.status();
      listed = *std::move(read);
    }
    const auto names = static_cast<int>(listed.size());
    if (Has("JOBSET_REPLICAS")) {
      if (names > 0 && names != nodes) {
        return Wrong("NODE_LIST", absl::StrCat("has ", names, " names where there are ", nodes,
                                               " nodes (JOBSET_REPLICAS, JOBSET_PODS_PER_JOB)"));
      }
      return SetNodes(nodes, "JOBSET_REPLICAS", rank, "JOBSET_JOB_GLOBAL_INDEX");
    }
    if (names > 0) return SetNodes(names, "NODE_LIST", rank, "JOBSET_JOB_GLOBAL_INDEX");
    placement_.nodes_needed = true;
    return absl::OkStatus();
  }

  // ---- The others

  absl::Status ReadLeaderWorkerSet() {
    const std::string leader = Value("LWS_LEADER_ADDRESS");
    int size = 0;
    int index = 0;
    if (leader.empty()) return Wrong("LWS_LEADER_ADDRESS", "has to be the leader's address");
    absl::Status read = ReadNumber("LWS_GROUP_SIZE", 1, kMaxNodes, &size);
    read.Update(ReadNumber("LWS_WORKER_INDEX", 0, kMaxNodes - 1, &index));
    if (!read.ok()) return read;
    Name("LeaderWorkerSet group", FirstLabel(leader));
    read = SetNodes(size, "LWS_GROUP_SIZE", index, "LWS_WORKER_INDEX");
    if (!read.ok()) return read;
    Add("node-rank", absl::StrCat(index), "LWS_WORKER_INDEX");
    AddMaster(leader, "LWS_LEADER_ADDRESS");
    Add("rdzv-id", placement_.task_id, "LWS_LEADER_ADDRESS");
    return absl::OkStatus();
  }

  // Each task of a Volcano job has a list of its pods. The nodes are those of the pod's own task; master and worker, as
  // its plugin for PyTorch names them, are one world.
  absl::Status ReadVolcano() {
    int index = 0;
    if (absl::Status read = ReadNumber("VC_TASK_INDEX", 0, kMaxNodes - 1, &index); !read.ok()) return read;
    std::string own;
    std::vector<std::string> hosts;
    for (const std::string& name : host_lists_) {
      absl::StatusOr<std::vector<std::string>> listed = ReadHosts(name);
      if (!listed.ok()) return listed.status();
      const std::string number = absl::StrCat(name.substr(0, name.size() - 5), "NUM");
      int pods = 0;
      if (Has(number)) {
        if (absl::Status read = ReadNumber(number, 1, kMaxNodes, &pods); !read.ok()) return read;
        if (pods != static_cast<int>(listed->size())) {
          return Wrong(number, absl::StrCat(name, " '", Excerpt(Value(name)), "' has ", listed->size(), " hosts"));
        }
      }
      const bool is_own = static_cast<size_t>(index) < listed->size() && FirstLabel((*listed)[index]) == pod_->host();
      if (!is_own && host_lists_.size() > 1) continue;
      own = name;
      hosts = *std::move(listed);
    }
    if (own.empty()) {
      if (!host_lists_.empty()) {
        return Wrong("VC_TASK_INDEX", absl::StrCat("none of ", absl::StrJoin(host_lists_, ", "), " has the host ",
                                                   pod_->host(), " there"));
      }
      Name("Volcano job", pod_->host());
      placement_.nodes_needed = true;
      Add("node-rank", absl::StrCat(index), "VC_TASK_INDEX");
      return absl::OkStatus();
    }
    int rank = index;
    if (host_lists_ == std::vector<std::string>{"VC_MASTER_HOSTS", "VC_WORKER_HOSTS"}) {
      absl::StatusOr<std::vector<std::string>> masters = ReadHosts("VC_MASTER_HOSTS");
      absl::StatusOr<std::vector<std::string>> workers = ReadHosts("VC_WORKER_HOSTS");
      if (own == "VC_WORKER_HOSTS") rank += static_cast<int>(masters->size());
      own = "VC_MASTER_HOSTS and VC_WORKER_HOSTS";
      hosts = *std::move(masters);
      hosts.insert(hosts.end(), workers->begin(), workers->end());
    }
    // "train-worker-0.train": the subdomain is the job's name.
    const size_t dot = hosts[0].find('.');
    Name("Volcano job", dot == std::string::npos ? hosts[0] : FirstLabel(hosts[0].substr(dot + 1)));
    placement_.hosts = hosts;
    absl::Status set = SetNodes(static_cast<int>(hosts.size()), own, rank, "VC_TASK_INDEX");
    if (!set.ok()) return set;
    Add("node-rank", absl::StrCat(rank), "VC_TASK_INDEX");
    AddMaster(hosts[0], own);
    Add("rdzv-id", placement_.task_id, own);
    return absl::OkStatus();
  }

  void AddMaster(std::string host, std::string source) { Add("master-addr", std::move(host), std::move(source)); }

  const Environment& environment_;
  const EngineMachine& machine_;
  std::vector<std::string> host_lists_;  // VC_<task>_HOSTS, in the order of their names
  std::optional<PodName> pod_;
  Placement placement_;
};

}  // namespace

absl::StatusOr<Placement> PlaceByKubernetes(const Environment& environment, const EngineMachine& machine) {
  return Kubernetes(environment, machine).Place();
}

}  // namespace taskd::engine
