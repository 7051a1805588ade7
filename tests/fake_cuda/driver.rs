//! Modules, launches, memory and errors of the test driver.

use libtest_mimic::Trial;
use lrmoe::backend::cuda::cudarc::driver::sys::{self, CUresult};

use crate::opened::{DEVICE, Described, Opened, cubin, gives, image, ok};
use crate::shim;
use crate::support::fake_cuda::Fake;
use crate::support::outcome::{Outcome, holds};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("driver::kernels_are_those_of_the_image", modules),
        trial("driver::a_drift_of_parameters_is_refused", drift),
        trial("driver::launch_limits", limits),
        trial("driver::a_failed_launch_stays", failed_launch),
        trial("driver::a_kernel_that_fails_says_why", failing_kernel),
        trial("driver::a_lost_device_stays_lost", lost),
        trial("driver::out_of_memory_on_request", out_of_memory),
        trial("driver::more_than_the_device_has", full),
        trial("driver::pools_and_their_counts", pools),
        trial("driver::ranges", ranges),
        trial("driver::memory_is_poisoned", poisoned),
        trial("driver::host_memory_that_the_device_writes", mapped),
        trial("driver::questions_about_pointers", pointers),
        trial("driver::leaks_are_counted", leaks),
        trial("driver::errors_have_names", names),
        trial("driver::stale_handles", stale),
    ]
}

/// The device with the kernels of the wrappers' trials.
fn opened(fake: &'static Fake) -> Result<Opened, String> {
    fake.add_kernels(&shim::library()?)?;
    Opened::new(fake)
}

fn modules(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let image = image();
    holds("a kernel of the image", device.function(&image, "trial_poison").is_ok())?;
    let missing = device.function(&image, "trial_bits").err();
    holds("built for the CPU, but not in the image", missing == Some(CUresult::CUDA_ERROR_NOT_FOUND))?;
    let only_in_image = cubin(90, &[Described { name: "trial_nothing", threads: 32, params: &[] }]);
    let missing = device.function(&only_in_image, "trial_nothing").err();
    holds("in the image, but not built for the CPU", missing == Some(CUresult::CUDA_ERROR_NOT_FOUND))?;
    let damaged =
        device.function(&image[..80].iter().map(|byte| byte ^ 1).chain([0]).collect::<Vec<u8>>(), "trial_poison");
    holds("no image at all", damaged.err() == Some(CUresult::CUDA_ERROR_INVALID_IMAGE))?;
    for (sm, fits) in [(80, false), (90, true), (100, false)] {
        let other = cubin(sm, &[Described { name: "trial_poison", threads: 64, params: &[8] }]);
        let loaded = device.function(&other, "trial_poison");
        let expected = if fits { None } else { Some(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU) };
        holds(format!("sm_{sm} on sm_90"), loaded.err() == expected)?;
    }
    Ok(())
}

fn drift(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    for (what, threads, params) in [
        ("another size", 64, &[4u32][..]),
        ("one more", 64, &[8, 8]),
        ("one less", 64, &[]),
        ("other threads", 128, &[8]),
    ] {
        let other = cubin(90, &[Described { name: "trial_poison", threads, params: Box::leak(params.into()) }]);
        let loaded = device.function(&other, "trial_poison").err();
        holds(what, loaded == Some(CUresult::CUDA_ERROR_INVALID_IMAGE))?;
    }
    holds("each is told", fake.violations().len() == 4)
}

fn limits(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let function = device.function(&image(), "trial_sum").map_err(|error| format!("{error:?}"))?;
    let (from, out) = (device.words(64)?, device.words(64)?);
    let run = |blocks, threads, shared| device.launch(function, blocks, threads, shared, &[from, out, 64]);
    let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
    gives("no blocks", run(0, 64, 256), refused)?;
    gives("no threads", run(1, 0, 256), refused)?;
    gives("1,025 threads", run(1, 1025, 8192), refused)?;
    gives("more than 48 KiB of shared memory without asking", run(1, 64, 49_153), refused)?;
    let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is there.
    let allow = |bytes| unsafe { sys::cuFuncSetAttribute(function, most, bytes) };
    gives("more than the device has", allow(232_449), refused)?;
    ok("as much as it has", allow(232_448))?;
    ok("more than 48 KiB", run(1, 64, 232_448))?;
    ok("the launch", device.synchronize())?;
    let bounded = device.function(&image(), "trial_poison").map_err(|error| format!("{error:?}"))?;
    let beyond = device.launch(bounded, 1, 128, 256, &[out]);
    gives("more threads than the kernel was compiled for", beyond, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)?;
    let mut resident = 0;
    // SAFETY: a place for a number.
    ok("occupancy", unsafe {
        sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut resident, function, 512, 100_000)
    })?;
    holds(format!("two blocks fit, not {resident}"), resident == 2)
}

