// References, the GIL's choke point, and exceptions; a part of python_bridge.cc, which includes Python.h before it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "backend.h"
#include "status.h"

namespace trunnion::executor {

/// An owned reference; only used while the GIL is held.
class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_;
};

enum class Entry { kStep, kOther };

/// Every taking of the GIL by an executor: counted, and timed in steps.
class GilScope {
 public:
  GilScope(GilStats& stats, Entry entry) {
    ++stats.entries;
    if (entry == Entry::kOther) {
      state_ = PyGILState_Ensure();
      return;
    }
    ++stats.step_entries;
    stats.last_begin_ns = now_ns();
    state_ = PyGILState_Ensure();
    stats.last_end_ns = now_ns();
    stats.step_wait_seconds += static_cast<double>(stats.last_end_ns - stats.last_begin_ns) * 1e-9;
  }
  ~GilScope() { PyGILState_Release(state_); }
  GilScope(const GilScope&) = delete;
  GilScope& operator=(const GilScope&) = delete;

 private:
  // CLOCK_MONOTONIC, as is Python's perf_counter.
  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  PyGILState_STATE state_;
};

inline std::string text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    return "(not a string)";
  }
  return {text, static_cast<std::size_t>(size)};
}

/// Take the exception that is set, with its traceback.
inline Ref take_exception() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr && value != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref(value);
}

inline std::string plain_description(PyObject* error) {
  Ref text(PyObject_Str(error));
  if (!text) PyErr_Clear();
  return text ? text_of(text.get()) : "(an exception without a text)";
}

/// Turn the exception that is set into a StatusError, as `classify` (a callable of host_entry) judges it.
[[noreturn]] inline void throw_python_error(PyObject* classify) {
  Ref error = take_exception();
  Ref verdict(PyObject_CallFunctionObjArgs(classify, error.get(), nullptr));
  if (!verdict) {
    PyErr_Clear();
    throw StatusError(TRN_FATAL, "", plain_description(error.get()));
  }
  const auto status = static_cast<trn_status>(PyLong_AsLong(PyTuple_GetItem(verdict.get(), 0)));
  const std::string field = text_of(PyTuple_GetItem(verdict.get(), 1));
  throw StatusError(status, field, text_of(PyTuple_GetItem(verdict.get(), 2)));
}

/// A new reference that must be there; `classify` judges why it is not.
inline Ref checked(PyObject* object, PyObject* classify) {
  if (object == nullptr) throw_python_error(classify);
  return Ref(object);
}

/// Reads what host_entry returns. Both sides are one project: a missing key is a defect, reported as FATAL.
struct Reader {
  PyObject* mapping;

  PyObject* at(const char* key) const {
    PyObject* value = PyDict_GetItemString(mapping, key);
    if (value == nullptr) throw StatusError(TRN_FATAL, "", concat("host_entry does not say ", key));
    return value;
  }
  std::int64_t integer(const char* key) const { return PyLong_AsLongLong(at(key)); }
  std::int32_t int32(const char* key) const { return static_cast<std::int32_t>(integer(key)); }
  template <typename Pointer>
  Pointer pointer(const std::string& key) const {
    PyObject* value = PyDict_GetItemString(mapping, key.c_str());
    return value == nullptr ? nullptr : static_cast<Pointer>(PyLong_AsVoidPtr(value));
  }
};

}  // namespace trunnion::executor
