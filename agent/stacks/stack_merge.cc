// Stacks as JSON, and the stacks of all ranks as a text for people.
#include "agent/stacks/stack_merge.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json_limits.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "nlohmann/json.hpp"

namespace taskd::stacks {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxRanks = 131072;
constexpr size_t kLogNativeFrames = 20;
constexpr size_t kMaxFrames = 512;
// The stacks of a node come from the network, so their JSON has limits.
constexpr JsonLimits kJsonLimits = {.bytes = size_t{8} << 20, .depth = 6, .values = size_t{1} << 20};

std::string Text(const Json& object, const char* name) {
  auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}
int Number(const Json& object, const char* name) {
  auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int>() : 0;
}
std::vector<std::string> Texts(const Json& object, const char* name) {
  std::vector<std::string> texts;
  auto found = object.find(name);
  if (found == object.end() || !found->is_array()) return texts;
  for (const Json& text : *found) {
    if (text.is_string() && texts.size() < kMaxFrames) texts.push_back(text.get<std::string>());
  }
  return texts;
}

constexpr size_t kMaxShown = 512;  // of a frame, a name, a note

// Names of threads and files are other people's bytes.
std::string Clean(const std::string& text) { return Printable(text, kMaxShown); }

// A frame without its line or offset: "wait (threading.py)", "poll".
std::string Function(const std::string& frame) {
  const size_t paren = frame.rfind(" (");
  if (paren == std::string::npos) return frame;
  const size_t offset = frame.rfind("+0x", paren);
  if (offset != std::string::npos) return frame.substr(0, offset);
  const size_t colon = frame.rfind(':');
  return colon != std::string::npos && colon > paren ? frame.substr(0, colon) : frame;
}

// What makes two threads equal.
std::string Key(const ThreadStack& thread) {
  std::vector<std::string> functions;
  for (const std::string& frame : thread.python.empty() ? thread.native : thread.python) {
    functions.push_back(Function(frame));
  }
  if (functions.empty()) functions = {thread.state, thread.syscall, thread.wchan, thread.note};
  return absl::StrJoin(functions, "\n");
}

// Where a thread is, in a few words.
std::string Where(const ThreadStack& thread) {
  if (!thread.script.empty()) return thread.script;
  if (!thread.python.empty()) return thread.python[0];
  if (!thread.native.empty()) return thread.native[0];
  if (!thread.note.empty()) return thread.note;
  if (!thread.syscall.empty()) return thread.syscall;
  return absl::StrCat("state ", thread.state);
}

// "rank 7", "ranks 0-6, 9".
std::string RankList(const std::set<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatAllRanges(ranks));
}

struct Group {
  std::set<int> ranks;
  size_t threads = 0;
  std::set<std::string> names;
  const RankStacks* rank = nullptr;     // the one that is shown
  const ThreadStack* thread = nullptr;  // null: it has no threads any more
};

// Those of `origins`, then the rarest first.
std::vector<const Group*> InOrder(const std::map<std::string, Group>& groups, const std::set<int>& origins) {
  std::vector<std::tuple<bool, size_t, int, size_t, const Group*>> places;
  for (const auto& [key, group] : groups) {
    const bool others = std::ranges::none_of(group.ranks, [&](int rank) { return origins.contains(rank); });
    places.emplace_back(others, group.ranks.size(), *group.ranks.begin(), group.threads, &group);
  }
  std::ranges::sort(places, [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a), std::get<3>(a)) <
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b), std::get<3>(b));
  });
  std::vector<const Group*> order;
  for (const auto& place : places) order.push_back(std::get<const Group*>(place));
  return order;
}

std::string Facts(const ThreadStack& thread) {
  std::string facts = absl::StrCat("state ", thread.state.empty() ? "?" : thread.state);
  if (!thread.syscall.empty()) absl::StrAppend(&facts, ", in ", thread.syscall);
  if (!thread.wchan.empty()) absl::StrAppend(&facts, ", kernel ", thread.wchan);
  if (!thread.note.empty()) absl::StrAppend(&facts, ", ", thread.note);
  return facts;
}

