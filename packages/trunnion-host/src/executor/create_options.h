// What `create` is told, checked before anything is loaded.
#pragma once

#include "older_options.h"

namespace trunnion::executor {

/// The options with what 0 stands for filled in. REFUSED names the option, its value and the limit.
trn_create_options checked_options(const trn_create_options& options);

}  // namespace trunnion::executor
