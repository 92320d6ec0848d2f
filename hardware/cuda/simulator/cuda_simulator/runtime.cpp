// A CUDA runtime without a device, for the host code of libraries that launch kernels: device memory is host memory,
// and a launch is handed to a callback with its kernel's name and library, grid and arguments. It computes nothing.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
struct Dim3 {
  unsigned x, y, z;
};
struct LaunchConfig {
  Dim3 grid, block;
  size_t shared;
  void* stream;
  void* attributes;
  unsigned count;
};
using Launch = int (*)(const char* name, const char* library, const unsigned* grid, const unsigned* block, void** arguments);
using Copy = void (*)(void* to, const void* from, size_t bytes);
using Wait = void (*)();

constexpr int kSuccess = 0, kNotSupported = 801;
constexpr int kMultiprocessors = 132, kSharedPerMultiprocessor = 228 * 1024, kSharedPerBlock = 227 * 1024;

std::map<const void*, std::string>& names() {
  static std::map<const void*, std::string> found;
  return found;
}
Launch launch_callback = nullptr;
Copy copy_callback = nullptr;
Wait wait_callback = nullptr;
Dim3 pushed_grid, pushed_block;
size_t pushed_shared;
void* pushed_stream;

int launch(const void* function, Dim3 grid, Dim3 block, void** arguments) {
  auto found = names().find(function);
  if (found == names().end() || !launch_callback) {
    std::fprintf(stderr, "simulated cuda runtime: launch of an unknown kernel\n");
    return kNotSupported;
  }
  unsigned g[3] = {grid.x, grid.y, grid.z}, b[3] = {block.x, block.y, block.z};
  Dl_info library{};
  dladdr(function, &library);
  return launch_callback(found->second.c_str(), library.dli_fname ? library.dli_fname : "", g, b, arguments);
}
}  // namespace

EXPORT void sim_set_launch(Launch callback) { launch_callback = callback; }
EXPORT void sim_set_copy(Copy callback) { copy_callback = callback; }
EXPORT void sim_set_wait(Wait callback) { wait_callback = callback; }

EXPORT void** __cudaRegisterFatBinary(void* binary) { return static_cast<void**>(binary); }
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT char __cudaInitModule(void**) { return 1; }
EXPORT void __cudaRegisterFunction(void**, const char* host, char*, const char* device, int, void*, void*, void*, void*,
                                   int*) {
  names()[host] = device;
}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  pushed_grid = grid, pushed_block = block, pushed_shared = shared, pushed_stream = stream;
  return 0;
}
EXPORT int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void* stream) {
  *grid = pushed_grid, *block = pushed_block, *shared = pushed_shared, *static_cast<void**>(stream) = pushed_stream;
  return kSuccess;
}
EXPORT int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return kSuccess;
}
EXPORT int __cudaLaunchKernel(void* function, Dim3 grid, Dim3 block, void** arguments, size_t, void*) {
  return launch(function, grid, block, arguments);
}
EXPORT int cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void** arguments, size_t, void*) {
  return launch(function, grid, block, arguments);
}
EXPORT int cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void** arguments) {
  return launch(function, config->grid, config->block, arguments);
}
EXPORT int cudaLaunchCooperativeKernel(const void* function, Dim3 grid, Dim3 block, void** arguments, size_t, void*) {
  return launch(function, grid, block, arguments);
}
EXPORT int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
EXPORT int cudaSetDevice(int) { return kSuccess; }
EXPORT int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}
EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 16: *value = kMultiprocessors; break;
    case 39: *value = 2048; break;  // threads per multiprocessor
    case 75: *value = 9; break;     // compute capability
    case 76: *value = 0; break;
    case 81: *value = kSharedPerMultiprocessor; break;
    case 82: *value = 65536; break;  // registers
    case 97: *value = kSharedPerBlock; break;
    default: *value = 1;
  }
  return kSuccess;
}
EXPORT int cudaFuncSetAttribute(const void*, int, int) { return kSuccess; }
EXPORT int cudaFuncGetAttributes(void*, const void*) { return kSuccess; }
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads, size_t shared,
                                                                  unsigned) {
  int fit = 2048 / threads;
  if (shared) fit = std::min<int>(fit, kSharedPerMultiprocessor / (shared + 1024));
  *blocks = fit < 1 ? 1 : fit;
  return kSuccess;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  copy_callback(to, from, bytes);
  return kSuccess;
}
EXPORT int cudaMemsetAsync(void* to, int value, size_t bytes, void*) {
  std::memset(to, value, bytes);
  return kSuccess;
}
EXPORT const char* cudaGetErrorString(int code) {
  return code == kSuccess ? "no error" : "refused by the simulated cuda runtime";
}
EXPORT const char* cudaGetErrorName(int) { return "simulated"; }
EXPORT int cudaGetLastError() { return kSuccess; }
EXPORT int cudaPeekAtLastError() { return kSuccess; }
EXPORT int cudaStreamSynchronize(void*) {
  wait_callback();
  return kSuccess;
}
EXPORT int cudaStreamIsCapturing(void*, int* status) {
  *status = 0;
  return kSuccess;
}
EXPORT int cudaDeviceSynchronize() {
  wait_callback();
  return kSuccess;
}
