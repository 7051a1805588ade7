//! Forward and dgrad: what is computed are rows of the batch.

use super::table::{self, GemmTiles, RowsParams};
use super::{GemmTile, Groups, Operands, RowArgs, Rows, Tile, in_pairs, launch, whole};
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Arg, Ptr, u32_of};
use crate::backend::cuda::table::Spec;
use crate::backend::known::Question;
use crate::backend::{Buffer, divisor, elements};
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

/// Which kernel computes a product: by its types and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Large,
    Small,
    Mixed,
    Rounded,
    RoundedSmall,
    Simt,
}

impl Choice {
    fn tile(self) -> Tile {
        match self {
            Self::Large | Self::Rounded => LARGE,
            Self::Small | Self::Mixed | Self::RoundedSmall => SMALL,
            Self::Simt => SIMT,
        }
    }

    /// Whether weights are f32 and are rounded.
    pub(super) fn rounds_weights(self, product: &Product<'_>) -> bool {
        matches!(self, Self::Rounded | Self::RoundedSmall) && product.w.dtype() == F32
    }
}

/// One product on its way to the device.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) groups: Groups<'a>,
    pub(super) x: Rows<'a>,
    pub(super) w: &'a CudaBuffer,
    /// Columns of the output.
    pub(super) cols: usize,
    /// Whether each comes with another one from the second half of W's rows.
    pub(super) paired: bool,
}

/// What a launch needs of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready {
    pub(super) x: RowArgs,
    pub(super) w: Ptr,
    pub(super) tiles: Ptr,
    pub(super) n: u32,
    pub(super) k: u32,
    tile: Tile,
    blocks: u64,
}

pub(in crate::backend::cuda::kernels) fn grouped_forward(
    args: &kernel::GroupedForward<CudaBuffer>,
    to: &mut Exec<'_>,
) -> Result<()> {
    let product = forward(args)?;
    product.store(&args.out, to, |choice| match choice {
        Choice::Large => table::FORWARD,
        Choice::Small => table::FORWARD_SMALL,
        Choice::Mixed => table::FORWARD_MIXED,
        Choice::Rounded => table::FORWARD_ROUNDED,
        Choice::RoundedSmall => table::FORWARD_ROUNDED_SMALL,
        Choice::Simt => table::FORWARD_SIMT,
    })
}

pub(in crate::backend::cuda::kernels) fn grouped_dgrad(
    args: &kernel::GroupedDgrad<CudaBuffer>,
    to: &mut Exec<'_>,
) -> Result<()> {
    let product = dgrad(args)?;
    product.store(&args.out, to, |choice| match choice {
        Choice::Large => table::DGRAD,
        Choice::Small => table::DGRAD_SMALL,
        Choice::Mixed => table::DGRAD_MIXED,
        Choice::Rounded => table::DGRAD_ROUNDED,
        Choice::RoundedSmall => table::DGRAD_ROUNDED_SMALL,
        Choice::Simt => table::DGRAD_SIMT,
    })
}

pub(super) fn forward(args: &kernel::GroupedForward<CudaBuffer>) -> Result<Product<'_>> {
    let &kernel::GroupedForward { rows, groups, n, k, .. } = args;
    let index = args.index.as_ref().map(|index| ("index", index));
    Ok(Product {
        groups: Groups { offsets: &args.offsets, rows, groups, n, k },
        x: Rows { buffer: &args.x, cols: k, index, div: divisor("index_div", args.index_div)? },
        w: &args.w,
        cols: n,
        paired: false,
    })
}

pub(super) fn dgrad(args: &kernel::GroupedDgrad<CudaBuffer>) -> Result<Product<'_>> {
    let &kernel::GroupedDgrad { rows, groups, n, k, .. } = args;
    let index = args.index.as_ref().map(|index| ("index", index));
    Ok(Product {
        groups: Groups { offsets: &args.offsets, rows, groups, n, k },
        x: Rows { buffer: &args.dy, cols: n, index, div: divisor("index_div", args.index_div)? },
        w: &args.w,
        cols: k,
        paired: false,
    })
}

