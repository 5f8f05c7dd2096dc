#include "manager/server.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/environment.h"
#include "common/http_access.h"
#include "common/http_server.h"
#include "common/job_secret.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/realtime.h"
#include "common/switch_file.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/service_type.h"
#include "manager/actions/action_core.h"
#include "manager/actions/action_service.h"
#include "manager/actions/clusterd_receiver.h"
#include "manager/actions/command_receiver.h"
#include "manager/actions/nvrx_receiver.h"
#include "manager/actions/nvsentinel_receiver.h"
#include "manager/actions/order_sender.h"
#include "manager/job/job_link_service.h"
#include "manager/job/route_agreement_service.h"
#include "manager/ledger/job_ledger.h"
#include "manager/ledger/ledger_folder.h"
#include "manager/ledger/ledger_keeper.h"
#include "manager/ledger/ledger_service.h"
#include "manager/nodes/node_service.h"
#include "manager/page/census.h"
#include "manager/page/control_service.h"
#include "manager/page/event_log.h"
#include "manager/page/http_pages.h"
#include "manager/page/metrics.h"
#include "manager/page/web_api.h"
#include "manager/rpc/reflection_service.h"
#include "manager/supervision/supervision_core.h"
#include "manager/supervision/supervision_messages.h"
#include "manager/supervision/supervision_service.h"
#include "manager/switch/clusterd_client.h"
#include "manager/switch/core.h"
#include "manager/switch/latest_writer.h"
#include "manager/switch/state_db.h"
#include "manager/switch/trace_service.h"
#include "manager/verdicts/diagnosis_core.h"
#include "manager/verdicts/diagnosis_service.h"
#include "manager/verdicts/fault_reporter.h"
#include "policy/price.h"
#include "proto/channel.h"
#include "proto/diagnosis_messages.h"
#include "proto/ended_jobs.h"
#include "proto/grpc_listener.h"
#include "proto/plain_health.h"
#include "proto/plain_server.h"
#include "proto/read_parts.h"
#include "taskd/v1/control.grpc.pb.h"
#include "taskd/v1/diagnosis.grpc.pb.h"
#include "taskd/v1/ledger.grpc.pb.h"
#include "view/history.h"
#include "view/rank_groups.h"

