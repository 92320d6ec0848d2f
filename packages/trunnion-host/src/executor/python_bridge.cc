// The only file that includes Python.h: the Python executor behind Backend, the GIL's choke point, and the module.
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <type_traits>
#include <utility>

#include "backend.h"
#include "environment_version.h"
#include "python_support.h"
#include "python_values.h"
#include "status.h"
#include "trunnion/embed.h"

namespace trunnion::executor {
namespace {

constexpr const char* kEntryModule = "trunnion.runner.host_entry";

class PythonBackend final : public Backend {
 public:
  PythonBackend(const trn_create_options& options, Backend* target) {
    if (!Py_IsInitialized()) refuse("hardware", "'", options.hardware, "' needs Python, which does not run in this process");
    keep_thread_state();
    try {
      const GilScope gil(gil_stats_, Entry::kOther);
      load(options, target);
    } catch (...) {
      release_thread_state(nullptr);
      throw;
    }
  }

  ~PythonBackend() override {
    // After Python has ended there is nothing left to drop.
    if (Py_IsInitialized()) release_thread_state([this] { drop_references(); });
  }

  const Description& description() const override { return description_; }
  const BufferSet& buffer_set(std::int32_t index) override { return sets_[index]; }
  GilStats gil_stats() const override { return gil_stats_; }
  const RunnerCounters& runner_counters() const override { return *runner_counters_; }
  KvEvents& kv_events() override { return *kv_events_; }

  const std::string& eager_reason(std::int32_t index) override {
    if (static_cast<std::size_t>(index) >= reasons_.size()) read_reasons();
    return reasons_.at(static_cast<std::size_t>(index));
  }

  void allocate_kv_cache(const std::vector<std::int32_t>& num_blocks) override {
    const GilScope gil(gil_stats_, Entry::kOther);
    Ref counts(PyList_New(0));
    for (const std::int32_t count : num_blocks) PyList_Append(counts.get(), Ref(PyLong_FromLong(count)).get());
    call("allocate_kv_cache", counts.get());
  }

  void bind_kv_cache(const trn_cache_tensor* tensors, std::int32_t num_tensors) override {
    const GilScope gil(gil_stats_, Entry::kOther);
    Ref list(PyList_New(0));
    for (std::int32_t i = 0; i < num_tensors; ++i) {
      Ref capsule = lent_capsule(tensors[i].tensor);
      Ref item = checked(Py_BuildValue("(iisO)", tensors[i].group, tensors[i].layer, tensors[i].name, capsule.get()), classify_);
      PyList_Append(list.get(), item.get());
    }
    call("bind_kv_cache", list.get());
  }

  std::string warm_up() override {
    const GilScope gil(gil_stats_, Entry::kOther);
    return text_of(call("warm_up", nullptr).get());
  }

  void execute(std::int32_t index, const Counts& counts, std::span<const trn_encoder_item> images) override {
    *counts_[index] = counts;
    const GilScope gil(gil_stats_, Entry::kStep);
    if (images.empty()) {
      const Ref output = checked(PyObject_CallNoArgs(steps_[index]), classify_);
      return;
    }
    const Ref list = checked(image_list(images).release(), classify_);
    const Ref output = checked(PyObject_CallFunctionObjArgs(steps_[index], list.get(), nullptr), classify_);
  }

  void wait(std::uint64_t fence) override {
    const GilScope gil(gil_stats_, Entry::kOther);
    call("wait", Ref(PyLong_FromUnsignedLongLong(fence)).get());
  }

 private:
  /// Keep the thread's Python state between calls: making one costs more than a step's whole boundary.
  void keep_thread_state() {
    const PyGILState_STATE before = PyGILState_Ensure();
    if (before == PyGILState_LOCKED) {
      // The caller holds the GIL, so the state is its own and stays.
      PyGILState_Release(before);
      return;
    }
    kept_ = true;
    PyEval_SaveThread();
  }

  template <typename Drop>
  void release_thread_state(const Drop& drop) {
    const PyGILState_STATE before = PyGILState_Ensure();
    if constexpr (!std::is_same_v<Drop, std::nullptr_t>) drop();
    // "Locked" only balances the Ensure of keep_thread_state; the last Release gives up the GIL if it was taken here.
    if (kept_) PyGILState_Release(PyGILState_LOCKED);
    PyGILState_Release(before);
  }

  /// Modules are not garbage: looking for some while torch is imported takes a fifth of the time.
  static Ref imported(const char* name) {
    const bool collects = PyGC_Disable() != 0;
    Ref module(PyImport_ImportModule(name));
    if (collects) PyGC_Enable();
    return module;
  }

