/* The C API of libtaskd.so: marks of a training process, recorded in shared memory for the node's proxy.
 *
 * Every function is safe from any thread, before and after fork, before init and after destroy, with NULL and with
 * names of any length. None blocks, prints, changes errno, or ends the process; only the first call may allocate (the
 * dynamic linker and pthread_create do), so that one does not belong into a signal handler. A mark whose kind is
 * switched off costs about one load. In a forked child nothing is recorded until it calls taskd_worker_init.
 */
#ifndef TASKD_TASKD_H_
#define TASKD_TASKD_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of marks, as bits of taskd_enabled_kinds(). */
#define TASKD_KIND_STEP 0x01u            /* "step N" */
#define TASKD_KIND_SAVE_CHECKPOINT 0x02u /* "save_checkpoint" */
#define TASKD_KIND_FORWARD 0x04u         /* "forward" */
#define TASKD_KIND_DATALOADER 0x08u      /* "dataloader" */
#define TASKD_KIND_COMMUNICATION 0x10u   /* every mark of the domain "communication" */
#define TASKD_KIND_OTHER 0x20u           /* all others; on while any kind but communication is on */

typedef struct taskd_domain taskd_domain; /* opaque; valid for the life of the process */

/* Sets the rank of this process and looks for the node's proxy (TASKD_SOCKET) until it is found. Without it the rank
 * is taken at the first mark from the first of these variables that is a number: RANK, OMPI_COMM_WORLD_RANK, RANK_ID,
 * PMIX_RANK, PMI_RANK and, in a step of more than one task (SLURM_STEP_NUM_TASKS), SLURM_PROCID; the local rank likewise
 * from LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, PMIX_LOCAL_RANK, SLURM_LOCALID. Where none is, marks are
 * recorded all the same, and wait in memory for this call.
 * rank: global, >= 0. local_rank: >= 0, or -1 if not known. disk_limit_mb: wished limit of the mark files that the ranks
 * of the job with this limit or a lower one have on the node, 0 for none; it costs no other files. Returns 0, or -1 for a
 * bad argument or where no shared memory is to be had (then nothing is recorded; a later call tries again). Called again,
 * it changes the rank. */
int taskd_worker_init(int rank, int local_rank, int disk_limit_mb);

/* Returns 0 after taskd_worker_init, -1 before. There is nothing left to start; kept for the Python API. */
int taskd_worker_start(void);

/* Stops recording in this process until the next init; what was recorded is still written. Where marks come from MSPTI
 * it waits up to a second for those that MSPTI still has. Returns 0, or -1 without an init. */
int taskd_worker_destroy(void);

/* Bits of the kinds that a mark made now is recorded for. A caller that must build a name first asks here whether it is
 * worth it. */
uint32_t taskd_enabled_kinds(void);

/* One moment. */
void taskd_mark(const char* name);

/* A range: returns its id, or 0 where nothing is recorded (end then does nothing). Another thread may end it. */
uint64_t taskd_range_start(const char* name);
void taskd_range_end(uint64_t id);

/* Marks of a named domain; the same name gives the same domain. NULL, an empty name, and any name when 128 domains
 * exist already give the default domain; names are cut at 255 bytes. Never NULL. */
taskd_domain* taskd_domain_create(const char* name);
void taskd_domain_mark(taskd_domain* domain, const char* name);
uint64_t taskd_domain_range_start(taskd_domain* domain, const char* name);

/* For who marks operations of communication by itself: several sources may see the same one (NCCL's profiler plugin,
 * NCCL's C functions, which a preloaded libtaskd.so stands in front of, and the framework above them), and one of them
 * marks it. Returns 1 where that is the caller: it makes its mark, and calls taskd_communication_end on the same thread
 * when the call that makes the operation has returned or failed, whether or not the operation itself is done by then.
 * In between nobody below marks. Once for the outermost of nested calls. Returns 0 where the mark is another one's, and
 * then nothing is to be called.
 * nccl_version: of an operation that goes through NCCL, as ncclGetVersion gives it (22304 is 2.23.4); else 0. */
int taskd_communication_begin(int nccl_version);
void taskd_communication_end(void);

/* For NCCL's profiler plugin: it has a communicator, so it is asked for all that NCCL does in this process. */
void taskd_nccl_plugin_speaks(void);

/* What the recorder did so far in this process. */
typedef struct taskd_worker_stats {
  int rank;         /* -1: not known */
  int attached;     /* 1 while a proxy holds the segment */
  uint32_t kinds;   /* as taskd_enabled_kinds() */
  uint32_t threads; /* rings in use */
  uint64_t records; /* records committed */
  uint64_t dropped; /* marks that found no ring */
} taskd_worker_stats;
int taskd_worker_get_stats(taskd_worker_stats* stats);

#ifdef __cplusplus
}
#endif
#endif /* TASKD_TASKD_H_ */