namespace taskd::manager {
namespace {

// For clients that do not take their answers: then their calls are cut off.
constexpr std::chrono::seconds kShutdownGrace{1};
constexpr std::chrono::seconds kUpkeepInterval{1};
constexpr std::chrono::seconds kLastAnswersPatience{1};
// A change is answered when it lasts, or after this: storage that hangs stops neither switches nor the diagnosis.
constexpr std::chrono::milliseconds kStoragePatience{500};
// For the ledger's folder, at the start: what it says later still counts.
constexpr std::chrono::milliseconds kLedgerPatience{300};

SwitchChange ChangeTo(KindMask kinds) {
  SwitchChange change;
  for (int i = 0; i < kNumSwitches; ++i) change[i] = (kinds >> i & 1) != 0;
  return change;
}

std::vector<diagnosis::Verdict> ReadKept(const std::vector<std::string>& kept) {
  std::vector<diagnosis::Verdict> verdicts;
  for (const std::string& bytes : kept) {
    v1::Verdict message;
    absl::StatusOr<diagnosis::Verdict> verdict = absl::InvalidArgumentError("not a verdict");
    if (message.ParseFromString(bytes)) verdict = proto::ReadVerdict(message);
    if (verdict.ok()) {
      verdicts.push_back(*std::move(verdict));
    } else {
      spdlog::warn("a kept verdict is left out: {}", verdict.status().message());
    }
  }
  return verdicts;
}

// What the policy has to know of the job.
policy::View LookForPolicy(const JobSnapshot& job, const JobLedger& job_ledger, const diagnosis::Report& report) {
  constexpr double kNs = 1e9;
  const std::shared_ptr<const ledger::Report> spent = job_ledger.report();
  policy::View view;
  for (const JobSnapshot::Node& known : job.nodes) {
    if (!known.connected) continue;
    policy::Node node;
    node.node = known.node;
    node.host = known.host;
    node.node_name = known.node_name;
    node.refusal = known.name_refusal;
    if (!known.ranks.empty()) node.ranks = {known.ranks.front().rank, known.ranks.back().rank};
    view.nodes.push_back(std::move(node));
  }
  view.price = policy::PriceOfRestart(*spent, job_ledger.UnsavedSteps(), report.step_ms / 1e3);
  view.ran_s = spent->wall_s();
  view.attempt_s = spent->attempts.empty()
                       ? view.ran_s
                       : static_cast<double>(spent->until_ns - spent->attempts.back().since_ns) / kNs;
  view.slots = spent->slots > 0 ? spent->slots : report.ranks;
  return view;
}

// "refused by cost", "rehearse", "order failed (command: exit code 1)".
std::string TextOf(const policy::Action& action) {
  if (action.refused_by) return absl::StrCat("refused by ", Name(*action.refused_by));
  std::string text = Name(action.decision);
  if (action.state == policy::State::kDecided || action.state == policy::State::kCalledOff) return text;
  absl::StrAppend(&text, " ", Name(action.state));
  for (const policy::Order& order : action.orders) {
    absl::StrAppend(&text, &order == &action.orders.front() ? " (" : "; ", order.to, ": ", order.text);
  }
  return absl::StrCat(text, action.orders.empty() ? "" : ")");
}

std::unique_ptr<OrderReceiver> MakeReceiver(const OrderTo& to, const ManagerOptions& options,
                                            const std::shared_ptr<ManagerCore>& core,
                                            const std::shared_ptr<DiagnosisCore>& diagnosis) {
  switch (to.kind) {
    case OrderTo::Kind::kCommand:
      return std::make_unique<CommandReceiver>(to.path);
    case OrderTo::Kind::kNvrx:
      return std::make_unique<NvrxReceiver>(to.path, NvrxFileName(OwnEnvironment()));
    case OrderTo::Kind::kClusterd:
      return std::make_unique<ClusterdReceiver>(options.clusterd, core->shape(),
                                                [diagnosis] { return diagnosis->report(); });
    case OrderTo::Kind::kNvsentinel:
      return std::make_unique<NvsentinelReceiver>(core, to.path, to.executes);
  }
  return nullptr;
}

// What the token of HTTP is made of.
const std::string& GivenSecret(const ManagerOptions& options) {
  return options.token.empty() ? options.secret : options.token;
}

// A launcher that is killed says nothing, and its ranks end with it.
void SayLauncherWasLost(v1::EndedJob* ended) {
  ended->set_lost_launcher(true);
  ended->mutable_status()->mutable_supervision()->set_state(v1::SupervisionStatus::ENDED);
  for (v1::NodeStatus& node : *ended->mutable_status()->mutable_nodes()) {
    for (v1::RankStatus& rank : *node.mutable_ranks()) {
      if (rank.attached()) rank.set_reason("its launcher was lost");
      rank.set_attached(false);
    }
  }
}

// What gRPC may buffer for all connections together.
constexpr size_t kBufferBytes = size_t{256} << 20;

}  // namespace

class ManagerServer::Impl {
 public:
  ~Impl() {
    serving_ = false;
    senders_.clear();
    reporter_.reset();
    clusterd_.reset();
    switch_file_.reset();
    if (core_ != nullptr) core_->Close();
    if (diagnosis_ != nullptr) diagnosis_->Close();
    if (supervision_ != nullptr) supervision_->Close();
    if (job_link_.close) job_link_.close();
    if (listener_ != nullptr) listener_->Stop();
    const auto deadline = std::chrono::system_clock::now() + kShutdownGrace;
    plain_.reset();
    if (server_ != nullptr) {
      server_->Shutdown(deadline);
      server_->Wait();
    }
    listener_.reset();  // with what they said last
    http_.reset();
    if (upkeep_.joinable()) {
      {
        std::lock_guard lock(mutex_);
        stopping_ = true;
      }
      wake_.notify_all();
      upkeep_.join();
    }
    if (ledger_ != nullptr) ledger_->SaveNow();
  }

