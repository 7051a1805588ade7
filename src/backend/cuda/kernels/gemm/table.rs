//! The kernels of grouped GEMMs: rows of the kernel table.

use crate::backend::cuda::launch::Arg;
use crate::backend::cuda::table::{IntoArg, PLAIN, Param, Spec, cuda_kernels};
use crate::tensor::DType::{self, BF16, F16, F32};

/// Rows in f32 or in the type of the weights.
const USUAL: &[&[DType]] = &[&[BF16, BF16], &[F16, F16], &[F32, BF16], &[F32, F16]];

/// Pairs of rows and weights that are neither usual nor both f32.
const MIXED: &[&[DType]] = &[&[BF16, F32], &[F16, F32], &[BF16, F16], &[F16, BF16]];

/// One of them is f32 and is rounded to the type of the other.
const ROUNDED: &[&[DType]] = &[&[F32, BF16], &[F32, F16], &[BF16, F32], &[F16, F32]];

/// Rows are f32 and are rounded to the type of the weights.
const ROUNDED_ROWS: &[&[DType]] = &[&[F32, BF16], &[F32, F16]];

const SINGLE: &[&[DType]] = &[&[F32, F32]];

/// Pairs of dy and x without f16, and with it.
const WITHOUT_F16: &[&[DType]] = &[&[BF16, BF16], &[F32, BF16], &[BF16, F32], &[F32, F32]];
const WITH_F16: &[&[DType]] = &[&[F16, F16], &[F32, F16], &[F16, F32], &[BF16, F16], &[F16, BF16]];

/// Pairs of which one is rounded, as it is f32 or scaled.
const WGRAD_ROUNDS: &[&[DType]] = &[&[F32, BF16], &[BF16, F32], &[F32, F32], &[F32, F16], &[F16, F32]];
const WGRAD_ROUNDS_SCALED: &[&[DType]] =
    &[&[BF16, BF16], &[F32, BF16], &[BF16, F32], &[F32, F32], &[F16, F16], &[F32, F16], &[F16, F32]];

/// The parameters that several kernels share, as a struct: their names and types are those of the table.
macro_rules! parameters {
    ($($(#[$doc:meta])* $Name:ident { $($param:ident: $kind:ident $ty:ident,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $Name {
            $(pub(super) $param: cuda_kernels!(@field $kind $ty),)*
        }

        impl $Name {
            const PARAMS: &'static [Param] =
                &[$(Param { name: stringify!($param), kind: cuda_kernels!(@kind $kind), ty: stringify!($ty) }),*];

            pub(super) fn args(self) -> Vec<Arg> {
                vec![$(self.$param.into_arg()),*]
            }
        }
    )* };
}

parameters! {
    /// Parameters of forward and dgrad, whose rows and weights are x and w.
    RowsParams {
        x: read S,
        index: maybe u32,
        w: read D,
        tiles: read u32,
        out: write f32,
        div: value u64,
        stored: value u32,
        n: value u32,
        k: value u32,
        flags: value u32,
    }
    /// Parameters of forward through W_gate and W_up, whose sums go through SwiGLU.
    GateUpParams {
        x: read S,
        index: maybe u32,
        w: read D,
        tiles: read u32,
        ab: write f32,
        h: write f32,
        parts: write f64,
        div: value u64,
        rows: value u64,
        stored: value u32,
        n: value u32,
        k: value u32,
        flags: value u32,
    }
    /// Parameters of dgrad through W_down, whose sums go through the backward of SwiGLU.
    DownBackParams {
        x: read S,
        index: maybe u32,
        w: read D,
        tiles: read u32,
        u: write f32,
        ab: read f32,
        ab_index: maybe u32,
        scale: maybe f32,
        d_ab: write f32,
        h: write f32,
        parts: write f64,
        div: value u64,
        rows: value u64,
        ab_stored: value u64,
        stored: value u32,
        n: value u32,
        k: value u32,
        flags: value u32,
    }
    /// Parameters of wgrad.
    WgradParams {
        dy: read S,
        dy_index: maybe u32,
        scale: maybe f32,
        x: read D,
        x_index: maybe u32,
        offsets: read u32,
        out: write f32,
        dy_div: value u64,
        x_div: value u64,
        dy_stored: value u32,
        x_stored: value u32,
        rows: value u32,
        groups: value u32,
        splits: value u32,
        n: value u32,
        k: value u32,
        flags: value u32,
    }
}

