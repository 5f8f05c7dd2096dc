// How much work a replica gets, and what that is in time: batches of sequences of different lengths.
#pragma once

#include <cstdint>

#include "agent/simulate/job.h"

namespace taskd::simulate {

// Tokens of a microbatch of 1, by name; as a number of a mark it is so many.
inline constexpr double kTokens = 4096;

inline bool HasRaggedWork(const Job& job) { return job.noise.work_sigma > 0 || !job.noise.replica_work.empty(); }

// Of one microbatch of one replica, as a multiple of kTokens. The same for all ranks of the replica.
double WorkOf(const Job& job, int step, int microbatch, int replica);

// What its computation takes, as a multiple of what work of 1 takes: a part that is always there, one that grows with
// the tokens, and attention, which grows with their square.
inline double TimeOfWork(double work) { return 0.1 + 0.8 * work + 0.1 * work * work; }

// The number that a rank of the replica says for the step.
int64_t TokensOf(const Job& job, int step, int replica, int microbatches);

}  // namespace taskd::simulate
