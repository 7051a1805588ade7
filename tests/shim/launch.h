// Kernels by name, and how they are launched. Included after cuda/dev.h.
#pragma once
#include <cstddef>
#include <utility>

namespace shim {

typedef void (*Thunk)(void** params);

// How blocks and threads take turns, and when copies arrive.
struct Options {
  enum Schedule : u32 { first_first, last_first, random } schedule = first_first;
  enum Copies : u32 { late, early, mixed } copies = late;
  u64 seed = 1;
  u32 threads = 1;
};

struct Kernel {
  const char* name;
  Thunk thunk;
  u32 threads;  // of a block
  u32 params;
  u32 sizes[32];
  Kernel* next;
};

struct Register { explicit Register(Kernel* k); };

template <class... A, size_t... I>
void call(void (*f)(A...), void** params, std::index_sequence<I...>) {
  f(*static_cast<A*>(params[I])...);
}
template <class... A>
void call(void (*f)(A...), void** params) {
  call(f, params, std::index_sequence_for<A...>());
}
template <class... A>
Kernel describe(void (*)(A...), const char* name, Thunk thunk, u32 threads) {
  static_assert(sizeof...(A) <= 32, "more parameters than Kernel holds");
  return Kernel{name, thunk, threads, sizeof...(A), {(u32)sizeof(A)...}, nullptr};
}
template <class T>
struct Unconst { typedef T type; };
template <class T>
struct Unconst<const T> { typedef T type; };

Kernel* find(const char* name);
// Null, or why the launch failed; the text stays until the OS thread's next launch.
const char* launch(const Kernel* k, u32 blocks, u32 threads, u32 shared_bytes, void** params);
// Options of the launches to come, whatever the environment says.
void set_options(const Options& options);

// Launches with these arguments.
template <class... A>
const char* run(const char* name, u32 blocks, u32 threads, u32 shared_bytes, A... arguments) {
  void* params[] = {const_cast<typename Unconst<A>::type*>(&arguments)..., nullptr};
  const Kernel* k = find(name);
  if (!k) return "no kernel of this name";
  const u32 sizes[] = {(u32)sizeof(A)..., 0};
  if (k->params != sizeof...(A)) return "another number of parameters";
  for (u32 i = 0; i < k->params; i++)
    if (sizes[i] != k->sizes[i]) return "a parameter of another size";
  return launch(k, blocks, threads, shared_bytes, params);
}

}  // namespace shim

// Makes a kernel known by its name: SHIM_KERNEL(cast_f32_bf16, 256).
#define SHIM_KERNEL(kernel, threads)                                                                                            \
  static shim::Kernel shim_kernel_##kernel =                                                                                    \
      shim::describe(&kernel, #kernel, [](void** params) { shim::call(&kernel, params); }, threads);                            \
  static shim::Register shim_register_##kernel(&shim_kernel_##kernel);
// The same, with the parameters that the kernel has to have: a drift does not compile.
#define SHIM_KERNEL_OF(kernel, threads, ...)                                                                                    \
  static_assert(shim::same<decltype(&kernel), void (*)(__VA_ARGS__)>, "the kernel's parameters are not those of its table row: " #kernel); \
  SHIM_KERNEL(kernel, threads)

namespace shim {
template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;
}  // namespace shim
