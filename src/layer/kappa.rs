//! The running estimate behind [`crate::kernel::Metric::Full`].

use super::MoeLayer;
use crate::Recording;
use crate::Result;
use crate::backend::{Backend, Buffer};
use crate::kernel::RowNorms;
use crate::memory::Category;
use crate::op::Arena;
use crate::op::select::{Kept, Scored};

/// Weight of the newest step in the running mean.
const NEWEST: f32 = 0.1;

/// `||[da | db]||` of every retained row, pair scale included.
pub(super) fn norms<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    kept: &Kept<B::Buffer>,
    d_ab: &B::Buffer,
) -> Result<B::Buffer> {
    let rows = kept.rows.count;
    let norm = arena.f32("d_ab_norm", &[rows], Category::Scratch)?;
    let cols = d_ab.len().checked_div(rows).unwrap_or(0);
    rec.dispatch(RowNorms { rows, cols, x: d_ab.clone(), norm: norm.clone() })?;
    Ok(norm)
}

impl<B: Backend> MoeLayer<B> {
    /// `norm` is that of [`norms`].
    ///
    /// kappa_e: running mean over retained pairs of `sqrt(||da||^2 + ||db||^2) / (|g| ||d||)`, da and db without the pair
    /// weight. `d_ab` holds them times `w g`, so the ratio is `||d_ab|| / (|w g| ||d||)`.
    pub(super) fn update_kappa(
        &mut self,
        scored: &Scored<B::Buffer>,
        kept: &Kept<B::Buffer>,
        norm: &B::Buffer,
    ) -> Result<()> {
        let read_f32 = |buffer: &B::Buffer| self.backend.read_blocking(buffer)?.into_f32();
        let read_u32 = |buffer: &B::Buffer| self.backend.read_blocking(buffer)?.into_u32();
        let (norm, scale, d_norm) = (read_f32(norm)?, read_f32(&kept.scale)?, read_f32(&scored.d_norm)?);
        let offsets = read_u32(&kept.rows.offsets)?;
        let pairs = match &kept.rows.index {
            Some(index) => read_u32(index)?,
            None => return Ok(()),
        };
        for (kappa, range) in self.kappa.iter_mut().zip(offsets.windows(2)) {
            let (mut sum, mut count) = (0.0f64, 0u32);
            for row in range[0] as usize..range[1] as usize {
                let d = d_norm[pairs[row] as usize / kept.rows.div];
                let ratio = f64::from(norm[row]) / (f64::from(scale[row].abs()) * f64::from(d));
                if ratio.is_finite() {
                    sum += ratio;
                    count += 1;
                }
            }
            if count > 0 {
                // Infinity would never leave the running mean again.
                let mean = ((sum / f64::from(count)) as f32).min(f32::MAX);
                *kappa = if *kappa == 0.0 { mean } else { *kappa + NEWEST * (mean - *kappa) };
            }
        }
        Ok(())
    }
}
