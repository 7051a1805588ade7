//! Wrappers and builtins against the PTX manual's words, written out here once more.

use half::{bf16, f16};
use libtest_mimic::Trial;

use crate::shim::{EARLY, FIRST_FIRST, LAST_FIRST, LATE, Order, RANDOM, Shim, Words, orders, random, shim};
use crate::support::fake_cuda::Fake;
use crate::support::outcome::{Outcome, holds};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("wrappers::mma_bf16", |_| multiply("trial_mma_bf16", |x| bf16::from_f32(x).to_bits())),
        trial("wrappers::mma_f16", |_| multiply("trial_mma_f16", |x| f16::from_f32(x).to_bits())),
        trial("wrappers::ldmatrix", ldmatrix),
        trial("wrappers::copies_early_and_late", copies),
        trial("wrappers::shuffles", shuffles),
        trial("wrappers::votes_and_lanes_that_have_left", votes),
        trial("wrappers::bits", bits),
        trial("wrappers::halves", halves),
        trial("wrappers::integer_atomics_and_the_last_block", atomics),
        trial("wrappers::vectors", vectors),
        trial("wrappers::barriers_in_every_schedule", barriers),
        trial("wrappers::schedules", schedules),
        trial("wrappers::shared_memory_is_poisoned", poison),
    ]
}

/// Runs something in every order.
fn in_every_order(run: impl Fn(&Shim, Order) -> Outcome) -> Outcome {
    let (shim, _one) = shim()?;
    for order in orders() {
        shim.order(order);
        run(shim, order).map_err(|why| format!("{order:?}: {why}"))?;
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) -> Outcome {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => Err(format!("{what}: {:?} at {at}, not {:?}", found[at], expected[at])),
        None => holds(format!("{what}: as many as expected"), found.len() >= expected.len()),
    }
}

