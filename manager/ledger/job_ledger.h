// The job's ledger, fed by what the manager's other parts hear; safe from any thread. It keeps the ledger's time and the
// Unix time that it began at: a clock that is set moves nothing.
//
// Sinks and callbacks of the cores: only take note. Without transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "diagnosis/verdict.h"
#include "ledger/kept.h"
#include "ledger/ledger.h"
#include "ledger/report.h"
#include "manager/supervision/supervision_core.h"
#include "manager/switch/core.h"
#include "marks/step_fold.h"

namespace taskd::manager {

class JobLedger final : public ChangeSink {
 public:
  // A manager that is killed loses what it has counted since, but no incident.
  static constexpr std::chrono::seconds kSaveEvery{5};
  // In a large job a report takes long to put together, while folds wait: a fiftieth of the time for all who ask, who
  // share one until then, unless that is late or a launcher has told something.
  static constexpr std::chrono::seconds kSharedAtMost{5};
  static constexpr int kShare = 50;

  struct Options {
    std::string job;        // as people call it
    std::string task;       // its id; empty: none
    int slots = 0;          // 0: not known
    bool launched = false;  // a launcher has started this manager
    // Takes the ledger's text to keep it, and does not wait for storage. May be empty.
    std::function<void(std::string state)> save;
  };

  // `kept`: what Save was given last; empty: there is none. What cannot be read is left out, with a line of the log.
  JobLedger(const Options& options, const std::string& kept);
  // The same where it is known only later.
  void Precede(const std::string& kept);
  JobLedger(const JobLedger&) = delete;
  JobLedger& operator=(const JobLedger&) = delete;

  void OnEvent(const SupervisionEvent& event);
  // Whom the rendezvous waits for; empty: for nobody.
  void OnWaits(const std::string& waits_for);
  void OnPresence(int rank, bool attached);
  // Its process was stopped for so long until now.
  void OnStopped(int rank, uint64_t stopped_ms);
  void OnSaved(int rank, const SavedInStep& saved);
  void OnStep(int rank, const StepFold& fold);
  // ChangeSink.
  void Changed(const SwitchState& state) override;
  void Close() override {}

  // To be called every second; keeps the ledger where that is due. Not while a lock is held.
  void KeepUp(const std::shared_ptr<const diagnosis::Report>& report);
  // Keeps it for the last time.
  void SaveNow();

  std::shared_ptr<const ledger::Report> report() const;
  // Steps that have been done since the last checkpoint; all of them where none is known.
  int64_t UnsavedSteps() const;
  std::string Json() const;

 private:
  int64_t Now() const;
  // Of an event's Unix time.
  int64_t Happened(int64_t unix_ns, int64_t now_ns) const;
  // With the mutex.
  ledger::KeptLedger State() const;
  const std::shared_ptr<const ledger::Report>& MakeReport() const;
  // A line of the log, once. With the mutex.
  void WarnOfMissingMarks();
  // Its last attempt is this one.
  bool GoesOn(const ledger::KeptLedger& former) const;

  const Options options_;
  const int64_t begun_ns_;
  const int64_t unix_offset_ns_;
  std::mutex saving_;         // no text without what was before is given away after Precede(); taken before mutex_
  mutable std::mutex mutex_;  // guards from here
  mutable ledger::Ledger ledger_;
  std::shared_ptr<const diagnosis::Report> verdicts_;     // that the ledger has
  mutable std::shared_ptr<const ledger::Report> report_;  // the newest; null: there is none
  mutable SteadyTime shared_until_;                       // whoever asks gets that
  SteadyTime saved_at_;
  uint64_t saved_incidents_ = 0;
  bool warned_ = false;
};

// The kind of the incident that a restart for this cause is, and of the one that another attempt is which follows an end
// for this cause.
ledger::IncidentKind KindOfRestart(SupervisionEvent::Cause cause);
ledger::IncidentKind KindOfNext(SupervisionEvent::Cause cause);
// Of a job that ends because a launcher was sent this signal; 0: none was sent.
SupervisionEvent::Cause CauseOfEnd(int signal);

}  // namespace taskd::manager
