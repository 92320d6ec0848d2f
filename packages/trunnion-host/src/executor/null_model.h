// A "model" whose logits (or pooled rows) are a hash of every token that a request's caches hold, read the way attention reads them.
//
// A host that gives a wrong block, position, window start or state gets other logits, hence another next token; a host
// that gives the right ones gets the same logits however it pages, chunks, batches or preempts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend.h"
#include "null_images.h"
#include "null_options.h"

namespace trunnion::executor {

class NullModel {
 public:
  NullModel(const NullOptions& options, const trn_limits& limits);

  const Description& description() const noexcept { return description_; }
  void allocate(const std::vector<std::int32_t>& num_blocks);
  /// `data[group][layer]` is the group's only tensor.
  void bind(std::vector<std::vector<void*>> data) { caches_ = std::move(data); }
  NullImages& images() noexcept { return images_; }
  /// `events` are those of the step, or nullptr.
  void forward(const BufferSet& set, const Counts& counts, KvSlot* events);
  /// Leave the step's slots and states as a step that died half-way would.
  void scribble(const BufferSet& set, const Counts& counts);

 private:
  /// What the caches hold of a token: its id or its image's row, and where it lies.
  std::int32_t token(const BufferSet& set, std::int64_t index) const;
  std::int32_t position(const BufferSet& set, std::int64_t index) const;
  void write_kv(std::size_t group, void* cache, const BufferSet& set, const Counts& counts);
  void roll_state(std::size_t group, void* cache, const BufferSet& set, const Counts& counts,
                  std::vector<std::uint64_t>& hashes);
  std::uint64_t attend(std::size_t group, const BufferSet& set, std::int64_t request, std::int32_t position) const;

  Description description_;
  bool reads_csr_;
  NullImages images_;
  std::vector<std::vector<void*>> caches_;
  std::vector<std::unique_ptr<std::int64_t[]>> owned_;
};

}  // namespace trunnion::executor