impl Product<'_> {
    /// Launches the kernel that stores the sums as they are.
    fn store(&self, out: &CudaBuffer, to: &mut Exec<'_>, spec: impl Fn(Choice) -> &'static Spec) -> Result<()> {
        let rows = self.groups.check(&[self.x], to)?;
        let out = Ptr::f32(out, elements("out", &[rows, self.cols])?)?;
        let choice = self.choice(to);
        let ready = self.ready(rows, choice, to)?;
        let flags = ready.flags(in_pairs(out, self.cols));
        let Ready { x, w, tiles, n, k, .. } = ready;
        let params = RowsParams { x: x.rows, index: x.index, w, tiles, out, div: x.div, stored: x.stored, n, k, flags };
        ready.launch(spec(choice), &params.args(), 0, to)
    }

    /// Which kernel: by the types, and small tiles where large ones would be mostly empty or too few. Bits do not depend on the tile.
    pub(super) fn choice(&self, to: &Exec<'_>) -> Choice {
        let &Groups { rows, groups, .. } = &self.groups;
        let types = [self.x.buffer, self.w].map(Buffer::dtype);
        let options = &to.inner().options;
        let large_tiles = row_tiles(LARGE, rows, groups).saturating_mul(self.col_tiles(LARGE));
        let small = match options.gemm_tile {
            Some(tile) => tile == GemmTile::Small,
            None => rows <= groups.saturating_mul(LARGE_ROWS) || large_tiles < u64::from(to.gpu().sms),
        };
        let rounds = options.operands == Operands::Rounded;
        match (types, small) {
            ([F32, F32], _) => Choice::Simt,
            ([F32, _] | [_, F32], true) if rounds => Choice::RoundedSmall,
            ([F32, _] | [_, F32], false) if rounds => Choice::Rounded,
            ([left, right], _) if left != right && left != F32 => Choice::Mixed,
            (_, true) => Choice::Small,
            (_, false) => Choice::Large,
        }
    }

    /// `rows` is what [`Groups::check`] has found.
    pub(super) fn ready(&self, rows: usize, choice: Choice, to: &mut Exec<'_>) -> Result<Ready> {
        let &Groups { offsets, groups, n, k, .. } = &self.groups;
        let tile = choice.tile();
        let x = self.x.args(rows)?;
        let w = Ptr::floats(self.w, elements("w", &[groups, n, k])?)?;
        let blocks = row_tiles(tile, rows, groups).saturating_mul(self.col_tiles(tile));
        let tiles = tiles_of(offsets, (rows, groups), tile, to)?;
        Ok(Ready { x, w, tiles, n: u32_of("n", n)?, k: u32_of("k", k)?, tile, blocks })
    }

    fn col_tiles(&self, tile: Tile) -> u64 {
        let cols = if self.paired { tile.cols / 2 } else { tile.cols };
        self.cols.div_ceil(cols as usize) as u64
    }
}

impl Ready {
    pub(super) fn flags(&self, pairs: bool) -> u32 {
        let flags = [(self.x.whole, LEFT_WHOLE), (whole(self.w, self.k as usize), RIGHT_WHOLE), (pairs, OUT_PAIRS)];
        flags.iter().filter(|(holds, _)| *holds).map(|(_, flag)| flag).sum()
    }

    /// `slices` are bytes of shared memory on top.
    pub(super) fn launch(&self, spec: &'static Spec, args: &[Arg], slices: u32, to: &mut Exec<'_>) -> Result<()> {
        let shared = self.tile.shared(self.x.rows.dtype, self.w.dtype, false) + slices;
        launch(spec, args, self.blocks, shared, to)
    }
}

/// Tiles of rows at most: no group has more than one that is not full.
fn row_tiles(tile: Tile, rows: usize, groups: usize) -> u64 {
    (rows / tile.rows as usize + groups.min(rows)) as u64
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
