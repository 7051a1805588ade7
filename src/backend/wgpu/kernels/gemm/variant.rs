//! The variants of the grouped products: what each needs, in a table.

use super::product::{Call, Shape};
use crate::backend::wgpu::context::Profile;
use crate::backend::wgpu::launch::MAX_ROUNDS;
use crate::backend::wgpu::shader::Constant;
use crate::tensor::DType;

/// How a workgroup shares its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Strategy {
    /// `lib_gemm_direct.wgsl`: operands from memory to registers. What CPU drivers like.
    Direct,
    /// `lib_gemm_tiled.wgsl`: tiles of the operands in workgroup memory. What GPUs like.
    Tiled,
    /// `lib_gemm_subgroup.wgsl`: values of a are handed round by shuffles.
    Subgroup,
    /// `lib_gemm_cooperative.wgsl`: matrix units, whose sums round differently.
    Cooperative,
}

/// One way to compute a product.
///
/// All but cooperative ones keep one chain of `fma` for each element over the same steps in the same order, so they give the
/// same bits on one device, and which of them runs is a matter of speed alone.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    /// Strategy; rows and columns of a workgroup's tile (columns of an invocation, of subgroups); `x1` where elements are read
    /// one at a time.
    pub(crate) name: &'static str,
    pub(super) strategy: Strategy,
    /// Invocations of a workgroup along rows and columns of c; 0 columns stand for the subgroup's size.
    grid: [u32; 2],
    /// Elements of c in an invocation's registers.
    thread: [u32; 2],
    /// Whether operands are read four elements at a time.
    pub(super) fours: bool,
}

/// Steps in workgroup memory at a time.
const STEPS: u32 = 16;

const fn variant(name: &'static str, strategy: Strategy, grid: [u32; 2], thread: [u32; 2], fours: bool) -> Variant {
    Variant { name, strategy, grid, thread, fours }
}

/// All variants. The last one needs nothing.
pub(crate) static VARIANTS: [Variant; 12] = [
    variant("direct-8x64", Strategy::Direct, [1, 8], [8, 8], true),
    variant("direct-4x64", Strategy::Direct, [1, 8], [4, 8], true),
    variant("subgroup-16x4", Strategy::Subgroup, [1, 0], [16, 4], true),
    variant("subgroup-8x4", Strategy::Subgroup, [1, 0], [8, 4], true),
    variant("tiled-128x64", Strategy::Tiled, [16, 16], [8, 4], true),
    variant("tiled-64x64", Strategy::Tiled, [16, 16], [4, 4], true),
    variant("tiled-16x64", Strategy::Tiled, [4, 16], [4, 4], true),
    variant("cooperative-f16", Strategy::Cooperative, [1, 0], [32, 32], true),
    variant("cooperative-f32", Strategy::Cooperative, [1, 0], [32, 32], true),
    variant("tiled-64x64x1", Strategy::Tiled, [16, 16], [4, 4], false),
    variant("tiled-16x64x1", Strategy::Tiled, [4, 16], [4, 4], false),
    variant("direct-8x64x1", Strategy::Direct, [1, 8], [8, 8], false),
];

