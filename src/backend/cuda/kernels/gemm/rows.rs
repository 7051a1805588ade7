//! Forward and dgrad: what is computed are rows of the batch.

use super::table::{self, GemmTiles};
use super::{Groups, Operands, Rows, Tile, in_pairs, launch, whole};
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Arg, Ptr, u32_of};
use crate::backend::cuda::table::Spec;
use crate::backend::known::Question;
use crate::backend::{divisor, elements};
use crate::tensor::DType::F32;
use crate::{Result, kernel};

const LARGE: Tile = Tile { rows: 128, cols: 128, steps: 32 };
const SMALL: Tile = Tile { rows: 32, cols: 128, steps: 32 };
const SIMT: Tile = Tile { rows: 64, cols: 64, steps: 16 };

/// Mean rows of a group from which on large tiles are full enough.
const LARGE_ROWS: usize = 48;

/// Words of an entry of the list of tiles: `gemm_tiles.cu`.
const ENTRY: usize = 4;

/// Flags of the kernels: `lib_gemm_rows.h`.
const LEFT_WHOLE: u32 = 1;
const RIGHT_WHOLE: u32 = 2;
const OUT_PAIRS: u32 = 4;

/// The kernels of one product.
struct Specs {
    large: &'static Spec,
    small: &'static Spec,
    mixed: &'static Spec,
    rounded: &'static Spec,
    rounded_small: &'static Spec,
    simt: &'static Spec,
}

const FORWARD: Specs = Specs {
    large: table::FORWARD,
    small: table::FORWARD_SMALL,
    mixed: table::FORWARD_MIXED,
    rounded: table::FORWARD_ROUNDED,
    rounded_small: table::FORWARD_ROUNDED_SMALL,
    simt: table::FORWARD_SIMT,
};

const DGRAD: Specs = Specs {
    large: table::DGRAD,
    small: table::DGRAD_SMALL,
    mixed: table::DGRAD_MIXED,
    rounded: table::DGRAD_ROUNDED,
    rounded_small: table::DGRAD_ROUNDED_SMALL,
    simt: table::DGRAD_SIMT,
};

/// One product on its way to the device.
struct Product<'a> {
    specs: &'static Specs,
    groups: Groups<'a>,
    x: Rows<'a>,
    w: &'a CudaBuffer,
    out: &'a CudaBuffer,
    /// Columns of the output.
    cols: usize,
}

pub(in crate::backend::cuda::kernels) fn grouped_forward(
    args: &kernel::GroupedForward<CudaBuffer>,
    to: &mut Exec<'_>,
) -> Result<()> {
    let &kernel::GroupedForward { rows, groups, n, k, .. } = args;
    let index = args.index.as_ref().map(|index| ("index", index));
    let product = Product {
        specs: &FORWARD,
        groups: Groups { offsets: &args.offsets, rows, groups, n, k },
        x: Rows { buffer: &args.x, cols: k, index, div: divisor("index_div", args.index_div)? },
        w: &args.w,
        out: &args.out,
        cols: n,
    };
    product.run(to)
}

pub(in crate::backend::cuda::kernels) fn grouped_dgrad(
    args: &kernel::GroupedDgrad<CudaBuffer>,
    to: &mut Exec<'_>,
) -> Result<()> {
    let &kernel::GroupedDgrad { rows, groups, n, k, .. } = args;
    let index = args.index.as_ref().map(|index| ("index", index));
    let product = Product {
        specs: &DGRAD,
        groups: Groups { offsets: &args.offsets, rows, groups, n, k },
        x: Rows { buffer: &args.dy, cols: n, index, div: divisor("index_div", args.index_div)? },
        w: &args.w,
        out: &args.out,
        cols: k,
    };
    product.run(to)
}

