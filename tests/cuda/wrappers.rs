//! Wrappers of single instructions against what the PTX manual says of them: on a real driver of the instruction itself, on the
//! test driver of its emulation. The expectations are written out here and share nothing with either.

use half::{bf16, f16};
use libtest_mimic::Trial;
use lrmoe::backend::cuda::cudarc::driver::sys::CUdeviceptr;
use lrmoe::backend::cuda::cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr, result};
use lrmoe::backend::cuda::cudarc::nvrtc::Ptx;
use lrmoe::backend::cuda::{CUBIN_ARCHS, compile_cubin};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;

use crate::support::fake_cuda;
use crate::support::kernel_library::{Output, Sanitizer, Unit, build};
use crate::support::outcome::{Outcome, holds, text};
use crate::{backend, trial, trial_with};

const SOURCE: &str = include_str!("wrappers.cu");

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_with("wrappers::compile", crate::cubins::no_nvrtc, compile),
        trial("wrappers::conversions_of_f16", conversions),
        trial("wrappers::mma_of_bf16_and_f16", mma),
        trial("wrappers::ldmatrix_plain_and_transposed", ldmatrix),
        trial("wrappers::asynchronous_copies", cp_async),
        trial("wrappers::loads_and_stores_of_16_bytes", once),
    ]
}

/// Where machine code is that was built ahead of time.
fn carried(sm: u32) -> Option<PathBuf> {
    let directory = std::env::var_os("LRMOE_CUBIN_DIR").filter(|value| !value.is_empty())?;
    Some(PathBuf::from(directory).join(format!("wrappers-sm_{sm}.bin")))
}

/// For every architecture; written where kernels are carried, for a machine without a compiler.
fn compile() -> Outcome {
    for &sm in CUBIN_ARCHS {
        let cubin = compile_cubin("wrappers", SOURCE, sm).map_err(text)?;
        if let Some(path) = carried(sm) {
            std::fs::write(path, cubin.image).map_err(text)?;
        }
    }
    Ok(())
}

/// Kernels of the source: threads and parameters.
const KERNELS: [(&str, u32, &str); 7] = [
    ("wrap_to_f16", 256, "const f32*, u32*, u32"),
    ("wrap_to_f32", 256, "const u32*, f32*, u32"),
    ("wrap_mma_bf16", 32, "const bf16*, const bf16*, const f32*, f32*"),
    ("wrap_mma_f16", 32, "const f16*, const f16*, const f32*, f32*"),
    ("wrap_ldmatrix", 32, "const u32*, u32*, u32*"),
    ("wrap_cp_async", 32, "const u32*, u32*, u32*"),
    ("wrap_once", 32, "const u32*, u32*"),
];

/// Gives the test driver, where that is what runs, the wrappers' emulations.
fn emulate() -> Outcome {
    static ADDED: std::sync::OnceLock<Outcome> = std::sync::OnceLock::new();
    let add = || {
        let Some(fake) = fake_cuda::fake()? else { return Ok(()) };
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/wrappers.cu");
        let rows = KERNELS.map(|(name, threads, params)| format!("SHIM_KERNEL_OF({name}, {threads}, {params})\n"));
        let source = format!("#include \"{path}\"\n#include \"launch.h\"\n{}", rows.concat());
        let unit = Unit { name: "wrappers".into(), text: source };
        fake.add_kernels(&build(&[unit], Sanitizer::from_environment()?, Output::Library)?)
    };
    ADDED.get_or_init(add).clone()
}

/// The stream that the wrappers run on, and one of their kernels.
fn kernel(name: &str) -> Result<(Arc<CudaStream>, CudaFunction), String> {
    emulate()?;
    let lrmoe = backend(lrmoe::CudaOptions::default())?;
    let stream = Arc::clone(lrmoe.stream());
    let (major, minor) = stream.context().compute_capability().map_err(text)?;
    let sm = u32::try_from(10 * major + minor).map_err(text)?;
    let arch = CUBIN_ARCHS.iter().copied().filter(|arch| arch / 10 == sm / 10 && *arch <= sm).max();
    let read = arch.and_then(carried).and_then(|path| std::fs::read(path).ok());
    let image = match read {
        Some(image) => image,
        None => compile_cubin("wrappers", SOURCE, sm).map_err(text)?.image,
    };
    let module = stream.context().load_module(Ptx::from_binary(image)).map_err(text)?;
    Ok((stream, module.load_function(name).map_err(text)?))
}