/// Rows of the kernel table that share a signature, and a list of them.
macro_rules! products {
    ($params:expr; $SPECS:ident; $($(#[$doc:meta])* $NAME:ident = $file:literal in $instances:expr, registers $registers:literal;)*) => {
        $(
            $(#[$doc])*
            pub(super) const $NAME: &Spec = &Spec {
                file: $file,
                text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/", $file, ".cu")),
                base: $file,
                vars: &["S", "D"],
                instances: $instances,
                threads: 128,
                registers: $registers,
                params: $params,
            };
        )*

        pub(in crate::backend::cuda) const $SPECS: &[&Spec] = &[$($NAME),*];
    };
}

// Large tiles leave room for two blocks on a multiprocessor, small ones for three.

products! { RowsParams::PARAMS; ROWS_SPECS;
    FORWARD = "grouped_forward" in USUAL, registers 256;
    FORWARD_SMALL = "grouped_forward_small" in USUAL, registers 168;
    FORWARD_MIXED = "grouped_forward_mixed" in MIXED, registers 168;
    FORWARD_ROUNDED = "grouped_forward_rounded" in ROUNDED, registers 256;
    FORWARD_ROUNDED_SMALL = "grouped_forward_rounded_small" in ROUNDED, registers 168;
    FORWARD_SIMT = "grouped_forward_simt" in SINGLE, registers 104;
    DGRAD = "grouped_dgrad" in USUAL, registers 256;
    DGRAD_SMALL = "grouped_dgrad_small" in USUAL, registers 168;
    DGRAD_MIXED = "grouped_dgrad_mixed" in MIXED, registers 168;
    DGRAD_ROUNDED = "grouped_dgrad_rounded" in ROUNDED, registers 256;
    DGRAD_ROUNDED_SMALL = "grouped_dgrad_rounded_small" in ROUNDED, registers 168;
    DGRAD_SIMT = "grouped_dgrad_simt" in SINGLE, registers 104;
}

products! { GateUpParams::PARAMS; GATE_UP_SPECS;
    GATE_UP = "grouped_gate_up" in USUAL, registers 256;
    GATE_UP_SMALL = "grouped_gate_up_small" in USUAL, registers 168;
    GATE_UP_ROUNDED = "grouped_gate_up_rounded" in ROUNDED_ROWS, registers 256;
    GATE_UP_ROUNDED_SMALL = "grouped_gate_up_rounded_small" in ROUNDED_ROWS, registers 168;
}

products! { DownBackParams::PARAMS; DOWN_BACK_SPECS;
    DOWN_BACK = "grouped_down_back" in USUAL, registers 256;
    DOWN_BACK_SMALL = "grouped_down_back_small" in USUAL, registers 168;
    DOWN_BACK_ROUNDED = "grouped_down_back_rounded" in ROUNDED_ROWS, registers 256;
    DOWN_BACK_ROUNDED_SMALL = "grouped_down_back_rounded_small" in ROUNDED_ROWS, registers 168;
}

products! { WgradParams::PARAMS; WGRAD_SPECS;
    WGRAD = "grouped_wgrad" in WITHOUT_F16, registers 256;
    WGRAD_SCALED = "grouped_wgrad_scaled" in WITHOUT_F16, registers 256;
    WGRAD_HALF = "grouped_wgrad_half" in WITH_F16, registers 256;
    WGRAD_HALF_SCALED = "grouped_wgrad_half_scaled" in WITH_F16, registers 256;
    WGRAD_ROUNDED = "grouped_wgrad_rounded" in WGRAD_ROUNDS, registers 256;
    WGRAD_ROUNDED_SCALED = "grouped_wgrad_rounded_scaled" in WGRAD_ROUNDS_SCALED, registers 256;
}

cuda_kernels! {
    /// Row tiles of all groups.
    "gemm_tiles": GemmTiles [] in PLAIN, threads 256, registers 32 {
        offsets: read u32,
        tiles: write u32,
        rows: value u32,
        groups: value u32,
        tile_rows: value u32,
        most: value u32,
    }
    /// Sums of the parts of matrices.
    "gemm_splits": GemmSplits [] in PLAIN, threads 256, registers 40 {
        parts: read f32,
        offsets: read u32,
        out: write f32,
        each: value u64,
        groups: value u32,
        splits: value u32,
        accumulate: value u32,
    }
    /// Norms from sums of squares.
    "gemm_norms": GemmNorms [] in PLAIN, threads 256, registers 32 {
        parts: read f64,
        offsets: read u32,
        norm: write f32,
        rows: value u64,
        groups: value u32,
        blocks: value u32,
    }
    /// Products of rows from their parts.
    "gemm_norms" / "gemm_dots": GemmDots [] in PLAIN, threads 256, registers 32 {
        parts: read f64,
        offsets: read u32,
        dot: write f32,
        rows: value u64,
        groups: value u32,
        blocks: value u32,
    }
}
