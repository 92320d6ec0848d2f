// Recorded requests, asked of two servers: whether their answers are equal within a bundle's tolerances.
#pragma once

#include "bench/options.h"

namespace trunnion::bundle {

// Prints a summary with the first difference, and writes it to `options.json`. 0: all are equal; 1: some are not.
int shadow(const BenchOptions& options);

}  // namespace trunnion::bundle
