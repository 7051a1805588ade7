//! AdamW, sums of squares and casts.

use half::{bf16, f16};
use lrmoe::DType::{self, BF16, F16, F32, U32};
use lrmoe::HostData;
use lrmoe::kernel::{AdamW, AdamWStep, Cast, SUM_SQUARES_BLOCK, SumSquares};

use crate::support::rng::Rng;
use crate::table::{Case, Want, bits, near, number};

fn step(t: i32) -> AdamWStep {
    let (beta1, beta2) = (0.9f32, 0.95f32);
    AdamWStep {
        lr: 0.01,
        beta1,
        beta2,
        eps: 1e-8,
        weight_decay: 0.1,
        correction1: 1.0 - beta1.powi(t),
        correction2: 1.0 - beta2.powi(t),
        grad_scale: 0.5,
    }
}

/// Several steps in one recording, on one gradient.
fn adamw(name: &str, len: usize, storage: DType, steps: i32) -> Case {
    let mut case = Case::new(name);
    let mut rng = Rng::new(31);
    let mut draw = |std: f64| -> Vec<f32> { (0..len).map(|_| (std * rng.normal()) as f32).collect() };
    let (w0, g) = (draw(1.0), draw(3.0));
    let zeros = vec![0.0; len];
    let grad = case.f32("grad", &[&g[..], &[f32::NAN; 3]].concat());
    let weight = case.in_out("weight", &w0, storage);
    let master = (storage != F32).then(|| case.in_out("master", &w0, F32));
    let (m, v) = (case.in_out("m", &zeros, F32), case.in_out("v", &zeros, F32));
    for t in 1..=steps {
        case.run(AdamW { len, step: step(t), grad, weight, master, m, v });
    }
    let mut state: Vec<[f64; 3]> = w0.iter().map(|&w| [w.into(), 0.0, 0.0]).collect();
    for t in 1..=steps {
        let s = step(t);
        let [lr, b1, b2, eps] = [s.lr, s.beta1, s.beta2, s.eps].map(f64::from);
        let [decay, c1, c2, factor] = [s.weight_decay, s.correction1, s.correction2, s.grad_scale].map(f64::from);
        for ([w, m, v], &g) in state.iter_mut().zip(&g) {
            let g = f64::from(g) * factor;
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            *w = *w * (1.0 - lr * decay) - lr * (*m / c1) / ((*v / c2).sqrt() + eps);
        }
    }
    // Ten roundings a step; the update is at most the learning rate times a few.
    let units = 10.0 * f64::from(steps);
    let want = |i: usize| state.iter().map(|s| near(s[i], s[i].abs(), units)).collect::<Vec<_>>();
    let weights = || state.iter().map(|s| near(s[0], s[0].abs() + 0.05, units)).collect::<Vec<_>>();
    case.want(m, want(1));
    case.want(v, want(2));
    match master {
        None => case.want(weight, weights()),
        Some(master) => {
            case.want(master, weights());
            // Loosely here; exactly by the relation.
            let half_unit = if storage == BF16 { 65_536.0 } else { 8_192.0 };
            case.want(weight, state.iter().map(|s| near(s[0], s[0].abs() + 0.05, units + half_unit)).collect());
            case.relation(move |after| {
                for i in 0..len {
                    let master = number(&after[master.0], i) as f32;
                    let want: u32 = match storage {
                        BF16 => bf16::from_f32(master).to_bits().into(),
                        _ => f16::from_f32(master).to_bits().into(),
                    };
                    if bits(&after[weight.0], i) != want {
                        return Err(format!("`weight`[{i}] is not `master` {master} to nearest even"));
                    }
                }
                Ok(())
            });
        }
    }
    case
}

/// A gradient that is not finite spoils its own weight and no other; a zero gradient only decays.
fn adamw_special() -> Case {
    let mut case = Case::new("special gradients");
    let g = [f32::NAN, 0.0, f32::INFINITY, -0.0];
    let args = AdamW {
        len: 4,
        step: step(1),
        grad: case.f32("grad", &g),
        weight: case.in_out("weight", &[2.0; 4], F32),
        master: None,
        m: case.in_out("m", &[0.0; 4], F32),
        v: case.in_out("v", &[0.0; 4], F32),
    };
    let (weight, m, v) = (args.weight, args.m, args.v);
    case.run(args);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let list = |values: [f64; 4]| values.map(|x| near(x, x, 4.0)).to_vec();
    let decayed = 2.0 * (1.0 - 0.01 * 0.1);
    case.want(weight, list([nan, decayed, nan, decayed]));
    case.want(m, list([nan, 0.0, inf, 0.0]));
    case.want(v, list([nan, 0.0, inf, 0.0]));
    case
}

