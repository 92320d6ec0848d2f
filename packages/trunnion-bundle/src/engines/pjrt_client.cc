#include "engines/pjrt_client.h"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "bundle/sha256.h"
#include "engines/guarded.h"

namespace trunnion::bundle {
namespace {

// CompileOptionsProto: executable_build_options {num_replicas: 1 num_partitions: 1}.
constexpr char kCompileOptions[] = {0x1a, 0x04, 0x20, 0x01, 0x28, 0x01};
// The interface changes only by new fields since then, which both sides count by struct_size.
constexpr int kOldestMinor = 40;

template <typename Arguments>
Arguments arguments(size_t struct_size) {
  Arguments found;
  std::memset(&found, 0, sizeof found);
  found.struct_size = struct_size;
  return found;
}
#define TRN_PJRT_ARGUMENTS(type) arguments<type>(type##_STRUCT_SIZE)

const PJRT_Api& api_of(const std::string& path) {
  // Never closed: its threads outlive clients.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Refused(std::string("the PJRT plugin cannot be loaded: ") + dlerror());
  const auto get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr) throw Refused(path + " is no PJRT plugin: it exports no GetPjrtApi");
  const PJRT_Api* api = get();
  const auto& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR || version.minor_version < kOldestMinor) {
    throw Refused(path + " has version " + std::to_string(version.major_version) + "." + std::to_string(version.minor_version) +
                  " of PJRT's interface, expected " + std::to_string(PJRT_API_MAJOR) + "." + std::to_string(kOldestMinor) + " or later");
  }
  return *api;
}

}  // namespace

void destroy_buffer(const PjrtClient& client, PJRT_Buffer* buffer) {
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Buffer_Destroy_Args);
  call.buffer = buffer;
  client.api().PJRT_Buffer_Destroy(&call);
}

void destroy_executable(const PjrtClient& client, PJRT_LoadedExecutable* executable) {
  auto call = TRN_PJRT_ARGUMENTS(PJRT_LoadedExecutable_Destroy_Args);
  call.executable = executable;
  client.api().PJRT_LoadedExecutable_Destroy(&call);
}

void destroy_program(const PjrtClient& client, PJRT_Executable* program) {
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Executable_Destroy_Args);
  call.executable = program;
  client.api().PJRT_Executable_Destroy(&call);
}

std::shared_ptr<PjrtClient> PjrtClient::of_plugin(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<PjrtClient>> clients;
  const std::lock_guard lock(mutex);
  std::shared_ptr<PjrtClient> client = clients[path].lock();
  if (client == nullptr) {
    client.reset(new PjrtClient(path));
    clients[path] = client;
  }
  return client;
}

PjrtClient::PjrtClient(const std::string& path) : path_(path), api_(&api_of(path)) {
  auto initialize = TRN_PJRT_ARGUMENTS(PJRT_Plugin_Initialize_Args);
  check(api_->PJRT_Plugin_Initialize(&initialize), "initialising the PJRT plugin");
  auto create = TRN_PJRT_ARGUMENTS(PJRT_Client_Create_Args);
  check(api_->PJRT_Client_Create(&create), "making a PJRT client");
  client_ = create.client;
  auto devices = TRN_PJRT_ARGUMENTS(PJRT_Client_AddressableDevices_Args);
  devices.client = client_;
  check(api_->PJRT_Client_AddressableDevices(&devices), "listing PJRT devices");
  if (devices.num_addressable_devices == 0) throw Refused(path + " has no device");
  device_ = devices.addressable_devices[0];
}

PjrtClient::~PjrtClient() {
  if (client_ == nullptr) return;
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Client_Destroy_Args);
  call.client = client_;
  api_->PJRT_Client_Destroy(&call);
}

