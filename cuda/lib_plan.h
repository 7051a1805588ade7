// What is decided for each expert. Needs lib_wide.
#pragma once

#define INFINITE 0x7f800000u
#define LARGEST_FINITE 0x7f7fffffu

// Rules.
#define TOP 0u
#define SYSTEMATIC 1u
#define UNBIASED 2u
#define MIXED 3u

// What becomes of a row.
#define DROPPED 0u
#define SURE 1u
#define DRAWN 2u

// Filled with zeros before the first kernel.
struct Plan {
  U128 sum;            // Sizes that are left for systematic sampling.
  u32 slots;           // Slots that are left for it; 0 where there is none.
  u32 from;            // Bits of the least score that is certain under it.
  u32 eligible;
  u32 infinite;
  u32 largest;         // Bits of the largest finite score.
  u32 tau;             // Bits of the largest priority that is not retained.
  u32 ties[2];         // By stage: rows whose key is that of the last one retained, where not all of them are retained,
  u32 ties_kept[2];    // and how many of them are.
  u32 unordered;       // Whether its rows must be sorted by more than a byte.
  u32 unused;
};
static_assert(sizeof(Plan) == 64, "as much as workspace is made for");

// Positive, infinite included; NaN is not.
DEV bool is_eligible(u32 bits) { return bits - 1u < INFINITE; }

struct Goal {
  u32 quota;
  // By score with weight 1, and then by priority.
  u32 sure, drawn;
  // Of systematic sampling, for finite scores.
  u32 slots;
  bool all;
};

DEV Goal goal_of(const Plan& plan, u32 quota, u32 rule, f32 certain) {
  Goal goal = {min(quota, plan.eligible), 0, 0, 0, quota >= plan.eligible};
  if (goal.all) return goal;
  if (rule == TOP) goal.sure = goal.quota;
  if (rule == SYSTEMATIC) {
    goal.sure = min(plan.infinite, goal.quota);
    goal.slots = goal.quota - goal.sure;
  }
  if (rule == UNBIASED) goal.drawn = goal.quota;
  if (rule == MIXED) {
    // Two sampled slots at least: with one the variance is infinite.
    goal.sure = min((u32)((f64)certain * goal.quota), max(goal.quota, 2u) - 2u);
    goal.drawn = goal.quota - goal.sure;
  }
  return goal;
}
