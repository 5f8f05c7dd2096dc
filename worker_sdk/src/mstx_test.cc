// The mstx interface by symbol and by injection, domains, and the legacy C names.
#include <cstdlib>
#include <string>

#include "legacy_api.h"
#include "mstx_api.h"
#include "taskd/ring.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::Record;
using testing::SegmentView;

std::string DomainName(SegmentView& segment, const Record& record) {
  return segment.header().domain_names[record.domain];
}

FRESH_TEST(MstxTest, DomainsBeforeAndAfterTheSegment) {
  taskd_domain* before = mstxDomainCreateA("before");
  mstxDomainMarkA(before, "one", nullptr);
  SegmentView segment;
  EXPECT_EQ(DomainName(segment, segment.Last()), "before");
  taskd_domain* after = mstxDomainCreateA("after");
  mstxDomainMarkA(after, "two", nullptr);
  EXPECT_EQ(DomainName(segment, segment.Last()), "after");
  EXPECT_EQ(mstxDomainCreateA("before"), before);
  EXPECT_EQ(mstxDomainCreateA("after"), after);
  EXPECT_NE(before, after);
  mstxDomainDestroy(after);
  const uint64_t id = mstxDomainRangeStartA(after, "three", nullptr);
  EXPECT_EQ(segment.Last().id, id);
  EXPECT_EQ(DomainName(segment, segment.Last()), "after");
  EXPECT_EQ(segment.header().domains.load(), 4u);
}

FRESH_TEST(MstxTest, KnownDomainsHaveFixedNumbers) {
  mstxDomainMarkA(mstxDomainCreateA("communication"), "{}", nullptr);
  SegmentView segment;
  EXPECT_EQ(segment.Last().domain, ring::kDomainCommunication);
  mstxDomainMarkA(mstxDomainCreateA("default"), "x", nullptr);
  EXPECT_EQ(segment.Last().domain, ring::kDomainDefault);
  EXPECT_EQ(segment.header().domains.load(), 2u);
  // A prefix is another domain.
  mstxDomainMarkA(mstxDomainCreateA("comm"), "x", nullptr);
  EXPECT_EQ(DomainName(segment, segment.Last()), "comm");
  EXPECT_EQ(segment.Last().kind, ring::kKindOther);
}

