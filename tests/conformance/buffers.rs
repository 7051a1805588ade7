//! Fill, copy, and the rules of buffers and recordings.

use lrmoe::DType::{self, BF16, F16, F32, U32};
use lrmoe::HostData;
use lrmoe::kernel::{Combine, Sigmoid};
use lrmoe::recording::Command;

use crate::devices::Runner;
use crate::table::{Case, Property, Want, near};

fn fills() -> Vec<Case> {
    let types: [(DType, u32); 4] = [(F32, 0xff80_0001), (U32, 0xffff_ffff), (BF16, 0x1234_c0de), (F16, 0x1234_3c01)];
    let fill = |(dtype, bits): (DType, u32), len: usize| {
        let mut case = Case::new(format!("{dtype} x {len}"));
        let buffer = case.out_exact("buffer", dtype, len);
        let neighbour = case.out("neighbour", dtype, 5);
        case.command(Command::Fill { buffer, bits });
        let element = if dtype.bytes() == 2 { bits & 0xffff } else { bits };
        case.want(buffer, vec![Want::Bits(element); len]);
        case.want(neighbour, Vec::new());
        case
    };
    types.into_iter().flat_map(|kind| [fill(kind, 0), fill(kind, 1), fill(kind, 1027)]).collect()
}

fn copies() -> Vec<Case> {
    let mut cases = Vec::new();
    let bits = [0x7f80_0001u32, 0x8000_0000, 1, 0xffff_ffff, 0x3f80_0000];
    for dtype in [F32, U32, BF16, F16] {
        let data = match dtype {
            F32 => HostData::F32(bits.map(f32::from_bits).to_vec()),
            U32 => HostData::U32(bits.to_vec()),
            BF16 => HostData::BF16(bits.map(|b| half::bf16::from_bits(b as u16)).to_vec()),
            F16 => HostData::F16(bits.map(|b| half::f16::from_bits(b as u16)).to_vec()),
        };
        let mask = if dtype.bytes() == 2 { 0xffff } else { u32::MAX };
        let mut case = Case::new(format!("{dtype}"));
        let (src, dst) = (case.data("src", data), case.out_exact("dst", dtype, bits.len()));
        case.command(Command::Copy { src, dst });
        case.want(dst, bits.iter().map(|b| Want::Bits(b & mask)).collect());
        cases.push(case);
    }
    let mut refuse = |name: &str, fragments: &[&'static str], build: fn(&mut Case) -> Command<crate::table::Slot>| {
        let mut case = Case::new(name);
        let command = build(&mut case);
        case.command(command);
        cases.push(case.refused(fragments));
    };
    refuse("other length", &["`dst`", "3 x f32", "2 x f32"], |case| Command::Copy {
        src: case.f32("src", &[1.0; 2]),
        dst: case.out_exact("dst", F32, 3),
    });
    refuse("other type", &["`dst`", "2 x u32", "2 x f32"], |case| Command::Copy {
        src: case.f32("src", &[1.0; 2]),
        dst: case.out_exact("dst", U32, 2),
    });
    refuse("onto itself", &["`src`", "in use"], |case| {
        let src = case.f32("src", &[1.0; 2]);
        Command::Copy { src, dst: src }
    });
    cases
}

/// Commands take effect in the order of the recording.
fn order() -> Case {
    let mut case = Case::new("then copy then kernel then accumulate, in order");
    let a = case.out_exact("a", F32, 3);
    let b = case.out_exact("b", F32, 3);
    let out = case.out_exact("out", F32, 3);
    case.command(Command::Fill { buffer: a, bits: 0 });
    case.run(Sigmoid { len: 3, z: a, s: b });
    case.command(Command::Fill { buffer: a, bits: 1.0f32.to_bits() });
    case.command(Command::Copy { src: b, dst: out });
    case.command(Command::Fill { buffer: b, bits: 2.0f32.to_bits() });
    for rows in [a, b] {
        case.run(Combine {
            tokens: 3,
            top_k: 1,
            cols: 1,
            accumulate: true,
            rows,
            row_of_pair: None,
            weights: None,
            out,
        });
    }
    case.want(a, vec![near(1.0, 0.0, 0.0); 3]);
    case.want(b, vec![near(2.0, 0.0, 0.0); 3]);
    case.want(out, vec![near(3.5, 3.5, 4.0); 3]);
    case
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    [fills(), copies(), vec![order()]].into_iter().flatten().collect()
}

/// All properties of this family.
pub fn properties() -> Vec<Property> {
    vec![
        Property { name: "buffers::ranges_are_checked", check: |runner: &dyn Runner| runner.ranges() },
        Property { name: "buffers::absurd_sizes_are_refused_without_allocating", check: |runner| runner.absurd() },
    ]
}
