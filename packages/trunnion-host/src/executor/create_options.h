// What `create` is told, checked before anything is loaded.
#pragma once

#include "trunnion/contract.h"

namespace trunnion::executor {

/// REFUSED names the option, its value and the limit.
void check_create_options(const trn_create_options& options);

}  // namespace trunnion::executor
