// How a request ended.
#pragma once

#define TRUNNION_BUNDLE_API __attribute__((visibility("default")))

namespace trunnion::bundle {

enum class Code { kOk, kInvalid, kNotFound, kQueueFull, kDeadline, kCancelled, kUnavailable, kFault };
// "ok", "invalid", ...
TRUNNION_BUNDLE_API const char* name_of(Code code);

}  // namespace trunnion::bundle
