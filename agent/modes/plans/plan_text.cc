// A plan as `taskd run --mode M --dry-run` shows it.
#include <algorithm>
#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "agent/modes/plans/mode_plan.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace taskd::modes {
namespace {

using Json = nlohmann::ordered_json;

std::string_view StartName(StartRule rule) {
  switch (rule) {
    case StartRule::kAfterFirst:
      return "after-first";
    case StartRule::kAfterAll:
      return "after-all";
    case StartRule::kAfterReady:
      return "after-ready";
    case StartRule::kAtOnce:
      break;
  }
  return "at-once";
}

std::string_view StartSentence(StartRule rule) {
  switch (rule) {
    case StartRule::kAfterFirst:
      return "when node 0 is there";
    case StartRule::kAfterAll:
      return "when all nodes are there";
    case StartRule::kAfterReady:
      return "when all nodes are ready";
    case StartRule::kAtOnce:
      break;
  }
  return "at once";
}

// A word as a shell takes it.
std::string ShellWord(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isalnum(byte) != 0 || std::string_view("_-./:=,+@%").find(c) != std::string_view::npos;
  });
  return plain ? word : "'" + absl::StrReplaceAll(word, {{"'", "'\\''"}}) + "'";
}

// What stands in lines of its own is moved to the right.
std::string Indented(std::string_view text) {
  std::string result;
  for (const auto line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    result += fmt::format("    {}\n", std::string_view(line.data(), line.size()));
  }
  return result;
}

}  // namespace

std::string ModePlanJson(const ModePlan& plan) {
  Json nodes = Json::array(), processes = Json::array(), files = Json::array(), binds = Json::array();
  for (const ModeNode& node : plan.nodes) {
    nodes.push_back({{"name", node.name}, {"cards", node.cards}, {"serves", node.serves}});
  }
  for (const ModeProcess& process : plan.processes) {
    processes.push_back({{"argv", process.argv}, {"env", process.environment}});
  }
  for (const PlannedFile& file : plan.files) files.push_back({{"path", file.path}, {"content", file.content}});
  for (const ClaimedPort& bind : plan.binds) binds.push_back({{"variable", bind.variable}, {"port", bind.port}});
  const Json json = {{"mode", ModeName(plan.mode)},
                     {"platform", PlatformName(plan.platform)},
                     {"role", plan.role},
                     {"index", plan.index},
                     {"nodes", std::move(nodes)},
                     {"processes", std::move(processes)},
                     {"files", std::move(files)},
                     {"warnings", plan.warnings},
                     {"manager", plan.manager},
                     {"start", StartName(plan.start)},
                     {"serves", plan.serves},
                     {"mpi_front", plan.mpi_front},
                     {"unresolved", plan.unresolved},
                     {"binds", std::move(binds)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ModePlanText(const ModePlan& plan) {
  std::string nodes;
  for (const ModeNode& node : plan.nodes) {
    nodes += fmt::format("{}{} ({} card{}{})", nodes.empty() ? "" : ", ", node.name, node.cards,
                         node.cards == 1 ? "" : "s", node.serves ? ", serves" : "");
  }
  std::string text =
      fmt::format("mode      {} (platform: {})\nrole      {}, node {} of {}\nnodes     {}\n", ModeName(plan.mode),
                  PlatformName(plan.platform), plan.role, plan.index, plan.nodes.size(), nodes);
  if (!plan.manager.empty()) text += fmt::format("manager   {}\n", plan.manager);
  text += fmt::format("start     {}\n", StartSentence(plan.start));
  if (plan.mpi_front) text += "mpirun    of node 0 only; on other nodes it waits for that\n";
  for (const ClaimedPort& bind : plan.binds) text += fmt::format("port      {} ({})\n", bind.port, bind.variable);
  if (plan.processes.empty()) text += "process   none on this node\n";
  for (const ModeProcess& process : plan.processes) {
    std::string words;
    for (const std::string& word : process.argv) words += (words.empty() ? "" : " ") + ShellWord(word);
    text += fmt::format("process   {}\n", words);
    for (const auto& [name, value] : process.environment) text += fmt::format("    {}={}\n", name, ShellWord(value));
  }
  for (const PlannedFile& file : plan.files) {
    std::string_view content = file.content;
    if (content.ends_with('\n')) content.remove_suffix(1);
    text += fmt::format("file      {}\n{}", file.path, Indented(content));
  }
  for (const std::string& name : plan.unresolved) text += fmt::format("note      {} does not resolve yet\n", name);
  for (const std::string& warning : plan.warnings) text += fmt::format("warning   {}\n", warning);
  return text;
}

}  // namespace taskd::modes
