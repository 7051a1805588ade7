// What a segment says to the planner.
#pragma once

#define DEMAND_BINS 64
#define DEMAND_SUMS 3
#define DEMAND_COUNTS 2
#define DEMAND_WORDS (DEMAND_BINS + DEMAND_COUNTS)

struct DemandShared {
  f64 parts[DEMAND_SUMS][8];
  u32 counts[DEMAND_WORDS];
};
static_assert(sizeof(DemandShared) <= 456, "as much as launches ask for");