  void load(const trn_create_options& options, Backend* target) {
    Ref entry = imported(kEntryModule);
    if (!entry) {
      const Ref error = take_exception();
      refuse("hardware", "'", options.hardware, "' needs the Python package trunnion: ", plain_description(error.get()));
    }
    Ref judge(PyObject_GetAttrString(entry.get(), "classify_creation"));
    Ref create = checked(PyObject_GetAttrString(entry.get(), "create"), judge.get());
    const auto* other = dynamic_cast<const PythonBackend*>(target);
    if (target != nullptr && other == nullptr) refuse("share_with", "is not an executor of the same hardware");
    PyObject* shared = other == nullptr ? Py_None : other->executor_;
    const Ref arguments = checked(options_dict(options, shared).release(), judge.get());
    Ref executor = checked(PyObject_CallFunctionObjArgs(create.get(), arguments.get(), nullptr), judge.get());
    Ref facts = checked(PyObject_CallMethod(executor.get(), "describe", nullptr), judge.get());
    description_ = read_description({facts.get()});
    runner_counters_ = Reader{facts.get()}.pointer<const RunnerCounters*>("counters");
    if (runner_counters_ == nullptr) throw StatusError(TRN_FATAL, "", "host_entry does not say counters");
    Ref steps[kNumBufferSets];
    for (int i = 0; i < kNumBufferSets; ++i) {
      const Ref addresses = checked(PyObject_CallMethod(executor.get(), "addresses", "i", i), judge.get());
      sets_[i] = read_buffer_set({addresses.get()}, description_.groups.size());
      counts_[i] = Reader{addresses.get()}.pointer<Counts*>("counts");
      steps[i] = checked(PyObject_CallMethod(executor.get(), "step", "i", i), judge.get());
    }
    kv_events_ = std::make_unique<KvEvents>(cache_layers(description_), options.tp_size > 1);
    checked(bind_kv_events(executor.get(), *kv_events_).release(), judge.get());
    classify_ = checked(PyObject_GetAttrString(executor.get(), "classify"), judge.get()).release();
    for (int i = 0; i < kNumBufferSets; ++i) steps_[i] = steps[i].release();
    executor_ = executor.release();
  }

  void read_reasons() {
    const GilScope gil(gil_stats_, Entry::kOther);
    const Ref list = call("eager_reasons", nullptr);
    for (Py_ssize_t i = static_cast<Py_ssize_t>(reasons_.size()); i < PyList_Size(list.get()); ++i) {
      reasons_.push_back(text_of(PyList_GetItem(list.get(), i)));
    }
  }

  /// Call a method with one argument, or none.
  Ref call(const char* method, PyObject* argument) {
    const Ref bound = checked(PyObject_GetAttrString(executor_, method), classify_);
    return checked(PyObject_CallFunctionObjArgs(bound.get(), argument, nullptr), classify_);
  }

  void drop_references() {
    if (!Ref(PyObject_CallMethod(executor_, "close", nullptr))) PyErr_WriteUnraisable(executor_);
    for (PyObject*& step : steps_) Py_CLEAR(step);
    Py_CLEAR(classify_);
    Py_CLEAR(executor_);
  }

  GilStats gil_stats_;
  bool kept_ = false;
  PyObject* executor_ = nullptr;
  PyObject* classify_ = nullptr;
  PyObject* steps_[kNumBufferSets] = {};
  Counts* counts_[kNumBufferSets] = {};
  const RunnerCounters* runner_counters_ = nullptr;
  /// A deque, so that texts handed out stay where they are.
  std::deque<std::string> reasons_;
  BufferSet sets_[kNumBufferSets];
  Description description_;
  std::unique_ptr<KvEvents> kv_events_;
};

void check_program(const std::string& program) {
  if (Py_IsInitialized()) refuse("program", "Python runs in this process already");
  if (!std::ifstream(program)) refuse("program", "'", program, "' is not a file");
  const std::string wanted = environment_version(program);
  const std::string linked = Py_GetVersion();
  if (!wanted.empty() && linked.compare(0, wanted.size() + 1, wanted + ".") != 0) {
    refuse("program", "'", program, "' is Python ", wanted, ", the libpython of this process is ",
           linked.substr(0, linked.find(' ')));
  }
}

PyThreadState*& main_state() {
  static PyThreadState* state = nullptr;
  return state;
}

void start_python(const std::string& program) {
  check_program(program);
  // Python keeps the pointer.
  static wchar_t* name = nullptr;
  name = Py_DecodeLocale(program.c_str(), nullptr);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  // PyConfig, its successor, is not in the limited API.
  Py_SetProgramName(name);
#pragma GCC diagnostic pop
  Py_InitializeEx(0);
  const bool importable = static_cast<bool>(Ref(PyImport_ImportModule(kEntryModule)));
  const std::string why = importable ? "" : plain_description(take_exception().get());
  main_state() = PyEval_SaveThread();
  if (!importable) {
    trn_python_stop();
    refuse("program", "'", program, "' cannot import trunnion: ", why);
  }
}

}  // namespace

std::unique_ptr<Backend> make_python_backend(const trn_create_options& options, Backend* target) {
  return std::make_unique<PythonBackend>(options, target);
}

std::uint64_t python_backend_feature() { return TRN_FEATURE_PYTHON_EXECUTOR; }

}  // namespace trunnion::executor

trn_status trn_python_start(const char* program, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) error[0] = '\0';
  try {
    trunnion::executor::start_python(program == nullptr ? "" : program);
    return TRN_OK;
  } catch (const std::exception& refused) {
    if (error != nullptr && error_size > 0) {
      std::strncpy(error, refused.what(), error_size - 1);
      error[error_size - 1] = '\0';
    }
    return TRN_REFUSED;
  }
}

void trn_python_stop(void) {
  PyThreadState* state = std::exchange(trunnion::executor::main_state(), nullptr);
  if (state == nullptr) return;
  PyEval_RestoreThread(state);
  Py_FinalizeEx();
}

extern "C" TRN_API PyObject* PyInit__host(void) {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_host", "The library behind trunnion/contract.h and serving.h.", -1,
                               nullptr,               nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