  absl::Status Start(const ManagerOptions& options, const Bound& bound) {
    SteadyTime started = std::chrono::steady_clock::now();
    absl::StatusOr<HostPort> listen = ParseHostPort("--listen", options.listen);
    if (!listen.ok()) return listen.status();
    if (options.tls_dir.empty() && options.secret.empty()) return absl::InvalidArgumentError("the job has no secret");
    absl::StatusOr<std::shared_ptr<const TlsContext>> tls =
        proto::MakeServerTls({.tls_dir = options.tls_dir, .secret = options.secret, .tls_name = options.tls_name});
    if (!tls.ok()) return tls.status();
    // Before the state is opened: a second manager of the job must not touch what the first one keeps.
    absl::Status free = CheckCanListen("--listen", *listen);
    if (!free.ok()) return free;
    absl::Status opened = OpenState(options);
    if (!opened.ok()) return opened;
    absl::Status http = StartHttp(options, started);
    if (!http.ok()) return http;
    absl::Status served = StartGrpc(options, *listen, *std::move(tls), started, bound);
    if (!served.ok()) return served;
    serving_ = true;
    if (!http_note_.empty()) spdlog::warn("{}", http_note_);

    if (!options.switch_file.empty()) {
      switch_file_ = std::make_unique<SwitchFileWatcher>(
          options.switch_file, [core = core_](const SwitchChange& change) { core->ApplySwitchFile(change); });
    }
    if (!options.clusterd.empty()) {
      clusterd_ = std::make_unique<ClusterdClient>(options.clusterd, options.task_id,
                                                   [core = core_](const SwitchChange& change, bool may_be_replay) {
                                                     core->ApplyClusterdSwitch(change, may_be_replay);
                                                   });
    }
    if (options.report_fault) {
      reporter_ = std::make_unique<FaultReporter>(
          FaultReporter::Options{options.clusterd, core_->shape()}, db_.get(),
          [diagnosis = diagnosis_] { return diagnosis->report(); }, [core = core_] { return core->Snapshot(); });
    }
    for (const OrderTo& to : options.policy.order_to) {
      senders_.push_back(
          std::make_unique<OrderSender>(Name(to.kind), MakeReceiver(to, options, core_, diagnosis_), actions_));
    }
    upkeep_ = std::thread([this] { KeepUp(); });
    return absl::OkStatus();
  }

  int port() const { return listener_->port(); }
  int http_port() const { return http_ == nullptr ? 0 : http_->port(); }

  // Asked as any client asks.
  std::optional<v1::EndedJob> LastAnswers() const {
    if (exit_code_ >= 0 || launched_) diagnosis_->Finish();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    const std::shared_ptr<grpc::Channel> channel = server_->InProcessChannel(arguments);
    const auto deadline = std::chrono::system_clock::now() + kLastAnswersPatience;
    grpc::ClientContext contexts[4];
    for (grpc::ClientContext& context : contexts) context.set_deadline(deadline);
    v1::EndedJob ended;
    const auto control = v1::Control::NewStub(channel);
    if (!proto::ReadParts(control->StatusInParts(&contexts[0], {}), ended.mutable_status()).ok()) return std::nullopt;
    int ranks = 0;
    for (const v1::NodeStatus& node : ended.status().nodes()) ranks += node.ranks_size();
    // A job that failed before a rank attached was one, too.
    if (ranks == 0 && ended.status().supervision().events_size() == 0) return std::nullopt;
    v1::LedgerReply ledger;
    (void)proto::ReadParts(v1::Diagnosis::NewStub(channel)->ReportInParts(&contexts[1], {}), ended.mutable_diagnosis());
    (void)v1::Ledger::NewStub(channel)->GetLedger(&contexts[2], {}, &ledger);
    (void)control->GetReportPage(&contexts[3], {}, ended.mutable_report());
    ended.set_ledger(std::move(*ledger.mutable_json()));
    ended.set_actions(actions_->Json());
    ended.set_job(ended.status().job());
    ended.set_ended_unix_s(time(nullptr));
    ended.set_started_unix_s(ended.ended_unix_s() - static_cast<int64_t>(ended.status().uptime_s()));
    if (const int code = exit_code_; code >= 0) {
      ended.set_exit_code(code);
    } else if (launched_) {
      SayLauncherWasLost(&ended);
    }
    ended.set_mark_folder(proto::MarkFolderOf(ended.status()));
    return ended;
  }

