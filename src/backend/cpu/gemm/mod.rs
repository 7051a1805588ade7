//! stub until merged
use half::{bf16, f16};
use crate::Result;
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floats<'a> { F32(&'a [f32]), BF16(&'a [bf16]), F16(&'a [f16]) }
impl Floats<'_> { fn at(&self, i: usize) -> f32 { match self { Self::F32(v) => v[i], Self::BF16(v) => v[i].to_f32(), Self::F16(v) => v[i].to_f32() } } }
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> { pub data: Floats<'a>, pub cols: usize, pub index: Option<&'a [u32]>, pub index_div: u32, pub scale: Option<&'a [f32]> }
impl Rows<'_> { fn at(&self, r: usize, c: usize) -> f32 { let i = self.index.map_or(r, |x| (x[r] / self.index_div) as usize); let v = self.data.at(i * self.cols + c); self.scale.map_or(v, |s| v * s[r]) } }
pub(crate) fn forward(o: &[u32], x: Rows<'_>, w: Floats<'_>, n: usize, out: &mut [f32]) -> Result<()> {
    for e in 0..o.len() - 1 { for r in o[e] as usize..o[e + 1] as usize { for j in 0..n { let mut a = 0.0f32; for k in 0..x.cols { a = x.at(r, k).mul_add(w.at((e * n + j) * x.cols + k), a); } out[r * n + j] = a; } } }
    Ok(()) }
pub(crate) fn dgrad(o: &[u32], dy: Rows<'_>, w: Floats<'_>, k: usize, out: &mut [f32]) -> Result<()> {
    for e in 0..o.len() - 1 { for r in o[e] as usize..o[e + 1] as usize { for j in 0..k { let mut a = 0.0f32; for n in 0..dy.cols { a = dy.at(r, n).mul_add(w.at((e * dy.cols + n) * k + j), a); } out[r * k + j] = a; } } }
    Ok(()) }
pub(crate) fn wgrad(o: &[u32], dy: Rows<'_>, x: Rows<'_>, acc: bool, out: &mut [f32]) -> Result<()> {
    for e in 0..o.len() - 1 { for n in 0..dy.cols { for k in 0..x.cols { let p = &mut out[(e * dy.cols + n) * x.cols + k]; let mut a = if acc { *p } else { 0.0 }; for r in o[e] as usize..o[e + 1] as usize { a = dy.at(r, n).mul_add(x.at(r, k), a); } *p = a; } } }
    Ok(()) }