/// Runs blocks of a kernel whose arguments are pointers, and a number behind them where there is one.
fn launch(
    (stream, function): &(Arc<CudaStream>, CudaFunction),
    (blocks, threads, shared): (u32, u32, u32),
    pointers: &mut [CUdeviceptr],
    mut number: Option<u32>,
) -> Outcome {
    let mut params: Vec<*mut c_void> = pointers.iter_mut().map(|pointer| std::ptr::from_mut(pointer).cast()).collect();
    params.extend(number.as_mut().map(|number| std::ptr::from_mut(number).cast::<c_void>()));
    let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
    // SAFETY: the arguments are those of the kernel, in its order; the memory is the caller's until it has read the results.
    let launched =
        unsafe { result::launch_kernel(function.cu_function(), grid, block, shared, stream.cu_stream(), &mut params) };
    launched.map_err(text)
}

fn address<T>(slice: &CudaSlice<T>, stream: &Arc<CudaStream>) -> CUdeviceptr {
    slice.device_ptr(stream).0
}

fn conversions() -> Outcome {
    let to_f32 = kernel("wrap_to_f32")?;
    let stream = &to_f32.0;
    stream.context().bind_to_thread().map_err(text)?;
    let all: Vec<u32> = (0..1 << 16).collect();
    let input = stream.clone_htod(&all).map_err(text)?;
    let output = stream.alloc_zeros::<f32>(all.len()).map_err(text)?;
    launch(&to_f32, (256, 256, 0), &mut [address(&input, stream), address(&output, stream)], Some(1 << 16))?;
    for (bits, got) in all.iter().zip(stream.clone_dtoh(&output).map_err(text)?) {
        let want = f16::from_bits(*bits as u16).to_f32();
        let same = want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan());
        holds(format!("f16 {bits:#06x} is {want}, not {got}"), same)?;
    }
    // Every f16, what lies half way to the next, and a little to each side of both.
    let near = |bits: u32| {
        let (x, next) = (f16::from_bits(bits as u16).to_f32(), f16::from_bits(bits as u16 + 1).to_f32());
        let middle = x + (next - x) / 2.0;
        let around = |x: f32| [x.next_down(), x, x.next_up()];
        [around(x), around(middle)].concat()
    };
    let mut values: Vec<f32> = (0..0x7c00).flat_map(near).flat_map(|x| [x, -x]).collect();
    values.extend([f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, 65519.996, 65520.0, 1e-45]);
    let to_f16 = kernel("wrap_to_f16")?;
    let stream = &to_f16.0;
    let input = stream.clone_htod(&values).map_err(text)?;
    let output = stream.alloc_zeros::<u32>(values.len()).map_err(text)?;
    let len = values.len() as u32;
    let shape = (len.div_ceil(256), 256, 0);
    launch(&to_f16, shape, &mut [address(&input, stream), address(&output, stream)], Some(len))?;
    for (x, got) in values.iter().zip(stream.clone_dtoh(&output).map_err(text)?) {
        let want = u32::from(f16::from_f32(*x).to_bits());
        holds(format!("{x} is f16 {want:#06x}, not {got:#06x}"), want == got)?;
    }
    Ok(())
}

