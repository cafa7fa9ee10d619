#pragma once

#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_bytes.cuh"

// Codes in planes as operands of ptx::mma_u8s8.
namespace qcore {

// The codes of four columns and eight k of a lane: those of columns 4*group + 0 and 1 in `first`, of 2 and 3 in
// `second`, four bytes of k each; words 0 and 1 are the first four k, 2 and 3 the others.
template <int kBits, bool kCodebook>
struct PlaneWords {
  std::uint32_t first[4], second[4];

  // `load(vector)` returns the lane's 16 bytes of a vector of the group, see formats/planes.h.
  template <class Load>
  __device__ __forceinline__ PlaneWords(const Load& load, int quad, const std::uint32_t (&codebook)[4]) {
    std::uint32_t low[4] = {}, high[4] = {};  // of the columns: the first four k, the others
    if constexpr (kBits == 8) {
      spread(load(2 * quad), low);
      spread(load(2 * quad + 1), high);
    } else {
      int first_bit = 0, vector = 0;
      if constexpr ((kBits & 4) != 0) {
        std::uint32_t words[4];
        spread(load(quad), words);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kCodebook)
            look_up(words[i], codebook, low[i], high[i]);
          else
            low[i] = words[i] & 0x0f0f0f0fu, high[i] = words[i] >> 4 & 0x0f0f0f0fu;
        }
        first_bit = 4, vector = 4;
      }
      if constexpr ((kBits & 2) != 0) {
        add_plane<2>(load(vector + quad / 2), 4 * (quad & 1), first_bit, low, high);
        first_bit += 2, vector += 2;
      }
      if constexpr ((kBits & 1) != 0) add_plane<1>(load(vector), 2 * quad, first_bit, low, high);
    }
    first[0] = low[0], first[1] = low[1], first[2] = high[0], first[3] = high[1];
    second[0] = low[2], second[1] = low[3], second[2] = high[2], second[3] = high[3];
  }

 private:
  __device__ __forceinline__ static void spread(const uint4& from, std::uint32_t (&to)[4]) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
  }

  // Adds the bits of a plane that begin at `shift` for the first four k.
  template <int kWidth>
  __device__ __forceinline__ static void add_plane(const uint4& plane, int shift, int first_bit,
                                                   std::uint32_t (&low)[4], std::uint32_t (&high)[4]) {
    constexpr std::uint32_t kMask = 0x01010101u * ((1u << kWidth) - 1);
    std::uint32_t words[4];
    spread(plane, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t moved = words[i] >> shift;
      low[i] |= (moved & kMask) << first_bit;
      high[i] |= (moved >> kWidth & kMask) << first_bit;
    }
  }

  // Replaces eight numbers of 4 bits by bytes of the codebook: by each number's lowest three bits from both halves of
  // the codebook, of which its highest bit chooses.
  __device__ __forceinline__ static void look_up(std::uint32_t numbers, const std::uint32_t (&codebook)[4],
                                                 std::uint32_t& low, std::uint32_t& high) {
    const std::uint32_t within = numbers & 0x77777777u, half = 0x32103210u | (numbers & 0x88888888u) >> 1;
    std::uint32_t found[2];  // k 0 and 4, 1 and 5; 2 and 6, 3 and 7
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t select = within >> (16 * i);
      found[i] = ptx::select_bytes(ptx::select_bytes(codebook[0], codebook[1], select),
                                   ptx::select_bytes(codebook[2], codebook[3], select), half >> (16 * i));
    }
    low = ptx::select_bytes(found[0], found[1], 0x6420u);
    high = ptx::select_bytes(found[0], found[1], 0x7531u);
  }
};

}  // namespace qcore
