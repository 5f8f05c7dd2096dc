#include "diagnosis/text.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

// Ranks 0 and 1 on node 0; rank 2 somewhere.
Layout ThreeRanks() {
  Layout layout;
  layout.SetPlace(0, {0, "a", 0});
  layout.SetPlace(1, {0, "a", 1});
  layout.SetPlace(2, {-1, "", -1});
  layout.Rebuild();
  return layout;
}

Verdict Accused(Scope scope, std::vector<int> ids, Cause cause, double value, double reference, int peers) {
  Verdict verdict;
  verdict.scope = scope;
  verdict.ids = std::move(ids);
  verdict.cause = cause;
  verdict.since_step = 50;
  verdict.last_step = 90;
  Evidence evidence;
  evidence.value = value;
  evidence.reference = reference;
  evidence.peers = peers;
  verdict.evidence.push_back(evidence);
  return verdict;
}

TEST(WriteSentence, NamesTheSubject) {
  const Layout layout = ThreeRanks();
  Verdict link = Accused(Scope::kLink, {}, Cause::kPpLink, 8, 2, 0);
  link.links = {{0, 2}};
  const struct {
    Verdict verdict;
    std::string text;
  } cases[] = {
      {Accused(Scope::kRank, {1}, Cause::kUnknown, 150, 100, 3),
       "rank 1 (node 0) takes 50 % longer than its 3 peers since step 50"},
      {Accused(Scope::kRank, {2}, Cause::kUnknown, 150, 100, 1),
       "rank 2 takes 50 % longer than its one peer since step 50"},
      {Accused(Scope::kNode, {4}, Cause::kUnknown, 150, 100, 0), "node 4 takes 50 % longer than before since step 50"},
      {Accused(Scope::kGroup, {0, 1, 2}, Cause::kUnknown, 150, 100, 0),
       "the group of ranks 0-2 takes 50 % longer than before since step 50"},
      {Accused(Scope::kJob, {}, Cause::kUnknown, 150, 100, 0), "the job takes 50 % longer than before since step 50"},
      {link, "the link between rank 0 (node 0) and rank 2 takes 8.0 ms a transfer instead of 2.0 ms since step 50"},
  };
  for (const auto& [verdict, text] : cases) EXPECT_EQ(WriteSentence(verdict, layout), text);
}

TEST(WriteSentence, SaysWhatTheCauseDoes) {
  const Layout layout = ThreeRanks();
  // From twice as long on it is a factor; from 10 ms on there are no decimals.
  const struct {
    Cause cause;
    double value, reference;
    int peers;
    std::string claim;
  } cases[] = {
      {Cause::kCompute, 121, 100, 7, "computes 21 % longer than its 7 peers"},
      {Cause::kCompute, 320, 100, 7, "computes 3.2 times as long as its peers"},
      {Cause::kCompute, 320, 100, 0, "computes 3.2 times as long as before"},
      {Cause::kMemory, 121, 100, 7,
       "computes 21 % longer than its 7 peers, most of all where memory bandwidth counts,"},
      {Cause::kDataloader, 24.4, 4, 7, "waits for its data loader 24 ms a step instead of 4.0 ms"},
      {Cause::kHost, 150, 100, 7, "is held up by its host and takes 50 % longer than its 7 peers"},
      {Cause::kGc, 150, 100, 7,
       "pauses again and again (garbage collection or another stop of its process) and takes 50 % longer than its 7 "
       "peers"},
      {Cause::kCheckpoint, 2000, 1000, 7, "saves checkpoints in 2000 ms instead of 1000 ms"},
      {Cause::kNetwork, 20, 10, 0, "transfers between nodes in 20 ms instead of 10 ms"},
      {Cause::kIntraNodeLink, 2, 1, 0, "transfers inside the node in 2.0 ms instead of 1.0 ms"},
      {Cause::kPpLink, 2, 1, 0, "takes 2.0 ms a transfer instead of 1.0 ms"},
      {Cause::kFabric, 20, 10, 0, "is slowed by traffic between nodes everywhere: 20 ms a transfer instead of 10 ms"},
      {Cause::kConfig, 20, 10, 0, "transfers in 20 ms instead of 10 ms"},
      {Cause::kUnknown, 150, 100, 0, "takes 50 % longer than before"},
  };
  for (const auto& item : cases) {
    const Verdict verdict = Accused(Scope::kNode, {4}, item.cause, item.value, item.reference, item.peers);
    EXPECT_EQ(WriteSentence(verdict, layout), "node 4 " + item.claim + " since step 50");
  }
}

TEST(WriteSentence, SaysThatOthersHaveItsCpu) {
  Verdict verdict = Accused(Scope::kRank, {1}, Cause::kHost, 150, 100, 3);
  Evidence wait;
  wait.feature = "cpu_wait";
  wait.value = 47;
  wait.reference = 2;
  wait.peers = 3;
  verdict.evidence.push_back(wait);
  EXPECT_EQ(
      WriteSentence(verdict, ThreeRanks()),
      "rank 1 (node 0) waits 47 ms a step for a CPU (its peers 2.0 ms), because of other work or a limit, and takes "
      "50 % longer than its 3 peers since step 50");
}

TEST(WriteSentence, TellsWhatAStepWouldTakeWithoutIt) {
  const Layout layout = ThreeRanks();
  Verdict verdict = Accused(Scope::kNode, {4}, Cause::kUnknown, 150, 100, 0);
  verdict.cost_ms_per_step = 20;
  verdict.slowdown = 1.2;
  EXPECT_EQ(
      WriteSentence(verdict, layout),
      "node 4 takes 50 % longer than before since step 50; without it a step would take 100 ms instead of 120 ms");
  verdict.cost_ms_per_step = 0.6;
  verdict.slowdown = 53.2 / 52.6;
  EXPECT_EQ(
      WriteSentence(verdict, layout),
      "node 4 takes 50 % longer than before since step 50; without it a step would take 52.6 ms instead of 53.2 ms")
      << "with digits that tell them apart";
  verdict.slowdown = 1;
  EXPECT_EQ(WriteSentence(verdict, layout), "node 4 takes 50 % longer than before since step 50")
      << "it is not known what a step takes";
}

TEST(WriteSentence, ClaimsNothingWithoutEvidence) {
  Verdict verdict;
  verdict.ids = {2};
  EXPECT_EQ(WriteSentence(verdict, ThreeRanks()), "rank 2 is slow");
}

}  // namespace
}  // namespace taskd::diagnosis
