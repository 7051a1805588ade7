// What is decided for each expert, in words:
//  0  pairs retained
//  1  last pair of weight 1 in the order of choice by score: inverted key, token id (high, low), slot, row
//  6  last pair retained by priority, likewise
// 11  largest priority that is not retained
// 12  slots for systematic sampling; 0 where there is none
// 13  largest finite score
// 14  sum of the sizes for systematic sampling (low, high)
const PLAN_WORDS: u32 = 16u;
const PLAN_SURE: u32 = 1u;
const PLAN_DRAWN: u32 = 6u;
const PLAN_TAU: u32 = 11u;
const PLAN_SLOTS: u32 = 12u;
const PLAN_LARGEST: u32 = 13u;
const PLAN_SUM: u32 = 14u;

// Rules.
const TOP: u32 = 0u;
const SYSTEMATIC: u32 = 1u;
const UNBIASED: u32 = 2u;
const MIXED: u32 = 3u;

// Positive, infinite included; NaN is not.
fn is_eligible(score: u32) -> bool {
    return score - 1u < 0x7f800000u;
}
