#include "handle_map.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace taskd::worker {
namespace {

TEST(HandleMapTest, InsertFindTake) {
  static HandleMap<64> map;
  EXPECT_EQ(map.Find(7), 0u);
  EXPECT_EQ(map.Take(7), 0u);
  EXPECT_TRUE(map.Insert(7, 70));
  EXPECT_TRUE(map.Insert(8, 80));
  EXPECT_EQ(map.Find(7), 70u);
  EXPECT_EQ(map.Take(7), 70u);
  EXPECT_EQ(map.Find(7), 0u);
  EXPECT_EQ(map.Find(8), 80u);
  EXPECT_TRUE(map.Insert(7, 71));
  EXPECT_EQ(map.Find(7), 71u);
}

TEST(HandleMapTest, FullIsSaidAndWhatIsThereStays) {
  static HandleMap<16> map;
  for (uint64_t key = 1; key <= 16; ++key) EXPECT_TRUE(map.Insert(key, key * 10));
  EXPECT_FALSE(map.Insert(17, 170));
  for (uint64_t key = 1; key <= 16; ++key) EXPECT_EQ(map.Find(key), key * 10);
  EXPECT_EQ(map.Take(5), 50u);
  EXPECT_TRUE(map.Insert(17, 170));
  EXPECT_EQ(map.Find(17), 170u);
}

TEST(HandleMapTest, AddressesLieApart) {
  static HandleMap<1024> map;
  static char objects[512 * 64];
  for (int i = 0; i < 512; ++i) {
    EXPECT_TRUE(map.Insert(reinterpret_cast<uint64_t>(&objects[i * 64]), static_cast<uint64_t>(i) + 1)) << i;
  }
  for (int i = 0; i < 512; ++i) {
    EXPECT_EQ(map.Find(reinterpret_cast<uint64_t>(&objects[i * 64])), static_cast<uint64_t>(i) + 1);
  }
}

TEST(HandleMapTest, Threads) {
  static HandleMap<64> map;
  std::vector<std::thread> threads;
  for (uint64_t thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([thread] {
      for (uint64_t i = 0; i < 20'000; ++i) {
        const uint64_t key = i * 8 + thread;
        ASSERT_TRUE(map.Insert(key, key));
        ASSERT_EQ(map.Take(key), key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace taskd::worker
