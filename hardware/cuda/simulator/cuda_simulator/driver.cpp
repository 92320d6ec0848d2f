// A CUDA driver without a device: host functions of a stream are handed to a callback, which calls them in their turn.
#define EXPORT extern "C" __attribute__((visibility("default")))

using HostFunction = void (*)(void* data);
using HostFunctionCallback = void (*)(HostFunction function, void* data);

namespace {
HostFunctionCallback host_function_callback = nullptr;
}

EXPORT void sim_set_host_function(HostFunctionCallback callback) { host_function_callback = callback; }

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuLaunchHostFunc(void* /*stream*/, HostFunction function, void* data) {
  host_function_callback(function, data);
  return 0;
}