void AppendFrames(const ThreadStack& thread, size_t native_limit, std::string& text) {
  for (const std::string& frame : thread.python) absl::StrAppend(&text, "      py ", Clean(frame), "\n");
  for (size_t i = 0; i < std::min(thread.native.size(), native_limit); ++i) {
    absl::StrAppend(&text, "         ", Clean(thread.native[i]), "\n");
  }
  if (thread.native.size() > native_limit) {
    absl::StrAppend(&text, "         and ", thread.native.size() - native_limit, " more\n");
  }
}

std::string MainText(const Group& group, size_t all_ranks, size_t native_limit) {
  std::string text = absl::StrCat("  ", RankList(group.ranks), " (", group.ranks.size(), " of ", all_ranks, "): ");
  if (group.thread == nullptr)
    return absl::StrCat(text, group.rank->note.empty() ? "gone" : Clean(group.rank->note), "\n");
  absl::StrAppend(&text, Clean(Where(*group.thread)), "\n    for example rank ", group.rank->rank, " on node ",
                  group.rank->node, ", pid ", group.rank->pid, " ", Clean(group.rank->command), ": ",
                  Clean(Facts(*group.thread)), group.rank->note.empty() ? "" : "; ", Clean(group.rank->note), "\n");
  AppendFrames(*group.thread, native_limit, text);
  return text;
}

std::string ThreadText(const Group& group, size_t native_limit) {
  std::vector<std::string> names;
  for (const std::string& name : group.names) {
    if (names.size() < 4) names.push_back(Clean(name));
  }
  if (group.names.size() > names.size()) names.push_back("...");
  std::string text =
      absl::StrCat("  ", RankList(group.ranks), ", ", group.threads, group.threads == 1 ? " thread " : " threads ",
                   absl::StrJoin(names, ", "), ": ", Clean(Where(*group.thread)), "\n    for example rank ",
                   group.rank->rank, ", tid ", group.thread->tid, ": ", Clean(Facts(*group.thread)), "\n");
  AppendFrames(*group.thread, native_limit, text);
  return text;
}

std::string EncodeAll(const std::vector<RankStacks>& stacks) {
  Json ranks = Json::array();
  for (const RankStacks& rank : stacks) {
    Json threads = Json::array();
    for (const ThreadStack& thread : rank.threads) {
      threads.push_back({{"tid", thread.tid},
                         {"name", thread.name},
                         {"state", thread.state},
                         {"wchan", thread.wchan},
                         {"syscall", thread.syscall},
                         {"python", thread.python},
                         {"script", thread.script},
                         {"native", thread.native},
                         {"note", thread.note}});
    }
    ranks.push_back({{"rank", rank.rank},
                     {"node", rank.node},
                     {"pid", rank.pid},
                     {"command", rank.command},
                     {"note", rank.note},
                     {"threads", std::move(threads)}});
  }
  return Json{{"ranks", std::move(ranks)}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string EncodeStacks(const std::vector<RankStacks>& stacks, size_t max_bytes) {
  std::string text = EncodeAll(stacks);
  if (text.size() <= max_bytes) return text;
  std::vector<RankStacks> less = stacks;
  for (size_t frames : {32, 8, 3}) {
    for (RankStacks& rank : less) {
      for (ThreadStack& thread : rank.threads) {
        thread.python.resize(std::min(thread.python.size(), frames));
        thread.native.resize(std::min(thread.native.size(), frames));
      }
    }
    text = EncodeAll(less);
    if (text.size() <= max_bytes) return text;
  }
  for (RankStacks& rank : less) {
    if (rank.threads.size() > 1) rank.threads.resize(1);
    rank.note = "too much to send: only the main thread";
  }
  return EncodeAll(less);
}

absl::StatusOr<std::vector<RankStacks>> DecodeStacks(const std::string& json) {
  const absl::StatusOr<Json> parsed = ParseJson<Json>(json, kJsonLimits);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("stacks: ", parsed.status().message()));
  const Json& object = *parsed;
  auto ranks = object.is_object() ? object.find("ranks") : object.end();
  if (!object.is_object() || ranks == object.end() || !ranks->is_array()) {
    return absl::InvalidArgumentError("stacks: not an object with a list \"ranks\"");
  }
  if (ranks->size() > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("stacks: ", ranks->size(), " ranks are more than ", kMaxRanks));
  }
  std::vector<RankStacks> stacks;
  for (const Json& entry : *ranks) {
    if (!entry.is_object()) return absl::InvalidArgumentError("stacks: a rank is not an object");
    RankStacks& rank = stacks.emplace_back();
    rank.rank = Number(entry, "rank");
    rank.node = Number(entry, "node");
    rank.pid = Number(entry, "pid");
    rank.command = Text(entry, "command");
    rank.note = Text(entry, "note");
    auto threads = entry.find("threads");
    if (threads == entry.end() || !threads->is_array()) continue;
    for (const Json& item : *threads) {
      if (!item.is_object() || rank.threads.size() >= 2 * kMaxStackThreads) continue;
      rank.threads.push_back({Number(item, "tid"), Text(item, "name"), Text(item, "state"), Text(item, "wchan"),
                              Text(item, "syscall"), Texts(item, "python"), Text(item, "script"), Texts(item, "native"),
                              Text(item, "note")});
    }
  }
  return stacks;
}