fn failed_launch(fake: &'static Fake) -> Outcome {
    let mut device = opened(fake)?;
    let function = device.function(&image(), "trial_poison").map_err(|error| format!("{error:?}"))?;
    let out = device.words(64)?;
    device.set("fail_launch", 3)?;
    let failed = CUresult::CUDA_ERROR_LAUNCH_FAILED;
    for launch in 1..=3 {
        ok("the launch itself", device.launch(function, 1, 64, 256, &[out]))?;
        gives(
            &format!("launch {launch}"),
            device.synchronize(),
            if launch == 3 { failed } else { CUresult::CUDA_SUCCESS },
        )?;
    }
    gives("another launch", device.launch(function, 1, 64, 256, &[out]), failed)?;
    let mut address = 0;
    // SAFETY: a place for an address.
    gives("an allocation", unsafe { sys::cuMemAlloc_v2(&raw mut address, 4) }, failed)?;
    holds("the device says so", device.get("error") == failed as i64)?;
    device.release();
    holds("a new context is sound", device.get("error") == 0 && device.get("live_allocations") == 0)?;
    drop(device);
    let device = opened(fake)?;
    ok("its stream", device.synchronize())
}

fn failing_kernel(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let function = device.function(&image(), "trial_moves").map_err(|error| format!("{error:?}"))?;
    let words = device.words(256)?;
    ok("the launch itself", device.launch(function, 1, 32, 0, &[words + 4, words + 512]))?;
    gives("what comes of it", device.synchronize(), CUresult::CUDA_ERROR_MISALIGNED_ADDRESS)?;
    let said = fake.violations().join("\n");
    holds(format!("it says where: {said}"), said.contains("trial_moves") && said.contains("wrappers.cu:"))
}

fn lost(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let words = device.words(4)?;
    device.set("lose_after", 3)?;
    device.read(words, 4)?;
    device.read(words, 4)?;
    holds("the third operation", device.read(words, 4).is_err())?;
    gives("and all after it", device.synchronize(), CUresult::CUDA_ERROR_UNKNOWN)?;
    // SAFETY: an address.
    gives("frees too", unsafe { sys::cuMemFree_v2(words) }, CUresult::CUDA_ERROR_UNKNOWN)
}

