#include "proxy/shm_segments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
using ::testing::UnorderedElementsAreArray;

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

// Another user may have made any number of files: no call looks at all of them.
TEST_F(ShmSegmentsTest, LooksAtAPartOfTheFolderAtATime) {
  std::vector<std::string> names, found;
  for (int i = 0; i < 10; ++i) names.push_back(Make(mine_));
  SegmentScan scan(SegmentPrefixes(mine_));
  for (bool done = false; !done;) {
    const size_t had = found.size();
    done = scan.Look(3, [&](const std::string& name, const struct stat&) { found.push_back(name); });
    EXPECT_LE(found.size(), had + 3);
    EXPECT_NE(scan.is_under_way(), done);
  }
  EXPECT_THAT(found, UnorderedElementsAreArray(names));
  found.clear();
  EXPECT_TRUE(scan.Look(SegmentScan::kEntriesAtOnce,
                        [&](const std::string& name, const struct stat&) { found.push_back(name); }));
  EXPECT_EQ(found.size(), names.size());
}

// Neither is opened, nor taken for what a proxy left.
TEST_F(ShmSegmentsTest, WhatIsNoSegmentOfThisUserIsNone) {
  const std::string prefix = SegmentPrefixes(mine_)[0];
  names_ = {prefix + "1-link", prefix + "1-pipe", prefix + "1-foreign"};
  ASSERT_EQ(symlink("/dev/zero", SegmentPath(names_[0]).c_str()), 0);
  ASSERT_EQ(mkfifo(SegmentPath(names_[1]).c_str(), 0600), 0);
  if (geteuid() == 0) {
    UniqueFd fd(open(SegmentPath(names_[2]).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    ASSERT_EQ(fchown(fd.get(), 2002, 2002), 0);
  }
  EXPECT_THAT(ListSegments(mine_), IsEmpty());
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