void PjrtClient::check(PJRT_Error* error, const char* what) const {
  if (error == nullptr) return;
  auto message = TRN_PJRT_ARGUMENTS(PJRT_Error_Message_Args);
  message.error = error;
  api_->PJRT_Error_Message(&message);
  const std::string text = std::string(what) + ": " + std::string(message.message, message.message_size);
  auto destroy = TRN_PJRT_ARGUMENTS(PJRT_Error_Destroy_Args);
  destroy.error = error;
  api_->PJRT_Error_Destroy(&destroy);
  throw std::runtime_error(text);
}

void PjrtClient::wait(PJRT_Event* event, const char* what) const {
  auto await = TRN_PJRT_ARGUMENTS(PJRT_Event_Await_Args);
  await.event = event;
  PJRT_Error* error = api_->PJRT_Event_Await(&await);
  auto destroy = TRN_PJRT_ARGUMENTS(PJRT_Event_Destroy_Args);
  destroy.event = event;
  api_->PJRT_Event_Destroy(&destroy);
  check(error, what);
}

std::string PjrtClient::platform() const {
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Client_PlatformName_Args);
  call.client = client_;
  check(api_->PJRT_Client_PlatformName(&call), "asking for PJRT's platform");
  return {call.platform_name, call.platform_name_size};
}

PjrtExecutable PjrtClient::compile(const std::string& program) const {
  std::string code = program;
  auto given = TRN_PJRT_ARGUMENTS(PJRT_Program);
  given.code = code.data();
  given.code_size = code.size();
  given.format = "mlir";
  given.format_size = 4;
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Client_Compile_Args);
  call.client = client_;
  call.program = &given;
  call.compile_options = kCompileOptions;
  call.compile_options_size = sizeof kCompileOptions;
  check(api_->PJRT_Client_Compile(&call), "compiling StableHLO");
  return {shared_from_this(), call.executable};
}

void PjrtClient::expect(bool has, const char* function) const {
  if (!has) throw Refused(path_ + " has no " + function + ": it takes no precompiled executables");
}

std::string PjrtClient::version() const {
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Client_PlatformVersion_Args);
  call.client = client_;
  check(api_->PJRT_Client_PlatformVersion(&call), "asking for PJRT's version");
  std::string text(call.platform_version, call.platform_version_size);
  const auto& interface = api_->pjrt_api_version;
  text.append(", interface ").append(std::to_string(interface.major_version)).append(".").append(std::to_string(interface.minor_version));
  auto known = TRN_PJRT_ARGUMENTS(PJRT_Plugin_Attributes_Args);
  check(api_->PJRT_Plugin_Attributes(&known), "asking for PJRT's attributes");
  for (size_t i = 0; i < known.num_attributes; ++i) {
    const PJRT_NamedValue& value = known.attributes[i];
    if (value.type != PJRT_NamedValue_kInt64 && value.type != PJRT_NamedValue_kInt64List) continue;
    const bool is_list = value.type == PJRT_NamedValue_kInt64List;
    text.append(", ").append(value.name, value.name_size);
    for (size_t k = 0; k < value.value_size; ++k) {
      text.append(k == 0 ? " " : ".").append(std::to_string(is_list ? value.int64_array_value[k] : value.int64_value));
    }
  }
  return text;
}

