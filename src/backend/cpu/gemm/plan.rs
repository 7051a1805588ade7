//! Which thread computes what: disjoint tiles of the output, of even cost.

use super::block::{Block, MAX_COLS, Workspace};
use super::mat::MatMut;
use super::operand::Operand;
use rayon::prelude::*;
use std::cell::RefCell;

/// Tiles a thread should get: enough to even out their differences, few enough that each packs its weights for many rows.
const TILES_PER_THREAD: usize = 6;

/// The same for a single group: its tiles are of one size, and packing both operands anew for each is what they cost.
const TILES_PER_THREAD_ALONE: usize = 1;

/// Multiply-adds below which a tile is not worth handing to another thread, about 10 microseconds.
const SMALLEST_TILE: usize = 1 << 19;

/// Cuts lie at multiples of this in both directions: no right panel is wider, and shorter tiles would not repay their packing.
const UNIT: usize = 32;

/// The product of one group.
#[derive(Debug)]
pub(super) struct Group<'c> {
    pub(super) index: usize,
    /// Steps of the reduction.
    pub(super) depth: usize,
    pub(super) out: MatMut<'c>,
}

impl Group<'_> {
    const fn cost(&self) -> usize {
        // An estimate for balance only; the output costs something even without any step.
        self.out.rows().saturating_mul(self.out.cols()).saturating_mul(self.depth.saturating_add(1))
    }
}

/// Part of a group's product.
#[derive(Debug)]
struct Task<'c> {
    row: usize,
    col: usize,
    group: Group<'c>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// `out (+)= a b` for every group, where `operands` gives the `a` and `b` of a group.
pub(super) fn execute<'a>(
    groups: Vec<Group<'_>>,
    accumulate: bool,
    operands: impl Fn(usize) -> (Operand<'a>, Operand<'a>) + Sync,
) {
    let run = |task: Task<'_>| {
        let (a, b) = operands(task.group.index);
        let (a, b) = (a.skip_lanes(task.row), b.skip_lanes(task.col));
        let (depth, c) = (task.group.depth, task.group.out);
        WORKSPACE.with_borrow_mut(|workspace| {
            pulp::Arch::new().dispatch(Block { a, b, depth, accumulate, c, workspace });
        });
    };
    let tasks = cut(groups, rayon::current_num_threads());
    if tasks.len() < 2 {
        tasks.into_iter().for_each(run);
    } else {
        // Handed out one at a time, the largest first, so that no thread is left with a large one at the end.
        tasks.into_iter().par_bridge().for_each(run);
    }
}

/// Tasks in order of falling cost.
fn cut(groups: Vec<Group<'_>>, threads: usize) -> Vec<Task<'_>> {
    let total = groups.iter().fold(0usize, |sum, group| sum.saturating_add(group.cost()));
    let alone = groups.iter().filter(|group| group.cost() > 0).nth(1).is_none();
    let tiles = threads * if alone { TILES_PER_THREAD_ALONE } else { TILES_PER_THREAD };
    let most = if threads < 2 { usize::MAX } else { (total / tiles).max(SMALLEST_TILE) };
    let mut tasks = Vec::with_capacity(groups.len());
    for group in groups {
        let (rows, cols) = (group.out.rows(), group.out.cols());
        if rows == 0 || cols == 0 {
            continue;
        }
        let (each_row, each_col) = tile(rows, cols, group.cost().div_ceil(most));
        let Group { index, depth, mut out } = group;
        for row in (0..rows).step_by(each_row) {
            let (mut band, rest) = out.split_rows(each_row);
            out = rest;
            for col in (0..cols).step_by(each_col) {
                let (out, rest) = band.split_cols(each_col);
                band = rest;
                tasks.push(Task { row, col, group: Group { index, depth, out } });
            }
        }
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.group.cost()));
    tasks
}

/// Sizes of tiles that cut `rows x cols` into about `parts`, as square as can be: what is packed is then least.
fn tile(rows: usize, cols: usize, parts: usize) -> (usize, usize) {
    let (mut high, mut wide) = (1, cols.div_ceil(MAX_COLS));
    while high * wide < parts {
        match (rows / high, cols / wide) {
            (row, col) if row >= col && row > UNIT => high += 1,
            (_, col) if col > UNIT => wide += 1,
            (row, _) if row > UNIT => high += 1,
            _ => break,
        }
    }
    (rows.div_ceil(high).next_multiple_of(UNIT), cols.div_ceil(wide).next_multiple_of(UNIT).min(MAX_COLS))
}