 private:
  absl::Status OpenState(const ManagerOptions& options) {
    JobShape shape{options.job,         options.task_id,   options.nodes, options.procs_per_node,
                   options.default_job, options.node_names};
    KeptState kept;
    ManagerCore::Persist persist;
    std::vector<diagnosis::Verdict> verdicts;
    DiagnosisCore::Save save;
    std::string actions;
    if (options.state_dir.empty()) {
      spdlog::warn("neither --state-dir nor --task-id: the wanted state does not survive a restart");
    } else {
      absl::StatusOr<std::unique_ptr<StateDb>> db = StateDb::Open(options.state_dir, shape);
      if (!db.ok()) return db.status();
      db_ = *std::move(db);
      absl::StatusOr<KeptState> loaded = db_->Load();
      if (!loaded.ok()) return loaded.status();
      kept = *loaded;
      state_writer_ = std::make_unique<LatestWriter<KeptState>>(
          [db = db_.get()](const KeptState& state) { return db->Save(state); }, kStoragePatience);
      persist = [this](const KeptState& state) { return state_writer_->Save(state); };
      absl::StatusOr<std::vector<std::string>> kept_verdicts = db_->LoadVerdicts();
      if (!kept_verdicts.ok()) return kept_verdicts.status();
      verdicts = ReadKept(*kept_verdicts);
      verdict_writer_ = std::make_unique<LatestWriter<std::vector<std::string>>>(
          [db = db_.get()](const std::vector<std::string>& rows) { return db->SaveVerdicts(rows); }, kStoragePatience);
      save = [this](const std::vector<diagnosis::Verdict>& changed) {
        std::vector<std::string> rows;
        for (const diagnosis::Verdict& verdict : changed) {
          v1::Verdict message;
          proto::FillVerdict(verdict, &message);
          rows.push_back(message.SerializeAsString());
        }
        return verdict_writer_->Save(rows);
      };
      absl::StatusOr<std::string> kept_actions = db_->LoadActions();
      if (!kept_actions.ok()) return kept_actions.status();
      actions = *std::move(kept_actions);
      action_writer_ = std::make_unique<LatestWriter<std::string>>(
          [db = db_.get()](const std::string& state) { return db->SaveActions(state); }, kStoragePatience);
    }
    OpenLedger(options, shape);
    core_ = std::make_shared<ManagerCore>(std::move(shape), kept, std::move(persist));
    if (!options.marks.empty() && kept.wanted.revision == 0) core_->ChangeKinds(ChangeTo(*ParseKinds(options.marks)));
    history_ = std::make_shared<view::History>();
    groups_ = std::make_shared<view::RankGroups>();
    DiagnosisCore::Options diagnosis;
    diagnosis.feed.on_step = [history = history_, ledger = ledger_](int rank, const StepFold& fold, uint64_t now_ns) {
      history->Add(rank, fold, now_ns);
      ledger->OnStep(rank, fold);
    };
    diagnosis.feed.on_presence = [ledger = ledger_](int rank, bool attached) { ledger->OnPresence(rank, attached); };
    diagnosis.feed.on_stopped = [ledger = ledger_](int rank, uint64_t stopped_ms) {
      ledger->OnStopped(rank, stopped_ms);
    };
    diagnosis.feed.on_saved = [ledger = ledger_](int rank, const SavedInStep& saved) { ledger->OnSaved(rank, saved); };
    diagnosis.feed.on_groups = [groups = groups_](int node, int rank, const std::vector<GroupInfo>& of_rank) {
      groups->Set(node, rank, of_rank);
    };
    diagnosis.identify = [core = core_](int node, const std::string& host) { return core->Identify(node, host); };
    diagnosis_ = std::make_shared<DiagnosisCore>(diagnosis, verdicts, std::move(save));
    diagnosis_->SetWorldSize(options.nodes * options.procs_per_node);
    events_ = std::make_shared<EventLog>();
    supervision_ = std::make_shared<SupervisionCore>(
        [core = core_] { return core->Pulse(); },
        [this, events = events_, ledger = ledger_, diagnosis = diagnosis_](const SupervisionEvent& event) {
          if (event.kind == SupervisionEvent::Kind::kStarted && event.world_size > 0) {
            diagnosis->SetWorldSize(event.world_size);
          }
          if (event.kind == SupervisionEvent::Kind::kEnded) exit_code_ = event.code;
          events->Add(event);
          ledger->OnEvent(event);
        },
        [ledger = ledger_](const std::string& waits_for) { ledger->OnWaits(waits_for); });
    OpenActions(options, actions);
    diagnosis_->Subscribe(events_.get());
    core_->Subscribe(events_.get());
    core_->Subscribe(ledger_.get());
    return absl::OkStatus();
  }