impl Variant {
    /// The variant of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        VARIANTS.iter().find(|variant| variant.name == name)
    }

    /// Whether a device can run it on such a product, or why not.
    pub(crate) fn supported(&self, profile: &Profile, shape: &Shape) -> Result<(), String> {
        if self.fours && !shape.fours {
            return Err("rows are not whole vectors of four elements".into());
        }
        let (halves, matrices) = (self.halves(), profile.cooperative);
        if self.strategy == Strategy::Subgroup && shape.call == Call::Wgrad {
            return Err("rows of the left operand are steps".into());
        }
        if self.strategy == Strategy::Cooperative && !(if halves { matrices.halves } else { matrices.singles }) {
            return Err("the device has no such cooperative matrices, or they are not enabled".into());
        }
        // The scale of a weight gradient is f32.
        if halves && (shape.dtypes != [DType::F16; 2] || shape.call == Call::Wgrad) {
            return Err("an operand is not f16".into());
        }
        if self.grid[1] == 0 {
            match profile.subgroup {
                None => return Err("the device has no subgroups of one size".into()),
                Some(size) if !size.is_multiple_of(4) => return Err(format!("subgroups have {size} invocations")),
                Some(_) => {}
            }
        }
        let (invocations, bytes) = (self.workgroup(profile), self.workgroup_bytes(profile));
        if invocations > profile.invocations {
            return Err(format!("{invocations} invocations; {} are allowed", profile.invocations));
        }
        if bytes > profile.workgroup_bytes {
            return Err(format!("{bytes} bytes of workgroup memory; there are {}", profile.workgroup_bytes));
        }
        Ok(())
    }

    /// Whether its sums are the hardware's.
    pub(super) fn is_cooperative(&self) -> bool {
        self.strategy == Strategy::Cooperative
    }

    /// Whether its operands are cooperative matrices of f16.
    fn halves(&self) -> bool {
        self.name == "cooperative-f16"
    }

    fn grid(&self, profile: &Profile) -> [u32; 2] {
        let [rows, cols] = self.grid;
        [rows, if cols == 0 { profile.subgroup.unwrap_or(1) } else { cols }]
    }

    /// Invocations of a workgroup.
    pub(super) fn workgroup(&self, profile: &Profile) -> u32 {
        self.grid(profile).iter().product()
    }

    /// Rows and columns of a workgroup's tile.
    pub(super) fn tile(&self, profile: &Profile) -> [u32; 2] {
        let ([grid_rows, grid_cols], [rows, cols]) = (self.grid(profile), self.thread);
        // A cooperative matrix is the whole subgroup's.
        if self.strategy == Strategy::Cooperative { self.thread } else { [grid_rows * rows, grid_cols * cols] }
    }

    /// An upper bound: tiles with their padding, and the description of the workgroup's tile.
    fn workgroup_bytes(&self, profile: &Profile) -> u32 {
        let [rows, cols] = self.tile(profile);
        match self.strategy {
            Strategy::Direct => 0,
            Strategy::Subgroup => 32,
            Strategy::Tiled => STEPS * (rows + cols + 4) * 4 + 32,
            Strategy::Cooperative => ((rows + cols) * (STEPS + 8) + rows * (cols + 4)) * 4 + 32,
        }
    }

    /// Steps that one invocation may take in one dispatch.
    pub(super) fn steps_at_most(&self, profile: &Profile) -> usize {
        match (profile.software, self.strategy) {
            (false, _) => usize::MAX,
            (true, Strategy::Direct) => 4 * MAX_ROUNDS,
            // 16 steps are one of the outer loop and four of the inner, which ends with another.
            (true, Strategy::Tiled) => MAX_ROUNDS / 6 * 16,
            // Three for four steps at least. No such driver has cooperative matrices.
            (true, Strategy::Subgroup | Strategy::Cooperative) => MAX_ROUNDS,
        }
    }

    /// What the shader is generated from.
    pub(super) fn constants(&self, profile: &Profile, call: Call, resume: bool) -> Vec<(&'static str, Constant)> {
        let ([grid_rows, grid_cols], [rows, cols]) = (self.grid(profile), self.tile(profile));
        let [thread_rows, thread_cols] = self.thread;
        // Of a cooperative matrix.
        let side = if self.halves() { 16 } else { 8 };
        vec![
            ("GRID_ROWS", Constant::U32(grid_rows)),
            ("GRID_COLS", Constant::U32(grid_cols)),
            ("THREAD_ROWS", Constant::U32(thread_rows)),
            ("THREAD_COLS", Constant::U32(thread_cols)),
            ("TILE_ROWS", Constant::U32(rows)),
            ("TILE_COLS", Constant::U32(cols)),
            ("STEPS", Constant::U32(STEPS)),
            ("SIDE", Constant::U32(side)),
            ("FRAGMENTS", Constant::U32(rows / side)),
            ("HALVES", Constant::Bool(self.halves())),
            ("WIDTH", Constant::U32(if self.fours { 4 } else { 1 })),
            ("VEC4", Constant::Bool(self.fours)),
            ("A_ROWS_ARE_STEPS", Constant::Bool(call.a_rows_are_steps())),
            ("B_ROWS_ARE_STEPS", Constant::Bool(call.b_rows_are_steps())),
            ("RESUME", Constant::Bool(resume)),
        ]
    }
}
