// Stands in for python_bridge.cc in the library that is built without Python.
#include "backend.h"
#include "status.h"

namespace trunnion::executor {

std::unique_ptr<Backend> make_python_backend(const trn_create_options& options, Backend*) {
  refuse("hardware", "'", options.hardware, "' needs the Python executor, which this library lacks; choices: null");
}

std::uint64_t python_backend_feature() { return 0; }

}  // namespace trunnion::executor