/// D = A B + C with small integers. Fragments: `groupID = lane / 4`, `threadID_in_group = lane % 4`.
fn multiply(kernel: &str, bits: impl Fn(f32) -> u16) -> Outcome {
    let mut next = random(3);
    let mut small = || (next() % 17) as f32 - 8.0;
    let a: Vec<[f32; 16]> = (0..16).map(|_| std::array::from_fn(|_| small())).collect();
    let b: Vec<[f32; 8]> = (0..16).map(|_| std::array::from_fn(|_| small())).collect();
    let c: Vec<[f32; 8]> = (0..16).map(|_| std::array::from_fn(|_| small())).collect();
    let pair = |low: f32, high: f32| u32::from(bits(low)) | u32::from(bits(high)) << 16;
    let (mut of_a, mut of_b, mut of_c, mut expected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for lane in 0..32 {
        let (group, place) = (lane / 4, lane % 4);
        // a0 a1: row groupID, columns 2 place and the next; a2 a3: eight rows below; a4..a7: the same, eight columns on.
        for (row, col) in [(group, 0), (group + 8, 0), (group, 8), (group + 8, 8)] {
            of_a.push(pair(a[row][col + 2 * place], a[row][col + 2 * place + 1]));
        }
        // b0 b1: rows 2 place and the next of column groupID; b2 b3: eight rows below.
        for row in [2 * place, 2 * place + 8] {
            of_b.push(pair(b[row][group], b[row + 1][group]));
        }
        for (row, col) in
            [(group, 2 * place), (group, 2 * place + 1), (group + 8, 2 * place), (group + 8, 2 * place + 1)]
        {
            of_c.push(c[row][col].to_bits());
            let sum: f32 = c[row][col] + (0..16).map(|k| a[row][k] * b[k][col]).sum::<f32>();
            expected.push(sum.to_bits());
        }
    }
    in_every_order(|shim, _| {
        let (mut a, mut b, mut d) = (Words::from(of_a.clone()), Words::from(of_b.clone()), Words::from(of_c.clone()));
        shim.run(kernel, 1, 32, 0, &[a.address(), b.address(), d.address()])?;
        same("products", d.all(), &expected)
    })
}

/// Thread l gets of matrix i, in register i, elements 2 (l % 4) and the next of row l / 4; of column l / 4 where it is transposed.
fn ldmatrix(_: &Fake) -> Outcome {
    const PITCH: usize = 24;
    let tile: Vec<u16> = (0..32 * PITCH).map(|i| (i * 7919) as u16).collect();
    let at = |matrix: usize, row: usize, col: usize| u32::from(tile[(8 * matrix + row) * PITCH + col]);
    for transposed in [0, 1] {
        let mut expected = Vec::new();
        for lane in 0..32 {
            let (row, col) = (lane / 4, 2 * (lane % 4));
            expected.extend((0..4).map(|matrix| match transposed {
                0 => at(matrix, row, col) | at(matrix, row, col + 1) << 16,
                _ => at(matrix, col, row) | at(matrix, col + 1, row) << 16,
            }));
        }
        in_every_order(|shim, _| {
            let mut input = Words::from(bytemuck::pod_collect_to_vec::<u16, u32>(&tile));
            let mut out = Words::new(128, 0);
            shim.run(
                "trial_ldmatrix",
                1,
                32,
                tile.len() * 2,
                &[input.address(), out.address(), PITCH as u64, transposed],
            )?;
            same("registers", out.all(), &expected)
        })?;
    }
    Ok(())
}

fn copies(_: &Fake) -> Outcome {
    in_every_order(|shim, order| {
        let mut from = Words::from((0..192).map(|i| i + 1000));
        let mut out = Words::new(224, 0);
        shim.run("trial_copies", 1, 32, 192 * 4, &[from.address(), out.address()])?;
        let expected: Vec<u32> = (0..192)
            .map(|i: u32| match i {
                0..128 if i / 4 % 4 == 3 => 0,
                128..160 if i % 4 == 2 => 0,
                _ => i + 1000,
            })
            .collect();
        same("copies behind their waits", out.all(), &expected)?;
        let (not_waited_for, there) = (&out.all()[192..], &expected[160..]);
        match order.copies {
            LATE => same("copies that are late", not_waited_for, &[u32::MAX; 32]),
            EARLY => same("copies that are early", not_waited_for, there),
            _ => holds(
                "copies are there or not",
                not_waited_for.iter().zip(there).all(|(found, there)| found == there || *found == u32::MAX),
            ),
        }
    })
}

/// The source lane as the manual's pseudocode of `shfl.sync` has it.
fn source(mode: &str, lane: u32, b: u32, width: u32) -> u32 {
    let segment_mask = (32 - width) & 0x1f;
    let clamp = if mode == "up" { 0 } else { 0x1f };
    let max_lane = (lane & segment_mask) | (clamp & !segment_mask & 0x1f);
    let min_lane = lane & segment_mask;
    let (j, fine) = match mode {
        "up" => {
            let j = i64::from(lane) - i64::from(b);
            (j, j >= i64::from(max_lane))
        }
        "down" => (i64::from(lane + b), lane + b <= max_lane),
        "bfly" => (i64::from(lane ^ b), lane ^ b <= max_lane),
        _ => (i64::from(min_lane | (b & !segment_mask & 0x1f)), true),
    };
    if fine { j as u32 } else { lane }
}

fn shuffles(_: &Fake) -> Outcome {
    let mut next = random(5);
    let input: Vec<u32> = (0..32).map(|_| next()).collect();
    let of = |lane: u32| input[lane as usize];
    let mut expected = Vec::new();
    for lane in 0..32 {
        expected.extend([
            of(source("idx", lane, lane * 7 + 3, 32)),
            of(source("idx", lane, 5, 8)),
            of(source("up", lane, 3, 32)),
            of(source("up", lane, 3, 16)),
            of(source("down", lane, 5, 32)),
            of(source("down", lane, 5, 8)),
            of(source("bfly", lane, 17, 32)),
            of(lane ^ 1) ^ (lane ^ 1),
        ]);
    }
    in_every_order(|shim, _| {
        let (mut from, mut out) = (Words::from(input.clone()), Words::new(256, 0));
        shim.run("trial_shuffles", 1, 32, 0, &[from.address(), out.address()])?;
        same("shuffled", out.all(), &expected)
    })
}

fn votes(_: &Fake) -> Outcome {
    let mut next = random(6);
    let input: Vec<u32> = (0..32).map(|_| next() % 40).collect();
    let ballot = |lanes: u32, yes: &dyn Fn(u32) -> bool| {
        (0..32)
            .filter(|lane| lanes >> lane & 1 == 1 && yes(input[*lane as usize]))
            .fold(0u32, |all, lane| all | 1 << lane)
    };
    const EVEN: u32 = 0x5555_5555;
    let mut expected = Vec::new();
    for lane in 0..32usize {
        let own = input[lane];
        let sum: u32 = input.iter().sum();
        let most = input.iter().max().copied().unwrap_or(0);
        expected.extend([
            ballot(u32::MAX, &|v| v & 1 == 1),
            u32::from(input.contains(&3)),
            u32::from(input.iter().all(|&v| v < 100)) | u32::from(input.iter().all(|&v| v & 1 == 1)) << 1,
            ballot(u32::MAX, &|v| v % 4 == own % 4),
            sum ^ most << 16,
        ]);
        let stays = lane % 2 == 0;
        let of_the_rest = ballot(EVEN, &|v| v & 2 == 2);
        expected.extend(if stays { [of_the_rest, of_the_rest, input[lane ^ 2]] } else { [9; 3] });
    }
    in_every_order(|shim, _| {
        let (mut from, mut out) = (Words::from(input.clone()), Words::new(256, 9));
        shim.run("trial_votes", 1, 32, 0, &[from.address(), out.address()])?;
        same("votes", out.all(), &expected)
    })
}

fn bits(_: &Fake) -> Outcome {
    let mut next = random(8);
    let mut input = vec![0u64, 1, u64::MAX, 1 << 63, 1 << 31, 0xffff_ffff, 0x8000_0001];
    input.extend((0..50).map(|_| u64::from(next()) << 32 | u64::from(next())));
    let mut expected = Vec::new();
    for (i, &x) in input.iter().enumerate() {
        let y = input[(i + 1) % input.len()];
        let (low, other) = (x as u32, y as u32);
        let signed = i64::from((low as i32).max(other as i32)) as u64;
        let unit = f64::from_bits(x >> 12 | 0x3ff0_0000_0000_0000);
        expected.extend([
            low.count_ones().into(),
            x.count_ones().into(),
            if low == 0 { 0 } else { u64::from(low.trailing_zeros()) + 1 },
            low.leading_zeros().into(),
            x.leading_zeros().into(),
            (u64::from(low) * u64::from(other)) >> 32,
            ((u128::from(x) * u128::from(y)) >> 64) as u64,
            low.reverse_bits().into(),
            u64::from(low.min(other)).wrapping_add(signed),
            1.5f64.mul_add(unit, 0.25).to_bits(),
        ]);
    }
    let (shim, _one) = shim()?;
    let mut out = vec![0u64; expected.len()];
    let mut from = input.clone();
    shim.run("trial_bits", 1, 1, 0, &[from.as_mut_ptr() as u64, out.as_mut_ptr() as u64, input.len() as u64])?;
    same("bits", &out, &expected)
}

/// To nearest even, subnormals kept, every NaN 0x7fff.
fn halves(_: &Fake) -> Outcome {
    let mut next = random(9);
    let mut input: Vec<f32> = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect();
    let between: Vec<f32> =
        input.iter().flat_map(|x| [f32::from_bits(x.to_bits() ^ 1), f32::from_bits(x.to_bits() ^ 0x1000)]).collect();
    input.extend(between);
    input.extend((0..100_000).map(|_| f32::from_bits(next())));
    input.extend([65_519.996, 65_520.0, -65_520.0, f32::MAX, f32::MIN_POSITIVE, 2.9e-8, 2.99e-8, 5.96e-8]);
    let expected: Vec<u16> =
        input.iter().map(|x| if x.is_nan() { 0x7fff } else { f16::from_f32(*x).to_bits() }).collect();
    let (shim, _one) = shim()?;
    let (mut out, mut widened) = (vec![0u16; input.len()], vec![0f32; 1 << 16]);
    let len = input.len() as u64;
    shim.run(
        "trial_halves",
        4,
        256,
        0,
        &[input.as_mut_ptr() as u64, out.as_mut_ptr() as u64, widened.as_mut_ptr() as u64, len],
    )?;
    same("to f16", &out, &expected)?;
    for bits in 0..=u16::MAX {
        let (found, expected) = (widened[usize::from(bits)], f16::from_bits(bits).to_f32());
        holds(
            format!("{bits:#06x} widened"),
            found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
        )?;
    }
    Ok(())
}

fn atomics(_: &Fake) -> Outcome {
    const BLOCKS: u32 = 37;
    in_every_order(|shim, _| {
        let mut counts = Words::from([0, 0, u32::MAX, 0, 0]);
        let (mut sum, mut partial, mut total) = (0u64, Words::new(BLOCKS as usize, 0), Words::new(1, 0));
        let arguments = [counts.address(), &raw mut sum as u64, partial.address(), total.address()];
        shim.run("trial_atomics", BLOCKS, 64, 4, &arguments)?;
        let n = BLOCKS * 64;
        same("counts", counts.all(), &[n, n - 1, 0, u32::MAX, BLOCKS])?;
        holds("the 64-bit sum", sum == (u64::from(n) * u64::from(n - 1) / 2) << 20)?;
        same("the last block's sum", total.all(), &[BLOCKS * (BLOCKS + 1) / 2])
    })
}

fn vectors(_: &Fake) -> Outcome {
    in_every_order(|shim, _| {
        let (mut from, mut to) = (Words::from(0..128), Words::new(132, 7));
        shim.run("trial_moves", 1, 32, 0, &[from.address(), to.address()])?;
        same("moved", to.all(), &(0..128).chain([7; 4]).collect::<Vec<_>>())
    })
}

fn barriers(_: &Fake) -> Outcome {
    let input: Vec<u32> = (0..5000).collect();
    in_every_order(|shim, _| {
        for (blocks, threads) in [(1u32, 32u32), (3, 64), (7, 512), (2, 1024), (1, 1)] {
            let (mut from, mut out) = (Words::from(input.clone()), Words::new(blocks as usize, 0));
            shim.run(
                "trial_sum",
                blocks,
                threads,
                threads as usize * 4,
                &[from.address(), out.address(), input.len() as u64],
            )?;
            let sum: u32 = out.all()[..blocks as usize].iter().sum();
            holds(format!("the sum over {blocks} blocks of {threads}"), sum == 5000 * 4999 / 2)?;
        }
        Ok(())
    })
}

fn schedules(_: &Fake) -> Outcome {
    let (shim, _one) = shim()?;
    let order_of = |schedule, seed| -> Result<Vec<u32>, String> {
        shim.order(Order { schedule, copies: LATE, seed, threads: 1 });
        let (mut next, mut out) = (Words::new(1, 0), Words::new(64 * 5, 0));
        shim.run("trial_order", 5, 64, 0, &[next.address(), out.address()])?;
        Ok(out.all().to_vec())
    };
    let forward: Vec<u32> = (0..320).collect();
    same("first first", &order_of(FIRST_FIRST, 1)?, &forward)?;
    same("last first", &order_of(LAST_FIRST, 1)?, &forward.iter().rev().copied().collect::<Vec<_>>())?;
    let shuffled = order_of(RANDOM, 1)?;
    let mut sorted = shuffled.clone();
    sorted.sort_unstable();
    same("each thread once", &sorted, &forward)?;
    holds("chance decides", shuffled != forward && shuffled != order_of(RANDOM, 2)?)
}

fn poison(_: &Fake) -> Outcome {
    in_every_order(|shim, _| {
        let mut out = Words::new(64, 0);
        shim.run("trial_poison", 3, 64, 256, &[out.address()])?;
        same("what nobody wrote", out.all(), &[u32::MAX; 64])
    })
}
