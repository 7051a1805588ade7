// Kernels by name, launches, and what the driver that plays libcuda calls.
#include "engine.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace shim {

namespace {

// Never destroyed: threads of the pool may outlive main.
struct Global {
  std::mutex lock;
  std::condition_variable work, done;
  std::vector<Worker*> idle;
  std::vector<struct Task*> queue;
  u32 helpers = 0;
  Kernel* first = nullptr;
  Options options;
  std::atomic<u64> launches{0};
};

u64 number_from(const char* name, u64 otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

Options from_environment() {
  Options o;
  if (const char* s = getenv("LRMOE_SHIM_SCHEDULE")) o.schedule = *s == 'l' ? Options::last_first : *s == 'r' ? Options::random : Options::first_first;
  if (const char* s = getenv("LRMOE_SHIM_COPIES")) o.copies = *s == 'e' ? Options::early : *s == 'm' ? Options::mixed : Options::late;
  o.seed = number_from("LRMOE_SHIM_SEED", 1);
  o.threads = (u32)number_from("LRMOE_SHIM_THREADS", 1);
  return o;
}

Global& global() {
  static Global* g = [] {
    Global* made = new Global;
    made->options = from_environment();
    return made;
  }();
  return *g;
}

#if defined(SHIM_TSAN)
char host_order;
#endif

// One launch, worked on by one OS thread or several.
struct Task {
  const Kernel* kernel;
  u32 blocks, threads, shared_bytes;
  void** params;
  Options options;
  u64 number, step, offset;
  std::atomic<u64> next{0};
  std::atomic<bool> failed{false};
  std::string error;
  u32 taken = 0, ended = 0;

  // The schedule holds for blocks as well.
  u32 block(u64 i) const {
    switch (options.schedule) {
      case Options::first_first: return (u32)i;
      case Options::last_first: return (u32)(blocks - 1 - i);
      default: return (u32)((i * step + offset) % blocks);
    }
  }
};

u64 common_divisor(u64 a, u64 b) { return b ? common_divisor(b, a % b) : a; }

void work(Task& t) {
  Global& g = global();
  Worker* w = nullptr;
  {
    std::lock_guard<std::mutex> hold(g.lock);
    if (!g.idle.empty()) w = g.idle.back(), g.idle.pop_back();
  }
  if (!w) w = new Worker;
  w->begin(*t.kernel, t.blocks, t.threads, t.shared_bytes, t.params, t.options, t.number);
  const u64 chunk = t.options.threads > 1 ? 1 + t.blocks / (t.options.threads * 8) : t.blocks;
  for (u64 i; !t.failed && (i = t.next.fetch_add(chunk)) < t.blocks;)
    for (u64 end = i + chunk < t.blocks ? i + chunk : t.blocks; i < end && !t.failed; i++)
      if (!w->run(t.block(i)) && !t.failed.exchange(true)) t.error = w->error;
  w->end();
  std::lock_guard<std::mutex> hold(g.lock);
  g.idle.push_back(w);
}

void help() {
  Global& g = global();
  std::unique_lock<std::mutex> hold(g.lock);
  for (;;) {
    g.work.wait(hold, [&] { return !g.queue.empty(); });
    Task* t = g.queue.back();
    g.queue.pop_back();
    t->taken++;
    hold.unlock();
    work(*t);
    hold.lock();
    t->ended++;
    g.done.notify_all();
  }
}

}  // namespace

Register::Register(Kernel* k) {
  Global& g = global();
  k->next = g.first;
  g.first = k;
}

Kernel* find(const char* name) {
  for (Kernel* k = global().first; k; k = k->next)
    if (!strcmp(k->name, name)) return k;
  return nullptr;
}

void set_options(const Options& options) {
  std::lock_guard<std::mutex> hold(global().lock);
  global().options = options;
}

const char* launch(const Kernel* k, u32 blocks, u32 threads, u32 shared_bytes, void** params) {
  static thread_local std::string why;
  if (!blocks || !threads || threads > MAX_THREADS) return "a launch of no blocks, no threads or more than 1024";
  if (k->threads && threads != k->threads) {
    why = "launched with " + std::to_string(threads) + " threads; its table row says " + std::to_string(k->threads);
    return why.c_str();
  }
  Global& g = global();
  Task t;
  t.kernel = k;
  t.blocks = blocks, t.threads = threads, t.shared_bytes = shared_bytes, t.params = params;
  t.number = g.launches.fetch_add(1);
  {
    std::lock_guard<std::mutex> hold(g.lock);
    t.options = g.options;
  }
  t.step = 0, t.offset = 0;
  if (t.options.schedule == Options::random) {
    u64 state = t.options.seed + t.number;
    t.offset = next_random(state) % blocks;
    do t.step = 1 + next_random(state) % blocks;
    while (common_divisor(t.step, blocks) != 1);
  }
  TSAN(__tsan_acquire(&host_order));
  const u32 helpers = t.options.threads < blocks ? t.options.threads - 1 : blocks - 1;
  if (t.options.threads > 1 && helpers) {
    std::lock_guard<std::mutex> hold(g.lock);
    for (; g.helpers < helpers; g.helpers++) std::thread(help).detach();
    g.queue.insert(g.queue.end(), helpers, &t);
    g.work.notify_all();
  }
  work(t);
  if (t.options.threads > 1 && helpers) {
    std::unique_lock<std::mutex> hold(g.lock);
    for (size_t i = 0; i < g.queue.size();) {
      if (g.queue[i] == &t)
        g.queue.erase(g.queue.begin() + (long)i);
      else
        i++;
    }
    g.done.wait(hold, [&] { return t.ended == t.taken; });
  }
  TSAN(__tsan_release(&host_order));
  if (!t.failed) return nullptr;
  why = t.error;
  return why.c_str();
}

}  // namespace shim

using namespace shim;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const Kernel* shim_find(const char* name) { return find(name); }
EXPORT const Kernel* shim_next(const Kernel* k) { return k ? k->next : global().first; }
EXPORT const char* shim_name(const Kernel* k) { return k->name; }
EXPORT u32 shim_threads(const Kernel* k) { return k->threads; }
EXPORT u32 shim_param_count(const Kernel* k) { return k->params; }
EXPORT u32 shim_param_size(const Kernel* k, u32 i) { return i < k->params ? k->sizes[i] : 0; }

// Null, or why the launch failed.
EXPORT const char* shim_launch(const Kernel* k, u32 blocks, u32 threads, u32 shared_bytes, void** params) {
  return launch(k, blocks, threads, shared_bytes, params);
}

// The options of the launches to come, as numbers of their enums.
EXPORT void shim_configure(u32 schedule, u32 copies, u64 seed, u32 threads) {
  set_options(Options{(Options::Schedule)schedule, (Options::Copies)copies, seed, threads ? threads : 1});
}

// The caller's memory accesses so far come before those of whoever calls this, or launches, later: ThreadSanitizer cannot see how
// an uninstrumented host orders its threads.
EXPORT void shim_host_order() { TSAN(__tsan_acquire(&host_order); __tsan_release(&host_order)); }
