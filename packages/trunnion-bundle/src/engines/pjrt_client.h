// A PJRT plugin's client on its first device, with errors as exceptions and buffers that free themselves.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <string>
#include <vector>

#include "third_party/pjrt_c_api.h"
#include "trunnion_bundle/engine.h"

namespace trunnion::bundle {

class PjrtClient;

// Holds its client.
template <typename Object, auto kDestroy>
class PjrtHandle {
 public:
  PjrtHandle() = default;
  PjrtHandle(std::shared_ptr<const PjrtClient> client, Object* object) : client_(std::move(client)), object_(object) {}
  PjrtHandle(PjrtHandle&& other) noexcept : client_(std::move(other.client_)), object_(std::exchange(other.object_, nullptr)) {}
  PjrtHandle& operator=(PjrtHandle&& other) noexcept {
    std::swap(client_, other.client_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~PjrtHandle() {
    if (object_ != nullptr) kDestroy(*client_, object_);
  }
  Object* get() const { return object_; }

 private:
  std::shared_ptr<const PjrtClient> client_;
  Object* object_ = nullptr;
};

void destroy_buffer(const PjrtClient& client, PJRT_Buffer* buffer);
void destroy_executable(const PjrtClient& client, PJRT_LoadedExecutable* executable);
void destroy_program(const PjrtClient& client, PJRT_Executable* program);
using PjrtBuffer = PjrtHandle<PJRT_Buffer, destroy_buffer>;
using PjrtExecutable = PjrtHandle<PJRT_LoadedExecutable, destroy_executable>;
// An executable without the devices that it is loaded on.
using PjrtProgram = PjrtHandle<PJRT_Executable, destroy_program>;

class PjrtClient : public std::enable_shared_from_this<PjrtClient> {
 public:
  // One for each plugin in the process, for as long as somebody holds it: devices have one owner. Throws Refused.
  static std::shared_ptr<PjrtClient> of_plugin(const std::string& path);
  ~PjrtClient();
  PjrtClient(const PjrtClient&) = delete;
  PjrtClient& operator=(const PjrtClient&) = delete;

  // "cpu", "cuda", ...
  std::string platform() const;
  // What an executable runs on and nowhere else: versions of the plugin, and the devices with a hash of all about them.
  std::string version() const;
  std::string topology() const;
  // StableHLO bytecode for one device.
  PjrtExecutable compile(const std::string& program) const;
  // The bytes from which `load` makes it again, by a plugin of the same version on the same topology.
  std::string serialize(const PjrtExecutable& executable) const;
  PjrtExecutable load(const std::string& bytes) const;
  size_t num_outputs(const PjrtExecutable& executable) const;
  // Copied before it returns.
  PjrtBuffer upload(PJRT_Buffer_Type type, std::span<const int64_t> dims, const void* data) const;
  // `num_outputs` is that of the executable.
  std::vector<PjrtBuffer> execute(const PjrtExecutable& executable, std::span<PJRT_Buffer* const> arguments, size_t num_outputs) const;
  // Row major. Throws where the buffer's type or dims are not those of `output`.
  void download(const PjrtBuffer& buffer, const trn_engine_tensor& output) const;

  const PJRT_Api& api() const { return *api_; }
  void check(PJRT_Error* error, const char* what) const;

 private:
  explicit PjrtClient(const std::string& path);
  PjrtProgram program_of(const PjrtExecutable& executable) const;
  void wait(PJRT_Event* event, const char* what) const;
  // Throws Refused if the plugin lacks an optional function.
  void expect(bool has, const char* function) const;

  std::string path_;
  const PJRT_Api* api_ = nullptr;
  PJRT_Client* client_ = nullptr;
  PJRT_Device* device_ = nullptr;
};

PJRT_Buffer_Type pjrt_type(trn_dtype dtype);

}  // namespace trunnion::bundle
