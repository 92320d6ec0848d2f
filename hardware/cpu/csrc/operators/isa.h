// Which set of kernels runs: the best that this processor has, or a lesser one that was asked for.
#pragma once

#include "../kernels/kernels.h"

namespace trunnion_cpu {

const Kernels& kernels();

}  // namespace trunnion_cpu
