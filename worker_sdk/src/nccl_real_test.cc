// What nccl_calls.h says of NCCL, against NCCL's own header and library. No GPU is needed: what is called is refused.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>
#include <type_traits>

#include "nccl_calls.h"
#include "nccl_mark_name.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

using testing::Record;
using testing::SegmentView;

// Passed in the same way: a pointer, a number of the same size, or a struct of the same size.
template <typename Theirs, typename Ours>
constexpr bool kAlike =
    sizeof(Theirs) == sizeof(Ours) && std::is_pointer_v<Theirs> == std::is_pointer_v<Ours>&& std::is_class_v<Theirs> ==
                                          std::is_class_v<Ours>;
template <typename Theirs, typename Ours>
constexpr bool kSameCall = false;
template <typename Result, typename... Theirs, typename... Ours>
constexpr bool kSameCall<Result(Theirs...), int(Ours...)> = (kAlike<Result, int> && ... && kAlike<Theirs, Ours>);

#define TASKD_SAME(name, parameters, ...) static_assert(kSameCall<decltype(::nccl##name), int parameters>, #name);
TASKD_NCCL_OPERATIONS(TASKD_SAME)
TASKD_NCCL_FRAME(TASKD_SAME)
static_assert(ncclSuccess == static_cast<int>(nccl::kCallSuccess));
static_assert(ncclInvalidUsage == static_cast<int>(nccl::kCallInvalidUsage));
static_assert(ncclInProgress == static_cast<int>(nccl::kCallInProgress));

TEST(NcclRealTest, TypesHaveTheseNumbers) {
  ASSERT_EQ(std::size(nccl::kTypeNames), static_cast<size_t>(ncclNumTypes));
#define TASKD_TYPE(name) EXPECT_STREQ(nccl::kTypeNames[name].nccl, #name)
  TASKD_TYPE(ncclInt8);
  TASKD_TYPE(ncclUint8);
  TASKD_TYPE(ncclInt32);
  TASKD_TYPE(ncclUint32);
  TASKD_TYPE(ncclInt64);
  TASKD_TYPE(ncclUint64);
  TASKD_TYPE(ncclFloat16);
  TASKD_TYPE(ncclFloat32);
  TASKD_TYPE(ncclFloat64);
  TASKD_TYPE(ncclBfloat16);
  TASKD_TYPE(ncclFloat8e4m3);
  TASKD_TYPE(ncclFloat8e5m2);
}

TEST(NcclRealTest, TheLibraryHasTheFunctionsWithoutVersions) {
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << dlerror();
#define TASKD_THERE(name, ...) EXPECT_NE(dlsym(library, "nccl" #name), nullptr) << #name;
  TASKD_NCCL_OPERATIONS(TASKD_THERE)
  TASKD_NCCL_FRAME(TASKD_THERE)
}

// pncclX is NCCL's own, whatever stands in front of ncclX.
FRESH_TEST(NcclRealTest, RefusedAsByNcclItself) {
  taskd_mark("first");
  SegmentView().SetGate(ring::kGateCommunication);
  EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 3, ncclFloat16, ncclSum, nullptr, nullptr),
            pncclAllReduce(nullptr, nullptr, 3, ncclFloat16, ncclSum, nullptr, nullptr));
  EXPECT_EQ(ncclSend(nullptr, 4, ncclFloat32, 2, nullptr, nullptr),
            pncclSend(nullptr, 4, ncclFloat32, 2, nullptr, nullptr));
  EXPECT_EQ(ncclBcast(nullptr, 5, ncclInt8, 0, nullptr, nullptr),
            pncclBcast(nullptr, 5, ncclInt8, 0, nullptr, nullptr));
  EXPECT_EQ(ncclGroupEnd(), pncclGroupEnd());
  ncclComm_t comm = nullptr;
  const ncclUniqueId id = {};
  EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), pncclCommInitRank(&comm, 0, id, 0));
  EXPECT_EQ(ncclCommSplit(nullptr, 0, 0, &comm, nullptr), pncclCommSplit(nullptr, 0, 0, &comm, nullptr));
  EXPECT_EQ(ncclCommDestroy(nullptr), pncclCommDestroy(nullptr));
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  std::string said;
  for (const Record& record : SegmentView().Records()) {
    if (record.type != ring::kRecordRangeStart) continue;
    const size_t begin = record.name.find("nccl", record.name.find("opName"));
    said += record.name.substr(begin, record.name.find('"', begin) - begin) + " ";
  }
  // pncclBcast ends in a call of ncclBroadcast where NCCL was built so.
  EXPECT_TRUE(said == "ncclAllReduce ncclSend ncclBroadcast " ||
              said == "ncclAllReduce ncclSend ncclBroadcast ncclBroadcast ")
      << said;
}

}  // namespace
}  // namespace taskd::worker
