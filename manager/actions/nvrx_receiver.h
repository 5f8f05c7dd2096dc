// The receiver `nvrx:DIR`: NVRx's segment health check, which excludes a Slurm job whose file is not empty (docs/acting.md).
#pragma once

#include <string>

#include "manager/actions/order_receiver.h"

namespace taskd::manager {

// Writes the action's JSON as a line of the file, which is replaced atomically, and takes the line out of it on withdrawal; a
// file without lines is removed. A file that somebody else wrote excludes the job already, and is left as it is.
class NvrxReceiver final : public OrderReceiver {
 public:
  // The folder is there; `name`: NvrxFileName (common/order_to.h).
  NvrxReceiver(std::string folder, std::string name);

  OrderAnswer Send(const policy::Action& action) override;
  OrderAnswer Withdraw(const policy::Action& action) override;

 private:
  // With the action's line, or without it.
  OrderAnswer Change(const policy::Action& action, bool add);

  const std::string folder_, name_, path_;
};

}  // namespace taskd::manager
