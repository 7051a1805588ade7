//! A small counter-based random generator: the same key gives the same numbers on every machine, and two runs that share
//! a seed share their initial weights and their data order whatever else differs between them.

/// Uniform and normal numbers, drawn in order from a key.
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// A generator of its own for (`seed`, `stream`, `index`), for instance (seed, "batch", step).
    pub(crate) fn new(seed: u64, stream: &str, index: u64) -> Self {
        let stream = crate::corpus::fnv1a(stream.as_bytes());
        Self { state: mix(mix(mix(seed) ^ stream) ^ index) }
    }

    /// 64 random bits (SplitMix64).
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Uniform in (0, 1], never 0, so that its logarithm is finite.
    pub(crate) fn uniform(&mut self) -> f64 {
        ((self.next_u64() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }

    /// Uniform in `0..n`; the bias of the multiplication is below 2^-40 for every corpus that fits in memory.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// `n` normal numbers of mean 0 and standard deviation `std` (Box-Muller).
    pub(crate) fn normal(&mut self, n: usize, std: f64) -> Vec<f32> {
        let mut draw = || (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        (0..n).map(|_| (draw() * std) as f32).collect()
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |seed, stream, index| Rng::new(seed, stream, index).next_u64();
        assert_eq!(draw(1, "batch", 7), draw(1, "batch", 7));
        let all = [draw(1, "batch", 7), draw(2, "batch", 7), draw(1, "init", 7), draw(1, "batch", 8)];
        for i in 0..all.len() {
            assert!(all[i + 1..].iter().all(|x| *x != all[i]));
        }
    }

    #[test]
    fn normal_has_the_asked_moments() {
        let x = Rng::new(3, "moments", 0).normal(100_000, 0.5);
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
        let var = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
        // Five standard errors of each estimate.
        assert!(mean.abs() < 5.0 * 0.5 / 316.0, "mean {mean}");
        assert!((var - 0.25).abs() < 5.0 * 0.25 * (2.0_f64 / 1e5).sqrt(), "variance {var}");
    }
}
