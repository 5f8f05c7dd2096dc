// What the manager knows of its job, for those who show it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "manager/actions/action_core.h"
#include "manager/ledger/job_ledger.h"
#include "manager/page/event_log.h"
#include "manager/supervision/supervision_core.h"
#include "manager/switch/core.h"
#include "manager/verdicts/diagnosis_core.h"
#include "view/history.h"
#include "view/rank_groups.h"

namespace taskd::manager {

struct JobSources {
  std::shared_ptr<ManagerCore> core;
  std::shared_ptr<DiagnosisCore> diagnosis;
  std::shared_ptr<SupervisionCore> supervision;
  std::shared_ptr<const view::History> history;
  std::shared_ptr<const view::RankGroups> groups;
  std::shared_ptr<const EventLog> events;
  std::shared_ptr<const JobLedger> ledger;
  std::shared_ptr<const ActionCore> actions;
  SteadyTime started;                           // of the manager: since then there is history
  std::vector<std::string> not_supported = {};  // what was asked for and will not happen
};

}  // namespace taskd::manager
