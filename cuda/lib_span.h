// Rows that are worked on column by column: teams of threads of one size, a power of two, take spans of columns, several for a
// long row.
#pragma once
#include "dev.h"

struct Spans {
  u32 lane;
  u32 size;
  // The team's first span, and how far it is to the next; all spans of all rows.
  u64 first;
  u64 step;
  u64 all;
};

DEV Spans spans_of(u64 rows, u32 spans_per_row, u32 team) {
  u32 teams = blockDim.x / team;
  return Spans{threadIdx.x % team, team, blockIdx.x * (u64)teams + threadIdx.x / team, gridDim.x * (u64)teams,
               rows * spans_per_row};
}

// A quotient that is most often one of 32 bits.
DEV u64 divide(u64 a, u32 b) { return a >> 32 ? a / b : (u32)a / b; }
