//! Gradients of weights: what is summed over are the rows of a group.

use super::table::{GemmSplits, WgradParams};
use super::{Groups, Operands, Rows, Tile, in_pairs, launch, table};
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, blocks_of, u32_of};
use crate::backend::cuda::table::Spec;
use crate::backend::{divisor, elements};
use crate::tensor::DType::{self, BF16, F16, F32};
use crate::{Result, kernel};

const TILE: Tile = Tile { rows: 128, cols: 128, steps: 32 };

/// Flags of the kernels: `lib_gemm_wgrad.h`.
const LEFT_WHOLE: u32 = 1;
const RIGHT_WHOLE: u32 = 2;
const OUT_PAIRS: u32 = 4;
const ACCUMULATE: u32 = 8;

/// Rows of a part of a group at least, and parts at most.
const PART_ROWS: usize = 512;
const MOST_PARTS: u64 = 16;

pub(in crate::backend::cuda::kernels) fn grouped_wgrad(
    args: &kernel::GroupedWgrad<CudaBuffer>,
    to: &mut Exec<'_>,
) -> Result<()> {
    let &kernel::GroupedWgrad { groups, n, k, accumulate, .. } = args;
    let dy_index = args.dy_index.as_ref().map(|index| ("dy_index", index));
    let x_index = args.x_index.as_ref().map(|index| ("x_index", index));
    let dy = Rows { buffer: &args.dy, cols: n, index: dy_index, div: divisor("dy_div", args.dy_div)? };
    let x = Rows { buffer: &args.x, cols: k, index: x_index, div: divisor("x_div", args.x_div)? };
    let rows = Groups { offsets: &args.offsets, rows: args.rows, groups, n, k }.check(&[dy, x], to)?;
    let (dy, x) = (dy.args(rows)?, x.args(rows)?);
    let scale = Ptr::optional_f32(args.dy_scale.as_ref(), rows)?;
    let out = Ptr::f32(&args.out, elements("out", &[groups, n, k])?)?;
    let scaled = scale.is_some();
    let spec = kernel([dy.rows.dtype, x.rows.dtype], scaled, to.inner().options.operands);
    let shared = TILE.shared(dy.rows.dtype, x.rows.dtype, scaled);
    let offsets = Ptr::u32(&args.offsets, groups + 1)?;
    let tiles = |size: usize, tile: u32| size.div_ceil(tile as usize) as u64;
    let tiles = (groups as u64).saturating_mul(tiles(n, TILE.rows)).saturating_mul(tiles(k, TILE.cols));
    let arguments = |out: Ptr, splits: u32, accumulate: bool| -> Result<Vec<_>> {
        let pairs = in_pairs(out, k);
        let flags = [(dy.whole, LEFT_WHOLE), (x.whole, RIGHT_WHOLE), (pairs, OUT_PAIRS), (accumulate, ACCUMULATE)];
        let params = WgradParams {
            dy: dy.rows,
            dy_index: dy.index,
            scale,
            x: x.rows,
            x_index: x.index,
            offsets,
            out,
            dy_div: dy.div,
            x_div: x.div,
            dy_stored: dy.stored,
            x_stored: x.stored,
            rows: u32_of("rows", rows)?,
            groups: u32_of("groups", groups)?,
            splits,
            n: u32_of("n", n)?,
            k: u32_of("k", k)?,
            flags: flags.iter().filter(|(holds, _)| *holds).map(|(_, flag)| flag).sum(),
        };
        Ok(params.args())
    };
    let whole = arguments(out, 1, accumulate)?;
    if tiles == 0 {
        return Ok(());
    }
    let splits = splits_of(tiles, rows / groups.max(1), to.resident(spec, &whole, shared)?);
    if splits == 1 {
        return launch(spec, &whole, tiles, shared, to);
    }
    let len = elements("parts of gradients", &[splits as usize, groups, n, k])?;
    let parts = Ptr::f32(&to.scratch("parts of gradients", F32, len)?, len)?;
    launch(spec, &arguments(parts, splits, false)?, tiles * u64::from(splits), shared, to)?;
    let sum = GemmSplits {
        parts,
        offsets,
        out,
        each: elements("a matrix", &[n, k])? as u64,
        groups: u32_of("groups", groups)?,
        splits,
        accumulate: accumulate.into(),
    };
    sum.launch(to, blocks_of(len / splits as usize, 256), 0)
}

/// Into how many parts the rows of a group are split: as fill the device, each of enough rows.
fn splits_of(tiles: u64, rows: usize, resident: u64) -> u32 {
    let parts = (resident / tiles).min((rows / PART_ROWS) as u64).clamp(1, MOST_PARTS);
    u32::try_from(parts).unwrap_or(1)
}

/// Which kernel, by the types of dy and x.
fn kernel(types: [DType; 2], scaled: bool, operands: Operands) -> &'static Spec {
    // Two 16-bit types that differ have no common one to round to.
    let rounds = operands == Operands::Rounded
        && match types {
            [F32, _] | [_, F32] => true,
            [BF16, BF16] | [F16, F16] => scaled,
            _ => false,
        };
    match (rounds, types.contains(&F16), scaled) {
        (true, _, false) => table::WGRAD_ROUNDED,
        (true, _, true) => table::WGRAD_ROUNDED_SCALED,
        (false, false, false) => table::WGRAD,
        (false, false, true) => table::WGRAD_SCALED,
        (false, true, false) => table::WGRAD_HALF,
        (false, true, true) => table::WGRAD_HALF_SCALED,
    }
}