  void OpenActions(const ManagerOptions& options, const std::string& kept) {
    ActionCore::Options with;
    with.policy = options.policy;
    with.seed = static_cast<uint64_t>(RealtimeNs());
    if (action_writer_ != nullptr) {
      with.save = [writer = action_writer_.get()](const std::string& state) { return writer->Save(state); };
    }
    with.report = [diagnosis = diagnosis_] { return diagnosis->report(); };
    with.look = [core = core_, ledger = ledger_](const diagnosis::Report& report) {
      return LookForPolicy(core->Snapshot(), *ledger, report);
    };
    with.on_event = [events = events_](const char* kind, const policy::Action& action) {
      LoggedEvent event;
      event.time_ns = RealtimeNs();
      event.kind = kind;
      event.text = absl::StrCat("action ", action.id, ": ", TextOf(action), ": ", action.reason);
      event.node = action.node;
      spdlog::info("{}: {}", kind, Printable(event.text, kShownLineBytes));
      events->Add(std::move(event));
    };
    actions_ = std::make_shared<ActionCore>(std::move(with), kept);
  }

  // Attempts find each other by the job's name.
  static bool KeepsInFolder(const ManagerOptions& options, const JobShape& shape) {
    if (options.ledger.empty()) return false;
    if (options.is_named) return true;
    spdlog::warn(
        "--ledger: not used, this job ({}) has no name that its next attempt would have; give --job, --task-id or "
        "MINDX_TASK_ID",
        shape.name());
    return false;
  }

  void OpenLedger(const ManagerOptions& options, const JobShape& shape) {
    JobLedger::Options with;
    with.job = shape.name();
    with.task = options.ledger_task;
    with.slots = shape.nodes * shape.procs_per_node;
    with.launched = launched_ = options.exit_on_stdin_eof;
    const bool shared = KeepsInFolder(options, shape);
    if (!shared && db_ == nullptr) {
      ledger_ = std::make_shared<JobLedger>(with, "");
      return;
    }
    const std::string& folder = shared ? options.ledger : options.state_dir;
    // Nobody else has the state's folder while db_ has it.
    const auto guard = shared ? LedgerFolder::Guard::kLockFile : LedgerFolder::Guard::kByTheCaller;
    // A job that nobody has named is called after its manager's process; the next one of this folder is another.
    const std::string job = shared ? shape.name() : shape.job.empty() ? "unnamed" : shape.job;
    const std::string task = shared ? options.ledger_task : shape.task_id;
    ledger_keeper_ = std::make_unique<LedgerKeeper>(std::make_unique<LedgerFolder>(folder, job, task, guard), folder);
    with.save = [this](std::string state) { ledger_keeper_->Save(std::move(state)); };
    const std::optional<std::string> before = ledger_keeper_->Await(kLedgerPatience);
    ledger_ = std::make_shared<JobLedger>(with, before.value_or(""));
    if (!before) ledger_keeper_->OnLate([ledger = ledger_](const std::string& kept) { ledger->Precede(kept); });
  }

  JobSources Sources(const ManagerOptions& options, SteadyTime started) const {
    return {core_,   diagnosis_, supervision_, history_, groups_,
            events_, ledger_,    actions_,     started,  options.not_supported};
  }

  absl::Status StartHttp(const ManagerOptions& options, SteadyTime started) {
    if (options.http.empty()) return absl::OkStatus();
    absl::StatusOr<HostPort> address = ParseHostPort("--http", options.http);
    if (!address.ok()) return address.status();
    absl::StatusOr<std::vector<std::string>> hosts = ParseHttpHosts("--http-host", options.http_host);
    if (!hosts.ok()) return hosts.status();
    hosts->push_back(absl::AsciiStrToLower(address->host));
    // As for ClusterD's service in plain text.
    const HttpAccess access{.anyone = options.allow_plaintext,
                            .own_user = options.token.empty(),
                            .token = ViewToken(GivenSecret(options)),
                            .secret = GivenSecret(options),
                            .hosts = *std::move(hosts)};
    const JobSources sources = Sources(options, started);
    HttpHandlers pages = MakePage();
    pages["/healthz"] = MakeHealth([this] { return serving_.load(); });
    pages["/metrics"] = MakeMetrics(sources);
    pages.merge(MakeWebApi(sources));
    const HttpHandlers handlers = Protect(std::move(pages), access);
    absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Start(*address, handlers);
    const bool taken = absl::IsAlreadyExists(http.status());
    // Another job's manager has it. Tools find this one's by the job file.
    if (taken && options.http_is_default) http = HttpServer::Start({address->host, 0}, handlers);
    if (http.ok()) {
      http_ = *std::move(http);
    } else if (options.http_is_default) {
      spdlog::warn("{}; going on without the page, /healthz and /metrics", http.status().message());
    } else {
      return http.status();
    }
    if (http_ != nullptr && taken) {
      http_note_ = absl::StrCat(options.http, " is taken; the page, /healthz and /metrics are at ",
                                FormatHostPort({address->host, http_->port()}), " (taskd ui)");
    }
    return absl::OkStatus();
  }

