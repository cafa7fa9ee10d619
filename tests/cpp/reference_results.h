#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

// Compares the reference kernels of two builds of the library, because a kernel that is compared with the reference of
// its own build can only differ where the reference does not. tests/cpp/CMakeLists.txt builds the sources a second time
// without optimization; that build writes the results to the file named by QCORE_REFERENCE_RESULTS, and every other run
// with that variable compares its own with them.
namespace qcore::test {

class ReferenceResults {
 public:
  static ReferenceResults& get() {
    static ReferenceResults results;
    return results;
  }

  // Takes the next result of the running test.
  void take(const void* data, std::size_t bytes) {
    if (path_.empty()) return;
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string name = std::string(test->test_suite_name()) + "." + test->name();
    const std::size_t number = taken_[name]++;
    if (kWrites) {
      std::ofstream(path_, std::ios::app) << name << " " << hash << "\n";
      return;
    }
    const auto& expected = recorded_[name];
    ASSERT_LT(number, expected.size()) << "the unoptimized build has no such result";
    ASSERT_EQ(hash, expected[number]) << "result " << number << " differs from that of the unoptimized build";
  }

 private:
#if defined(QCORE_WRITES_REFERENCE_RESULTS)
  static constexpr bool kWrites = true;
#else
  static constexpr bool kWrites = false;
#endif

  ReferenceResults() {
    const char* path = std::getenv("QCORE_REFERENCE_RESULTS");
    if (!path) return;
    path_ = path;
    if (kWrites) {
      std::ofstream(path_, std::ios::trunc);
      return;
    }
    std::ifstream file(path_);
    std::string name;
    std::uint64_t hash;
    while (file >> name >> hash) recorded_[name].push_back(hash);
  }

  std::string path_;
  std::map<std::string, std::vector<std::uint64_t>> recorded_;
  std::map<std::string, std::size_t> taken_;
};

template <class T>
void compare_with_unoptimized(const std::vector<T>& result) {
  ReferenceResults::get().take(result.data(), result.size() * sizeof(T));
}

}  // namespace qcore::test
