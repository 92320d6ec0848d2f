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
  NullModel(const NullOptions& options, const trn_limits& limits, bool keeps_hidden = false);
  virtual ~NullModel() = default;

  const Description& description() const noexcept { return description_; }
  void allocate(const std::vector<std::int32_t>& num_blocks);
  /// `data[group][layer]` is the group's only tensor.
  void bind(std::vector<std::vector<void*>> data) { caches_ = std::move(data); }
  NullImages& images() noexcept { return images_; }
  /// `events` are those of the step, or nullptr.
  virtual void forward(const BufferSet& set, const Counts& counts, KvSlot* events);
  /// Leave the step's slots and states as a step that died half-way would.
  void scribble(const BufferSet& set, const Counts& counts);

  bool keeps_hidden() const noexcept { return keeps_hidden_; }
  /// What stands for hidden states: per row of the last step the tokens that it has seen, its own the last. Empty unless
  /// they are kept.
  const std::vector<std::vector<std::int32_t>>& hidden() const noexcept { return hidden_; }
  /// The hash that a row which has seen these tokens makes its logits of.
  std::uint64_t hash_of(const std::vector<std::int32_t>& tokens) const;

 protected:
  static std::int64_t request_of(std::int32_t row, const BufferSet& set, const Counts& counts);
  static void fill_row(float* row, std::int32_t width, std::uint64_t hash);
  /// Write what the step's rows leave in the caches; the recurrent groups' hash of each row.
  std::vector<std::uint64_t> update_caches(const BufferSet& set, const Counts& counts, KvSlot* events);
  /// The tokens that the first group holds for a request at positions 0 ... position.
  std::vector<std::int32_t> cached(const BufferSet& set, std::int64_t request, std::int32_t position) const;

  Description description_;
  std::vector<std::vector<std::int32_t>> hidden_;

 private:
  /// What the caches hold of a token: its id or its image's row, mixed with its type unless that is 0, and where it lies.
  std::int32_t token(const BufferSet& set, const Counts& counts, std::int64_t index) const;
  std::int32_t position(const BufferSet& set, std::int64_t index) const;
  void write_kv(std::size_t group, void* cache, const BufferSet& set, const Counts& counts);
  void roll_state(std::size_t group, void* cache, const BufferSet& set, const Counts& counts,
                  std::vector<std::uint64_t>& hashes);
  std::uint64_t attend(std::size_t group, const BufferSet& set, std::int64_t request, std::int32_t position) const;

  bool reads_csr_, keeps_hidden_;
  NullImages images_;
  std::vector<std::vector<void*>> caches_;
  std::vector<std::unique_ptr<std::int64_t[]>> owned_;
};

}  // namespace trunnion::executor
