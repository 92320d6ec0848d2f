#include "serving/image_rows.h"

#include <algorithm>
#include <cassert>

namespace trunnion::serving {

bool ImageRows::must_queue(const Request& request) const {
  const auto& spans = request.images.spans;
  return awaited_ && !spans.empty() && spans.back().end_token() > request.num_computed;
}

int32_t ImageRows::reach(const Request& request, int32_t chunk) {
  bool taken = false;
  for (const ImageSpan& span : request.images.spans) {
    if (span.first_token >= request.num_computed + chunk) break;
    if (span.end_token() <= request.num_computed || span.holds_rows()) continue;
    const bool fits = !taken && !awaited_ && pool_.can_allocate(span.num_tokens);
    if (!fits) {
      // The next step is early enough for a second image.
      awaited_ = awaited_ || !taken;
      return std::max(0, span.first_token - request.num_computed);
    }
    taken = true;
  }
  return chunk;
}

int32_t ImageRows::take(Request& request, int32_t chunk) {
  std::vector<ImageSpan>& spans = request.images.spans;
  for (size_t i = 0; i < spans.size(); ++i) {
    ImageSpan& span = spans[i];
    if (span.first_token >= request.num_computed + chunk) break;
    if (span.end_token() <= request.num_computed || span.holds_rows()) continue;
    span.first_row = pool_.allocate(span.num_tokens);
    return static_cast<int32_t>(i);
  }
  return -1;
}

void ImageRows::forget(Request& request, int32_t image) {
  if (image >= 0) release(request.images.spans[static_cast<size_t>(image)]);
}

void ImageRows::release_computed(Request& request) {
  for (ImageSpan& span : request.images.spans) {
    if (span.end_token() <= request.num_computed) release(span);
  }
}

void ImageRows::release(Request& request) {
  for (ImageSpan& span : request.images.spans) release(span);
}

void ImageRows::release(ImageSpan& span) {
  if (span.holds_rows()) pool_.release(span.first_row);
  span.first_row = -1;
}

void ImageRows::count_skipped(const Request& request) {
  num_skipped_ += static_cast<uint64_t>(std::count_if(
      request.images.spans.begin(), request.images.spans.end(),
      [&](const ImageSpan& span) { return span.end_token() <= request.num_computed; }));
}

}  // namespace trunnion::serving
