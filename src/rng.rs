//! Counter-based random numbers: Philox4x32-10.
//!
//! A random number here is a pure function of its key, so the uniform of a pair is the same on every backend, for any
//! rank count and in any order of evaluation. Only 32-bit integer arithmetic is used (a 32x32 -> 64 multiply, `^`, wrapping
//! `+`), so WGSL and CUDA mirror it bit for bit.
//!
//! Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.

use crate::portable;

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One block of Philox4x32-10: four random words from a 128-bit counter and a 64-bit key.
#[must_use]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut c = counter;
    let mut k = key;
    for round in 0..ROUNDS {
        if round > 0 {
            k = [k[0].wrapping_add(KEY_STEPS[0]), k[1].wrapping_add(KEY_STEPS[1])];
        }
        let (high0, low0) = wide_product(MULTIPLIERS[0], c[0]);
        let (high1, low1) = wide_product(MULTIPLIERS[1], c[2]);
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0];
    }
    c
}

fn wide_product(a: u32, b: u32) -> (u32, u32) {
    halves(u64::from(a) * u64::from(b)).into()
}

/// `[high, low]` of a 64-bit word.
fn halves(x: u64) -> [u32; 2] {
    [(x >> 32) as u32, x as u32]
}

/// What identifies one selection of pairs: everything but the expert and the token.
///
/// `call_id` separates micro-batches and repeated uses of one layer within a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct PairKey {
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step.
    pub step: u64,
    /// Which use of the layer within the step.
    pub call_id: u32,
    /// Index of the layer in the model.
    pub layer: u32,
}

/// The random stream of one [`PairKey`]: one uniform per (expert, global token id), and 64 bits per expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairStream {
    key: [u32; 2],
}

impl PairStream {
    /// Derives the stream's 64-bit key: the first two words of Philox with key (seed low, seed high) and counter
    /// (step low, step high, layer, call id).
    #[must_use]
    pub fn new(key: &PairKey) -> Self {
        let [seed_high, seed_low] = halves(key.seed);
        let [step_high, step_low] = halves(key.step);
        let [w0, w1, ..] = philox4x32([step_low, step_high, key.layer, key.call_id], [seed_low, seed_high]);
        Self { key: [w0, w1] }
    }

    /// The stream's key words, for a device kernel to continue from.
    #[must_use]
    pub const fn key(&self) -> [u32; 2] {
        self.key
    }

    /// Uniform in (0, 1] on the grid of 2^-24, exactly representable in f32: `((w0 >> 8) + 1) * 2^-24` where `w0` is the
    /// first word of Philox with counter (token low, token high, expert, 0).
    #[must_use]
    pub fn uniform(&self, expert: u32, token_id: u64) -> f32 {
        let [token_high, token_low] = halves(token_id);
        unit_interval(philox4x32([token_low, token_high, expert, 0], self.key)[0])
    }

    /// 64 random bits of one expert, in a domain apart from those of its tokens: the first two words of Philox with counter
    /// (0, 0, expert, 1), the first the upper half.
    #[must_use]
    pub fn expert_bits(&self, expert: u32) -> u64 {
        let [high, low, ..] = philox4x32([0, 0, expert, 1], self.key);
        u64::from(high) << 32 | u64::from(low)
    }
}

/// The uniform in (0, 1] of one pair; [`PairStream`] does the same with the key derived once.
#[must_use]
pub fn pair_uniform(key: &PairKey, expert: u32, token_id: u64) -> f32 {
    PairStream::new(key).uniform(expert, token_id)
}

/// (0, 1] from the upper 24 bits of a word. Both the integer (at most 2^24) and the product are exact in f32.
fn unit_interval(word: u32) -> f32 {
    const SCALE: f32 = 1.0 / (1 << 24) as f32;
    ((word >> 8) + 1) as f32 * SCALE
}

/// A sequential generator for weight initialisation and data order: the same numbers on every machine.
///
/// Block `i` of stream `s` is Philox with key `seed` and counter (i low, i high, s low, s high), so streams of one seed
/// never overlap.
#[derive(Debug, Clone)]
pub struct Philox {
    key: [u32; 2],
    stream: [u32; 2],
    block: u64,
    words: [u32; 4],
    used: usize,
    spare_normal: Option<f64>,
}

