//! The text of a shader: a generated header of constants, parameters and buffer accesses in front of the kernel's own.
//!
//! Kernels are written against `load_x(i)` and `store_x(i, v)`, so element types, absent buffers and offsets are the header's business.

use std::fmt::Write;

use super::unroll::unroll;
use crate::tensor::DType;

/// A file of `shaders/`, with the libraries that stand in front of it.
#[derive(Debug)]
pub(crate) struct Source {
    /// File name without `.wgsl`: the kernel's name.
    pub(crate) name: &'static str,
    /// Texts, in order.
    pub(crate) texts: &'static [&'static str],
}

// Every source is a static of its own: its address tells it apart, without a look at the texts.
impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Source {}

impl std::hash::Hash for Source {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}

/// The [`Source`] of a file of `shaders/`, behind the named libraries.
macro_rules! source {
    ($name:literal $(, [$($library:literal),* $(,)?])?) => {
        $crate::backend::wgpu::shader::Source {
            name: $name,
            texts: &[
                $($(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $library, ".wgsl")),)*)?
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl")),
            ],
        }
    };
}

pub(crate) use source;

/// A constant of the header; part of what tells pipelines apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    /// `u32`.
    U32(u32),
    /// `bool`.
    Bool(bool),
}

/// A run-time value: a word of the uniform block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Param {
    /// `u32`.
    U32(u32),
    /// `f32`.
    F32(f32),
}

impl Param {
    /// The word.
    pub(super) fn bits(self) -> u32 {
        match self {
            Self::U32(v) => v,
            Self::F32(v) => v.to_bits(),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::U32(_) => "u32",
            Self::F32(_) => "f32",
        }
    }
}

/// How a kernel sees the elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum View {
    /// One at a time, floats widened to f32.
    Scalar(DType),
    /// Floats, also read four at a time.
    Vec4(DType),
    /// The bits of a 32-bit type.
    Bits,
    /// u32 with atomic operations.
    Atomic,
}

/// A buffer of a kernel: its name and how it is bound, or nothing where it is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bound {
    pub(super) name: &'static str,
    pub(super) view: View,
    /// Number of the binding; two names of one buffer share it.
    pub(super) slot: Option<u32>,
}

/// All that a pipeline depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Specialisation {
    pub(super) source: &'static Source,
    pub(super) entry: &'static str,
    pub(super) workgroup: u32,
    pub(super) constants: Vec<(&'static str, Constant)>,
    /// Names and WGSL types.
    pub(super) params: Vec<(&'static str, &'static str)>,
    pub(super) bound: Vec<Bound>,
}

/// Words of the uniform block in front of the bases and a kernel's own parameters.
pub(super) const FIXED_PARAMS: [&str; 4] = ["group_base", "groups", "grid_x", "infinity"];

/// WGSL that every kernel gets.
const COMMON: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/lib_common.wgsl"));

/// Conversions of packed 16-bit floats.
const HALF: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/lib_half.wgsl"));

/// Functions for row groups, where a buffer is called `offsets`.
const OFFSETS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/lib_offsets.wgsl"));

/// The kind of each parameter, for [`Specialisation::params`].
pub(super) fn kinds(params: &[(&'static str, Param)]) -> Vec<(&'static str, &'static str)> {
    params.iter().map(|(name, value)| (*name, value.kind())).collect()
}

impl Specialisation {
    /// Storage bindings.
    pub(super) fn slots(&self) -> u32 {
        self.bound.iter().filter_map(|bound| bound.slot).max().map_or(0, |last| last + 1)
    }

    /// The whole text. Writing to a string cannot fail.
    pub(super) fn wgsl(&self) -> String {
        let mut text = String::new();
        let _ = self.header(&mut text);
        text.push_str(COMMON);
        let halves = |bound: &Bound| match bound.view {
            View::Scalar(dtype) | View::Vec4(dtype) => dtype.bytes() == 2,
            View::Bits | View::Atomic => false,
        };
        if self.bound.iter().any(halves) {
            text.push_str(HALF);
        }
        for bound in &self.bound {
            let _ = accesses(&mut text, bound, self.variable(bound));
        }
        if self.bound.iter().any(|bound| bound.name == "offsets") {
            text.push_str(OFFSETS);
        }
        for part in self.source.texts {
            unroll(part, &self.constants, &mut text);
        }
        text
    }

    fn header(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "const WORKGROUP_SIZE: u32 = {}u;", self.workgroup)?;
        for (name, value) in &self.constants {
            match value {
                Constant::U32(v) => writeln!(text, "const {name}: u32 = {v}u;")?,
                Constant::Bool(v) => writeln!(text, "const {name}: bool = {v};")?,
            }
        }
        writeln!(text, "struct Params {{")?;
        for name in FIXED_PARAMS {
            writeln!(text, "    {name}: u32,")?;
        }
        for bound in &self.bound {
            writeln!(text, "    base_{}: u32,", bound.name)?;
        }
        for (name, kind) in &self.params {
            writeln!(text, "    {name}: {kind},")?;
        }
        writeln!(text, "}}\n@group(0) @binding(0) var<uniform> params: Params;")?;
        for bound in &self.bound {
            if let Some(slot) = bound.slot
                && self.variable(bound) == bound.name
            {
                let (name, binding, element) = (bound.name, slot + 1, stored(bound.view));
                writeln!(
                    text,
                    "@group(0) @binding({binding}) var<storage, read_write> {name}_data: array<{element}>;"
                )?;
            }
        }
        Ok(())
    }

    /// The first name of a buffer: its variable is called after it.
    fn variable(&self, bound: &Bound) -> &'static str {
        let same = |other: &&Bound| other.slot == bound.slot;
        self.bound.iter().find(same).map_or(bound.name, |first| first.name)
    }
}

