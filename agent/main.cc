// The program `taskd`: a table of commands.
#include <string_view>
#include <vector>

#include "agent/commands/act.h"
#include "agent/commands/command_line.h"
#include "agent/commands/diagnose.h"
#include "agent/commands/goodput.h"
#include "agent/commands/jobs.h"
#include "agent/commands/manager.h"
#include "agent/commands/proxy.h"
#include "agent/commands/ranktable.h"
#include "agent/commands/rdma.h"
#include "agent/commands/report.h"
#include "agent/commands/route.h"
#include "agent/commands/run.h"
#include "agent/commands/simulate.h"
#include "agent/commands/status.h"
#include "agent/commands/store.h"
#include "agent/commands/switch.h"
#include "agent/commands/token.h"
#include "agent/commands/trace.h"
#include "agent/commands/ui.h"
#include "agent/modes/mpi/mpirun_front.h"
#include "agent/modes/mpi/rsh.h"

namespace taskd {
namespace {

const commands::CommandGroup kGroups[] = {
    {"act", "what was decided about slow nodes, and why"},
    {"ranktable", "whether a rank table is valid"},
    {"rdma", "NCCL over the RDMA network of whole machines"},
};

// In the order of use: --help shows them so.
const commands::CommandEntry kCommands[] = {
    {"run", "launch and supervise the ranks of this node, with torchrun's command line", nullptr,
     commands::RunRunCommand, commands::RunHelps},
    {"switch", "switch marks on or off and print each rank's answer", commands::MakeSwitchCommand},
    {"status", "nodes, ranks, switch state, marks written and lost, overhead", commands::MakeStatusCommand},
    {"diagnose", "who is slow, since when, why, and what it costs", commands::MakeDiagnoseCommand},
    {"report", "the job on one page, as an HTML file that opens anywhere", commands::MakeReportCommand},
    {"ui", "the address of the page that shows the job in a browser", commands::MakeUiCommand},
    {"goodput", "where the job's time went, and what each interruption cost", commands::MakeGoodputCommand},
    {"act list", "the decisions on slow nodes, each with its reason and its price", commands::MakeActListCommand},
    {"act why", "what would be done about a node now, and why", commands::MakeActWhyCommand},
    {"act evict", "have a node taken out", commands::MakeActEvictCommand},
    {"act cancel", "call an action off", commands::MakeActCancelCommand},
    {"act pause", "decide nothing until taskd act allow", commands::MakeActPauseCommand},
    {"act allow", "decide again", commands::MakeActAllowCommand},
    {"trace", "marks as a timeline that Perfetto and chrome://tracing open", commands::MakeTraceCommand},
    {"jobs", "this user's jobs on this machine, those that run and the last that ended", commands::MakeJobsCommand},
    {"token", "what lets a browser or a scraper in, without the job's secret", commands::MakeTokenCommand},
    {"manager", "the job's manager, in the foreground", commands::MakeManagerCommand},
    {"proxy", "the node's proxy, in the foreground", commands::MakeProxyCommand},
    {"store", "a TCPStore server for PyTorch's clients, or a tier of one, in the foreground",
     commands::MakeStoreCommand},
    {"rsh", "run a command on another node of the job: what mpirun calls in ssh's place", nullptr, modes::RunRshCommand,
     [] { return std::vector<commands::OwnHelp>{{modes::kRshHelp}}; }},
    {"route", "plan the order of a job's nodes from its rank table and a topology", commands::MakeRouteCommand},
    {"ranktable check", "print the rules that a rank table breaks", commands::MakeRankTableCheckCommand},
    {"rdma env", "print NCCL's variables, if NODE_LIST and this machine's devices are made for them",
     commands::MakeRdmaEnvironmentCommand},
    {"rdma check", "what NCCL's log says about the way between nodes", commands::MakeRdmaCheckCommand},
    {"simulate", "a synthetic job's marks with faults, as files or towards a manager", commands::MakeSimulateCommand},
};

// A link of that name to this program is `taskd run`.
bool IsTorchNpuRun(std::string_view program) { return program.substr(program.rfind('/') + 1) == "torch_npu_run"; }

int Main(int argc, char** argv) {
  if (argc > 0 && modes::IsMpirunFront(argv[0])) return modes::RunMpirunFront(argc, argv);
  if (argc > 0 && IsTorchNpuRun(argv[0])) return commands::RunRunCommand({argv + 1, argv + argc});
  return commands::RunCommandLine(kCommands, kGroups, argc, argv);
}

}  // namespace
}  // namespace taskd

int main(int argc, char** argv) { return taskd::Main(argc, argv); }
