#include "qcore/error.h"

namespace qcore {

// Out of line, so that each exception type has one vtable and type_info, here, for every consumer to catch.
Error::Error(const std::string& message) : std::runtime_error(message) {}
Error::~Error() = default;
ValueError::ValueError(const std::string& message) : Error(message) {}
ValueError::~ValueError() = default;
TypeError::TypeError(const std::string& message) : Error(message) {}
TypeError::~TypeError() = default;
CudaError::CudaError(const std::string& message) : Error(message) {}
CudaError::~CudaError() = default;

}  // namespace qcore
