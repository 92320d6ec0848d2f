// The images of a batch: their pixels, and where their rows go in the encoder pool.
#pragma once

#include "backend.h"

namespace trunnion::executor {

/// REFUSED names the image at fault and what was expected.
void check_images(const trn_forward_batch& batch, const Description& description, const trn_limits& limits);

}  // namespace trunnion::executor