fn sum_squares(name: &str, values: Vec<f32>) -> Case {
    let mut case = Case::new(name);
    let blocks = values.len().div_ceil(SUM_SQUARES_BLOCK);
    let x = case.f32("x", &[&values[..], &[f32::NAN; 5]].concat());
    let partial = case.out("partial", F32, 2 * blocks);
    case.run(SumSquares { len: values.len(), x, partial });
    let block = |x: &[f32]| {
        let max =
            x.iter().map(|x| f64::from(x.abs())).fold(0.0, |max, x| if x.is_nan() { x } else { f64::max(max, x) });
        let max = if x.iter().any(|x| x.is_nan()) { f64::NAN } else { max };
        let sum: f64 = x.iter().map(|&x| (f64::from(x) / max).powi(2)).sum();
        let sum = if max > 0.0 && max.is_finite() { sum } else { 1.0 };
        [near(max, 0.0, 0.0), near(sum, sum, 4.0)]
    };
    case.want(partial, values.chunks(SUM_SQUARES_BLOCK).flat_map(block).collect());
    case
}

fn sums_of_squares() -> Vec<Case> {
    let mut rng = Rng::new(32);
    let mut normal = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.normal() as f32).collect() };
    let with = |at: usize, value: f32| {
        let mut x = vec![1.5; 2 * SUM_SQUARES_BLOCK];
        x[at] = value;
        x
    };
    vec![
        sum_squares("typical", normal(3 * SUM_SQUARES_BLOCK + 17)),
        sum_squares("one", vec![-3.0]),
        sum_squares("none", Vec::new()),
        sum_squares("exactly one block", normal(SUM_SQUARES_BLOCK)),
        sum_squares("squares beyond f32", normal(5000).iter().map(|x| x * 1e30).collect()),
        sum_squares("subnormal", vec![f32::from_bits(1), -1e-40, 1e-42, 0.0]),
        sum_squares("zeros", vec![0.0, -0.0, 0.0]),
        sum_squares("NaN marks its block", with(3, f32::NAN)),
        sum_squares("NaN last", with(2 * SUM_SQUARES_BLOCK - 1, f32::NAN)),
        sum_squares("infinity marks its block", with(SUM_SQUARES_BLOCK, f32::NEG_INFINITY)),
    ]
}

/// Bits of an f32 rounded to bf16: the upper half, to nearest even, by integers.
fn to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) | 0x40;
    }
    (bits + 0x7fff + (bits >> 16 & 1)) >> 16
}

/// Bits of the f16 nearest to an f32 that is not NaN, ties to even, by search.
fn to_f16(x: f32) -> u32 {
    let magnitude = f64::from(x.abs());
    // The value that follows 65504 in the pattern is where infinity begins.
    let value = |bits: u16| if bits == 0x7c00 { 65_536.0 } else { f16::from_bits(bits).to_f64() };
    let above = (0..=0x7c00u16).collect::<Vec<_>>().partition_point(|&bits| value(bits) < magnitude) as u16;
    let nearest = if above == 0 || above > 0x7c00 {
        above.min(0x7c00)
    } else {
        let (low, high) = (magnitude - value(above - 1), value(above) - magnitude);
        if low < high || (low == high && above % 2 == 1) { above - 1 } else { above }
    };
    u32::from(nearest) | (x.to_bits() >> 31 << 15)
}

