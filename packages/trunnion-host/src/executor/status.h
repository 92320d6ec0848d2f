// The one exception inside the library: a status, a field and a line; api.cc turns it into what C callers see.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "trunnion/contract.h"

namespace trunnion::executor {

class StatusError : public std::runtime_error {
 public:
  StatusError(trn_status status, std::string field, const std::string& message)
      : std::runtime_error(message), status_(status), field_(std::move(field)) {}
  trn_status status() const noexcept { return status_; }
  const std::string& field() const noexcept { return field_; }

 private:
  trn_status status_;
  std::string field_;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// Throw REFUSED with "field: message".
template <typename... Parts>
[[noreturn]] void refuse(const std::string& field, const Parts&... parts) {
  throw StatusError(TRN_REFUSED, field, concat(field, field.empty() ? "" : ": ", parts...));
}

}  // namespace trunnion::executor