  absl::Status StartGrpc(const ManagerOptions& options, const HostPort& listen, std::shared_ptr<const TlsContext> tls,
                         SteadyTime started, const Bound& bound) {
    grpc::EnableDefaultHealthCheckService(true);
    trace_service_ = MakeTraceService(core_);
    node_service_ = MakeNodeService(core_, diagnosis_);
    control_service_ = MakeControlService(Sources(options, started));
    diagnosis_service_ =
        MakeDiagnosisService(diagnosis_, core_->shape(), [supervision = supervision_](v1::DiagnosisReport* report) {
          const SupervisionSnapshot snapshot = supervision->Snapshot();
          if (!snapshot.hang.has_value()) return;
          HangEvidence answer = snapshot.hang_answer();
          if (answer.since_ns == 0) answer.since_ns = static_cast<uint64_t>(HangSinceNs(snapshot));
          FillEvidence(answer, report->mutable_hang());
        });
    supervision_service_ = MakeSupervisionService(supervision_, core_->shape());
    ledger_service_ = MakeLedgerService(ledger_, core_->shape());
    action_service_ = MakeActionService(actions_, core_->shape());
    job_link_ = MakeJobLinkService(
        core_->shape(), options.exit_on_stdin_eof, !IsStandIn(options.secret),
        [supervision = supervision_](const std::string& waits_for) {
          supervision->SetWaitsFor(waits_for, std::chrono::steady_clock::now());
        },
        [this, ledger = ledger_](const JobEnd& end) {
          exit_code_ = end.code;
          SupervisionEvent ended;
          ended.kind = SupervisionEvent::Kind::kEnded;
          ended.code = end.code;
          ended.message = end.reason;
          ended.cause = CauseOfEnd(end.signal);
          ledger->OnEvent(ended);
        });
    route_agreement_service_ = MakeRouteAgreementService(core_->shape());
    const std::vector<std::string> names = {"TrainingDataTrace",       "taskd.v1.NodeLink",    "taskd.v1.Control",
                                            "taskd.v1.Diagnosis",      "taskd.v1.Supervision", "taskd.v1.JobLink",
                                            "taskd.v1.RouteAgreement", "taskd.v1.Ledger",      "taskd.v1.Actions"};
    reflection_service_ = MakeReflectionService(names);
    grpc::ServerBuilder builder;
    proto::SetServerLimits(builder, kBufferBytes);
    fed_ = std::make_unique<proto::FedServer>(builder);
    for (grpc::Service* service :
         {trace_service_.get(), node_service_.get(), control_service_.get(), diagnosis_service_.get(),
          supervision_service_.get(), job_link_.service.get(), route_agreement_service_.get(), ledger_service_.get(),
          action_service_.get(), reflection_service_.get()}) {
      builder.RegisterService(service);
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("gRPC does not start");
    server_->GetHealthCheckService()->SetServingStatus(true);
    for (const std::string& name : names) server_->GetHealthCheckService()->SetServingStatus(name, true);
    if (absl::Status plain = StartPlain(); !plain.ok()) return plain;
    // In plain text: whoever comes where the operator allows that, and this user's own clients on this machine where the
    // operator has set nothing up. Nobody else is read.
    const bool anyone = options.allow_plaintext;
    const bool own = anyone || (options.token.empty() && options.tls_dir.empty());
    absl::StatusOr<std::unique_ptr<proto::GrpcListener>> listener = proto::GrpcListener::Listen(
        listen, {}, std::move(tls),
        [this, anyone, own](proto::GrpcListener::Speaks speaks, UniqueFd connection) {
          if (speaks == proto::GrpcListener::Speaks::kTls) return fed_->Take(std::move(connection));
          if (anyone || (own && speaks == proto::GrpcListener::Speaks::kPlainOwn)) {
            return plain_->Take(std::move(connection));
          }
          spdlog::debug("a connection of {} in plain text is closed: --allow-plaintext would serve it",
                        PeerAddress(connection.get()));
        },
        [this, &bound](int port) {
          if (bound) bound(port, http_port());
        },
        OpenNodeStreams(core_, diagnosis_));
    if (!listener.ok()) {
      return absl::Status(listener.status().code(), absl::StrCat("--listen: ", listener.status().message()));
    }
    listener_ = *std::move(listener);
    return absl::OkStatus();
  }

  // ClusterD's service and health, and nothing else.
  absl::Status StartPlain() {
    proto::PlainServer::Methods methods = MakePlainTraceMethods(core_);
    proto::AddHealth({"TrainingDataTrace"}, &methods);
    absl::StatusOr<std::unique_ptr<proto::PlainServer>> plain = proto::PlainServer::Start(
        std::move(methods), absl::UnauthenticatedError("this is served to the job's own parts, over mutual TLS by its "
                                                       "secret, and not in plain text"));
    if (!plain.ok()) return plain.status();
    plain_ = *std::move(plain);
    return absl::OkStatus();
  }

  void KeepUp() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kUpkeepInterval, [this] { return stopping_; })) {
      lock.unlock();
      core_->RetryPersist();
      core_->Look(std::chrono::steady_clock::now());
      ledger_->KeepUp(diagnosis_->report());
      actions_->KeepUp();
      lock.lock();
    }
  }

  std::unique_ptr<StateDb> db_;
  std::unique_ptr<LatestWriter<KeptState>> state_writer_;  // null without a folder, as db_
  std::unique_ptr<LatestWriter<std::vector<std::string>>> verdict_writer_;
  std::unique_ptr<LatestWriter<std::string>> action_writer_;
  std::unique_ptr<LedgerKeeper> ledger_keeper_;  // null without a folder
  std::shared_ptr<JobLedger> ledger_;            // outlives the cores, as events_ does
  std::shared_ptr<view::History> history_;
  std::shared_ptr<view::RankGroups> groups_;
  std::shared_ptr<EventLog> events_;  // outlives the cores, which call it
  std::shared_ptr<ManagerCore> core_;
  std::shared_ptr<DiagnosisCore> diagnosis_;
  std::shared_ptr<SupervisionCore> supervision_;
  std::shared_ptr<ActionCore> actions_;
  std::unique_ptr<grpc::Service> trace_service_, node_service_, control_service_, diagnosis_service_,
      supervision_service_, route_agreement_service_, ledger_service_, action_service_, reflection_service_;
  JobLinkService job_link_;
  std::atomic<bool> serving_{false};  // gRPC answers
  std::atomic<int> exit_code_{-1};    // of the job; -1: it has not ended
  bool launched_ = false;             // by a launcher, whose end is this manager's
  std::unique_ptr<HttpServer> http_;
  std::string http_note_;                  // where it is, if not where it was to be
  std::unique_ptr<proto::FedServer> fed_;  // brings server_ its connections
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<proto::PlainServer> plain_;
  std::unique_ptr<proto::GrpcListener> listener_;
  std::unique_ptr<SwitchFileWatcher> switch_file_;
  std::unique_ptr<ClusterdClient> clusterd_;
  std::unique_ptr<FaultReporter> reporter_;
  std::vector<std::unique_ptr<OrderSender>> senders_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread upkeep_;
};

ManagerServer::ManagerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ManagerServer::~ManagerServer() = default;
int ManagerServer::port() const { return impl_->port(); }
int ManagerServer::http_port() const { return impl_->http_port(); }
std::optional<v1::EndedJob> ManagerServer::LastAnswers() const { return impl_->LastAnswers(); }

absl::StatusOr<std::unique_ptr<ManagerServer>> ManagerServer::Start(const ManagerOptions& options, const Bound& bound) {
  auto impl = std::make_unique<Impl>();
  absl::Status status = impl->Start(options, bound);
  if (!status.ok()) return status;
  return std::unique_ptr<ManagerServer>(new ManagerServer(std::move(impl)));
}

}  // namespace taskd::manager