/// Small integers, so that every sum is exact whatever its order: no place may be taken for another.
fn mma() -> Outcome {
    let a: Vec<f32> = (0..256).map(|i| ((i * 37 + 11) % 29) as f32 - 14.0).collect();
    let b: Vec<f32> = (0..128).map(|i| ((i * 53 + 5) % 31) as f32 - 15.0).collect();
    let c: Vec<f32> = (0..128).map(|i| (i * i) as f32).collect();
    let want: Vec<f32> =
        (0..128).map(|at| c[at] + (0..16).map(|k| a[at / 8 * 16 + k] * b[k * 8 + at % 8]).sum::<f32>()).collect();
    let bits = |values: &[f32], name: &str| -> Vec<u16> {
        let bits =
            |x: &f32| if name.ends_with("bf16") { bf16::from_f32(*x).to_bits() } else { f16::from_f32(*x).to_bits() };
        values.iter().map(bits).collect()
    };
    for name in ["wrap_mma_bf16", "wrap_mma_f16"] {
        let mma = kernel(name)?;
        let stream = &mma.0;
        stream.context().bind_to_thread().map_err(text)?;
        let (a, b) = (stream.clone_htod(&bits(&a, name)), stream.clone_htod(&bits(&b, name)));
        let (a, b, c) = (a.map_err(text)?, b.map_err(text)?, stream.clone_htod(&c).map_err(text)?);
        let d = stream.alloc_zeros::<f32>(128).map_err(text)?;
        let mut pointers = [address(&a, stream), address(&b, stream), address(&c, stream), address(&d, stream)];
        launch(&mma, (1, 32, 0), &mut pointers, None)?;
        let got = stream.clone_dtoh(&d).map_err(text)?;
        holds(format!("{name}: {got:?} is {want:?}"), got == want)?;
    }
    Ok(())
}

fn ldmatrix() -> Outcome {
    let run = kernel("wrap_ldmatrix")?;
    let stream = &run.0;
    stream.context().bind_to_thread().map_err(text)?;
    // Element c of row r is 8 r + c.
    let element = |row: usize, column: usize| (8 * row + column) as u32;
    let pair = |low: u32, high: u32| low | high << 16;
    let input: Vec<u32> = (0..128).map(|word| pair(2 * word, 2 * word + 1)).collect();
    let input = stream.clone_htod(&input).map_err(text)?;
    let outputs = [stream.alloc_zeros::<u32>(128).map_err(text)?, stream.alloc_zeros::<u32>(128).map_err(text)?];
    let mut pointers = [address(&input, stream), address(&outputs[0], stream), address(&outputs[1], stream)];
    launch(&run, (1, 32, 512), &mut pointers, None)?;
    let [plain, transposed] = outputs.map(|output| stream.clone_dtoh(&output));
    let (plain, transposed) = (plain.map_err(text)?, transposed.map_err(text)?);
    for lane in 0..32 {
        for matrix in 0..4 {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            let want = pair(element(8 * matrix + row, column), element(8 * matrix + row, column + 1));
            holds(format!("lane {lane}, matrix {matrix}"), plain[4 * lane + matrix] == want)?;
            let want = pair(element(8 * matrix + column, row), element(8 * matrix + column + 1, row));
            holds(format!("lane {lane}, matrix {matrix}, transposed"), transposed[4 * lane + matrix] == want)?;
        }
    }
    Ok(())
}

fn cp_async() -> Outcome {
    let run = kernel("wrap_cp_async")?;
    let stream = &run.0;
    stream.context().bind_to_thread().map_err(text)?;
    let input: Vec<u32> = (1..161).collect();
    let memory = stream.clone_htod(&input).map_err(text)?;
    let outputs = [stream.alloc_zeros::<u32>(128).map_err(text)?, stream.alloc_zeros::<u32>(32).map_err(text)?];
    let mut pointers = [address(&memory, stream), address(&outputs[0], stream), address(&outputs[1], stream)];
    launch(&run, (1, 32, 640), &mut pointers, None)?;
    let [by_16, by_4] = outputs.map(|output| stream.clone_dtoh(&output));
    let kept = |at: usize, lane: usize| if lane.is_multiple_of(2) { input[at] } else { 0 };
    let want_16: Vec<u32> = (0..128).map(|at| kept(at, at / 4)).collect();
    let want_4: Vec<u32> = (0..32).map(|at| kept(128 + at, at)).collect();
    holds("copies of 16 bytes", by_16.map_err(text)? == want_16)?;
    holds("copies of 4 bytes", by_4.map_err(text)? == want_4)
}

fn once() -> Outcome {
    let run = kernel("wrap_once")?;
    let stream = &run.0;
    stream.context().bind_to_thread().map_err(text)?;
    let input: Vec<u32> = (0..128).map(|i| i * 0x0101_0101).collect();
    let memory = stream.clone_htod(&input).map_err(text)?;
    let output = stream.alloc_zeros::<u32>(128).map_err(text)?;
    launch(&run, (1, 32, 0), &mut [address(&memory, stream), address(&output, stream)], None)?;
    holds("16 bytes a lane", stream.clone_dtoh(&output).map_err(text)? == input)
}
