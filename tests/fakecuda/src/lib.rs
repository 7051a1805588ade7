//! libcuda played on the CPU: what a backend calls of NVIDIA's driver, with streams that are threads, memory that is poisoned and
//! checked, and kernels that are fibers (`tests/shim`). It is found as `libcuda.so` by whoever has loaded it by its path before.
//!
//! Errors come on request ([`settings`]): out of memory, failed launches, lost devices. What a real driver would let pass or leave
//! undefined is a *violation*: the call fails, and the text is kept. Only for tests, and only on Linux; elsewhere it is empty.
#![cfg(target_os = "linux")]
#![allow(non_snake_case, reason = "the names are the driver's")]

mod api;
mod control;
mod copies;
mod device;
mod event;
mod image;
mod kernels;
mod memory;
mod memory_api;
mod module;
mod names;
mod pool;
mod settings;
mod stream;