FRESH_TEST(MstxTest, StrangeDomainNamesAndHandles) {
  mstxMarkA("first", nullptr);
  SegmentView segment;
  for (const char* name : {static_cast<const char*>(nullptr), ""}) {
    mstxDomainMarkA(mstxDomainCreateA(name), "x", nullptr);
    EXPECT_EQ(segment.Last().domain, ring::kDomainDefault);
  }
  const std::string long_name(1000, 'd');
  taskd_domain* long_domain = mstxDomainCreateA(long_name.c_str());
  mstxDomainMarkA(long_domain, "x", nullptr);
  EXPECT_EQ(DomainName(segment, segment.Last()), long_name.substr(0, ring::kDomainNameBytes - 1));
  EXPECT_EQ(mstxDomainCreateA(long_name.c_str()), long_domain);
  const uint32_t domains = segment.header().domains.load();
  // Never dereferenced, also where it points into our own table behind the last domain.
  for (uintptr_t foreign : {uintptr_t{0}, uintptr_t{1}, ~uintptr_t{0}, reinterpret_cast<uintptr_t>(long_domain) + 1,
                            reinterpret_cast<uintptr_t>(long_domain) + 10'000}) {
    mstxDomainMarkA(reinterpret_cast<taskd_domain*>(foreign), "foreign", nullptr);
    EXPECT_EQ(segment.Last().domain, ring::kDomainDefault);
    EXPECT_EQ(segment.Last().name, "foreign");
  }
  EXPECT_EQ(segment.header().domains.load(), domains);
}

FRESH_TEST(MstxTest, MoreDomainsThanTheTableHolds) {
  mstxMarkA("first", nullptr);
  SegmentView segment;
  for (uint32_t i = 0; i < 2 * ring::kMaxDomains; ++i) {
    const std::string name = "domain " + std::to_string(i);
    mstxDomainMarkA(mstxDomainCreateA(name.c_str()), "x", nullptr);
    EXPECT_EQ(DomainName(segment, segment.Last()), i < ring::kMaxDomains - 2 ? name : "default");
  }
  EXPECT_EQ(segment.header().domains.load(), ring::kMaxDomains);
}

FRESH_TEST(MstxTest, ToolId) {
  uint64_t id = 0;
  EXPECT_EQ(mstxGetToolId(&id), 0);
  EXPECT_EQ(id, 0x5444u);
  EXPECT_NE(mstxGetToolId(nullptr), 0);
  EXPECT_TRUE(testing::SegmentDescriptors().empty());
}

// What mstx has: tables whose entries point at its function slots. Slot 0 of each is not a function.
MstxFunction g_core[5];
MstxFunction g_domain[6];
MstxFunction* g_core_table[5];
MstxFunction* g_domain_table[6];
unsigned g_core_entries;
unsigned g_domain_entries;

int GetModuleTable(int module, MstxFunctionTable* table, unsigned* entries) {
  if (module == 1 && g_core_entries != 0) {
    *table = g_core_table;
    *entries = g_core_entries;
    return 0;
  }
  if (module == 2 && g_domain_entries != 0) {
    *table = g_domain_table;
    *entries = g_domain_entries;
    return 0;
  }
  return 1;
}

void OfferTables(unsigned core_entries, unsigned domain_entries) {
  for (int i = 0; i < 5; ++i) g_core_table[i] = &g_core[i];
  for (int i = 0; i < 6; ++i) g_domain_table[i] = &g_domain[i];
  g_core_entries = core_entries;
  g_domain_entries = domain_entries;
}

FRESH_TEST(MstxInjectionTest, FillsBothTables) {
  OfferTables(5, 6);
  ASSERT_EQ(InitInjectionMstx(GetModuleTable), 0);
  EXPECT_TRUE(testing::SegmentDescriptors().empty());
  EXPECT_EQ(g_core[0], nullptr);
  EXPECT_EQ(g_domain[0], nullptr);
  reinterpret_cast<decltype(&mstxMarkA)>(g_core[1])("a mark", nullptr);
  SegmentView segment;
  EXPECT_EQ(segment.Last().name, "a mark");
  uint64_t id = reinterpret_cast<decltype(&mstxRangeStartA)>(g_core[2])("a range", nullptr);
  EXPECT_EQ(segment.Last().id, id);
  reinterpret_cast<decltype(&mstxRangeEnd)>(g_core[3])(id);
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
  EXPECT_EQ(reinterpret_cast<decltype(&mstxGetToolId)>(g_core[4])(&id), 0);
  taskd_domain* domain = reinterpret_cast<decltype(&mstxDomainCreateA)>(g_domain[1])("injected");
  reinterpret_cast<decltype(&mstxDomainMarkA)>(g_domain[3])(domain, "in it", nullptr);
  EXPECT_EQ(DomainName(segment, segment.Last()), "injected");
  id = reinterpret_cast<decltype(&mstxDomainRangeStartA)>(g_domain[4])(domain, "range", &id);
  EXPECT_EQ(segment.Last().id, id);
  reinterpret_cast<decltype(&mstxDomainRangeEnd)>(g_domain[5])(domain, id);
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
  reinterpret_cast<decltype(&mstxDomainDestroy)>(g_domain[2])(domain);
}

FRESH_TEST(MstxInjectionTest, OldMstxWithSmallerTables) {
  OfferTables(3, 0);
  ASSERT_EQ(InitInjectionMstx(GetModuleTable), 0);
  EXPECT_NE(g_core[2], nullptr);
  EXPECT_EQ(g_core[3], nullptr);
  EXPECT_EQ(g_domain[1], nullptr);
}

FRESH_TEST(MstxInjectionTest, EntriesWithoutASlotAreLeftOut) {
  OfferTables(5, 6);
  g_core_table[2] = nullptr;
  ASSERT_EQ(InitInjectionMstx(GetModuleTable), 0);
  EXPECT_NE(g_core[1], nullptr);
  EXPECT_EQ(g_core[2], nullptr);
  EXPECT_NE(g_core[3], nullptr);
}

FRESH_TEST(MstxInjectionTest, NothingToFill) {
  EXPECT_EQ(InitInjectionMstx(nullptr), 1);
  OfferTables(0, 6);
  EXPECT_EQ(InitInjectionMstx(GetModuleTable), 1);
}

FRESH_TEST(LegacyTest, InitStartDestroy) {
  EXPECT_EQ(StartMonitorClient(), -1);
  EXPECT_EQ(InitWorker(-1, 0, 5000), -1);
  EXPECT_EQ(InitWorker(0, 0, -1), -1);
  EXPECT_EQ(InitWorker(intptr_t{1} << 40, 0, 5000), -1);
  EXPECT_EQ(InitWorker(7, 1, 5000), 0);
  EXPECT_EQ(StartMonitorClient(), 0);
  ::testing::internal::CaptureStderr();
  RegisterSwitchCallback(1);
  RegisterStressTestCallback(2);
  RegisterBackendCallback(3);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("taskd: RegisterSwitchCallback: "), std::string::npos) << said;
  EXPECT_NE(said.find("taskd: RegisterStressTestCallback: "), std::string::npos) << said;
  taskd_mark("recorded");
  SegmentView segment;
  EXPECT_EQ(segment.header().rank.load(), 7);
  EXPECT_EQ(segment.Last().name, "recorded");
  AtExitAction();
  taskd_mark("not recorded");
  EXPECT_EQ(segment.Last().name, "recorded");
  EXPECT_EQ(StartMonitorClient(), -1);
  EXPECT_EQ(InitWorker(8, 1, 5000), 0);
  DestroyTaskdWorker();
  taskd_mark("not recorded");
  EXPECT_EQ(segment.Last().name, "recorded");
}

// contract: §6.3, what each gives where it failed; at once, also those that wait in upstream's library.
FRESH_TEST(LegacyTest, WhatIsNotHereSaysSo) {
  EXPECT_EQ(InitTaskdManager("{}"), 1);
  EXPECT_EQ(StartTaskdManager(), 1);
  EXPECT_EQ(InitTaskdProxy("{}"), 1);
  DestroyTaskdProxy();
  EXPECT_EQ(CreateTaskdLog("agent-0.log"), 0u);
  EXPECT_EQ(InitNetwork("{}", 0), 0u);
  EXPECT_EQ(SyncSendMessage(0, "{}"), -1);
  EXPECT_EQ(AsyncSendMessage(0, nullptr), -1);
  EXPECT_EQ(ReceiveMessageC(0), nullptr);
  DestroyNetTool(0);
  EXPECT_EQ(SendMessageToBackend("{}"), -1);
  FreeCMemory(nullptr);
  FreeCMemory(malloc(1));
}

}  // namespace
}  // namespace taskd::worker