fn casts() -> Vec<Case> {
    let mut values =
        vec![0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, f32::MIN_POSITIVE, 1e-40];
    values.extend([f32::from_bits(1), 65_504.0, 65_519.9, 65_520.0, 65_536.0, 5.96e-8, 2.98e-8, 2.99e-8, 6.1e-5]);
    // Halfway between neighbours in bf16 and in f16, with the even one below and above.
    for bits in [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f80_7fff, 0x3f80_1000, 0x3f80_3000, 0x3f80_1001, 0x7f7f_8000]
    {
        values.extend([f32::from_bits(bits), -f32::from_bits(bits)]);
    }
    let mut rng = Rng::new(33);
    values.extend((0..9000).map(|_| (rng.normal() * (10.0 * rng.normal()).exp()) as f32));
    let mut cases = Vec::new();
    let narrow = |x: f32, dtype: DType| match dtype {
        F32 => x.to_bits(),
        BF16 => to_bf16(x),
        _ => to_f16(x),
    };
    for from in [F32, BF16, F16] {
        for to in [F32, BF16, F16] {
            let mut case = Case::new(format!("{from} to {to}"));
            let (src, stored) = case.floats("src", &values, from);
            let dst = case.out("dst", to, values.len());
            case.run(Cast { len: values.len(), src, dst });
            // Exact also where two roundings would be: bf16 and f16 widen without loss.
            case.want(dst, stored.iter().map(|&x| Want::Bits(narrow(x as f32, to))).collect());
            cases.push(case);
        }
        for to in [F32, BF16, F16] {
            let mut case = Case::new(format!("NaN {from} to {to}"));
            let (src, _) = case.floats("src", &[1.0, f32::NAN, -2.0], from);
            let dst = case.out("dst", to, 3);
            case.run(Cast { len: 3, src, dst });
            case.want(dst, [1.0, f64::NAN, -2.0].map(|x| near(x, 0.0, 0.0)).to_vec());
            cases.push(case);
        }
    }
    let mut case = Case::new("signalling NaN stays NaN");
    let payload = f32::from_bits(0x7f80_0001);
    let (src, dst) = (case.data("src", HostData::F32(vec![payload])), case.out("dst", BF16, 1));
    case.run(Cast { len: 1, src, dst });
    case.want(dst, vec![near(f64::NAN, 0.0, 0.0)]);
    cases.push(case);
    let mut case = Case::new("nothing");
    let (src, dst) = (case.f32("src", &[]), case.out("dst", BF16, 0));
    case.run(Cast { len: 0, src, dst });
    cases.push(case);
    cases
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse = |name: &str, fragments: &[&'static str], build: fn(&mut Case)| {
        let mut case = Case::new(name);
        build(&mut case);
        cases.push(case.refused(fragments));
    };
    fn optimizer(case: &mut Case, storage: DType, master: bool, len: usize) -> AdamW<crate::table::Slot> {
        AdamW {
            len,
            step: step(1),
            grad: case.f32("grad", &[1.0; 4]),
            weight: case.in_out("weight", &[1.0; 4], storage),
            master: master.then(|| case.in_out("master", &[1.0; 4], F32)),
            m: case.in_out("m", &[0.0; 4], F32),
            v: case.in_out("v", &[0.0; 4], F32),
        }
    }
    refuse("bf16 without master", &["weight of adamw", "bf16"], |case| {
        let args = optimizer(case, BF16, false, 4);
        case.run(args);
    });
    refuse("f32 with master", &["weight of adamw", "f32"], |case| {
        let args = optimizer(case, F32, true, 4);
        case.run(args);
    });
    refuse("short gradient", &["`grad`", "4", "5"], |case| {
        let args = optimizer(case, F32, false, 5);
        case.run(args);
    });
    refuse("moments in one buffer", &["in use", "`m`", "`v`"], |case| {
        let args = optimizer(case, F32, false, 4);
        case.run(AdamW { v: args.m, ..args });
    });
    refuse("short input", &["`x`"], |case| {
        let (x, partial) = (case.f32("x", &[1.0; 3]), case.out("partial", F32, 2));
        case.run(SumSquares { len: 4, x, partial });
    });
    refuse("short partial", &["`partial`", "2", "4"], |case| {
        let x = case.f32("x", &vec![1.0; SUM_SQUARES_BLOCK + 1]);
        let partial = case.out_exact("partial", F32, 2);
        case.run(SumSquares { len: SUM_SQUARES_BLOCK + 1, x, partial });
    });
    refuse("length beyond the address space", &["`x`"], |case| {
        let (x, partial) = (case.f32("x", &[1.0; 3]), case.out("partial", F32, 2));
        case.run(SumSquares { len: usize::MAX, x, partial });
    });
    refuse("integers to floats", &["`src`", "u32"], |case| {
        let (src, dst) = (case.u32("src", &[1]), case.out("dst", F32, 1));
        case.run(Cast { len: 1, src, dst });
    });
    refuse("floats to integers", &["`dst`", "u32"], |case| {
        let (src, dst) = (case.f32("src", &[1.0]), case.out("dst", U32, 1));
        case.run(Cast { len: 1, src, dst });
    });
    refuse("short target", &["`dst`"], |case| {
        let (src, dst) = (case.f32("src", &[1.0; 9]), case.out("dst", BF16, 1));
        case.run(Cast { len: 9, src, dst });
    });
    refuse("in place", &["in use"], |case| {
        let src = case.f32("src", &[1.0; 9]);
        case.run(Cast { len: 9, src, dst: src });
    });
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        adamw("one step", 100, F32, 1),
        adamw("six steps", 9001, F32, 6),
        adamw("bf16 master", 5003, BF16, 6),
        adamw("f16 master", 5003, F16, 6),
        adamw("nothing", 0, F32, 1),
        adamw_special(),
    ];
    cases.extend(sums_of_squares());
    cases.extend(casts());
    cases.extend(refusals());
    cases
}
