// What is wrong with a bundle, or with a request to one.
#pragma once

#include <stdexcept>

namespace trunnion::bundle {

// The folder is no bundle, or one that this program cannot serve. The text names the place, the value and the choices.
struct BundleError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The client is at fault: INVALID_ARGUMENT.
struct InvalidRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace trunnion::bundle
