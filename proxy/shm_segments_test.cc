#include "proxy/shm_segments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_format.h"
#include "common/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "taskd/hello.h"

namespace taskd::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ShmSegmentsTest : public ::testing::Test {
 protected:
  // A file as libtaskd.so names it.
  std::string Make(const std::string& socket) {
    std::string name =
        absl::StrFormat("taskd-%d-%016x-%d-%016x", geteuid(), hello::HashSocketPath(socket.c_str()), getpid(), ++made_);
    UniqueFd fd(open(SegmentPath(name).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    EXPECT_TRUE(fd.valid());
    names_.push_back(name);
    return name;
  }
  ~ShmSegmentsTest() override {
    for (const std::string& name : names_) UnlinkSegment(name);
  }
  static bool Exists(const std::string& name) { return access(SegmentPath(name).c_str(), F_OK) == 0; }

  // Unlike every socket path of a real proxy.
  const std::string mine_ = absl::StrFormat("mine of %d", getpid());
  const std::string other_ = absl::StrFormat("other of %d", getpid());
  int made_ = 0;
  std::vector<std::string> names_;
};

TEST_F(ShmSegmentsTest, ListsThoseOfItsOwnSocket) {
  EXPECT_THAT(ListSegments(mine_), IsEmpty());
  std::string name = Make(mine_);
  Make(other_);
  EXPECT_THAT(ListSegments(mine_), ElementsAre(name));
}

TEST_F(ShmSegmentsTest, NamesAnOpenSegment) {
  std::string name = Make(mine_);
  UniqueFd fd(open(SegmentPath(name).c_str(), O_RDONLY));
  EXPECT_EQ(SegmentNameOf(fd.get()), name);
  UnlinkSegment(name);
  EXPECT_EQ(SegmentNameOf(fd.get()), "");
  UniqueFd memory(memfd_create("taskd", 0));
  EXPECT_EQ(SegmentNameOf(memory.get()), "");
}

TEST_F(ShmSegmentsTest, SweepsStrangersThatAreDeadForLong) {
  std::string stranger = Make(other_);
  std::string own = Make(mine_);
  StrangerSweeper sweeper(mine_);
  sweeper.Sweep(1'000);
  sweeper.Sweep(1'000 + StrangerSweeper::kAbandonedNs - 1);
  EXPECT_TRUE(Exists(stranger));
  sweeper.Sweep(1'000 + StrangerSweeper::kAbandonedNs);
  EXPECT_FALSE(Exists(stranger));
  EXPECT_TRUE(Exists(own));
}

}  // namespace
}  // namespace taskd::proxy
