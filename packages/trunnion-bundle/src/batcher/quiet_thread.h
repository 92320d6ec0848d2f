// A thread that takes no signals: they are the process's main thread's to handle.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace trunnion::bundle {

template <typename Function>
std::thread quiet_thread(Function function) {
  sigset_t quiet, before;
  sigfillset(&quiet);
  // Faults of the thread itself must still reach it.
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) sigdelset(&quiet, fault);
  pthread_sigmask(SIG_SETMASK, &quiet, &before);
  std::thread thread(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace trunnion::bundle
