// What many do not have.
#pragma once

#include <memory>
#include <utility>

namespace taskd::diagnosis {

// Without memory until it begins; before that, and once it was set to {}, it is as new.
template <typename T>
class Late {
 public:
  Late() = default;
  Late(const Late& other) : value_(other.value_ ? std::make_unique<T>(*other.value_) : nullptr) {}
  Late(Late&&) noexcept = default;
  Late& operator=(Late other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }
  ~Late() = default;

  const T& operator*() const { return value_ ? *value_ : Empty(); }
  const T* operator->() const { return &**this; }
  bool begun() const { return value_ != nullptr; }
  T& Begin() {
    if (!value_) value_ = std::make_unique<T>();
    return *value_;
  }

 private:
  static const T& Empty() {
    static const T empty{};
    return empty;
  }

  std::unique_ptr<T> value_;
};

}  // namespace taskd::diagnosis
