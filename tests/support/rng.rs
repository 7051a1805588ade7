//! Randomness for tests: SplitMix64, so that every run sees the same numbers.

use super::linear::Mat;

/// A SplitMix64 stream (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1], a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in (0, 1], a multiple of 2^-24: exact in f32.
    pub fn uniform_f32(&mut self) -> f32 {
        ((self.bits() >> 40) + 1) as f32 / (1u32 << 24) as f32
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "nothing to draw from");
        (self.bits() % n as u64) as usize
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A matrix of normal values with this standard deviation.
    pub fn matrix(&mut self, rows: usize, cols: usize, std: f64) -> Mat {
        Mat::new(rows, cols, (0..rows * cols).map(|_| std * self.normal()).collect())
    }
}
