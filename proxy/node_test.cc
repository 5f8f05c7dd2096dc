#include "proxy/node.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/testing/deadline.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "marks/mark_line.h"
#include "proxy/testing/fake_segment.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
namespace {

using taskd::testing::WaitUntil;
using testing::FakeSegment;
using ::testing::HasSubstr;
using testing::MarkFiles;
using testing::ReadFile;
using testing::TempDir;

constexpr KindMask kStepOnly = MaskOf(SwitchKind::kStep);

hello::Hello HelloOf(int rank, uint32_t limit_mb = 0) {
  hello::Hello hello = {};
  hello.magic = hello::kMagic;
  hello.version = hello::kVersion;
  hello.role = hello::kRoleWorker;
  hello.rank = rank;
  hello.local_rank = rank;
  hello.disk_limit_mb = limit_mb;
  return hello;
}

class NodeTest : public ::testing::Test {
 protected:
  NodeTest()
      : node_({.node_rank = 2, .host = "host \"x\"", .socket = temp_ / "proxy.sock", .disk_limit_mb = 100},
              ProfilingDir(temp_ / "profiling", "task")) {}

  std::string Text(int rank) {
    std::string text;
    const std::string folder = temp_ / ("profiling/task/" + std::to_string(rank));
    for (const std::string& file : MarkFiles(folder)) text += ReadFile(fmt::format("{}/{}", folder, file));
    return text;
  }
  RankReport Report(int rank) {
    for (RankReport& report : node_.Reports()) {
      if (report.rank == rank) return report;
    }
    return {};
  }

  TempDir temp_;
  Node node_;
};

TEST_F(NodeTest, SetsTheGatesOfAllRanksNowAndLater) {
  FakeSegment early;
  FakeSegment late;
  ASSERT_TRUE(node_.Attach(HelloOf(0), early.Fd()).ok());
  EXPECT_EQ(early.header().gate, ring::kGateAllKinds | ring::kGateUndecided) << "nobody has said anything yet";
  node_.SetWanted({kStepOnly, 5});
  EXPECT_EQ(early.header().gate, ring::kGateStep | ring::kGateOther);
  EXPECT_EQ(early.header().undecided_keep, ring::kGateStep | ring::kGateOther | ring::kGateUndecided);
  ASSERT_TRUE(node_.Attach(HelloOf(1), late.Fd()).ok());
  EXPECT_EQ(late.header().gate, ring::kGateStep | ring::kGateOther);
  node_.SetWanted({MaskOf(SwitchKind::kCommunication), 6});
  EXPECT_EQ(late.header().gate, uint32_t{ring::kGateCommunication});
  EXPECT_EQ(early.header().undecided_keep, ring::kGateStep | ring::kGateOther | ring::kGateUndecided)
      << "only the first word decides on the past";
  EXPECT_EQ(Report(0).applied_revision, 6u);
  EXPECT_TRUE(Report(0).attached);
}

// What a rank with MSPTI made of its gate (TaskD contract §4.2). The drain thread does not run: answers do not depend
// on it, which may hang in a file system.
class NodeAnswerTest : public NodeTest {
 protected:
  void SetUp() override {
    MsptiAnswers(0, 0);
    const auto token = node_.Attach(HelloOf(0), fake_.Fd());
    ASSERT_TRUE(token.ok());
    token_ = *token;
  }
  void MsptiAnswers(uint32_t domains, int error) { MsptiAnswers(domains, ring::SourceCodeOf(domains), error); }
  void MsptiAnswers(uint32_t domains, uint32_t code, int error) {
    fake_.header().source_code = code;
    fake_.header().source_error = error;
    fake_.header().source_domains = domains | ring::kSourceAnswered;
  }
  // The next report that differs.
  RankReport Next() {
    const RankReport before = Report(0);
    EXPECT_TRUE(WaitUntil([&] {
      node_.WaitForChange(node_.versions().urgent, 100, false);
      return Report(0) != before;
    }));
    return Report(0);
  }

