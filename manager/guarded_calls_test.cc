// Every call of the manager reads Guarded messages (proto/guarded.h); a method without its MarkMethodCallback would work,
// and build whatever it is sent.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "manager/test_client.h"

namespace taskd::manager {
namespace {

// "/package.Service/Method" of every service whose .proto file is compiled into the manager.
std::vector<std::string> Methods() {
  std::vector<std::string> files = {"profiling.proto"};
  for (const auto& file : std::filesystem::directory_iterator(TASKD_PROTO_DIR "/taskd/v1")) {
    files.push_back(absl::StrCat("taskd/v1/", file.path().filename().string()));
  }
  std::vector<std::string> methods;
  for (const std::string& name : files) {
    const google::protobuf::FileDescriptor* file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(name);
    if (file == nullptr) continue;
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor* service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.push_back(absl::StrCat("/", service->full_name(), "/", service->method(m)->name()));
      }
    }
  }
  return methods;
}

// What the manager says of a message that is none.
grpc::Status Garbage(grpc::GenericStub* stub, const std::string& method) {
  Context context;
  grpc::CompletionQueue queue;
  auto await = [&] {
    void* tag;
    bool ok;
    return queue.Next(&tag, &ok) && ok;
  };
  const grpc::Slice slice("\xff");
  const grpc::ByteBuffer message(&slice, 1);
  auto stream = stub->PrepareCall(&context, method, &queue);
  stream->StartCall(nullptr);
  EXPECT_TRUE(await());
  stream->Write(message, nullptr);
  EXPECT_TRUE(await());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  EXPECT_TRUE(await());
  queue.Shutdown();
  while (await()) {
  }
  return status;
}

TEST(GuardedCallsTest, EveryMethodIsCountedBeforeItIsBuilt) {
  auto manager = StartManager();
  grpc::GenericStub stub(Dial(manager->port()));
  const std::vector<std::string> methods = Methods();
  EXPECT_GE(methods.size(), 17u);
  for (const std::string& method : methods) {
    const grpc::Status status = Garbage(&stub, method);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), ::testing::StartsWith("no sound ")) << method;
  }
}

}  // namespace
}  // namespace taskd::manager
