#include "manager/rpc/reflection_service.h"

#include <set>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/grpcpp.h"
#include "reflection.grpc.pb.h"

namespace taskd::manager {
namespace {

namespace v1alpha = grpc::reflection::v1alpha;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

// The question comes back with its answer.
constexpr size_t kMostQuestionBytes = 4096;

void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>* seen, v1alpha::FileDescriptorResponse* to) {
  if (!seen->insert(&file).second) return;
  google::protobuf::FileDescriptorProto description;
  file.CopyTo(&description);
  to->add_file_descriptor_proto(description.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), seen, to);
}

class Reactor final
    : public grpc::ServerBidiReactor<v1alpha::ServerReflectionRequest, v1alpha::ServerReflectionResponse> {
 public:
  explicit Reactor(const std::vector<std::string>* services) : services_(*services) { StartRead(&question_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (question_.ByteSizeLong() > kMostQuestionBytes) {
      return Finish({grpc::StatusCode::INVALID_ARGUMENT, "no name is that long"});
    }
    answer_.Clear();
    answer_.set_valid_host(question_.host());
    *answer_.mutable_original_request() = question_;
    Answer();
    StartWrite(&answer_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    question_.Clear();
    StartRead(&question_);
  }
  void OnDone() override { delete this; }

 private:
  using Question = v1alpha::ServerReflectionRequest;

  void Answer() {
    const DescriptorPool& pool = *DescriptorPool::generated_pool();
    switch (question_.message_request_case()) {
      case Question::kListServices:
        for (const std::string& name : services_)
          answer_.mutable_list_services_response()->add_service()->set_name(name);
        return;
      case Question::kFileByFilename:
        return AnswerFile(pool.FindFileByName(question_.file_by_filename()));
      case Question::kFileContainingSymbol:
        return AnswerFile(pool.FindFileContainingSymbol(question_.file_containing_symbol()));
      default:
        return AnswerFile(nullptr);
    }
  }
  void AnswerFile(const FileDescriptor* file) {
    if (file == nullptr) {
      answer_.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
      answer_.mutable_error_response()->set_error_message("there is no such thing here");
      return;
    }
    std::set<const FileDescriptor*> seen;
    AddFile(*file, &seen, answer_.mutable_file_descriptor_response());
  }

  const std::vector<std::string>& services_;
  Question question_;
  v1alpha::ServerReflectionResponse answer_;
};

class ReflectionService final : public v1alpha::ServerReflection::CallbackService {
 public:
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

 private:
  grpc::ServerBidiReactor<v1alpha::ServerReflectionRequest, v1alpha::ServerReflectionResponse>* ServerReflectionInfo(
      grpc::CallbackServerContext*) override {
    return new Reactor(&services_);
  }

  const std::vector<std::string> services_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> services) {
  services.emplace_back(v1alpha::ServerReflection::service_full_name());
  return std::make_unique<ReflectionService>(std::move(services));
}

}  // namespace taskd::manager