impl Product<'_> {
    fn run(&self, to: &mut Exec<'_>) -> Result<()> {
        let &Groups { offsets, groups, n, k, .. } = &self.groups;
        let rows = self.groups.check(&[self.x], to)?;
        let x = self.x.args(rows)?;
        let w = Ptr::floats(self.w, elements("w", &[groups, n, k])?)?;
        let out = Ptr::f32(self.out, elements("out", &[rows, self.cols])?)?;
        let (spec, tile) = self.kernel(rows, to);
        let row_tiles = row_tiles(tile, rows, groups);
        let tiles = tiles_of(offsets, (rows, groups), tile, to)?;
        let flags = [(x.whole, LEFT_WHOLE), (whole(w, k), RIGHT_WHOLE), (in_pairs(out, self.cols), OUT_PAIRS)];
        let args = [
            Arg::Pointer(Some(x.rows)),
            Arg::Pointer(x.index),
            Arg::Pointer(Some(w)),
            Arg::Pointer(Some(tiles)),
            Arg::Pointer(Some(out)),
            Arg::U64(x.div),
            Arg::U32(x.stored),
            Arg::U32(u32_of("n", n)?),
            Arg::U32(u32_of("k", k)?),
            Arg::U32(flags.iter().filter(|(holds, _)| *holds).map(|(_, flag)| flag).sum()),
        ];
        let shared = tile.shared(x.rows.dtype, w.dtype, false);
        launch(spec, &args, row_tiles.saturating_mul(col_tiles(tile, self.cols)), shared, to)
    }

    /// Which kernel: by the types, and a small tile where large ones would be mostly empty or too few. Bits do not depend on the tile.
    fn kernel(&self, rows: usize, to: &Exec<'_>) -> (&'static Spec, Tile) {
        let (specs, groups) = (self.specs, self.groups.groups);
        let types = [self.x.buffer, self.w].map(crate::backend::Buffer::dtype);
        let large_tiles = row_tiles(LARGE, rows, groups).saturating_mul(col_tiles(LARGE, self.cols));
        let small = rows <= groups.saturating_mul(LARGE_ROWS) || large_tiles < u64::from(to.gpu().sms);
        let rounds = to.inner().options.operands == Operands::Rounded;
        match (types, small) {
            ([F32, F32], _) => (specs.simt, SIMT),
            ([F32, _] | [_, F32], true) if rounds => (specs.rounded_small, SMALL),
            ([F32, _] | [_, F32], false) if rounds => (specs.rounded, LARGE),
            ([left, right], _) if left != right && left != F32 => (specs.mixed, SMALL),
            (_, true) => (specs.small, SMALL),
            (_, false) => (specs.large, LARGE),
        }
    }
}

/// Tiles of rows at most: no group has more than one that is not full.
fn row_tiles(tile: Tile, rows: usize, groups: usize) -> u64 {
    (rows / tile.rows as usize + groups.min(rows)) as u64
}

fn col_tiles(tile: Tile, cols: usize) -> u64 {
    cols.div_ceil(tile.cols as usize) as u64
}

/// The list of row tiles of all groups.
fn tiles_of(offsets: &CudaBuffer, (rows, groups): (usize, usize), tile: Tile, to: &mut Exec<'_>) -> Result<Ptr> {
    let most = usize::try_from(row_tiles(tile, rows, groups)).unwrap_or(usize::MAX);
    let words = elements("tiles", &[most.saturating_add(1), ENTRY])?;
    let question = Question::Tiles { groups, rows, tile_rows: tile.rows };
    let tiles = to.derived(question, &[offsets], ("tiles", words), |to, tiles| {
        let kernel = GemmTiles {
            offsets: Ptr::u32(offsets, groups + 1)?,
            tiles: Ptr::u32(tiles, words)?,
            rows: u32_of("rows", rows)?,
            groups: u32_of("groups", groups)?,
            tile_rows: tile.rows,
            most: u32_of("tiles", most)?,
        };
        kernel.launch(to, u64::from(most > 0), 32)
    })?;
    Ptr::u32(&tiles, words)
}
