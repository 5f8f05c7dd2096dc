#include "agent/run/options_help.h"

namespace taskd::run {

const char kRunHelp[] = R"(Starts the ranks of a distributed training job on this node, watches them, and restarts
or ends them together. Takes the command line of torchrun.

Usage: taskd run [OPTIONS] SCRIPT [ARGUMENTS...]
       taskd run [OPTIONS] -m MODULE [ARGUMENTS...]
       taskd run [OPTIONS] -- COMMAND [ARGUMENTS...]
       taskd run --mode MODE [OPTIONS] -- COMMAND [ARGUMENTS...]
                              as a training platform does: taskd run --mode auto --help

Everything after SCRIPT belongs to the script. After "--", a name that ends in .py is a
script, anything else a command. ${local_rank} in an argument is replaced.

Options can be written with dashes or underscores, as --option VALUE or --option=VALUE.
Each is also read from the environment: PET_<OPTION>, else TASKD_<OPTION>, as PET_NNODES
(flags: 1, 0, true, false). The command line wins.

Size
  --nnodes N|MIN:MAX          nodes of the job; a range with --rdzv-backend c10d [1]
  --nproc-per-node N|auto|cpu|gpu|npu
                              ranks of this node; gpu, npu: one for each device that may
                              be seen; auto: devices, else CPUs [1]
  --node-rank R               which node this is, for static and parallel [0]

Rendezvous
  --standalone                one node, on a free port; needs no other rendezvous option
  --rdzv-backend static|c10d|parallel
                              static, parallel: a fixed number of nodes that know their
                              rank; c10d: nodes may come and go [static]
  --rdzv-endpoint HOST[:PORT] where the nodes meet; IPv6 as [::1]:29500
                              [c10d: localhost:29400, else master-addr:master-port]
  --rdzv-id ID                name of the job, the same on all nodes [none]
  --rdzv-conf K=V,...         timeout, join_timeout, last_call_timeout, close_timeout,
                              read_timeout, keep_alive_interval (seconds),
                              keep_alive_max_attempt, is_host (true, false)
  --master-addr HOST          host of node 0, for static and parallel [127.0.0.1]
  --master-port PORT          port there [29500]
  --local-addr HOST           how other nodes reach this one [the host's name]
  --enable-tiered-parallel-tcpstore[=true|false]
                              ranks ask a store on their own node, which asks node 0's
                              [false]
  --store-fan-out N           with it: nodes that one store serves, for trees of stores;
                              0: all ask node 0's [0]
  --store-memory-limit-mb N   MiB that a store may take before it refuses writes
                              [4096, or a quarter of the container's memory]

Supervision
  --max-restarts N            how often all ranks are restarted after a failure [0]
  --monitor-interval S        accepted; an end of a rank is seen at once [0.1]
  --shutdown-timeout S        between SIGTERM and SIGKILL
                              [TORCH_ELASTIC_SHUTDOWN_TIMEOUT, 30]
  --node-timeout S            how long a node's launcher may be silent before it is lost;
                              a closed connection is a loss at once. Node 0's value holds
                              for all [60; 15 where --nnodes is a range]
  --signals-to-handle NAMES   signals that end the job after the ranks got them
                              [SIGTERM,SIGINT,SIGHUP,SIGQUIT]
  --hang-action report|restart|stop
                              what happens when no rank makes a step any more [report]
  --hang-factor F             after F times the usual time of a step; 0: never [10]
  --ras on|off                in a hang NCCL's RAS is asked who holds the job up
                              (NCCL_RAS_ADDR, else localhost:28028) [on]

  --numa-binding node|socket|exclusive|core-complex
                              bind each rank to the CPUs of its accelerator's NUMA node
                              or socket, to a share of its own of the node's cores, or
                              to one last-level cache; only to CPUs that may be used here

Program
  -m, --module                SCRIPT is a module, as with python -m
  --no-python                 SCRIPT is a command
  --run-path                  run SCRIPT with runpy.run_path
  --role NAME                 of the ranks, in their environment and prefixes [default]
  --virtual-local-rank        LOCAL_RANK is 0 for every rank, each sees its own device

Output
  --log-dir DIR               logs go to DIR/<rdzv-id>_<random>/attempt_<n>/<local rank>/
                              [a temporary folder]
  -r, --redirects STREAMS     into files: 0 none, 1 stdout, 2 stderr, 3 both, or by local
                              rank, as 0:3,11:2 [0]
  -t, --tee STREAMS           into files and, with a prefix, to the console; a line that
                              several ranks write within 0.2 s is there once [0]
  --local-ranks-filter RANKS  only these on the console, as 0,3 [all]

Scheduler
  Under Slurm (srun --ntasks-per-node=1 taskd run ...) and Kubernetes what is not given
  comes from the scheduler: nodes, node rank, master, the job's name. --standalone, --mode
  and the options --rdzv-... leave it aside.
  --dry-run                   print what would be used, and start nothing

TaskD
  --manager HOST:PORT|off     a manager that runs already; off: none, and no proxy
                              [node 0 starts one]
  --marks all|KINDS           record from the start: all, or a list of step, forward,
                              dataloader, checkpoint, communication
                              [nothing, until taskd switch all=on]
  --ledger DIR                keep where the job's time went there, for all its attempts
                              (TASKD_JOB, TASKD_TASK_ID name it) [gone with the launcher]
  --on-slow WHAT              report; rehearse: decide by its price whether a slow node
                              should be taken out, and do nothing; order: decide, and send
                              an order to --order-to; see taskd act list [report]
  --on-slow-when WHEN         verdicts that are worth a decision; any part may be given
                              [cause=compute,memory,host,network,dataloader;
                              confidence>=0.95;open>=50 steps;cost>=5%]
  --remaining H               hours that the job still has to run
                              [as long as it has run so far, at most 24]
  --evictions N/H             at most N nodes in H hours [1/1, and 3 a job]
  --order-to LIST             receivers of orders, with commas: command:PATH (is run on
                              node 0), nvrx:DIR, clusterd, nvsentinel
  --no-taskd                  no manager, no proxy, nothing preloaded into the ranks

Accepted for torchrun's sake, without effect
  --start-method spawn|fork|forkserver, --event-log-handler NAME, --logs-specs NAME,
  --duplicate-stdout-filters LIST, --duplicate-stderr-filters LIST

  -h, --help                  print this text

Environment: PYTHON_EXEC (the Python of a script, else python3 of PATH), OMP_NUM_THREADS
(1 if unset and there are several ranks), TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE (with
${role_name} ${local_rank} ${rank} ${group_rank} ${node}), TORCHELASTIC_ERROR_FILE.

Exit code: 0 if all ranks succeeded; otherwise that of the rank that failed first, 128 +
the signal for a signal; 2 for wrong usage.
)";

}  // namespace taskd::run