std::string PjrtClient::topology() const {
  expect(api_->PJRT_Client_TopologyDescription != nullptr && api_->PJRT_TopologyDescription_Serialize != nullptr,
         "PJRT_TopologyDescription_Serialize");
  auto get = TRN_PJRT_ARGUMENTS(PJRT_Client_TopologyDescription_Args);
  get.client = client_;
  check(api_->PJRT_Client_TopologyDescription(&get), "asking for PJRT's topology");
  auto devices = TRN_PJRT_ARGUMENTS(PJRT_TopologyDescription_GetDeviceDescriptions_Args);
  devices.topology = get.topology;
  check(api_->PJRT_TopologyDescription_GetDeviceDescriptions(&devices), "listing PJRT's devices");
  std::map<std::string, int> kinds;
  for (size_t i = 0; i < devices.num_descriptions; ++i) {
    auto kind = TRN_PJRT_ARGUMENTS(PJRT_DeviceDescription_Kind_Args);
    kind.device_description = devices.descriptions[i];
    check(api_->PJRT_DeviceDescription_Kind(&kind), "asking for a device's kind");
    ++kinds[std::string(kind.device_kind, kind.device_kind_size)];
  }
  auto serialized = TRN_PJRT_ARGUMENTS(PJRT_TopologyDescription_Serialize_Args);
  serialized.topology = get.topology;
  check(api_->PJRT_TopologyDescription_Serialize(&serialized), "serializing PJRT's topology");
  const std::string hash = sha256({serialized.serialized_bytes, serialized.serialized_bytes_size});
  serialized.serialized_topology_deleter(serialized.serialized_topology);
  std::string text;
  for (const auto& [kind, count] : kinds) text.append(std::to_string(count)).append(" x ").append(kind).append(", ");
  return text.append("sha256 ").append(hash);
}

PjrtProgram PjrtClient::program_of(const PjrtExecutable& executable) const {
  auto get = TRN_PJRT_ARGUMENTS(PJRT_LoadedExecutable_GetExecutable_Args);
  get.loaded_executable = executable.get();
  check(api_->PJRT_LoadedExecutable_GetExecutable(&get), "asking for a program");
  return {shared_from_this(), get.executable};
}

std::string PjrtClient::serialize(const PjrtExecutable& executable) const {
  expect(api_->PJRT_Executable_Serialize != nullptr, "PJRT_Executable_Serialize");
  const PjrtProgram program = program_of(executable);
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Executable_Serialize_Args);
  call.executable = program.get();
  check(api_->PJRT_Executable_Serialize(&call), "serializing a program");
  std::string bytes(call.serialized_bytes, call.serialized_bytes_size);
  call.serialized_executable_deleter(call.serialized_executable);
  return bytes;
}

PjrtExecutable PjrtClient::load(const std::string& bytes) const {
  expect(api_->PJRT_Executable_DeserializeAndLoad != nullptr, "PJRT_Executable_DeserializeAndLoad");
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Executable_DeserializeAndLoad_Args);
  call.client = client_;
  call.serialized_executable = bytes.data();
  call.serialized_executable_size = bytes.size();
  check(api_->PJRT_Executable_DeserializeAndLoad(&call), "loading a precompiled program");
  return {shared_from_this(), call.loaded_executable};
}

size_t PjrtClient::num_outputs(const PjrtExecutable& executable) const {
  const PjrtProgram program = program_of(executable);
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Executable_NumOutputs_Args);
  call.executable = program.get();
  check(api_->PJRT_Executable_NumOutputs(&call), "asking for a program's outputs");
  return call.num_outputs;
}

PjrtBuffer PjrtClient::upload(PJRT_Buffer_Type type, std::span<const int64_t> dims, const void* data) const {
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Client_BufferFromHostBuffer_Args);
  call.client = client_;
  call.data = data;
  call.type = type;
  call.dims = dims.data();
  call.num_dims = dims.size();
  call.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  call.device = device_;
  check(api_->PJRT_Client_BufferFromHostBuffer(&call), "copying to the device");
  PjrtBuffer buffer(shared_from_this(), call.buffer);
  wait(call.done_with_host_buffer, "copying to the device");
  return buffer;
}

