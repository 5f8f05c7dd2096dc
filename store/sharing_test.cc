#include "store/sharing.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class SharingTest : public ::testing::Test {
 protected:
  struct Revoked {
    uint64_t stream;
    uint64_t batch;
    std::vector<std::string> keys;
  };
  std::vector<Revoked> sent_;
  std::vector<std::string> ran_;
  Sharing sharing_{[this](uint64_t stream, uint64_t batch, const std::vector<std::string>& keys) {
    sent_.push_back({stream, batch, keys});
  }};

  Sharing::Continuation Run(const std::string& name) {
    return [this, name] { ran_.push_back(name); };
  }
};

TEST_F(SharingTest, NobodyHoldsAKeyThatWasNeverGiven) {
  EXPECT_TRUE(sharing_.Revoke({"k"}, 0, Run("then")));
  EXPECT_THAT(sent_, IsEmpty());
  EXPECT_FALSE(sharing_.IsLocked("k"));
}

TEST_F(SharingTest, WriterRunsBeforeThoseWhoWaitedOnceEveryHolderHasAnswered) {
  sharing_.Grant("k", 7);
  sharing_.Grant("k", 8);
  ASSERT_FALSE(sharing_.Revoke({"k"}, 0, Run("writer")));
  EXPECT_TRUE(sharing_.WhenUnlocked({"k"}, Run("reader")));
  ASSERT_EQ(sent_.size(), 2u);
  sharing_.Acknowledge(7, sent_[0].batch);
  sharing_.Acknowledge(7, sent_[0].batch);  // a repeated acknowledgement does not count for another holder
  EXPECT_TRUE(sharing_.IsLocked("k"));
  EXPECT_THAT(ran_, IsEmpty());
  sharing_.Acknowledge(8, sent_[0].batch);
  EXPECT_FALSE(sharing_.IsLocked("k"));
  EXPECT_THAT(ran_, ElementsAre("writer", "reader"));
  EXPECT_TRUE(sharing_.Revoke({"k"}, 0, Run("again")));
}

TEST_F(SharingTest, WhoWaitsForManyKeysIsRunOnce) {
  for (const char* key : {"a", "b"}) {
    sharing_.Grant(key, 7);
    ASSERT_FALSE(sharing_.Revoke({key}, 0, Run(key)));
  }
  EXPECT_TRUE(sharing_.WhenUnlocked({"free", "b", "a", "b"}, Run("waiter")));
  EXPECT_FALSE(sharing_.WhenUnlocked({"free"}, Run("never")));
  sharing_.Acknowledge(7, sent_[1].batch);
  EXPECT_THAT(ran_, ElementsAre("b"));
  sharing_.Acknowledge(7, sent_[0].batch);
  EXPECT_THAT(ran_, ElementsAre("b", "a", "waiter"));
}

TEST_F(SharingTest, KeysOfThoseWhoHaveGoneAreForgottenInTheEnd) {
  sharing_.Grant("kept", 1);
  const size_t before = sharing_.bytes();
  for (uint64_t stream = 2; stream < 10'000; ++stream) {
    sharing_.Grant("k" + std::to_string(stream), stream);
    sharing_.Grant("kept", stream);
    sharing_.DropStream(stream);
    EXPECT_LT(sharing_.bytes(), before + 256 * 256) << stream;
  }
  ASSERT_FALSE(sharing_.Revoke({"kept"}, 0, Run("writer")));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].stream, 1u);
}

TEST_F(SharingTest, WhoWritesItselfIsNotAsked) {
  sharing_.Grant("k", 7);
  EXPECT_TRUE(sharing_.Revoke({"k"}, 7, Run("then")));
  EXPECT_FALSE(sharing_.HasCopies("k"));
}

TEST_F(SharingTest, StreamThatIsGoneHasAnswered) {
  sharing_.Grant("a", 7);
  sharing_.Grant("b", 7);
  ASSERT_FALSE(sharing_.Revoke({"a"}, 0, Run("writer")));
  sharing_.DropStream(7);
  EXPECT_THAT(ran_, ElementsAre("writer"));
  EXPECT_FALSE(sharing_.HasCopies("b"));
}

TEST_F(SharingTest, KeysOfOneWriteAreFreeTogether) {
  sharing_.Grant("a", 7);
  sharing_.Grant("b", 8);
  ASSERT_FALSE(sharing_.Revoke({"a", "b", "c"}, 0, Run("writer")));
  std::vector<std::pair<uint64_t, std::vector<std::string>>> asked;
  for (const Revoked& revoked : sent_) asked.emplace_back(revoked.stream, revoked.keys);
  EXPECT_THAT(asked, UnorderedElementsAre(std::pair(uint64_t{7}, std::vector<std::string>{"a"}),
                                          std::pair(uint64_t{8}, std::vector<std::string>{"b"})));
  sharing_.Acknowledge(7, sent_[0].batch);
  EXPECT_TRUE(sharing_.IsLocked("a"));
  EXPECT_TRUE(sharing_.IsLocked("c"));
  sharing_.Acknowledge(8, sent_[0].batch);
  EXPECT_FALSE(sharing_.IsLocked("a"));
  EXPECT_THAT(ran_, ElementsAre("writer"));
}

TEST_F(SharingTest, ThousandsOfHoldersAndReusedPlaces) {
  for (uint64_t stream = 1; stream <= 3000; ++stream) sharing_.Grant("k", stream);
  for (uint64_t stream = 1; stream <= 3000; stream += 2) sharing_.DropStream(stream);
  sharing_.Grant("other", 9001);  // takes a free slot, without the copies of its predecessor
  ASSERT_FALSE(sharing_.Revoke({"k"}, 0, Run("writer")));
  EXPECT_EQ(sent_.size(), 1500u);
  for (const Revoked& revoked : sent_) EXPECT_EQ(revoked.stream % 2, 0u);
}

TEST_F(SharingTest, TellsWhoIsLate) {
  sharing_.Grant("k", 7);
  sharing_.set_now_ns(100);
  ASSERT_FALSE(sharing_.Revoke({"k"}, 0, Run("writer")));
  EXPECT_THAT(sharing_.Late(100), IsEmpty());
  EXPECT_THAT(sharing_.Late(101), ElementsAre(7));
}

}  // namespace
}  // namespace taskd::store