  FakeSegment fake_;
  uint64_t token_ = 0;
};

TEST_F(NodeAnswerTest, ContractARankWithMsptiHasAppliedWhenMsptiConfirms) {
  node_.SetWanted({kStepOnly, 5});
  EXPECT_EQ(fake_.header().gate, ring::kGateStep | ring::kGateOther);
  EXPECT_EQ(Report(0).applied_revision, 0u) << "the gate alone does not count";
  EXPECT_EQ(Report(0).failed_revision, 0u);
  EXPECT_TRUE(Report(0).attached);
  MsptiAnswers(ring::kSourceDefault, 0);
  RankReport report = Next();
  EXPECT_EQ(report.applied_revision, 5u);
  EXPECT_EQ(report.applied, kStepOnly);
  EXPECT_EQ(report.reason, "");

  // MSPTI knows domains only: it has answered for this one.
  node_.SetWanted({MaskOf(SwitchKind::kForward), 6});
  EXPECT_EQ(Report(0).applied_revision, 6u);
  EXPECT_EQ(Report(0).applied, MaskOf(SwitchKind::kForward));

  node_.SetWanted({kAllKindsMask, 7});
  EXPECT_EQ(Report(0).applied_revision, 6u);
  MsptiAnswers(ring::kSourceDefault | ring::kSourceCommunication, 0);
  EXPECT_EQ(Next().applied_revision, 7u);
}

TEST_F(NodeAnswerTest, ContractAnotherSubscriberIsReportedAndItsEndToo) {
  node_.SetWanted({kStepOnly, 5});
  MsptiAnswers(ring::kSourceDefault, 1420, 2);
  RankReport report = Next();
  EXPECT_EQ(report.reason, "not applied: another profiler is subscribed to MSPTI (2); it is tried again");
  EXPECT_EQ(report.failed_revision, 5u);
  EXPECT_EQ(report.applied_revision, 0u);
  EXPECT_EQ(report.applied, 0u);
  EXPECT_TRUE(report.attached);
  // It still holds when the manager sends it once more.
  node_.SetWanted({kStepOnly, 5});
  EXPECT_EQ(Report(0), report);

  MsptiAnswers(ring::kSourceDefault, 0);
  report = Next();
  EXPECT_EQ(report.reason, "");
  EXPECT_EQ(report.failed_revision, 0u);
  EXPECT_EQ(report.applied_revision, 5u);
  EXPECT_EQ(report.applied, kStepOnly);
}

TEST_F(NodeAnswerTest, ContractOneDomainThatFailsIsAFailure) {
  node_.SetWanted({kAllKindsMask, 5});
  MsptiAnswers(ring::kSourceDefault | ring::kSourceCommunication, 1412, 999);
  EXPECT_EQ(Next().reason, "not applied: MSPTI has an internal error (999); it is tried again");
}

TEST_F(NodeAnswerTest, NoAnswerIsReportedAfterASecond) {
  node_.SetWanted({kStepOnly, 5});
  RankReport report = Next();
  EXPECT_EQ(report.reason, "not applied: MSPTI has not answered");
  EXPECT_EQ(report.failed_revision, 5u);
  node_.SetWanted({kStepOnly, 5});
  EXPECT_EQ(Report(0), report) << "the same word once more is no new question";
  MsptiAnswers(ring::kSourceDefault, 0);
  EXPECT_EQ(Next().applied_revision, 5u);
}

TEST_F(NodeAnswerTest, HalfAnAnswerIsNone) {
  node_.SetWanted({kStepOnly, 5});
  MsptiAnswers(ring::kSourceDefault, 1420, 0);  // its error is not stored yet
  node_.WaitForChange(node_.versions().urgent, 50, false);
  EXPECT_EQ(Report(0).reason, "");
  EXPECT_EQ(Report(0).applied_revision, 0u);
  // Nor is it waited for for ever.
  EXPECT_EQ(Next().reason, "not applied: MSPTI has not answered");
}

TEST_F(NodeAnswerTest, AnOldAnswerIsTakenForWhatItSays) {
  node_.SetWanted({kStepOnly, 5});
  MsptiAnswers(ring::kSourceDefault, 0);
  EXPECT_EQ(Next().applied_revision, 5u);
  // Off and on again before MSPTI looked. Then it goes wrong after all.
  node_.SetWanted({0, 6});
  node_.SetWanted({kStepOnly, 7});
  EXPECT_EQ(Report(0).applied_revision, 7u);
  MsptiAnswers(ring::kSourceDefault, 1420, 2);
  RankReport report = Next();
  EXPECT_EQ(report.failed_revision, 7u);
  EXPECT_EQ(report.applied_revision, 0u);
  EXPECT_EQ(report.applied, 0u);
}

TEST_F(NodeAnswerTest, ContractOffIsAnsweredToo) {
  node_.SetWanted({kStepOnly, 5});
  MsptiAnswers(ring::kSourceDefault, 0);
  EXPECT_EQ(Next().applied_revision, 5u);
  node_.SetWanted({0, 6});
  EXPECT_EQ(Report(0).applied_revision, 5u);
  MsptiAnswers(0, 1420, 1);
  EXPECT_EQ(Next().reason, "not applied: MSPTI refuses a parameter (1); it is tried again");
  MsptiAnswers(0, 0);
  EXPECT_EQ(Next().applied_revision, 6u);
}

TEST_F(NodeAnswerTest, MsptiThatIsFoundLateCountsFromThenOn) {
  FakeSegment late;
  ASSERT_TRUE(node_.Attach(HelloOf(1), late.Fd()).ok());
  node_.SetWanted({kStepOnly, 5});
  EXPECT_EQ(Report(1).applied_revision, 5u) << "a rank without MSPTI has what its gate says";
  late.header().source_code = 1420;
  late.header().source_error = 2;
  late.header().source_domains = ring::kSourceDefault | ring::kSourceAnswered;
  node_.Start();  // it looks as well
  EXPECT_TRUE(WaitUntil([&] { return Report(1).failed_revision == 5; }));
}

TEST_F(NodeAnswerTest, ANewLifeOfTheRankIsAskedAnew) {
  node_.SetWanted({kStepOnly, 5});
  MsptiAnswers(ring::kSourceDefault, 1420, 2);
  EXPECT_EQ(Next().failed_revision, 5u);
  node_.Detach(token_);
  FakeSegment next;
  const auto token = node_.Attach(HelloOf(0), next.Fd());
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(Report(0).reason, "");
  EXPECT_EQ(Report(0).applied_revision, 5u);
  node_.Detach(*token);
  FakeSegment last;
  last.header().source_code = 1400;
  last.header().source_domains = ring::kSourceAnswered;
  ASSERT_TRUE(node_.Attach(HelloOf(0), last.Fd()).ok());
  EXPECT_EQ(Report(0).applied_revision, 0u);
  last.header().source_code = 1410;
  last.header().source_domains = ring::kSourceDefault | ring::kSourceAnswered;
  EXPECT_EQ(Next().applied_revision, 5u);
}

// A process that holds a segment's writer's lock, as libtaskd.so does.
class Writer {
 public:
  explicit Writer(const FakeSegment& segment) {
    const UniqueFd file = segment.Fd();
    int locked[2];
    int go[2];
    EXPECT_EQ(pipe2(locked, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(go, O_CLOEXEC), 0);
    go_.reset(go[1]);
    pid_ = fork();
    if (pid_ == 0) {
      close(go[1]);
      struct flock lock = {};
      lock.l_type = F_WRLCK;
      char byte = fcntl(file.get(), F_SETLK, &lock) == 0 ? '+' : '-';
      (void)!write(locked[1], &byte, 1);
      (void)!read(go[0], &byte, 1);
      close(file.get());  // as exec does
      byte = '.';
      (void)!write(locked[1], &byte, 1);
      pause();
    }
    close(locked[1]);
    close(go[0]);
    locked_.reset(locked[0]);
    EXPECT_EQ(Next(), '+');
  }
  ~Writer() {
    Kill();
    waitpid(pid_, nullptr, 0);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // It goes on as another program.
  void Exec() {
    EXPECT_EQ(write(go_.get(), "x", 1), 1);
    EXPECT_EQ(Next(), '.');
  }
  // It is dead, and nobody has waited for it.
  void Kill() {
    kill(pid_, SIGKILL);
    siginfo_t info;
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }
  uint32_t pid() const { return static_cast<uint32_t>(pid_); }

 private:
  char Next() const {
    char byte = 0;
    EXPECT_EQ(read(locked_.get(), &byte, 1), 1);
    return byte;
  }

  pid_t pid_ = -1;
  UniqueFd locked_, go_;
};

hello::Hello HelloFrom(uint32_t pid, int rank) {
  hello::Hello hello = HelloOf(rank);
  hello.pid = pid;
  return hello;
}

// This process is a child of the one that has marked first.
TEST_F(NodeTest, AChildThatTrainsTakesTheRankOfItsParentThatDoesNot) {
  node_.SetWanted({kStepOnly, 1});
  const auto parent = static_cast<uint32_t>(getppid()), child = static_cast<uint32_t>(getpid());
  FakeSegment of_parent, of_child;
  ASSERT_TRUE(node_.Attach(HelloFrom(parent, 0), of_parent.Fd()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(node_.Attach(HelloFrom(child, 0), of_child.Fd()).status()))
      << "it has made no marks";
  const int ring = of_child.AddRing();
  for (uint64_t i = 0; i < 200; ++i) of_child.Append(ring, {.ticks = 1 + i, .name = "forward"});
  EXPECT_TRUE(absl::IsAlreadyExists(node_.Attach(HelloFrom(1, 0), of_child.Fd()).status())) << "no child of it";
  ASSERT_TRUE(node_.Attach(HelloFrom(child, 0), of_child.Fd()).ok());
  EXPECT_EQ(of_parent.header().gate & ~ring::kGateUndecided, 0u);
  EXPECT_TRUE(Report(0).attached);
  EXPECT_TRUE(absl::IsAlreadyExists(node_.Attach(HelloFrom(parent, 0), of_parent.Fd()).status()))
      << "nor does it come back";
}

TEST_F(NodeTest, ASecondProcessThatClaimsARankIsSetAside) {
  node_.SetWanted({kStepOnly, 1});
  FakeSegment owned, claimed;
  Writer owner(owned);
  const auto token = node_.Attach(HelloFrom(owner.pid(), 0), owned.Fd());
  ASSERT_TRUE(token.ok());
  const uint32_t gate = owned.header().gate;
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = node_.Attach(HelloFrom(777, 0), claimed.Fd()).status();
    EXPECT_TRUE(absl::IsAlreadyExists(refused));
    EXPECT_THAT(refused.message(), HasSubstr(fmt::format("process {}", owner.pid())));
  }
  EXPECT_EQ(owned.header().gate, gate);
  EXPECT_TRUE(Report(0).attached);
  EXPECT_EQ(Report(0).reason, "process 777 says that it is this rank, too, and is set aside");
  EXPECT_EQ(node_.Answers(1).size(), 1u);
  EXPECT_EQ(node_.Answers(1)[0].state, RankAnswer::State::kApplied);
  EXPECT_EQ(node_.Answers(1)[0].reason, "");
  // Its owner, once more; and who has learnt its rank late.
  EXPECT_TRUE(node_.Attach(HelloFrom(owner.pid(), 0), owned.Fd()).ok());
  ASSERT_TRUE(node_.Attach(HelloFrom(777, 5), claimed.Fd()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(node_.Attach(HelloFrom(777, 0), claimed.Fd()).status()));
  EXPECT_EQ(node_.Reports().size(), 1u) << "it says that it is not rank 5";
  EXPECT_TRUE(Report(0).attached);
}

TEST_F(NodeTest, ARankIsItsFirstProcessesForAsLongAsThatLivesAndIsConnected) {
  for (const auto& [how, ends] : std::initializer_list<std::pair<const char*, std::function<void(Writer&, uint64_t)>>>{
           {"killed", [](Writer&writer, uint64_t) { writer.Kill(); }},
           {"exec", [](Writer&writer, uint64_t) { writer.Exec(); }},
           {"disconnected", [this](Writer&, uint64_t token) { node_.Detach(token); }}}) {
    SCOPED_TRACE(how);
    FakeSegment old_life, new_life;
    Writer old_writer(old_life), new_writer(new_life);
    const auto token = node_.Attach(HelloFrom(old_writer.pid(), 3), old_life.Fd());
    ASSERT_TRUE(token.ok());
    EXPECT_FALSE(node_.Attach(HelloFrom(new_writer.pid(), 3), new_life.Fd()).ok());
    ends(old_writer, *token);
    const auto next = node_.Attach(HelloFrom(new_writer.pid(), 3), new_life.Fd());
    ASSERT_TRUE(next.ok());
    EXPECT_EQ(Report(3).reason, "");
    node_.Detach(*next);
  }
}

// Where nobody holds the lock of the segment, the connection shows who lives, and the kernel's word who it is.
TEST_F(NodeTest, AProcessWithoutALockHasItsRankWhileItIsConnected) {
  FakeSegment first, again, other;
  ASSERT_TRUE(node_.Attach(HelloFrom(11, 0), first.Fd()).ok());
  EXPECT_FALSE(node_.Attach(HelloFrom(22, 0), other.Fd()).ok());
  const auto token = node_.Attach(HelloFrom(11, 0), again.Fd());
  ASSERT_TRUE(token.ok()) << "the same process, after exec";
  node_.Detach(*token);
  EXPECT_TRUE(node_.Attach(HelloFrom(22, 0), other.Fd()).ok());
}

// Whose process ids the kernel does not name here: the lock tells them apart all the same.
TEST_F(NodeTest, ProcessesOfOtherPidNamespacesHaveTheirRanksToo) {
  FakeSegment old_life, new_life;
  Writer old_writer(old_life);
  ASSERT_TRUE(node_.Attach(HelloFrom(0, 0), old_life.Fd()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(node_.Attach(HelloFrom(0, 0), new_life.Fd()).status()));
  EXPECT_EQ(Report(0).reason, "a process of another pid namespace says that it is this rank, too, and is set aside");
  old_writer.Kill();
  EXPECT_TRUE(node_.Attach(HelloFrom(0, 0), new_life.Fd()).ok());
}

TEST_F(NodeTest, AProcessCannotRenameTheSegmentOfAnother) {
  FakeSegment owned;
  Writer owner(owned);
  ASSERT_TRUE(node_.Attach(HelloFrom(owner.pid(), 0), owned.Fd()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(node_.Attach(HelloFrom(777, 5), owned.Fd()).status()));
  ASSERT_EQ(node_.Reports().size(), 1u);
  EXPECT_EQ(node_.Reports()[0].rank, 0);
}

TEST_F(NodeTest, ARestartedRankReplacesTheOldOneAndLosesNothingOfIt) {
  node_.SetWanted({kStepOnly, 1});
  FakeSegment old_life;
  FakeSegment new_life;
  old_life.AddRing();
  Writer writer(old_life);
  auto old_token = node_.Attach(HelloOf(0), old_life.Fd());
  ASSERT_TRUE(old_token.ok());
  old_life.Append(0, {ring::kRecordMark, 1'000'000'001, 1, "of the old life", ring::kKindOther});
  EXPECT_FALSE(node_.Attach(HelloOf(0), new_life.Fd()).ok());
  writer.Kill();
  ASSERT_TRUE(node_.Attach(HelloOf(0), new_life.Fd()).ok()) << "the end of its connection was not read yet";
  EXPECT_EQ(old_life.header().gate, 0u);
  EXPECT_NE(new_life.header().gate, 0u);
  node_.Start();
  EXPECT_TRUE(WaitUntil([&] { return Text(0).find("of the old life") != std::string::npos; }));
  node_.Detach(*old_token);
  EXPECT_TRUE(Report(0).attached);
  EXPECT_EQ(node_.Reports().size(), 1u);
}

TEST_F(NodeTest, TheSameProcessOverANewConnectionIsTheSame) {
  node_.SetWanted({kStepOnly, 1});
  FakeSegment fake;
  auto first = node_.Attach(HelloOf(0), fake.Fd());
  auto second = node_.Attach(HelloOf(0), fake.Fd());
  ASSERT_TRUE(first.ok() && second.ok());
  node_.Detach(*first);
  EXPECT_TRUE(Report(0).attached);
}

TEST_F(NodeTest, AProcessThatLearnsItsRankLateIsThatRankAlone) {
  node_.Start();
  node_.SetWanted({kStepOnly, 1});
  FakeSegment fake;
  fake.AddRing();
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake.Fd()).ok());
  ASSERT_TRUE(node_.Attach(HelloOf(5), fake.Fd()).ok());
  fake.Append(0, {ring::kRecordMark, 1'000'000'001, 1, "mine", ring::kKindOther});
  EXPECT_TRUE(WaitUntil([&] { return Text(5).find("mine") != std::string::npos; }));
  ASSERT_EQ(node_.Reports().size(), 1u);
  EXPECT_EQ(node_.Reports()[0].rank, 5);
  EXPECT_TRUE(node_.Reports()[0].attached);
  EXPECT_EQ(Text(0), "");
}

TEST_F(NodeTest, DrainsARankWhoseProcessHasEnded) {
  node_.Start();
  node_.SetWanted({kStepOnly, 1});
  FakeSegment fake;
  fake.AddRing();
  auto token = node_.Attach(HelloOf(4), fake.Fd());
  ASSERT_TRUE(token.ok());
  fake.Append(0, {ring::kRecordMark, 1'000'000'001, 1, "last words", ring::kKindOther});
  node_.Detach(*token);
  EXPECT_TRUE(WaitUntil([&] { return !Report(4).attached; }));
  EXPECT_TRUE(WaitUntil([&] { return Text(4).find("last words") != std::string::npos; }));
  EXPECT_TRUE(WaitUntil([&] { return Report(4).marks[ring::kKindOther] == 1; }));
  EXPECT_THAT(Report(4).reason, HasSubstr("ended"));
  EXPECT_EQ(ReadFile(temp_ / "profiling/task/4/.rank.json"),
            "{\"node\":2,\"host\":\"host \\\"x\\\"\",\"local_rank\":4}\n");
}

TEST_F(NodeTest, TellsWhatWasSavedInTheStepInWhichAProcessEnded) {
  node_.Start();
  node_.SetWanted({MaskOf(SwitchKind::kStep) | MaskOf(SwitchKind::kSaveCheckpoint), 1});
  FakeSegment fake;
  fake.AddRing();
  auto token = node_.Attach(HelloOf(0), fake.Fd());
  ASSERT_TRUE(token.ok());
  const uint64_t start_ns = 1'000'000'000;
  fake.Append(0, {ring::kRecordRangeStart, start_ns + 10, 1, "step 4", ring::kKindStep});
  fake.Append(0, {ring::kRecordRangeStart, start_ns + 20, 2, "save_checkpoint", ring::kKindSaveCheckpoint});
  fake.Append(0, {ring::kRecordRangeEnd, start_ns + 50, 2});
  node_.Detach(*token);
  EXPECT_TRUE(WaitUntil([&] { return !Report(0).attached && Report(0).saved.step >= 0; }));
  EXPECT_EQ(Report(0).saved, (SavedInStep{4, 30}));
}

TEST_F(NodeTest, TellsHowLongAProcessHasBeenStopped) {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  ASSERT_GT(child, 0);
  FakeSegment fake;
  fake.header().pid = static_cast<uint32_t>(child);
  node_.Start();
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake.Fd()).ok());
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  EXPECT_TRUE(WaitUntil([&] { return Report(0).stopped_ms >= 300; }));
  const uint64_t urgent = node_.versions().urgent;
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(WaitUntil([&] { return node_.versions().urgent > urgent; })) << "its end is told at once";
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(NodeTest, TellsHowLongAStepWaitedForACpu) {
  if (access("/proc/self/schedstat", R_OK) != 0) GTEST_SKIP() << "this kernel does not count it";
  node_.Start();
  node_.SetWanted({kAllKindsMask, 1});
  FakeSegment fake(ReadMonotonicNs());
  fake.AddRing();
  fake.header().pid = static_cast<uint32_t>(getpid());
  ASSERT_TRUE(node_.Attach(HelloFrom(static_cast<uint32_t>(getpid()), 0), fake.Fd()).ok());
  // The first ones may have begun before anybody looked.
  std::map<int, uint64_t> sent;
  StepFold last;
  uint64_t id = 0;
  EXPECT_TRUE(WaitUntil([&] {
    fake.Append(0, {ring::kRecordRangeStart, ReadMonotonicNs(), ++id, fmt::format("step {}", id), ring::kKindStep});
    usleep(2000);
    fake.Append(0, {ring::kRecordRangeEnd, ReadMonotonicNs(), id});
    for (NodeFolds::Step& step : node_.TakeFolds(sent, 1000).steps) last = std::move(step.fold);
    return last.cpu_wait_ns > 0;
  }));
  EXPECT_LE(last.cpu_wait_ns, last.period_ns());
}

TEST_F(NodeTest, AHostileRingCostsOnlyItsOwnRank) {
  node_.Start();
  node_.SetWanted({kStepOnly, 1});
  FakeSegment hostile;
  FakeSegment honest;
  hostile.AddRing();
  honest.AddRing();
  ASSERT_TRUE(node_.Attach(HelloOf(0), hostile.Fd()).ok());
  ASSERT_TRUE(node_.Attach(HelloOf(1), honest.Fd()).ok());
  hostile.Append(0, {ring::kRecordMark, 1, 1, "x", ring::kKindOther});
  hostile.slot(0).head = 12345;
  honest.Append(0, {ring::kRecordMark, 1'000'000'001, 1, "fine", ring::kKindOther});
  EXPECT_TRUE(WaitUntil([&] { return !Report(0).attached; }));
  EXPECT_THAT(Report(0).reason, HasSubstr("ring is unusable"));
  EXPECT_TRUE(WaitUntil([&] { return Text(1).find("fine") != std::string::npos; }));
  EXPECT_TRUE(Report(1).attached);
  node_.SetWanted({kAllKindsMask, 2});
  EXPECT_EQ(hostile.header().gate, 0u);
  EXPECT_EQ(Report(1).applied_revision, 2u);
}

TEST_F(NodeTest, KeepsMarksInTheRingWhileFilesCannotBeWritten) {
  testing::WriteFile(temp_ / "profiling", "a file where the folder should be");
  node_.Start();
  node_.SetWanted({kStepOnly, 1});
  FakeSegment fake;
  fake.AddRing();
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake.Fd()).ok());
  fake.Append(0, {ring::kRecordMark, 1'000'000'001, 1, "patient", ring::kKindOther});
  fake.Append(0, {ring::kRecordRangeStart, 1'000'000'002, 2, "step 7", ring::kKindStep});
  node_.WaitForChange(node_.versions().urgent, 700, false);
  EXPECT_TRUE(WaitUntil([&] { return Report(0).step == 6; })) << "the next one has begun";
  EXPECT_GT(Report(0).recorded, 0u);
  EXPECT_EQ(fake.slot(0).consumed, 0u);
  std::filesystem::remove(temp_ / "profiling");
  EXPECT_TRUE(WaitUntil([&] { return Text(0).find("patient") != std::string::npos; }));
  EXPECT_EQ(Report(0).lost, 0u);
}

TEST_F(NodeTest, StopWritesEverythingThatWasRecorded) {
  node_.Start();
  node_.SetWanted({kStepOnly, 1});
  FakeSegment fake;
  fake.AddRing();
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake.Fd()).ok());
  for (int i = 1; i <= 1000; ++i) {
    fake.Append(0, {ring::kRecordMark, 1'000'000'000u + i, uint64_t(i), "m", ring::kKindOther});
  }
  EXPECT_TRUE(node_.Stop().ok());
  EXPECT_EQ(Report(0).marks[ring::kKindOther], 1000u);
  const std::string text = Text(0);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1000);
}

TEST_F(NodeTest, StopKnowsWhoHasJustEnded) {
  node_.Start();
  node_.SetWanted({kStepOnly, 1});
  FakeSegment fake;
  fake.AddRing();
  Writer writer(fake);
  ASSERT_TRUE(node_.Attach(HelloFrom(writer.pid(), 0), fake.Fd()).ok());
  fake.Append(0, {ring::kRecordMark, 1'000'000'001, 1, "m", ring::kKindOther});
  ASSERT_TRUE(WaitUntil([&] { return Report(0).marks[ring::kKindOther] == 1; }));
  writer.Kill();  // and nobody has seen its connection close
  EXPECT_TRUE(node_.Stop().ok());
  EXPECT_FALSE(Report(0).attached) << "its segment stays in /dev/shm";
}

TEST_F(NodeTest, ADiskLimitIsItsRanksOwn) {
  FakeSegment a;
  FakeSegment b;
  constexpr int64_t kMebibyte = int64_t{1} << 20;
  ASSERT_TRUE(node_.Attach(HelloOf(0, 5000), a.Fd()).ok());
  EXPECT_THAT(node_.disk_limits().rank_bytes, ::testing::IsEmpty()) << "the operator's is less";
  ASSERT_TRUE(node_.Attach(HelloOf(1, 50), b.Fd()).ok());
  EXPECT_THAT(node_.disk_limits().rank_bytes, ::testing::ElementsAre(::testing::Pair(1, 50 * kMebibyte)));
  EXPECT_EQ(node_.disk_limits().all_bytes, 100 * kMebibyte);
  ASSERT_TRUE(node_.Attach(HelloOf(1, 0), b.Fd()).ok());
  EXPECT_THAT(node_.disk_limits().rank_bytes, ::testing::IsEmpty()) << "its newest word holds";
}

TEST_F(NodeTest, RefusesRanksThatAreNone) {
  FakeSegment fake;
  EXPECT_TRUE(absl::IsInvalidArgument(node_.Attach(HelloOf(-1), fake.Fd()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(node_.Attach(HelloOf(1 << 30), fake.Fd()).status()));
  EXPECT_FALSE(node_.Attach(HelloOf(0), UniqueFd(open("/dev/null", O_RDWR))).ok());
}

TEST_F(NodeTest, OffersFoldsAndDropsTheOldestWhenNobodyTakesThem) {
  testing::WriteFile(temp_ / "profiling/task/0/parallel_group.json",
                     R"({"g": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1]}})");
  node_.Start();
  node_.SetWanted({kAllKindsMask, 1});
  FakeSegment fake;
  fake.AddRing();
  ASSERT_TRUE(node_.Attach(HelloOf(0), fake.Fd()).ok());
  uint64_t ticks = 1'000'000'000;
  uint64_t id = 0;
  auto steps = [&](int first, int count) {
    for (int step = first; step < first + count; ++step) {
      const uint64_t range = ++id;
      fake.Append(0, {ring::kRecordRangeStart, ++ticks, range, "step " + std::to_string(step), ring::kKindStep});
      fake.Append(0, {ring::kRecordRangeStart, ++ticks, ++id, R"({"groupName": "g","opName": "HcclAllreduce"})",
                      ring::kKindCommunication, ring::kFlagStream, ring::kDomainCommunication});
      fake.Append(0, {ring::kRecordRangeEnd, ++ticks, id});
      fake.Append(0, {ring::kRecordRangeEnd, ++ticks, range});
    }
    EXPECT_TRUE(WaitUntil([&] { return Report(0).step == first + count - 1; }));
  };
  steps(0, 100);
  std::map<int, uint64_t> sent;
  NodeFolds taken;
  // The counters are published a moment before the folds of the same pass.
  EXPECT_TRUE(WaitUntil([&] {
    NodeFolds more = node_.TakeFolds(sent, 10);
    if (!more.steps.empty()) taken = std::move(more);
    return !taken.steps.empty();
  }));
  ASSERT_EQ(taken.steps.size(), 10u);
  EXPECT_EQ(taken.dropped, 100 - Node::kMaxFolds);
  EXPECT_EQ(taken.steps[0].rank, 0);
  EXPECT_EQ(taken.steps[0].fold.step, static_cast<int64_t>(100 - Node::kMaxFolds));
  ASSERT_EQ(taken.groups.size(), 1u);
  EXPECT_EQ(taken.groups[0].first, 0);
  EXPECT_THAT(taken.groups[0].second, ::testing::ElementsAre(GroupInfo{"g", "tp", {{0, 1, 2}}}));
  taken = node_.TakeFolds(sent, 1000);
  EXPECT_EQ(taken.steps.size(), Node::kMaxFolds - 10);
  EXPECT_EQ(taken.steps.back().fold.step, 99);
  EXPECT_TRUE(taken.groups.empty()) << "sent already";
  EXPECT_TRUE(node_.TakeFolds(sent, 1000).steps.empty());

  // They could not be sent, and one more came since.
  steps(100, 1);
  node_.WaitForChange(node_.versions().urgent, 20'000, true);
  node_.ReturnFolds(std::move(taken));
  sent.clear();  // a new stream
  taken = node_.TakeFolds(sent, 1000);
  ASSERT_EQ(taken.steps.size(), Node::kMaxFolds - 9);
  for (size_t i = 0; i < taken.steps.size(); ++i) {
    EXPECT_EQ(taken.steps[i].fold.step, static_cast<int64_t>(100 - Node::kMaxFolds + 10 + i));
  }
  EXPECT_EQ(taken.groups.size(), 1u);
  steps(101, 10);
  NodeFolds newer;
  EXPECT_TRUE(WaitUntil([&] {
    NodeFolds more = node_.TakeFolds(sent, 1000);
    std::move(more.steps.begin(), more.steps.end(), std::back_inserter(newer.steps));
    return newer.steps.size() == 10;
  }));
  node_.ReturnFolds(std::move(newer));
  node_.ReturnFolds(std::move(taken));
  taken = node_.TakeFolds(sent, 1000);
  ASSERT_EQ(taken.steps.size(), Node::kMaxFolds);
  EXPECT_EQ(taken.steps.back().fold.step, 110);
  EXPECT_EQ(taken.dropped, 101 - Node::kMaxFolds) << "one more than there is room for";

  steps(111, 1);
  node_.WaitForChange(node_.versions().urgent, 20'000, true);
  sent.clear();  // a new stream
  taken = node_.TakeFolds(sent, 1000);
  ASSERT_EQ(taken.steps.size(), 1u);
  EXPECT_EQ(taken.groups.size(), 1u);
}

}  // namespace
}  // namespace taskd::proxy