std::vector<PjrtBuffer> PjrtClient::execute(const PjrtExecutable& executable, std::span<PJRT_Buffer* const> given, size_t num_outputs) const {
  PJRT_Buffer* const* argument_lists[] = {given.data()};
  std::vector<PJRT_Buffer*> outputs(num_outputs, nullptr);
  PJRT_Buffer** output_lists[] = {outputs.data()};
  auto options = TRN_PJRT_ARGUMENTS(PJRT_ExecuteOptions);
  // Weights and inputs stay ours.
  std::vector<int64_t> kept(given.size());
  std::iota(kept.begin(), kept.end(), 0);
  options.non_donatable_input_indices = kept.data();
  options.num_non_donatable_input_indices = kept.size();
  auto call = TRN_PJRT_ARGUMENTS(PJRT_LoadedExecutable_Execute_Args);
  call.executable = executable.get();
  call.options = &options;
  call.argument_lists = argument_lists;
  call.num_devices = 1;
  call.num_args = given.size();
  call.output_lists = output_lists;
  check(api_->PJRT_LoadedExecutable_Execute(&call), "running the program");
  std::vector<PjrtBuffer> found;
  for (PJRT_Buffer* buffer : outputs) found.emplace_back(shared_from_this(), buffer);
  return found;
}

void PjrtClient::download(const PjrtBuffer& buffer, const trn_engine_tensor& output) const {
  auto type = TRN_PJRT_ARGUMENTS(PJRT_Buffer_ElementType_Args);
  type.buffer = buffer.get();
  check(api_->PJRT_Buffer_ElementType(&type), "asking for a result's type");
  auto dims = TRN_PJRT_ARGUMENTS(PJRT_Buffer_Dimensions_Args);
  dims.buffer = buffer.get();
  check(api_->PJRT_Buffer_Dimensions(&dims), "asking for a result's dims");
  const std::span<const int64_t> found(dims.dims, dims.num_dims);
  const std::span<const int64_t> wanted(output.dims, static_cast<size_t>(output.num_dims));
  if (type.type != pjrt_type(output.dtype) || !std::equal(found.begin(), found.end(), wanted.begin(), wanted.end())) {
    throw std::runtime_error(std::string("output ") + output.name + " of the program has another type or other dims than the bundle says");
  }
  std::vector<int64_t> minor_to_major(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) minor_to_major[i] = static_cast<int64_t>(wanted.size() - 1 - i);
  auto layout = TRN_PJRT_ARGUMENTS(PJRT_Buffer_MemoryLayout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled = TRN_PJRT_ARGUMENTS(PJRT_Buffer_MemoryLayout_Tiled);
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();
  auto call = TRN_PJRT_ARGUMENTS(PJRT_Buffer_ToHostBuffer_Args);
  call.src = buffer.get();
  call.host_layout = &layout;
  call.dst = output.data;
  call.dst_size = output.num_bytes;
  check(api_->PJRT_Buffer_ToHostBuffer(&call), "copying from the device");
  wait(call.event, "copying from the device");
}

PJRT_Buffer_Type pjrt_type(trn_dtype dtype) {
  switch (dtype) {
    case TRN_DTYPE_BOOL: return PJRT_Buffer_Type_PRED;
    case TRN_DTYPE_UINT8: return PJRT_Buffer_Type_U8;
    case TRN_DTYPE_UINT16: return PJRT_Buffer_Type_U16;
    case TRN_DTYPE_UINT32: return PJRT_Buffer_Type_U32;
    case TRN_DTYPE_UINT64: return PJRT_Buffer_Type_U64;
    case TRN_DTYPE_INT8: return PJRT_Buffer_Type_S8;
    case TRN_DTYPE_INT16: return PJRT_Buffer_Type_S16;
    case TRN_DTYPE_INT32: return PJRT_Buffer_Type_S32;
    case TRN_DTYPE_INT64: return PJRT_Buffer_Type_S64;
    case TRN_DTYPE_FLOAT16: return PJRT_Buffer_Type_F16;
    case TRN_DTYPE_BFLOAT16: return PJRT_Buffer_Type_BF16;
    case TRN_DTYPE_FLOAT32: return PJRT_Buffer_Type_F32;
    case TRN_DTYPE_FLOAT64: return PJRT_Buffer_Type_F64;
    case TRN_DTYPE_BYTES: break;
  }
  return PJRT_Buffer_Type_INVALID;
}

}  // namespace trunnion::bundle
