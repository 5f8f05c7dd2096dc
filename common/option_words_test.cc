#include "common/option_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;
using Kind = OptionSpec::Kind;

constexpr OptionSpec kOptions[] = {{"wait-s"},
                                   {"wait-all"},
                                   {"module", Kind::kFlag, 'm'},
                                   {"tee", Kind::kValue, 't'},
                                   {"tiers", Kind::kSwitch},
                                   {"mode", Kind::kValue, 0, /*from_environment=*/false}};
constexpr std::string_view kPrefixes[] = {"PET_", "TASKD_"};

// "1 --x v others"
absl::Status Refuse(const OptionProblem& problem) {
  return absl::InvalidArgumentError(absl::StrCat(static_cast<int>(problem.kind), " ", problem.label, " ", problem.value,
                                                 " ", absl::StrJoin(problem.others, ",")));
}

constexpr OptionTable kTable = {kOptions, kPrefixes, /*abbreviations=*/false, /*empty_values=*/false, Refuse};
constexpr OptionTable kLoose = {kOptions, kPrefixes, /*abbreviations=*/true, /*empty_values=*/true, Refuse};

std::string Error(const OptionTable& table, const std::vector<std::string>& words,
                  const Environment& environment = {}) {
  OptionWords read(table, words);
  absl::Status status = read.Read();
  if (status.ok()) status = read.ReadEnvironment(environment);
  return std::string(status.message());
}

TEST(NearestWordTest, IsOneThatASlipMayHaveMeant) {
  const std::vector<std::string> words = {"run", "status", "switch", "--watch"};
  EXPECT_EQ(NearestWord("swich", words), "switch");
  EXPECT_EQ(NearestWord("--wacth", words), "--watch");
  EXPECT_EQ(NearestWord("runs", words), "run");
  EXPECT_EQ(NearestWord("st", words), "");
  EXPECT_EQ(NearestWord("", words), "");
  EXPECT_EQ(NearestWord("run", {}), "");
  EXPECT_EQ(NearestWord("comm", std::vector<std::string>{"step", "communication"}), "communication");
  EXPECT_EQ(NearestWord("comm", std::vector<std::string>{"command", "communication"}), "");
}

TEST(OptionWords, Spellings) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--wait-s", "3", "-mt2", "--tiers", "x", "--wait-s"},
                                             {"--wait_s=3", "-m", "-t=2", "--tiers=True", "x", "--wait-s"},
                                             {"--wait-s=1", "--wait-s=3", "--module", "-t", "2", "--tiers", "x"}}) {
    OptionWords read(kTable, words);
    ASSERT_TRUE(read.Read().ok()) << words[0];
    EXPECT_EQ(read.Value("wait-s"), "3");
    EXPECT_TRUE(read.Flag("module"));
    EXPECT_EQ(read.Value("tee"), "2");
    EXPECT_TRUE(read.Flag("tiers"));
    EXPECT_FALSE(read.separated());
    EXPECT_EQ(read.Find("mode"), nullptr);
  }
}

TEST(OptionWords, WhereTheyEnd) {
  const std::vector<std::string> words = {"--tiers", "false", "--", "-m"};
  OptionWords read(kTable, words);
  ASSERT_TRUE(read.Read().ok());
  EXPECT_FALSE(read.Flag("tiers"));
  EXPECT_TRUE(read.separated());
  EXPECT_THAT(read.rest(), ElementsAre("-m"));

  const std::vector<std::string> help = {"-m", "--help", "--nonsense"};
  OptionWords asked(kTable, help);
  EXPECT_TRUE(asked.Read().ok());
  EXPECT_TRUE(asked.help());
}

TEST(OptionWords, Variables) {
  const std::vector<std::string> words = {"--tee=1"};
  OptionWords read(kTable, words);
  ASSERT_TRUE(read.Read().ok());
  ASSERT_TRUE(read.ReadEnvironment({{"TASKD_TEE", "2"},
                                    {"PET_WAIT_S", ""},
                                    {"TASKD_WAIT_S", "4"},
                                    {"PET_MODULE", "True"},
                                    {"TASKD_TIERS", "0"},
                                    {"TASKD_MODE", "x"}})
                  .ok());
  EXPECT_EQ(read.Value("tee"), "1");
  EXPECT_TRUE(read.Find("tee")->on_command_line);
  EXPECT_EQ(read.Find("wait-s")->label, "TASKD_WAIT_S");
  EXPECT_EQ(read.Value("wait-s"), "4");
  EXPECT_TRUE(read.Flag("module"));
  EXPECT_EQ(read.Value("tiers"), "false");
  EXPECT_EQ(read.Find("mode"), nullptr);
}

TEST(OptionWords, Problems) {
  EXPECT_EQ(Error(kTable, {"--wait", "3"}), "0 --wait  --wait-s");
  EXPECT_EQ(Error(kTable, {"-x"}), "0 -x  ");
  EXPECT_EQ(Error(kTable, {std::string("-\0", 2)}).substr(0, 3), "0 -");
  EXPECT_EQ(Error(kTable, {"--help=1"}), "0 --help  ");
  EXPECT_EQ(Error(kTable, {"--teee=1"}), "0 --teee  --tee");
  EXPECT_EQ(Error(kTable, {"--module=1"}), "2 --module 1 ");
  EXPECT_EQ(Error(kTable, {"--wait_s"}), "3 --wait_s  ");
  EXPECT_EQ(Error(kTable, {"--wait-s", "--module"}), "3 --wait-s --module ");
  EXPECT_EQ(Error(kTable, {"--wait-s", "-1"}), "");
  EXPECT_EQ(Error(kTable, {"--wait-s="}), "4 --wait-s  ");
  EXPECT_EQ(Error(kTable, {"--tiers=x"}), "5 --tiers x true or false");
  EXPECT_EQ(Error(kTable, {}, {{"PET_MODULE", "x"}}), "5 PET_MODULE x 1, 0, true or false");

  EXPECT_EQ(Error(kLoose, {"--wait", "3"}), "1 --wait  --wait-s,--wait-all");
  EXPECT_EQ(Error(kLoose, {"--wait-a", "3"}), "");
  EXPECT_EQ(Error(kLoose, {"--wait-s="}), "");
}

}  // namespace
}  // namespace taskd
