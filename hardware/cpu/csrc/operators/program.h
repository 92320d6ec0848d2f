// Calls of operators as they reached the threads, made again without torch: raw pointers, and what they hold by then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace trunnion_cpu {

struct FreeAligned {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{64}); }
};

// Blocks for the results of a program's calls, taken again once a result is dropped, and never given back.
class Arena {
 public:
  void* take(size_t bytes) {
    for (Block& block : blocks_) {
      if (block.is_free && block.size >= bytes && block.size <= kMostSlack * bytes) {
        block.is_free = false;
        return block.memory.get();
      }
    }
    blocks_.push_back({Memory{::operator new(bytes, std::align_val_t{64})}, bytes, false});
    return blocks_.back().memory.get();
  }

  void give_back(void* memory) {
    for (Block& block : blocks_) {
      if (block.memory.get() == memory) block.is_free = true;
    }
  }

 private:
  static constexpr size_t kMostSlack = 2;
  using Memory = std::unique_ptr<void, FreeAligned>;
  struct Block {
    Memory memory;
    size_t size;
    bool is_free;
  };
  std::vector<Block> blocks_;
};

class Program {
 public:
  using Call = std::function<void(int64_t threads)>;

  // What this thread's operators note their calls in; null unless one is being recorded.
  static Program*& recording() {
    static thread_local Program* program = nullptr;
    return program;
  }

  void note(Call call) { calls_.push_back(std::move(call)); }
  size_t size() const { return calls_.size(); }
  void run(size_t first, size_t last, int64_t threads) const {
    for (size_t i = first; i < last; ++i) calls_[i](threads);
  }
  void forget_from(size_t first) { calls_.resize(first); }

  // A call reads what is not there when it is made again: it cannot be recorded.
  void spoil() { is_spoilt_ = true; }
  bool take_spoilt() { return std::exchange(is_spoilt_, false); }

  const std::shared_ptr<Arena>& results() const { return results_; }

  // As Scratch::of: until the next such call of the program.
  void* scratch(size_t bytes) {
    for (auto& [size, memory] : scratch_) {
      if (size >= bytes) return memory.get();
    }
    scratch_.emplace_back(bytes, ::operator new(bytes, std::align_val_t{64}));
    return scratch_.back().second.get();
  }

 private:
  std::vector<Call> calls_;
  std::shared_ptr<Arena> results_ = std::make_shared<Arena>();
  std::vector<std::pair<size_t, std::unique_ptr<void, FreeAligned>>> scratch_;
  bool is_spoilt_ = false;
};

// Operators called meanwhile on this thread are not noted: their caller notes itself.
class NotRecorded {
 public:
  NotRecorded() : before_(std::exchange(Program::recording(), nullptr)) {}
  ~NotRecorded() { Program::recording() = before_; }
  NotRecorded(const NotRecorded&) = delete;
  NotRecorded& operator=(const NotRecorded&) = delete;

 private:
  Program* before_;
};

}  // namespace trunnion_cpu
