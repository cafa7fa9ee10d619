#pragma once

// The one place the version is written; CMake and pyproject.toml read it from here.
#define QCORE_VERSION "0.1.0"
