#include "request/request.h"

namespace trunnion::bundle {

const char* name_of(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalid: return "invalid";
    case Code::kNotFound: return "not_found";
    case Code::kQueueFull: return "queue_full";
    case Code::kDeadline: return "deadline";
    case Code::kCancelled: return "cancelled";
    case Code::kUnavailable: return "unavailable";
    case Code::kFault: return "fault";
  }
  return "";
}

}  // namespace trunnion::bundle
