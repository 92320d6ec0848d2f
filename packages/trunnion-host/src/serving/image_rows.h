// Which images hold rows of the encoder pool, and how far a chunk may go because of them.
#pragma once

#include <cstdint>

#include "serving/encoder_pool.h"
#include "serving/request.h"

namespace trunnion::serving {

// An image is encoded in the step whose chunk first touches it, one per request and step, and keeps its rows until its
// last token is computed. Who must wait for rows lets nobody behind it take any: those who hold some give them back
// without needing others, so that the wait ends.
class ImageRows {
 public:
  explicit ImageRows(int32_t num_rows) : pool_(num_rows) {}

  const EncoderPool& pool() const { return pool_; }
  uint64_t num_encodes() const { return num_encodes_; }
  uint64_t num_skipped() const { return num_skipped_; }

  void begin_step() { awaited_ = false; }
  // Somebody in front waits, and this request will need rows too: it had better not begin.
  bool must_queue(const Request& request) const;
  // The part of a chunk from request.num_computed on whose images are encoded or can be in this step.
  int32_t reach(const Request& request, int32_t chunk);
  // The image to encode for a chunk that reach() allows, with rows for it; -1 = none.
  int32_t take(Request& request, int32_t chunk);
  // The step that should have encoded the image never ran.
  void forget(Request& request, int32_t image);
  // Give back the rows of images whose last token is computed.
  void release_computed(Request& request);
  void release(Request& request);
  // So many leading tokens of a request were found in the prefix cache: images that end there need no encoding.
  void count_skipped(const Request& request);
  // A step has run with so many images.
  void count_encoded(int32_t num_images) { num_encodes_ += static_cast<uint64_t>(num_images); }

 private:
  void release(ImageSpan& span);

  EncoderPool pool_;
  bool awaited_ = false;
  uint64_t num_encodes_ = 0, num_skipped_ = 0;
};

}  // namespace trunnion::serving
