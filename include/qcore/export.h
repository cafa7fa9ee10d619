#pragma once

// Everything is compiled with hidden visibility; QCORE_API marks what libqcore exports.
#if defined(_WIN32)
#if defined(QCORE_BUILDING)
#define QCORE_API __declspec(dllexport)
#else
#define QCORE_API __declspec(dllimport)
#endif
#else
#define QCORE_API __attribute__((visibility("default")))
#endif