impl Philox {
    /// A generator at the start of `stream` of `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let [seed_high, seed_low] = halves(seed);
        let [stream_high, stream_low] = halves(stream);
        Self {
            key: [seed_low, seed_high],
            stream: [stream_low, stream_high],
            block: 0,
            words: [0; 4],
            used: 4,
            spare_normal: None,
        }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == self.words.len() {
            let [high, low] = halves(self.block);
            self.words = philox4x32([low, high, self.stream[0], self.stream[1]], self.key);
            self.block = self.block.wrapping_add(1);
            self.used = 0;
        }
        let word = self.words[self.used];
        self.used += 1;
        word
    }

    /// The next uniform in (0, 1], on the grid of 2^-24.
    pub fn uniform(&mut self) -> f32 {
        unit_interval(self.next_u32())
    }

    /// The next standard normal number (mean 0, variance 1).
    ///
    /// Marsaglia's polar form of the Box-Muller transform: it needs only a square root, which IEEE 754 rounds the same
    /// everywhere, and a logarithm, which this crate computes itself. About one draw of two words in five is rejected.
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare_normal.take() {
            return spare;
        }
        loop {
            let u = self.symmetric();
            let v = self.symmetric();
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                let factor = (-2.0 * portable::ln(s) / s).sqrt();
                self.spare_normal = Some(v * factor);
                return u * factor;
            }
        }
    }

    /// Fills `out` with normal numbers of mean 0 and the given standard deviation, rounded once to f32.
    pub fn fill_normal(&mut self, out: &mut [f32], std_dev: f32) {
        for x in out {
            *x = (self.normal() * f64::from(std_dev)) as f32;
        }
    }

    /// Uniform in (-1, 1), symmetric about 0 and never 0.
    fn symmetric(&mut self) -> f64 {
        const SCALE: f64 = 1.0 / (1_u64 << 32) as f64;
        (2.0 * f64::from(self.next_u32()) + 1.0) * SCALE - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors published with Random123 (`kat_vectors`, philox 4x32, 10 rounds).
    #[test]
    fn published_vectors() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }

    const KEY: PairKey =
        PairKey { seed: 0x0123_4567_89ab_cdef, step: 0xfedc_ba98_7654_3210, call_id: 0x1111_2222, layer: 0x3333_4444 };

    /// The layout of counters and keys, spelt out apart from the implementation.
    #[test]
    fn pair_layout() {
        let stream = philox4x32([0x7654_3210, 0xfedc_ba98, 0x3333_4444, 0x1111_2222], [0x89ab_cdef, 0x0123_4567]);
        let word = philox4x32([0xdddd_eeee, 0xaaaa_bbbb, 77, 0], [stream[0], stream[1]])[0];
        let expected = (f64::from(word >> 8) + 1.0) / 16_777_216.0;
        assert_eq!(f64::from(pair_uniform(&KEY, 77, 0xaaaa_bbbb_dddd_eeee)), expected);
        assert_eq!(PairStream::new(&KEY).key(), [stream[0], stream[1]]);
        let words = philox4x32([0, 0, 77, 1], [stream[0], stream[1]]);
        assert_eq!(PairStream::new(&KEY).expert_bits(77), u64::from(words[0]) * (1 << 32) + u64::from(words[1]));
    }

    /// Mean and chi-square over 64 cells of the upper bits, five sigma.
    #[test]
    fn expert_bits_are_uniform() {
        let draws: Vec<u64> = (0..1 << 16).map(|e| PairStream::new(&KEY).expert_bits(e)).collect();
        for shift in [58, 26, 0] {
            let mut cells = [0_u32; 64];
            draws.iter().for_each(|bits| cells[(bits >> shift & 63) as usize] += 1);
            let chi2: f64 = cells.iter().map(|&c| (f64::from(c) - 1024.0).powi(2) / 1024.0).sum();
            assert!((chi2 - 63.0).abs() < 5.0 * 126f64.sqrt(), "bits from {shift}: chi-square {chi2}");
        }
    }

    /// Every field, and both halves of the long ones, must matter.
    #[test]
    fn every_field_matters() {
        let base = pair_uniform(&KEY, 3, 5);
        let others = [
            pair_uniform(&PairKey { seed: KEY.seed ^ 1, ..KEY }, 3, 5),
            pair_uniform(&PairKey { seed: KEY.seed ^ 1 << 32, ..KEY }, 3, 5),
            pair_uniform(&PairKey { step: KEY.step ^ 1, ..KEY }, 3, 5),
            pair_uniform(&PairKey { step: KEY.step ^ 1 << 32, ..KEY }, 3, 5),
            pair_uniform(&PairKey { call_id: KEY.call_id ^ 1, ..KEY }, 3, 5),
            pair_uniform(&PairKey { layer: KEY.layer ^ 1, ..KEY }, 3, 5),
            pair_uniform(&KEY, 2, 5),
            pair_uniform(&KEY, 3, 4),
            pair_uniform(&KEY, 3, 5 | 1 << 32),
        ];
        assert!(others.iter().all(|&u| u != base), "{base} in {others:?}");
    }

    #[test]
    fn ends_of_the_interval() {
        assert_eq!(unit_interval(0), 2f32.powi(-24));
        assert_eq!(unit_interval(u32::MAX), 1.0);
        assert_eq!(unit_interval(0xff), unit_interval(0));
    }

    /// Chi-square over 64 cells, and no correlation between neighbouring tokens or experts. Bounds are five sigma.
    #[test]
    fn pair_uniforms_are_uniform_and_independent() {
        let stream = PairStream::new(&KEY);
        let (experts, tokens) = (32_u32, 4096_u64);
        let total = f64::from(experts) * tokens as f64;
        let mut cells = [0_u32; 64];
        let (mut by_token, mut by_expert) = (0.0, 0.0);
        for e in 0..experts {
            for t in 0..tokens {
                let u = stream.uniform(e, t);
                assert!(u > 0.0 && u <= 1.0);
                cells[((u * 64.0).ceil() as usize) - 1] += 1;
                let centred = f64::from(u) - 0.5;
                by_token += centred * (f64::from(stream.uniform(e, t + 1)) - 0.5);
                by_expert += centred * (f64::from(stream.uniform(e + 1, t)) - 0.5);
            }
        }
        let expected = total / 64.0;
        let chi2: f64 = cells.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
        assert!((chi2 - 63.0).abs() < 5.0 * 126f64.sqrt(), "chi-square {chi2} with 63 degrees of freedom");
        let sigma = total.sqrt() / 12.0;
        assert!(
            by_token.abs() < 5.0 * sigma && by_expert.abs() < 5.0 * sigma,
            "{by_token} {by_expert} against {sigma}"
        );
    }

    #[test]
    fn sequence_is_the_blocks_in_order_and_streams_differ() {
        let mut rng = Philox::new(0x0000_0002_0000_0001, 0x0000_0004_0000_0003);
        let drawn: Vec<u32> = (0..8).map(|_| rng.next_u32()).collect();
        assert_eq!(drawn[..4], philox4x32([0, 0, 3, 4], [1, 2]));
        assert_eq!(drawn[4..], philox4x32([1, 0, 3, 4], [1, 2]));
        assert_ne!(Philox::new(1, 0).next_u32(), Philox::new(1, 1).next_u32());
    }

    #[test]
    fn normal_moments() {
        let mut rng = Philox::new(7, 0);
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let moment = |k: i32| draws.iter().map(|x| x.powi(k)).sum::<f64>() / f64::from(n);
        let root = f64::from(n).sqrt();
        // Standard deviations of the sample moments of a standard normal: 1, sqrt 2, sqrt 15, sqrt 96.
        for (k, mean, sigma) in [(1, 0.0, 1.0), (2, 1.0, 2f64.sqrt()), (3, 0.0, 15f64.sqrt()), (4, 3.0, 96f64.sqrt())] {
            let found = moment(k);
            assert!((found - mean).abs() < 5.0 * sigma / root, "moment {k}: {found}");
        }
        let within = draws.iter().filter(|x| x.abs() < 1.0).count() as f64 / f64::from(n);
        assert!((within - 0.682_689).abs() < 5.0 * 0.465 / root, "within one sigma: {within}");
    }

    #[test]
    fn fill_normal_scales_and_repeats() {
        let (mut a, mut b) = ([0.0; 33], [0.0; 33]);
        Philox::new(9, 2).fill_normal(&mut a, 0.5);
        Philox::new(9, 2).fill_normal(&mut b, 0.5);
        assert_eq!(a, b);
        let mut rng = Philox::new(9, 2);
        assert!(a.iter().all(|&x| x == (rng.normal() * 0.5) as f32));
    }
}
