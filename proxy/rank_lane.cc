#include "proxy/rank_lane.h"

namespace taskd::proxy {

void RankLane::Start(FileThreads& threads, Work work) {
  busy_since_ns_ = work.now_ns;
  busy_.store(true, std::memory_order_relaxed);
  threads.Run([lane = shared_from_this(), work = std::move(work)] {
    lane->Do(work);
    lane->busy_.store(false, std::memory_order_release);
  });
}

void RankLane::Do(const Work& work) {
  Result result;
  fold_->PollGroups(work.now_ns);
  for (const Work::Part& part : work.parts) {
    result.flushed.Update(part.drain->Flush(work.now_ns, part.all, part.to_the_end));
  }
  if (work.info) result.info = dir_.WriteRankInfo(rank_, *work.info);
  result_ = std::move(result);
}

}  // namespace taskd::proxy
