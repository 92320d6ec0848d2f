// For Python's ctypes: programs are recorded by the thread that calls operators, and run by any one thread at a time.
#include "program.h"

#include <exception>
#include <string>

#include "num_threads.h"

using trunnion_cpu::Program;

#define TRUNNION_EXPORT extern "C" __attribute__((visibility("default")))

TRUNNION_EXPORT Program* trunnion_cpu_program_create() { return new Program; }

TRUNNION_EXPORT void trunnion_cpu_program_destroy(Program* program) { delete program; }

// Notes calls from now on; null: no longer.
TRUNNION_EXPORT void trunnion_cpu_program_record(Program* program) { Program::recording() = program; }

TRUNNION_EXPORT int64_t trunnion_cpu_program_size(const Program* program) { return program->size(); }

// 1 if a call since the last question could not be recorded.
TRUNNION_EXPORT int trunnion_cpu_program_take_spoilt(Program* program) { return program->take_spoilt(); }

TRUNNION_EXPORT void trunnion_cpu_program_forget_from(Program* program, int64_t first) { program->forget_from(first); }

// Makes calls [first, last) again -> null, or what went wrong, which is valid until the next call on this thread.
TRUNNION_EXPORT const char* trunnion_cpu_program_run(const Program* program, int64_t first, int64_t last) {
  static thread_local std::string error;
  try {
    program->run(first, last, trunnion_cpu::num_threads());
    return nullptr;
  } catch (const std::exception& caught) {
    error = caught.what();
    return error.c_str();
  }
}
