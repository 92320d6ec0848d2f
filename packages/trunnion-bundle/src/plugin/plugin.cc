#include "plugin/plugin.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "bundle/errors.h"
#include "bundle/sha256.h"

namespace trunnion::bundle {
namespace {

constexpr size_t kLongestError = 1024;
// One longer than plugins are told, so that it ends whatever they write.
using ErrorText = std::array<char, kLongestError + 1>;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw BundleError(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// A library of these bytes. dlopen() knows libraries by their path, and would give the old one for a file that was replaced.
void* open_bytes(const std::string& bytes, const std::string& title) {
  const int file = memfd_create(title.substr(title.rfind('/') + 1).c_str(), MFD_CLOEXEC);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = file < 0 ? -1 : write(file, bytes.data() + done, bytes.size() - done);
    if (written <= 0) throw BundleError("plugin " + title + " cannot be copied to memory");
    done += static_cast<size_t>(written);
  }
  // The descriptor stays open: its number is the library's name.
  void* library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string reason = dlerror();
    close(file);
    throw BundleError("plugin " + title + " cannot be loaded: " + reason);
  }
  return library;
}

// Loaded once for each content and never closed: libraries do not survive being unloaded.
const trn_plugin_api& api_of(const std::filesystem::path& path, const std::string& title) {
  static std::mutex mutex;
  static std::map<std::string, void*> libraries;
  const std::string bytes = read_file(path), hash = sha256(bytes);
  const std::lock_guard lock(mutex);
  if (!libraries.contains(hash)) libraries[hash] = open_bytes(bytes, title);
  const auto get = reinterpret_cast<trn_plugin_get_api_fn>(dlsym(libraries[hash], "trn_plugin_get_api"));
  if (get == nullptr) throw BundleError("plugin " + title + " exports no trn_plugin_get_api");
  const trn_plugin_api* api = get();
  if (api == nullptr || api->abi_version != TRN_PLUGIN_ABI_VERSION || api->struct_size != sizeof(trn_plugin_api)) {
    throw BundleError("plugin " + title + " has version " + (api == nullptr ? "none" : std::to_string(api->abi_version)) +
                      " of the plugins' interface, this program has " + std::to_string(TRN_PLUGIN_ABI_VERSION));
  }
  if (api->name == nullptr || api->open == nullptr || api->run == nullptr || api->close == nullptr) {
    throw BundleError("plugin " + title + " has an interface with fields that are null");
  }
  return *api;
}

// The outputs that one call has asked for.
struct Asked {
  const Plugin::Check& check;
  std::vector<std::optional<Tensor>> outputs;
  std::string problem;  // the first

  void* allocate(int32_t index, trn_dtype dtype, int32_t num_dims, const int64_t* dims) {
    const auto refuse = [&](const std::string& text) -> void* {
      if (problem.empty()) problem = text;
      return nullptr;
    };
    if (index < 0 || index >= std::ssize(outputs)) {
      return refuse("output " + std::to_string(index) + " is asked for, the step has " + std::to_string(outputs.size()));
    }
    std::optional<Tensor>& output = outputs[static_cast<size_t>(index)];
    if (output) return refuse("output " + std::to_string(index) + " is asked for twice");
    if (num_dims < 0 || num_dims > 8) return refuse("output " + std::to_string(index) + " has " + std::to_string(num_dims) + " dims");
    const std::span<const int64_t> sizes(dims, static_cast<size_t>(num_dims));
    if (const std::string text = check(index, static_cast<Dtype>(dtype), sizes); !text.empty()) return refuse(text);
    output = make_tensor(static_cast<Dtype>(dtype), {sizes.begin(), sizes.end()});
    return output->data.data();
  }
};

void* allocate(void* context, int32_t index, trn_dtype dtype, int32_t num_dims, const int64_t* dims) noexcept {
  auto& asked = *static_cast<Asked*>(context);
  try {
    return asked.allocate(index, dtype, num_dims, dims);
  } catch (const std::exception& error) {
    asked.problem = error.what();
    return nullptr;
  }
}

std::vector<trn_plugin_bytes> views_of(const std::vector<std::string>& strings) {
  std::vector<trn_plugin_bytes> views;
  for (const std::string& string : strings) views.push_back({string.data(), string.size()});
  return views;
}

}  // namespace

Plugin::Plugin(const std::filesystem::path& path, const std::string& configuration)
    : api_(api_of(path, path.filename().string())), title_(std::string(api_.name) + " (" + path.filename().string() + ")") {
  ErrorText error{};
  if (api_.open(configuration.c_str(), &plugin_, error.data(), kLongestError) != TRN_PLUGIN_OK) {
    throw BundleError("plugin " + title_ + " cannot be opened: " + error.data());
  }
}

Plugin::~Plugin() { api_.close(plugin_); }

std::vector<Tensor> Plugin::run(std::span<const Tensor* const> inputs, int32_t num_outputs, const Check& check) const {
  std::vector<std::vector<trn_plugin_bytes>> strings;
  std::vector<trn_plugin_tensor> given;
  strings.reserve(inputs.size());
  for (const Tensor* input : inputs) {
    strings.push_back(views_of(input->strings));
    const void* data = input->dtype == Dtype::kBytes ? static_cast<const void*>(strings.back().data()) : input->data.data();
    given.push_back({static_cast<trn_dtype>(input->dtype), static_cast<int32_t>(input->dims.size()), input->dims.data(), data});
  }
  Asked asked{.check = check, .outputs = std::vector<std::optional<Tensor>>(static_cast<size_t>(num_outputs)), .problem = ""};
  const trn_plugin_call call{.struct_size = sizeof(trn_plugin_call),
                             .num_inputs = static_cast<int32_t>(given.size()),
                             .num_outputs = num_outputs,
                             .inputs = given.data(),
                             .context = &asked,
                             .allocate = allocate};
  ErrorText error{};
  const trn_plugin_status status = api_.run(plugin_, &call, error.data(), kLongestError);
  if (!asked.problem.empty()) throw PluginFailed("plugin " + title_ + ": " + asked.problem);
  if (status == TRN_PLUGIN_REFUSED) throw InvalidRequest("plugin " + title_ + ": " + error.data());
  if (status != TRN_PLUGIN_OK) throw PluginFailed("plugin " + title_ + " failed: " + error.data());
  std::vector<Tensor> results;
  for (size_t i = 0; i < asked.outputs.size(); ++i) {
    if (!asked.outputs[i]) throw PluginFailed("plugin " + title_ + " made no output " + std::to_string(i));
    results.push_back(std::move(*asked.outputs[i]));
  }
  return results;
}

}  // namespace trunnion::bundle