fn out_of_memory(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let allocations = |count: usize| (0..count).map(|_| device.words(4).is_ok()).collect::<Vec<_>>();
    device.set("fail_alloc", 3)?;
    holds("the third one alone", allocations(5) == [true, true, false, true, true])?;
    device.set("fail_alloc_count", 2)?;
    device.set("fail_alloc", 2)?;
    let two = allocations(5);
    device.set("fail_alloc_count", 1)?;
    holds("the second and the third", two == [true, false, false, true, true])?;
    device.set("fail_host_alloc", 1)?;
    let mut place = std::ptr::null_mut();
    // SAFETY: a place for an address.
    let host = unsafe { sys::cuMemHostAlloc(&raw mut place, 64, 2) };
    gives("host memory", host, CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    holds("an error that does not stay", device.words(4).is_ok())
}

fn full(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    device.set("memory", 16 << 20)?;
    let result = (|| {
        let mut address = 0;
        // SAFETY: a place for an address.
        let mut allocate = |bytes| unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        ok("half", allocate(8 << 20))?;
        gives("more than the rest", allocate((8 << 20) + 1), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        holds("nor from a pool", device.words(3 << 20).is_err())?;
        let pooled = device.words(2 << 20)?;
        device.free(pooled)?;
        // What is about to be freed is there at once.
        device.words((2 << 20) - 64)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for two numbers.
        ok("the rest", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        holds(format!("{free} of {total} free"), total == 16 << 20 && free == 0)
    })();
    device.set("memory", 4 << 30)?;
    result
}

fn pools(fake: &'static Fake) -> Outcome {
    use sys::CUmemPool_attribute as Attribute;
    let device = opened(fake)?;
    // SAFETY: all zero is valid for this plain struct, and the calls have places for what they return.
    unsafe {
        let mut props: sys::CUmemPoolProps = std::mem::zeroed();
        let (mut pool, mut address) = (std::ptr::null_mut(), 0);
        gives(
            "no properties",
            sys::cuMemPoolCreate(&raw mut pool, &raw const props),
            CUresult::CUDA_ERROR_INVALID_VALUE,
        )?;
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        props.location.__bindgen_anon_1.id = DEVICE;
        ok("a pool", sys::cuMemPoolCreate(&raw mut pool, &raw const props))?;
        let get = |attribute| {
            let mut value = 0u64;
            let got = sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast());
            ok("its counts", got).map(|()| value)
        };
        let mut threshold = 1u64 << 20;
        let keep = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        ok("a threshold", sys::cuMemPoolSetAttribute(pool, keep, (&raw mut threshold).cast()))?;
        holds("the threshold", get(keep)? == 1 << 20)?;
        ok("memory", sys::cuMemAllocFromPoolAsync(&raw mut address, 5 << 20, pool, device.stream))?;
        let (used, reserved) =
            (Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        holds("what is used and reserved", (get(used)?, get(reserved)?) == (5 << 20, 6 << 20))?;
        device.free(address)?;
        ok("the free", device.synchronize())?;
        holds("reserved up to the threshold", (get(used)?, get(reserved)?) == (0, 2 << 20))?;
        ok("a trim", sys::cuMemPoolTrimTo(pool, 0))?;
        holds("nothing is", get(reserved)? == 0)?;
        holds("the highest", get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)? == 5 << 20)?;
        ok("the end of it", sys::cuMemPoolDestroy(pool))?;
        gives("twice", sys::cuMemPoolDestroy(pool), CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let mut default = std::ptr::null_mut();
        ok("the default pool", sys::cuDeviceGetDefaultMemPool(&raw mut default, DEVICE))?;
        holds("stays", sys::cuMemPoolDestroy(default) != CUresult::CUDA_SUCCESS)
    }
}

fn ranges(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let (a, b) = (device.words(16)?, device.words(16)?);
    let words = [1u32; 17];
    let from = words.as_ptr().cast();
    let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
    // SAFETY: host memory of that size; device addresses are checked by the test driver.
    unsafe {
        gives("a word too many", sys::cuMemcpyHtoDAsync_v2(a, from, 68, device.stream), refused)?;
        gives("an address of nothing", sys::cuMemcpyHtoDAsync_v2(8, from, 4, device.stream), refused)?;
        gives("a fill past the end", sys::cuMemsetD32Async(a + 4, 7, 16, device.stream), refused)?;
        gives("a fill at an odd address", sys::cuMemsetD32Async(a + 2, 7, 1, device.stream), refused)?;
        gives("a copy onto itself", sys::cuMemcpyDtoDAsync_v2(a, a + 4, 8, device.stream), refused)?;
        holds("a free of nothing", device.free(a + 4).is_err())?;
        ok("a fill of halves", sys::cuMemsetD16Async(a, 0x1234, 32, device.stream))?;
        ok("a copy", sys::cuMemcpyDtoDAsync_v2(b, a, 64, device.stream))?;
        holds("what they did", device.read(b, 16)? == [0x1234_1234; 16])?;
        device.free(a)?;
        gives("memory whose free is enqueued", sys::cuMemsetD32Async(a, 7, 1, device.stream), refused)?;
        holds("freed twice", device.free(a).is_err())?;
    }
    let function = device.function(&image(), "trial_poison").map_err(|error| format!("{error:?}"))?;
    // Kernels may write where they will; the fence behind each allocation is looked at.
    ok("the launch", device.launch(function, 1, 64, 256, &[b]))?;
    ok("it runs", device.synchronize())?;
    let told = fake.violations();
    holds(format!("{told:?}"), told.iter().any(|text| text.contains("behind an allocation of 64 bytes")))
}

fn poisoned(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let a = device.words(16)?;
    holds("new", device.read(a, 16)? == [u32::MAX; 16])?;
    device.free(a)?;
    ok("the free", device.synchronize())?;
    // SAFETY: the test driver keeps freed memory for a while, so that this can be seen.
    let freed = unsafe { std::slice::from_raw_parts(a as *const u32, 16) };
    holds("freed", freed == [0xdddd_dddd; 16])?;
    holds("nothing was wrong", fake.violations().is_empty())
}

fn mapped(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let (mut place, mut address) = (std::ptr::null_mut(), 0);
    // SAFETY: places for addresses; the memory has four words.
    unsafe {
        ok("host memory", sys::cuMemHostAlloc(&raw mut place, 16, 2))?;
        ok("its address", sys::cuMemHostGetDevicePointer_v2(&raw mut address, place, 0))?;
        place.cast::<u32>().write_bytes(0, 4);
        device.set("jitter_us", 3000)?;
        ok("a write", sys::cuStreamWriteValue32_v2(device.stream, address + 4, 77, 0))?;
        ok("the write", device.synchronize())?;
        holds("the word", place.cast::<[u32; 4]>().read_volatile() == [0, 77, 0, 0])?;
        ok("its end", sys::cuMemFreeHost(place))?;
        gives("twice", sys::cuMemFreeHost(place), CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

fn pointers(fake: &'static Fake) -> Outcome {
    use sys::CUpointer_attribute as Attribute;
    let device = opened(fake)?;
    let words = device.words(16)?;
    let own = [0u64; 2];
    // SAFETY: places of the attributes' sizes.
    unsafe {
        let mut ordinal = -1i32;
        let ask = Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        ok("the device", sys::cuPointerGetAttribute((&raw mut ordinal).cast(), ask, words + 60))?;
        holds("the device", ordinal == DEVICE)?;
        let mut of_nothing = |address| sys::cuPointerGetAttribute((&raw mut ordinal).cast(), ask, address);
        gives("past the end", of_nothing(words + 64), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        gives("host memory", of_nothing(own.as_ptr() as u64), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let mut size = 0usize;
        let ask = Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE;
        ok("the size", sys::cuPointerGetAttribute((&raw mut size).cast(), ask, words + 4))?;
        holds("the size", size == 64)
    }
}

fn leaks(fake: &'static Fake) -> Outcome {
    let mut device = opened(fake)?;
    let before = device.get("leaked");
    device.words(4)?;
    holds(
        "live",
        device.get("live_allocations") == 1 && device.get("live_streams") == 1 && device.get("live_bytes") == 16,
    )?;
    device.release();
    // The stream is one, too.
    holds("what nobody gave back", device.get("leaked") == before + 2)?;
    holds("nothing is left", device.get("live_allocations") == 0 && device.get("live_streams") == 0)
}

fn names(_: &'static Fake) -> Outcome {
    for (code, name) in [
        (CUresult::CUDA_ERROR_OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY"),
        (CUresult::CUDA_ERROR_LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED"),
        (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
    ] {
        let mut text = std::ptr::null();
        // SAFETY: a place for an address; names stay.
        let found = unsafe {
            ok("cuGetErrorName", sys::cuGetErrorName(code, &raw mut text))?;
            std::ffi::CStr::from_ptr(text)
        };
        holds(format!("{code:?} is {found:?}"), found == name)?;
    }
    Ok(())
}

fn stale(fake: &'static Fake) -> Outcome {
    let device = opened(fake)?;
    let other = device.another_stream()?;
    // SAFETY: handles that are checked by the test driver.
    unsafe {
        ok("its end", sys::cuStreamDestroy_v2(other))?;
        gives("twice", sys::cuStreamDestroy_v2(other), CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        gives("its use", sys::cuStreamSynchronize(other), CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    }
    Ok(())
}
