// Scores, selection and combine weights, one warp per token.
//
// Candidates are found best first: every lane holds the best of its own, and the one whose candidate was taken looks for the next
// behind it. So nothing needs to be marked as taken, and any number of experts can be ranked.
#include "dev.h"
#include "lib_warp.h"
#include "lib_math.h"
#include "lib_softmax.h"

#define TOKENS_OF_A_BLOCK 4

// A place in the order of candidates: by falling key, then by rising id.
struct Rank {
  u32 key, id;
};

// The id NONE is in front of all others, but for the end: no float has key 0.
DEV Rank rank_start() { return {0xffffffffu, NONE}; }
DEV Rank rank_end() { return {0u, NONE}; }
DEV bool precedes(Rank a, Rank b) { return a.key > b.key || (a.key == b.key && a.id + 1u < b.id + 1u); }

// Orders as the float: equal zeros, NaN above every number.
DEV u32 order_key(f32 x) {
  u32 bits = f32_bits(x), magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0xffffffffu;
  if (magnitude == 0) return 0x80000000u;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEV f32 float_of_key(u32 key) { return bits_f32(key >> 31 ? key & 0x7fffffffu : ~key); }

struct Token {
  const f32* logits;
  const f32* bias;
  // Keys of the experts where they are kept, else null.
  const u32* keys;
  // Keys of the groups where some are not eligible.
  const u32* groups;
  u32 experts, group_size;
  bool sigmoid, by_logit;
  Softmax softmax;
  // The last group that is eligible.
  Rank last;
};

DEV f32 score_of(const Token& t, u32 e) {
  f32 logit = t.logits[e];
  return t.sigmoid ? sigmoid_of(logit) : probability(logit, t.softmax);
}

DEV u32 compute_key(const Token& t, u32 e) {
  if (t.by_logit) return order_key(t.logits[e]);
  f32 score = score_of(t, e);
  return order_key(t.bias ? score + t.bias[e] : score);
}

DEV u32 key_of(const Token& t, u32 e) { return t.keys ? t.keys[e] : compute_key(t, e); }

// Keys of the sums of each group's two best. A group is shared by as many lanes as there are for it.
DEV void group_keys(const Token& t, u32 n_group, u32* groups) {
  u32 lanes = 1;
  while (2 * lanes * n_group <= 32) lanes *= 2;
  for (u32 base = 0; base < n_group; base += 32 / lanes) {
    u32 group = base + lane_id() / lanes, part = lane_id() % lanes, first = 0, second = 0;
    // Groups begin at different places, so that lanes do not meet in a bank of shared memory.
    u32 e = (part + group * lanes) % t.group_size;
    for (u32 i = part; i < t.group_size && group < n_group; i += lanes) {
      u32 key = key_of(t, group * t.group_size + e);
      second = max(second, min(first, key));
      first = max(first, key);
      e += lanes;
      if (e >= t.group_size) e -= t.group_size;
    }
    for (u32 apart = 1; apart < lanes; apart *= 2) {
      u32 other = __shfl_xor_sync(FULL_WARP, first, (int)apart);
      second = max(max(second, __shfl_xor_sync(FULL_WARP, second, (int)apart)), min(first, other));
      first = max(first, other);
    }
    bool one = second == 0 || first == 0xffffffffu;
    if (part == 0 && group < n_group) groups[group] = one ? first : order_key(float_of_key(first) + float_of_key(second));
  }
}

// The lane's best candidate behind `found`.
DEV Rank next_expert(const Token& t, Rank found) {
  Rank best = rank_end();
  for (u32 e = lane_id(); e < t.experts; e += 32) {
    Rank candidate = {key_of(t, e), e};
    if (!precedes(found, candidate) || !precedes(candidate, best)) continue;
    if (t.groups) {
      u32 group = e / t.group_size;
      if (precedes(t.last, {t.groups[group], group})) continue;
    }
    best = candidate;
  }
  return best;
}

DEV Rank next_group(const u32* groups, u32 n_group, Rank found) {
  Rank best = rank_end();
  for (u32 group = lane_id(); group < n_group; group += 32) {
    Rank candidate = {groups[group], group};
    if (precedes(found, candidate) && precedes(candidate, best)) best = candidate;
  }
  return best;
}

// The first of the lanes' candidates.
DEV Rank first_of(Rank own) {
  u32 key = __reduce_max_sync(FULL_WARP, own.key);
  u32 id = __reduce_min_sync(FULL_WARP, own.key == key ? own.id : NONE);
  return {key, id};
}

KERNEL(128)
gate(const f32* logits, const f32* bias, const u32* mask, u32* ids, f32* weights, u64 tokens, u32 experts, u32 top_k, u32 sigmoid,
     u32 n_group, u32 topk_group, u32 normalise, f32 norm_eps, f32 scaling, u32 keeps_keys) {
  DYN_SHARED(u32, shared);
  u64 token = blockIdx.x * (u64)TOKENS_OF_A_BLOCK + warp_id();
  if (token >= tokens) return;
  u32 lane = lane_id();
  ids += at(token, top_k, 0);
  weights += at(token, top_k, 0);
  if (mask && mask[token] == 0) {
    for (u32 slot = lane; slot < top_k; slot += 32) {
      ids[slot] = NONE;
      weights[slot] = 0.0f;
    }
    return;
  }
  bool limits = topk_group < n_group;
  u32* groups = shared + (u64)warp_id() * ((keeps_keys ? experts : 0) + (limits ? n_group : 0));
  u32* keys = groups + (limits ? n_group : 0);
  Token t = {};
  t.logits = logits + at(token, experts, 0);
  t.bias = bias;
  t.experts = experts;
  t.group_size = experts / n_group;
  t.sigmoid = sigmoid;
  // The logits have the order of the probabilities, and keep it where those round to equals.
  t.by_logit = !sigmoid && !bias && n_group == 1;
  if (!sigmoid) t.softmax = row_softmax(t.logits, experts);
  if (keeps_keys) {
    for (u32 e = lane; e < experts; e += 32) keys[e] = compute_key(t, e);
    __syncwarp();
    t.keys = keys;
  }
  if (limits) {
    group_keys(t, n_group, groups);
    __syncwarp();
    Rank own = next_group(groups, n_group, rank_start());
    for (u32 taken = 0; taken < topk_group; taken++) {
      t.last = first_of(own);
      if (own.id == t.last.id) own = next_group(groups, n_group, t.last);
    }
    t.groups = groups;
  }
  Rank own = next_expert(t, rank_start());
  f64 sum = 0.0;
  for (u32 slot = 0; slot < top_k; slot++) {
    Rank found = first_of(own);
    if (own.id == found.id) own = next_expert(t, found);
    f32 score = score_of(t, found.id);
    sum += score;
    // A lane writes the weights of its slots only, and can read them again without a barrier.
    if (slot % 32 == lane) {
      ids[slot] = found.id;
      weights[slot] = score;
    }
  }
  sum = normalise ? sum + norm_eps : 1.0;
  for (u32 slot = lane; slot < top_k; slot += 32) weights[slot] = (f32)(weights[slot] / sum * scaling);
}
