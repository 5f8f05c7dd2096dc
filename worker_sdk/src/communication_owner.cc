#include "communication_owner.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "primary.h"
#include "recorder.h"

namespace taskd::worker {
namespace {

constexpr int kFirstVersionWithPlugins = 22300;
constexpr char kNvtxDomainOfNccl[] = "NCCL";

enum Plugin : int {
  kUnknown,  // NCCL_PROFILER_PLUGIN has not been read
  kOther,    // not named, or another one
  kKeptOut,  // the user wants no plugin, and nothing of us in NCCL
  kNamed,    // ours
  kSilent,   // ours, but NCCL has communicators without it
  kSpeaks,
};
constinit std::atomic<int> g_plugin{kUnknown};

// What this thread is inside of.
constinit thread_local bool t_framework = false;
constinit thread_local bool t_nccl_call = false;

bool EndsWith(const char* text, const char* suffix) {
  const size_t bytes = strlen(text);
  const size_t suffix_bytes = strlen(suffix);
  return bytes >= suffix_bytes && strcmp(text + bytes - suffix_bytes, suffix) == 0;
}

// NCCL takes the name, or a path; libnccl-profiler-taskd.so is what both lead to.
Plugin ReadVariable() {
  const char* name = getenv("NCCL_PROFILER_PLUGIN");
  if (name == nullptr) return kOther;
  if (*name == '\0' || strcmp(name, "none") == 0) return kKeptOut;
  return EndsWith(name, "taskd") || EndsWith(name, "libnccl-profiler-taskd.so") ? kNamed : kOther;
}

int PluginNow() {
  int plugin = g_plugin.load(std::memory_order_relaxed);
  if (plugin != kUnknown) return plugin;
  // If it changed meanwhile, to what it changed.
  const int read = ReadVariable();
  return g_plugin.compare_exchange_strong(plugin, read, std::memory_order_relaxed) ? read : plugin;
}

}  // namespace

bool BeginCommunication(CommunicationSource source, int nccl_version) {
  if (const CoreTable* other = OtherPrimary()) {
    return other->communication_begin(static_cast<int>(source), nccl_version) != 0;
  }
  int plugin = PluginNow();
  if (source == CommunicationSource::kFramework) {
    const bool expected = plugin == kNamed && nccl_version >= kFirstVersionWithPlugins;
    if (nccl_version != 0 && (plugin == kSpeaks || expected)) return false;
    t_framework = true;
    return true;
  }
  if (plugin == kSpeaks || plugin == kKeptOut || t_framework || t_nccl_call) return false;
  // There is a communicator, and NCCL has not asked the plugin for it.
  if (plugin == kNamed) g_plugin.compare_exchange_strong(plugin, kSilent, std::memory_order_relaxed);
  t_nccl_call = true;
  return true;
}

void EndCommunication(CommunicationSource source) {
  if (const CoreTable* other = OtherPrimary()) return other->communication_end(static_cast<int>(source));
  (source == CommunicationSource::kFramework ? t_framework : t_nccl_call) = false;
}

void NcclPluginSpeaks() {
  if (const CoreTable* other = OtherPrimary()) return other->nccl_plugin_speaks();
  g_plugin.store(kSpeaks, std::memory_order_relaxed);
}

bool IsPartOfCommunication(const char* domain) {
  return t_framework || t_nccl_call ||
         (g_plugin.load(std::memory_order_relaxed) == kSpeaks && strcmp(domain, kNvtxDomainOfNccl) == 0);
}

}  // namespace taskd::worker

TASKD_EXPORT int taskd_communication_begin(int nccl_version) {
  using taskd::worker::CommunicationSource;
  return taskd::worker::BeginCommunication(CommunicationSource::kFramework, nccl_version) ? 1 : 0;
}

TASKD_EXPORT void taskd_communication_end() {
  taskd::worker::EndCommunication(taskd::worker::CommunicationSource::kFramework);
}

TASKD_EXPORT void taskd_nccl_plugin_speaks() { taskd::worker::NcclPluginSpeaks(); }
