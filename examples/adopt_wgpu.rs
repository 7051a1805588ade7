//! A host application's device and buffers, used in place: `cargo run --release --example adopt_wgpu`.
//!
//! The host opens wgpu, keeps its activations in one large buffer, and lends lrmoe a part of it. Both users' commands take effect
//! in the order of their submissions.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

use std::error::Error;

use lrmoe::{
    AdamW, AdamWConfig, Backend, DType, ForwardContext, LayerOptions, MoeConfig, MoeLayer, MoeWeights, Tensor,
    WgpuBackend, WgpuOptions,
};

const TOKENS: usize = 128;
const HIDDEN: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    // The host's own set-up. The adapter's limits are what makes large weights fit one binding.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))?;
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
        required_features: adapter.features() & (wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY),
        required_limits: adapter.limits(),
        ..Default::default()
    }))?;

    // Its activations: the layer's input begins at byte 1,000 of a larger buffer, its output goes behind it.
    let bytes = (TOKENS * HIDDEN * 4) as u64;
    let activations = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("activations"),
        size: 1000 + 2 * bytes,
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let host: Vec<f32> = (0..TOKENS * HIDDEN).map(|i| ((i * i + 7 * i) % 101) as f32 / 50.0 - 1.0).collect();
    queue.write_buffer(&activations, 1000, bytemuck::cast_slice(&host));

    // lrmoe on the host's device.
    let backend = WgpuBackend::adopt(&device, &queue, WgpuOptions::default())?;
    let x =
        Tensor::new(backend.borrow("activations", &activations, 1000, DType::F32, TOKENS * HIDDEN)?, TOKENS, HIDDEN)?;
    let config = MoeConfig::new(HIDDEN, 32, 8, 2);
    let weights = MoeWeights::init(&config, 0, 0.1)?;
    let mut layer = MoeLayer::new(&backend, config, weights, LayerOptions::default())?;
    let mut adamw = AdamW::new(&layer, AdamWConfig::default())?;
    let (y, saved) = layer.forward(&x, &ForwardContext::default())?;

    // The host reads y where it lies, with a command of its own.
    let (result, range) = backend.resource(y.buffer());
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(result, range.start, &activations, 1000 + bytes, range.end - range.start);
    queue.submit([encoder.finish()]);

    let gradients = layer.backward(&saved, &y)?;
    adamw.step(&mut layer, 1e-3, 1.0 / TOKENS as f32, false)?;
    let copy = backend.borrow("copy of y", &activations, 1000 + bytes, DType::F32, TOKENS * HIDDEN)?;
    let same = backend.read_blocking(&copy)?.into_f32()? == y.to_f32(&backend)?;
    println!("on {}", adapter.get_info().name);
    println!("{} of {} pairs back-propagated", gradients.stats.retained.iter().sum::<u32>(), TOKENS * 2);
    println!("the host's copy of y is y: {same}");
    Ok(())
}