MergedStacks MergeStacks(std::vector<RankStacks> stacks, const std::set<int>& origins) {
  std::sort(stacks.begin(), stacks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  std::map<std::string, Group> main_groups;
  std::map<std::string, Group> other_groups;
  auto add = [](Group& group, const RankStacks& rank, const ThreadStack* thread) {
    group.ranks.insert(rank.rank);
    ++group.threads;
    if (thread != nullptr) group.names.insert(thread->name);
    if (group.rank == nullptr) {
      group.rank = &rank;
      group.thread = thread;
    }
  };
  std::set<int> all;
  for (const RankStacks& rank : stacks) {
    all.insert(rank.rank);
    const ThreadStack* main_thread = rank.threads.empty() ? nullptr : &rank.threads[0];
    add(main_groups[main_thread == nullptr ? rank.note : Key(*main_thread)], rank, main_thread);
    for (size_t i = 1; i < rank.threads.size(); ++i) add(other_groups[Key(rank.threads[i])], rank, &rank.threads[i]);
  }

  MergedStacks merged;
  const std::vector<const Group*> main_order = InOrder(main_groups, origins);
  const std::vector<const Group*> other_order = InOrder(other_groups, origins);
  merged.title = absl::StrCat("stacks of ", all.size(), all.size() == 1 ? " rank in " : " ranks in ", main_order.size(),
                              main_order.size() == 1 ? " group" : " groups");
  if (main_order.size() > 1) {
    const Group& rarest = *main_order[0];
    std::string list = RankList(rarest.ranks);
    if (list.size() > 120) list = absl::StrCat(rarest.ranks.size(), " ranks");
    absl::StrAppend(&merged.title, "; ", list, " in ",
                    rarest.thread == nullptr ? "no process" : Clean(Where(*rarest.thread)));
  }
  merged.full = merged.title + "\nmain threads, rarest first:\n";
  merged.log = merged.full;
  // Room for the line that lists what was left out.
  size_t left_out = 0;
  auto append_to_log = [&](const std::string& text) {
    if (left_out == 0 && merged.log.size() + text.size() + 100 <= kMaxLogStackBytes) {
      merged.log += text;
    } else {
      ++left_out;
    }
  };
  for (const Group* group : main_order) {
    merged.full += MainText(*group, all.size(), kMaxFrames);
    append_to_log(MainText(*group, all.size(), kLogNativeFrames));
  }
  if (!other_order.empty()) {
    merged.full += "other threads, rarest first:\n";
    append_to_log("other threads, rarest first:\n");
  }
  for (const Group* group : other_order) {
    merged.full += ThreadText(*group, kMaxFrames);
    append_to_log(ThreadText(*group, kLogNativeFrames));
  }
  if (left_out > 0) absl::StrAppend(&merged.log, "  and ", left_out, " more groups\n");
  return merged;
}

}  // namespace taskd::stacks
