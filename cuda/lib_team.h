// Rows that are summed up, each by a team of threads: a warp or a block, as the number of columns asks for. The order of a sum
// depends on the team's size alone.
#pragma once
#include "dev.h"
#include "lib_warp.h"

// Threads of a block.
#define TEAM_BLOCK 256

struct Team {
  u32 lane;
  u32 size;
  // Its first row, and how far it is to the next.
  u64 first;
  u64 step;
};

DEV Team team_of(u32 size) {
  u32 teams = TEAM_BLOCK / size;
  return Team{threadIdx.x % size, size, blockIdx.x * (u64)teams + threadIdx.x / size, gridDim.x * (u64)teams};
}

// The sum over a team, for all of it. `shared` has a value for each warp of the block.
DEV f64 team_sum(const Team& team, f64 x, f64* shared) {
  if (team.size == 32) return warp_sum(x);
  x = block_sum(x, shared);
  // What is read here is written for the next row.
  __syncthreads();
  return x;
}

// The Euclidean norm of a sum of squares: exactly 0 for 0, otherwise in the finite positive range, and infinite where an element
// was not finite. f64 holds squares of any f32, so nothing overflows or vanishes.
DEV f32 norm_of(f64 squares) {
  if (!(squares <= 1.7976931348623157e308)) return bits_f32(0x7f800000u);
  if (squares == 0.0) return 0.0f;
  f32 norm = (f32)sqrt(squares);
  return fminf(fmaxf(norm, bits_f32(1u)), bits_f32(0x7f7fffffu));
}
