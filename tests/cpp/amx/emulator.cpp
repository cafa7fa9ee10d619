#include "emulator.h"

#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

// Executes AMX-TILE, AMX-INT8 and AMX-BF16 in a handler of SIGILL, which a processor without them raises, so that the
// instructions of the real kernels are tested on any x86-64. What a processor refuses (a wrong configuration, shapes
// that do not fit) ends the program. On a processor with AMX the handler is never called.
namespace qcore::test {
namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

// A thread's registers.
struct State {
  std::uint8_t configuration[64];
  std::uint8_t tile[kTiles][kRows][kRowBytes];

  int rows(int i) const { return configuration[48 + i]; }
  int row_bytes(int i) const {
    std::uint16_t bytes;
    memcpy(&bytes, configuration + 16 + 2 * i, sizeof bytes);
    return bytes;
  }
};
thread_local State state;

std::atomic<std::uint64_t> configurations, releases, loads, stores, products;

[[noreturn]] void fail(const char* reason) {
  fprintf(stderr, "AMX emulator: %s\n", reason);
  abort();
}

// An instruction in the encoding that all of AMX has: VEX.128.0F38.W0.
struct Instruction {
  int prefix, opcode, reg, rm, vvvv, length;
  bool memory;
  std::uint64_t address, stride;  // of its memory operand: the index register is the stride
};

std::uint64_t general_register(const mcontext_t& context, int number) {
  static const int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<std::uint64_t>(context.gregs[kPlaces[number]]);
}

std::int64_t displacement(const std::uint8_t* at, int bytes) {
  std::int8_t one = 0;
  std::int32_t four = 0;
  if (bytes == 1) memcpy(&one, at, 1);
  if (bytes == 4) memcpy(&four, at, 4);
  return bytes == 1 ? one : four;
}

Instruction decode(const mcontext_t& context) {
  const auto* code = reinterpret_cast<const std::uint8_t*>(context.gregs[REG_RIP]);
  if (code[0] != 0xc4 || (code[1] & 31) != 2 || (code[2] & 0x84) != 0) fail("an unknown instruction");
  const int index_high = code[1] & 0x40 ? 0 : 8, base_high = code[1] & 0x20 ? 0 : 8;
  const int mode = code[4] >> 6, rm = code[4] & 7;
  Instruction found{code[2] & 3, code[3], code[4] >> 3 & 7, rm, ~(code[2] >> 3) & 15, 5, mode != 3, 0, 0};
  if (mode == 3) return found;
  int displacement_bytes = mode == 1 ? 1 : mode == 2 ? 4 : 0;
  if (rm == 4) {
    const int sib = code[5], index = (sib >> 3 & 7) | index_high, base = sib & 7;
    found.length = 6;
    if (mode == 0 && base == 5)
      displacement_bytes = 4;
    else
      found.address = general_register(context, base | base_high);
    if (index != 4) found.stride = general_register(context, index) << (sib >> 6);
  } else if (mode == 0 && rm == 5) {
    displacement_bytes = 4;
    found.address = static_cast<std::uint64_t>(context.gregs[REG_RIP]) + 9;
  } else {
    found.address = general_register(context, rm | base_high);
  }
  found.address += static_cast<std::uint64_t>(displacement(code + found.length, displacement_bytes));
  found.length += displacement_bytes;
  return found;
}

void check_tile(int i) {
  if (state.configuration[0] != 1) fail("the tiles are not configured");
  if (i >= kTiles || state.rows(i) == 0) fail("a tile has no rows");
}

void configure(const void* from) {
  memcpy(state.configuration, from, sizeof state.configuration);
  memset(state.tile, 0, sizeof state.tile);
  if (state.configuration[0] != 1 || state.configuration[1] != 0) fail("the palette is not 1, or there is a start row");
  for (int i = 2; i < 16; ++i)
    if (state.configuration[i]) fail("a reserved byte of the configuration is not 0");
  for (int i = 0; i < 16; ++i) {
    const int rows = state.rows(i), bytes = state.row_bytes(i);
    const bool fits = i < kTiles ? rows <= kRows && bytes <= kRowBytes && bytes % 4 == 0 : rows == 0 && bytes == 0;
    if (!fits || (rows == 0) != (bytes == 0)) fail("the configuration of a tile is wrong");
  }
  ++configurations;
}

void move_rows(const Instruction& at, bool to_memory) {
  check_tile(at.reg);
  if (!to_memory) memset(state.tile[at.reg], 0, sizeof state.tile[at.reg]);
  for (int row = 0; row < state.rows(at.reg); ++row) {
    auto* const memory = reinterpret_cast<std::uint8_t*>(at.address + at.stride * static_cast<std::uint64_t>(row));
    const auto bytes = static_cast<std::size_t>(state.row_bytes(at.reg));
    memcpy(to_memory ? memory : state.tile[at.reg][row], to_memory ? state.tile[at.reg][row] : memory, bytes);
  }
  ++(to_memory ? stores : loads);
}

void check_product(int sums, int a, int b) {
  for (const int i : {sums, a, b}) check_tile(i);
  if (state.rows(sums) != state.rows(a) || state.row_bytes(sums) != state.row_bytes(b) ||
      state.row_bytes(a) / 4 != state.rows(b))
    fail("the shapes of a product do not fit");
}

// The prefix says which operand has signed bytes: 0 neither, 1 the second, 2 the first, 3 both.
void multiply(const Instruction& at) {
  const int sums = at.reg, a = at.rm, b = at.vvvv;
  check_product(sums, a, b);
  const bool a_signed = at.prefix & 2, b_signed = at.prefix & 1;
  const auto code = [](std::uint8_t byte, bool is_signed) { return is_signed ? static_cast<std::int8_t>(byte) : byte; };
  for (int row = 0; row < state.rows(sums); ++row) {
    std::int32_t sum[kRowBytes / 4];
    memcpy(sum, state.tile[sums][row], sizeof sum);
    for (int k = 0; k < state.row_bytes(a); ++k) {
      const int x = code(state.tile[a][row][k], a_signed);
      for (int n = 0; n < state.row_bytes(sums) / 4; ++n)
        sum[n] += x * code(state.tile[b][k / 4][4 * n + k % 4], b_signed);
    }
    memcpy(state.tile[sums][row], sum, sizeof sum);
  }
  ++products;
}

// Subnormal numbers are zeros, whether read or made.
float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

float bfloat(const std::uint8_t* at) {
  std::uint16_t half;
  memcpy(&half, at, sizeof half);
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return flushed(x);
}

// By Intel's manual: the even k of all pairs by fused multiply-adds from zero on, the odd ones likewise, both added,
// and then to what the register holds; each rounded to nearest.
void multiply_bfloats(const Instruction& at) {
  const int sums = at.reg, a = at.rm, b = at.vvvv;
  check_product(sums, a, b);
  for (int row = 0; row < state.rows(sums); ++row) {
    float sum[kRowBytes / 4], chain[2][kRowBytes / 4] = {};
    memcpy(sum, state.tile[sums][row], sizeof sum);
    for (int k = 0; k < state.row_bytes(a) / 2; ++k) {
      const float x = bfloat(state.tile[a][row] + 2 * k);
      for (int n = 0; n < state.row_bytes(sums) / 4; ++n)
        chain[k % 2][n] = flushed(std::fma(x, bfloat(state.tile[b][k / 2] + 4 * n + 2 * (k % 2)), chain[k % 2][n]));
    }
    for (int n = 0; n < state.row_bytes(sums) / 4; ++n)
      sum[n] = flushed(flushed(sum[n]) + flushed(chain[0][n] + chain[1][n]));
    memcpy(state.tile[sums][row], sum, sizeof sum);
  }
  ++products;
}

void execute(const Instruction& at) {
  if (at.opcode == 0x49 && at.prefix == 0 && at.memory) return configure(reinterpret_cast<const void*>(at.address));
  if (at.opcode == 0x49 && at.prefix == 0) {
    memset(&state, 0, sizeof state);
    ++releases;
  } else if (at.opcode == 0x49 && at.prefix == 3 && !at.memory) {
    check_tile(at.reg);
    memset(state.tile[at.reg], 0, sizeof state.tile[at.reg]);
  } else if (at.opcode == 0x4b && at.memory && at.prefix != 0) {
    move_rows(at, at.prefix == 2);
  } else if (at.opcode == 0x5e && !at.memory) {
    multiply(at);
  } else if (at.opcode == 0x5c && at.prefix == 2 && !at.memory) {
    multiply_bfloats(at);
  } else {
    fail("an unknown instruction");
  }
}

void handle(int, siginfo_t*, void* context) {
  mcontext_t& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  const Instruction instruction = decode(registers);
  execute(instruction);
  registers.gregs[REG_RIP] += instruction.length;
}

[[maybe_unused]] const bool installed = [] {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, nullptr) == 0;
}();

}  // namespace

AmxCounts amx_counts() { return {configurations, releases, loads, stores, products}; }

bool amx_is_released() { return state.configuration[0] == 0; }

}  // namespace qcore::test
