#include "tests/diagnosis/tape.h"

#include <time.h>

#include <cstdio>
#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "agent/simulate/simulator.h"
#include "marks/mark_fold.h"

namespace taskd::evaluation {
namespace {

double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Recorder {
 public:
  Recorder(simulate::Simulator& simulator, bool own_times, const std::function<void(TapeStep&)>& play)
      : simulator_(simulator), own_times_(own_times), play_(play) {}

  TapeEnd Go() {
    for (;;) {
      double begin = CpuSeconds();
      bool more = simulator_.Next();
      end_.simulate_s += CpuSeconds() - begin;
      if (!more) break;
      if (ranks_.empty() || simulator_.restarted()) {
        if (!ranks_.empty()) Finish(true);
        BeginLife();
      }
      Step();
    }
    Finish(false);
    double begin = CpuSeconds();
    end_.labels = simulator_.labels();
    end_.simulate_s += CpuSeconds() - begin;
    return std::move(end_);
  }

 private:
  struct Rank {
    std::unique_ptr<MarkFold> fold;
    uint64_t groups_version = ~uint64_t{0};
  };

  void BeginLife() {
    ranks_.clear();
    ranks_.resize(static_cast<size_t>(simulator_.ranks()));
    for (int rank = 0; rank < simulator_.ranks(); ++rank) {
      next_.places.push_back({simulator_.node(rank), simulator_.local_rank(rank)});
      Rank& state = ranks_[static_cast<size_t>(rank)];
      state.fold = std::make_unique<MarkFold>(
          [this, rank](StepFold&& fold) { next_.folds.emplace_back(rank, std::move(fold)); });
      state.fold->SetGroups(simulator_.groups(rank));
    }
  }

  void Step() {
    next_.step = simulator_.step();
    next_.step_ms = simulator_.step_ms();
    for (int rank = 0; rank < simulator_.ranks(); ++rank) {
      double begin = CpuSeconds();
      const std::vector<MarkRecord>& marks = simulator_.Marks(rank);
      double made = CpuSeconds();
      MarkFold& fold = *ranks_[static_cast<size_t>(rank)].fold;
      for (const MarkRecord& record : marks) fold.Add(record);
      end_.simulate_s += made - begin;
      end_.fold_s += CpuSeconds() - made;
      if (own_times_) next_.own_ms.push_back(simulator_.OwnMs(rank));
    }
    Play();
  }

  void Finish(bool ends_life) {
    next_.step = simulator_.step();
    for (Rank& rank : ranks_) rank.fold->Finish();
    next_.ends_life = ends_life;
    Play();
  }

  void Play() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& state = ranks_[rank];
      if (state.groups_version == state.fold->groups_version()) continue;
      state.groups_version = state.fold->groups_version();
      const std::vector<GroupInfo>& groups = state.fold->groups();
      for (uint32_t i = 0; i < groups.size(); ++i) next_.groups.push_back({static_cast<int>(rank), i, groups[i]});
    }
    play_(next_);
    next_ = {};
  }

  simulate::Simulator& simulator_;
  bool own_times_;
  const std::function<void(TapeStep&)>& play_;
  std::vector<Rank> ranks_;
  TapeStep next_;
  TapeEnd end_;
};

