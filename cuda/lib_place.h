// Where a row stands among rows of equal keys: by global token id, slot, row.
#pragma once

struct Tokens {
  const u32* pair_of_row;
  // Low word first, or null: then token t has the id first + t.
  const u32* ids;
  u64 first;
  u32 top_k, pairs;
};

struct Place {
  u64 token;
  u64 slot_and_row;
};

DEV u64 token_id(const Tokens& tokens, u32 token) {
  return tokens.ids ? tokens.ids[2ull * token] | (u64)tokens.ids[2ull * token + 1] << 32 : tokens.first + token;
}

// The pair of a row, 0 for one that is out of range: such a recording is refused once it has run.
DEV u32 pair_of(const Tokens& tokens, u32 row) {
  u32 pair = tokens.pair_of_row[row];
  return pair < tokens.pairs ? pair : 0;
}

DEV Place place_of(const Tokens& tokens, u32 row) {
  u32 pair = pair_of(tokens, row), token = pair / tokens.top_k;
  return {token_id(tokens, token), (u64)(pair - token * tokens.top_k) << 32 | row};
}

DEV bool is_before(Place a, Place b) { return a.token != b.token ? a.token < b.token : a.slot_and_row < b.slot_and_row; }