/// WGSL type of what is stored.
fn stored(view: View) -> &'static str {
    match view {
        View::Scalar(DType::F32) => "f32",
        View::Scalar(_) | View::Bits => "u32",
        View::Vec4(DType::F32) => "vec4<f32>",
        View::Vec4(_) => "vec2<u32>",
        View::Atomic => "atomic<u32>",
    }
}

/// Functions that read and write one buffer.
fn accesses(text: &mut String, bound: &Bound, variable: &str) -> std::fmt::Result {
    let Bound { name, view, slot } = *bound;
    let upper = name.to_uppercase();
    writeln!(text, "const HAS_{upper}: bool = {};", slot.is_some())?;
    if slot.is_none() {
        return absent(text, name, view);
    }
    let at = format!("{variable}_data[params.base_{name} + i]");
    let whole = |text: &mut String, element: &str| {
        writeln!(text, "fn load_{name}(i: u32) -> {element} {{ return {at}; }}")?;
        writeln!(text, "fn store_{name}(i: u32, v: {element}) {{ {at} = v; }}")
    };
    match view {
        View::Bits => whole(text, "u32"),
        View::Scalar(DType::U32) => whole(text, "u32"),
        View::Scalar(DType::F32) => {
            whole(text, "f32")?;
            writeln!(text, "const {upper}_PER_WORD: u32 = 1u;")?;
            writeln!(text, "fn store_word_{name}(i: u32, lo: f32, hi: f32) {{ {at} = lo; }}")?;
            writeln!(text, "fn store_low_{name}(i: u32, lo: f32) {{ {at} = lo; }}")
        }
        View::Scalar(dtype) => {
            let word = format!("{variable}_data[(params.base_{name} >> 1u) + w]");
            writeln!(text, "const {upper}_PER_WORD: u32 = 2u;")?;
            writeln!(
                text,
                "fn load_{name}(i: u32) -> f32 {{ let at = params.base_{name} + i; \
                 return widen_{dtype}(({variable}_data[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu); }}"
            )?;
            writeln!(
                text,
                "fn store_word_{name}(w: u32, lo: f32, hi: f32) {{ {word} = narrow_{dtype}(lo) | (narrow_{dtype}(hi) << 16u); }}"
            )?;
            writeln!(
                text,
                "fn store_low_{name}(w: u32, lo: f32) {{ {word} = ({word} & 0xffff0000u) | narrow_{dtype}(lo); }}"
            )
        }
        View::Vec4(dtype) => {
            let four = format!("{variable}_data[(params.base_{name} >> 2u) + i]");
            let (value, values) = if dtype == DType::F32 {
                (format!("{variable}_data[at >> 2u][at & 3u]"), four)
            } else {
                let word = format!("{variable}_data[at >> 2u][(at >> 1u) & 1u]");
                let half = format!("({word} >> ((at & 1u) * 16u)) & 0xffffu");
                (format!("widen_{dtype}({half})"), format!("widen4_{dtype}({four})"))
            };
            writeln!(text, "fn load_{name}(i: u32) -> f32 {{ let at = params.base_{name} + i; return {value}; }}")?;
            writeln!(text, "fn load4_{name}(i: u32) -> vec4<f32> {{ return {values}; }}")
        }
        View::Atomic => {
            writeln!(text, "fn load_{name}(i: u32) -> u32 {{ return atomicLoad(&{at}); }}")?;
            writeln!(text, "fn store_{name}(i: u32, v: u32) {{ atomicStore(&{at}, v); }}")?;
            for (operation, function) in
                [("add", "atomicAdd"), ("min", "atomicMin"), ("max", "atomicMax"), ("or", "atomicOr")]
            {
                writeln!(text, "fn {operation}_{name}(i: u32, v: u32) -> u32 {{ return {function}(&{at}, v); }}")?;
            }
            Ok(())
        }
    }
}

/// A buffer that is not there reads as zero and keeps nothing.
fn absent(text: &mut String, name: &str, view: View) -> std::fmt::Result {
    let (element, zero) = match view {
        View::Scalar(DType::U32) | View::Bits | View::Atomic => ("u32", "0u"),
        View::Scalar(_) | View::Vec4(_) => ("f32", "0.0"),
    };
    writeln!(text, "fn load_{name}(i: u32) -> {element} {{ return {zero}; }}")?;
    writeln!(text, "fn store_{name}(i: u32, v: {element}) {{ }}")?;
    if let View::Vec4(_) = view {
        writeln!(text, "fn load4_{name}(i: u32) -> vec4<f32> {{ return vec4<f32>(0.0); }}")?;
    }
    Ok(())
}