// Plain memory, for this machine and this build alone.
class File {
 public:
  File(const std::string& path, const char* mode) : file_(std::fopen(path.c_str(), mode)) {}
  ~File() {
    if (file_ != nullptr) std::fclose(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool good() const { return file_ != nullptr && good_; }

  template <typename T>
  void Write(const T& value) requires std::is_trivially_copyable_v<T> {
    good_ = good_ && std::fwrite(&value, sizeof(value), 1, file_) == 1;
  }
  template <typename T>
  void Read(T& value) requires std::is_trivially_copyable_v<T> {
    good_ = good_ && std::fread(&value, sizeof(value), 1, file_) == 1;
  }
  // Vectors and strings of plain values.
  template <typename T>
  void WriteAll(const T& values) {
    Write(values.size());
    if (!values.empty())
      good_ = good_ && std::fwrite(values.data(), sizeof(values[0]), values.size(), file_) == values.size();
  }
  template <typename T>
  void ReadAll(T& values) {
    size_t size = 0;
    Read(size);
    if (!good_ || size > kMost) {
      good_ = false;
      return;
    }
    values.resize(size);
    if (size > 0) good_ = std::fread(values.data(), sizeof(values[0]), size, file_) == size;
  }

 private:
  static constexpr size_t kMost = 1 << 24;
  std::FILE* file_;
  bool good_ = true;
};

// What comes before the vectors in StepFold, one by one: it is not trivially copyable as a whole.
template <typename Fold, typename Visit>
void Numbers(Fold& fold, Visit visit) {
  visit(fold.step), visit(fold.process_id), visit(fold.start_ns), visit(fold.end_ns), visit(fold.previous_end_ns);
  visit(fold.forward_ns), visit(fold.forwards), visit(fold.dataloader_ns), visit(fold.dataloaders);
  visit(fold.checkpoint_ns), visit(fold.checkpoints), visit(fold.covered_ns), visit(fold.blocking_covered_ns);
  visit(fold.covered_before_last_ns), visit(fold.head_ns), visit(fold.lead_ns), visit(fold.tail_ns),
      visit(fold.dataloader_own_ns);
  visit(fold.forward_own_ns);
  visit(fold.checkpoint_own_ns), visit(fold.issues), visit(fold.issue_p10_ns), visit(fold.issue_p50_ns);
  visit(fold.work), visit(fold.works), visit(fold.odd_works), visit(fold.broken), visit(fold.host_only);
}

void Write(File& file, const TapeStep& step) {
  file.Write(step.step), file.Write(step.step_ms), file.Write(step.ends_life);
  file.WriteAll(step.places);
  file.Write(step.groups.size());
  for (const TapeStep::Group& group : step.groups) {
    file.Write(group.rank), file.Write(group.index);
    file.WriteAll(group.info.name), file.WriteAll(group.info.label), file.WriteAll(group.info.members);
  }
  file.Write(step.folds.size());
  for (const auto& [rank, fold] : step.folds) {
    file.Write(rank);
    Numbers(fold, [&](const auto& number) { file.Write(number); });
    file.WriteAll(fold.ops), file.WriteAll(fold.samples);
  }
}

TapeStep Read(File& file) {
  TapeStep step;
  file.Read(step.step), file.Read(step.step_ms), file.Read(step.ends_life);
  file.ReadAll(step.places);
  size_t groups = 0, folds = 0;
  for (file.Read(groups); file.good() && groups > 0; --groups) {
    TapeStep::Group& group = step.groups.emplace_back();
    file.Read(group.rank), file.Read(group.index);
    file.ReadAll(group.info.name), file.ReadAll(group.info.label), file.ReadAll(group.info.members);
  }
  for (file.Read(folds); file.good() && folds > 0; --folds) {
    auto& [rank, fold] = step.folds.emplace_back();
    file.Read(rank);
    Numbers(fold, [&](auto& number) { file.Read(number); });
    file.ReadAll(fold.ops), file.ReadAll(fold.samples);
  }
  return step;
}

void Write(File& file, const TapeEnd& end) {
  file.Write(end.labels.size());
  for (const simulate::Label& label : end.labels) {
    file.Write(label.kind);
    file.WriteAll(label.scope), file.WriteAll(label.ids);
    file.Write(label.causes.size());
    for (const std::string& cause : label.causes) file.WriteAll(cause);
    file.Write(label.first_step), file.Write(label.last_step), file.Write(label.severity), file.Write(label.effect);
  }
}

TapeEnd ReadEnd(File& file) {
  TapeEnd end;
  size_t labels = 0, causes = 0;
  for (file.Read(labels); file.good() && labels > 0; --labels) {
    simulate::Label& label = end.labels.emplace_back();
    file.Read(label.kind);
    file.ReadAll(label.scope), file.ReadAll(label.ids);
    for (file.Read(causes); file.good() && causes > 0; --causes) file.ReadAll(label.causes.emplace_back());
    file.Read(label.first_step), file.Read(label.last_step), file.Read(label.severity), file.Read(label.effect);
  }
  return end;
}

}  // namespace

absl::StatusOr<TapeEnd> Record(const simulate::Job& job, bool own_times, const std::function<void(TapeStep&)>& play) {
  absl::StatusOr<std::unique_ptr<simulate::Simulator>> simulator = simulate::Simulator::Create(job);
  if (!simulator.ok()) return simulator.status();
  return Recorder(**simulator, own_times, play).Go();
}

absl::StatusOr<TapeEnd> RecordOrRead(const std::string& path, const simulate::Job& job,
                                     const std::function<void(TapeStep&)>& play) {
  // Each step is preceded by a 1, the end by a 0.
  if (File file(path, "rb"); file.good()) {
    bool more = true;
    for (file.Read(more); file.good() && more; file.Read(more)) {
      TapeStep step = Read(file);
      if (file.good()) play(step);
    }
    TapeEnd end = ReadEnd(file);
    if (!file.good()) return absl::DataLossError(absl::StrCat("tape '", path, "' is cut off: remove it"));
    return end;
  }
  const std::string unfinished = path + ".new";
  absl::StatusOr<TapeEnd> end;
  {
    File file(unfinished, "wb");
    if (!file.good()) return absl::PermissionDeniedError(absl::StrCat("tape '", unfinished, "' cannot be written"));
    end = Record(job, false, [&](TapeStep& step) {
      file.Write(true);
      Write(file, step);
      play(step);
    });
    if (!end.ok()) return end;
    file.Write(false);
    Write(file, *end);
    if (!file.good()) return absl::DataLossError(absl::StrCat("tape '", unfinished, "' cannot be written: disk full?"));
  }
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("tape '", path, "' cannot be written"));
  }
  return end;
}

}  // namespace taskd::evaluation
