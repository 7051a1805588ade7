// cp.async. A copy may arrive at any time between its issue and the wait that retires its group: early, late, or now one and now the
// other. Each thread sees its own copies only; others see them after a barrier that follows the wait.
#include "engine.h"

namespace shim {

namespace {

void arrive(Copy& c) {
  if (c.done) return;
  c.done = true;
  TSAN(__tsan_write_range(c.shared, c.bytes));
  if (!c.real) {
    memset(c.shared, 0, c.bytes);
    return;
  }
  TSAN(__tsan_read_range(const_cast<unsigned char*>(c.global), c.bytes));
  for (u32 i = 0; i < c.bytes; i += 4) {
    u32 word;
    memcpy(&word, c.global + i, 4);
    memcpy(c.shared + i, &word, 4);
  }
}

}  // namespace

void copy_async(void* shared, const void* global, u32 bytes, bool real, Site at) {
  Worker& w = *worker;
  check_aligned(shared, bytes, "cp.async to shared memory", at);
  check_aligned(global, bytes, "cp.async from global memory", at);
  if (!in_shared(w, shared, bytes)) fail(at, "cp.async: %p is not in shared memory", shared);
  Copy c{static_cast<unsigned char*>(shared), static_cast<const unsigned char*>(global), bytes, real, false};
  if (w.options.copies == Options::early || (w.options.copies == Options::mixed && next_random(w.random) & 1)) arrive(c);
  w.current->copies.push_back(c);
}

void copy_commit() {
  Thread& me = *worker->current;
  me.groups.push_back((u32)me.copies.size());
}

void copy_wait(u32 left) {
  Thread& me = *worker->current;
  if (me.groups.size() <= left) return;
  const size_t retired = me.groups.size() - left;
  const u32 end = me.groups[retired - 1];
  for (u32 i = 0; i < end; i++) arrive(me.copies[i]);
  me.copies.erase(me.copies.begin(), me.copies.begin() + end);
  me.groups.erase(me.groups.begin(), me.groups.begin() + (long)retired);
  for (u32& group : me.groups) group -= end;
}

void drop_copies(Thread& t) {
  t.copies.clear();
  t.groups.clear();
}

}  // namespace shim
