//! Router: selection, its gradient, losses.

use rayon::prelude::*;

use super::buffer::CpuBuffer;
use super::expert::{optional_f32, optional_u32, read_optional};
use super::math::{ROW_CHUNK, exp, sigmoid as sigmoid_of, vectorised};
use crate::backend::elements;
use crate::config::ScoringFunc;
use crate::kernel::{Gate, GateBackward, GateRule, NONE, RouterGrad, RouterLoss, Sigmoid, SigmoidBackward};
use crate::{Error, Result};

/// Writes `softmax(logits)` and returns `logsumexp(logits)`.
#[inline(always)]
fn softmax(logits: &[f32], out: &mut [f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, |m, l| if l > m { l } else { m });
    for (o, &l) in out.iter_mut().zip(logits) {
        *o = exp(l - max);
    }
    let sum = out.iter().map(|&p| f64::from(p)).sum::<f64>();
    let inverse = (1.0 / sum) as f32;
    for o in out {
        *o *= inverse;
    }
    max + sum.ln() as f32
}

/// The best `k` of the candidates by falling key, earlier candidates first among equals. NaN comes before every number, as
/// in torch: a spoilt router shows in the output instead of starving an expert in silence.
struct Best {
    k: usize,
    keys: Vec<i32>,
    ids: Vec<u32>,
}

/// An integer that orders as the key: equal zeros, NaN above infinity.
#[inline(always)]
fn rank(key: f32) -> i32 {
    if key.is_nan() {
        return i32::MAX;
    }
    // Adding zero leaves one zero.
    let bits = (key + 0.0).to_bits() as i32;
    bits ^ ((bits >> 31) & i32::MAX)
}

impl Best {
    fn new(k: usize) -> Self {
        Self { k, keys: Vec::with_capacity(k + 1), ids: Vec::with_capacity(k + 1) }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.ids.clear();
    }

    #[inline(always)]
    fn offer(&mut self, id: usize, key: f32) {
        let key = rank(key);
        if self.keys.len() == self.k && self.keys.last().is_some_and(|&last| key <= last) {
            return;
        }
        let at = self.keys.partition_point(|&other| other >= key);
        self.keys.insert(at, key);
        self.ids.insert(at, id as u32);
        self.keys.truncate(self.k);
        self.ids.truncate(self.k);
    }
}

/// Workspace of one task: scores and selection keys of one token.
struct Selector {
    scores: Vec<f32>,
    keys: Vec<f32>,
    experts: Best,
    groups: Best,
    in_group: Best,
}

impl Selector {
    fn new(experts: usize, top_k: usize, rule: &GateRule) -> Self {
        Self {
            scores: vec![0.0; experts],
            keys: vec![0.0; experts],
            experts: Best::new(top_k),
            groups: Best::new(rule.topk_group),
            in_group: Best::new(2),
        }
    }

    fn select(&mut self, logits: &[f32], bias: Option<&[f32]>, rule: &GateRule) {
        let (scores, keys) = (&mut self.scores, &mut self.keys);
        vectorised(
            #[inline(always)]
            || match rule.scoring {
                ScoringFunc::Softmax => {
                    softmax(logits, scores);
                    // The logits have the order of the probabilities, and keep it where those round to equals.
                    keys.copy_from_slice(if bias.is_none() && rule.n_group == 1 { logits } else { scores });
                }
                ScoringFunc::Sigmoid => {
                    for ((s, k), &l) in scores.iter_mut().zip(keys.iter_mut()).zip(logits) {
                        *s = sigmoid_of(l);
                        *k = *s;
                    }
                }
            },
        );
        if let Some(bias) = bias {
            for (key, bias) in keys.iter_mut().zip(bias) {
                *key += bias;
            }
        }
        self.experts.clear();
        let size = keys.len() / rule.n_group;
        if rule.topk_group == rule.n_group {
            for (id, &key) in keys.iter().enumerate() {
                self.experts.offer(id, key);
            }
            return;
        }
        self.groups.clear();
        for (group, keys) in keys.chunks_exact(size).enumerate() {
            self.in_group.clear();
            for (id, &key) in keys.iter().enumerate() {
                self.in_group.offer(id, key);
            }
            self.groups.offer(group, self.in_group.ids.iter().map(|&id| keys[id as usize]).sum());
        }
        self.groups.ids.sort_unstable();
        for &group in &self.groups.ids {
            let first = group as usize * size;
            for (id, &key) in (first..).zip(&keys[first..first + size]) {
                self.experts.offer(id, key);
            }
        }
    }
}

/// Sum of the selected scores in slot order, with the epsilon of the normalisation.
#[inline(always)]
fn denominator(scores: &[f32], ids: &[u32], rule: &GateRule) -> f64 {
    ids.iter().map(|&id| f64::from(scores[id as usize])).sum::<f64>() + f64::from(rule.norm_eps)
}

pub(super) fn gate(args: &Gate<CpuBuffer>) -> Result<()> {
    let (logits, bias, mask) =
        (args.logits.read()?, read_optional(args.bias.as_ref())?, read_optional(args.mask.as_ref())?);
    let (mut ids, mut weights) = (args.ids.write()?, args.weights.write()?);
    let (experts, top_k, rule) = (args.experts, args.top_k, args.rule);
    rule.check(experts, top_k)?;
    let logits = logits.f32(elements("logits", &[args.tokens, experts])?)?;
    let bias = optional_f32(bias.as_ref(), experts)?;
    let mask = optional_u32(mask.as_ref(), args.tokens)?;
    let pairs = elements("pairs", &[args.tokens, top_k])?;
    elements("tokens of one task", &[ROW_CHUNK, experts])?;
    let chunks = ids.u32(pairs)?.par_chunks_mut(ROW_CHUNK * top_k);
    chunks.zip(weights.f32(pairs)?.par_chunks_mut(ROW_CHUNK * top_k)).enumerate().for_each(
        |(chunk, (ids, weights))| {
            let mut selector = Selector::new(experts, top_k, &rule);
            let tokens = ids.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k));
            for (token, (ids, weights)) in (chunk * ROW_CHUNK..).zip(tokens) {
                if mask.is_some_and(|mask| mask[token] == 0) {
                    ids.fill(NONE);
                    weights.fill(0.0);
                    continue;
                }
                selector.select(&logits[token * experts..(token + 1) * experts], bias, &rule);
                ids.copy_from_slice(&selector.experts.ids);
                let sum = if rule.normalise { denominator(&selector.scores, ids, &rule) } else { 1.0 };
                for (weight, &id) in weights.iter_mut().zip(&*ids) {
                    let score = f64::from(selector.scores[id as usize]);
                    *weight = (score / sum * f64::from(rule.scaling)) as f32;
                }
            }
        },
    );
    Ok(())
}

pub(super) fn gate_backward(args: &GateBackward<CpuBuffer>) -> Result<()> {
    let (logits, ids, d_weights) = (args.logits.read()?, args.ids.read()?, args.d_weights.read()?);
    let aux = read_optional(args.aux.as_ref())?;
    let mut d_logits = args.d_logits.write()?;
    let (experts, top_k, rule) = (args.experts, args.top_k, args.rule);
    rule.check(experts, top_k)?;
    let total = elements("logits", &[args.tokens, experts])?;
    elements("tokens of one task", &[ROW_CHUNK, experts])?;
    let pairs = elements("pairs", &[args.tokens, top_k])?;
    let (logits, ids, d_weights) = (logits.f32(total)?, ids.u32(pairs)?, d_weights.f32(pairs)?);
    if let Some(&id) = ids.iter().find(|&&id| id != NONE && id as usize >= experts) {
        return Err(Error::argument("ids", id, format!("below {experts}")));
    }
    let aux = optional_f32(aux.as_ref(), experts)?;
    let needs_softmax = aux.is_some() || args.z_scale != 0.0 || rule.scoring == ScoringFunc::Softmax;
    let chunks = d_logits.f32(total)?.par_chunks_mut(ROW_CHUNK * experts).enumerate();
    chunks.for_each(|(chunk, d_logits)| {
        let mut p = vec![0.0f32; experts];
        let mut d_p = vec![0.0f64; experts];
        for (token, d_logits) in (chunk * ROW_CHUNK..).zip(d_logits.chunks_exact_mut(experts)) {
            let ids = &ids[token * top_k..(token + 1) * top_k];
            if ids.contains(&NONE) {
                d_logits.fill(0.0);
                continue;
            }
            let logits = &logits[token * experts..(token + 1) * experts];
            let d_weights = &d_weights[token * top_k..(token + 1) * top_k];
            let mut lse = 0.0;
            if needs_softmax {
                lse = vectorised(
                    #[inline(always)]
                    || softmax(logits, &mut p),
                );
            }
            // The auxiliary losses are functions of the softmax probabilities in every model.
            match aux {
                Some(aux) => d_p.iter_mut().zip(aux).for_each(|(d, &a)| *d = f64::from(a)),
                None => d_p.fill(0.0),
            }
            let scoring = rule.scoring;
            let score = |id: u32| match scoring {
                ScoringFunc::Softmax => f64::from(p[id as usize]),
                ScoringFunc::Sigmoid => f64::from(sigmoid_of(logits[id as usize])),
            };
            let sum = ids.iter().map(|&id| score(id)).sum::<f64>() + f64::from(rule.norm_eps);
            let mean = ids.iter().zip(d_weights).map(|(&id, &d)| f64::from(d) * score(id) / sum).sum::<f64>();
            let scaling = f64::from(rule.scaling);
            let d_score = |d_weight: f32| match rule.normalise {
                true => scaling * (f64::from(d_weight) - mean) / sum,
                false => scaling * f64::from(d_weight),
            };
            if scoring == ScoringFunc::Softmax {
                for (&id, &d) in ids.iter().zip(d_weights) {
                    d_p[id as usize] += d_score(d);
                }
            }
            if needs_softmax {
                let inner = p.iter().zip(&d_p).map(|(&p, d)| f64::from(p) * d).sum::<f64>();
                let z = 2.0 * f64::from(args.z_scale) * f64::from(lse);
                for ((out, &p), d) in d_logits.iter_mut().zip(&p).zip(&d_p) {
                    *out = (f64::from(p) * (d - inner + z)) as f32;
                }
            } else {
                d_logits.fill(0.0);
            }
            if scoring == ScoringFunc::Sigmoid {
                for (&id, &d) in ids.iter().zip(d_weights) {
                    let s = score(id);
                    d_logits[id as usize] += (d_score(d) * s * (1.0 - s)) as f32;
                }
            }
        }
    });
    Ok(())
}

pub(super) fn router_loss(args: &RouterLoss<CpuBuffer>) -> Result<()> {
    let (logits, mask) = (args.logits.read()?, read_optional(args.mask.as_ref())?);
    let mut sums = args.sums.write()?;
    let experts = args.experts;
    let logits = logits.f32(elements("logits", &[args.tokens, experts])?)?;
    let mask = optional_u32(mask.as_ref(), args.tokens)?;
    elements("tokens of one task", &[ROW_CHUNK, experts])?;
    let sums = sums.f32(experts + 1)?;
    if experts == 0 {
        sums.fill(0.0);
        return Ok(());
    }
    // Chunks are fixed, and their sums are added in order: the number of threads changes no bit.
    let partial: Vec<Vec<f64>> = logits
        .par_chunks(ROW_CHUNK * experts)
        .enumerate()
        .map(|(chunk, logits)| {
            let mut sums = vec![0.0f64; experts + 1];
            let mut p = vec![0.0f32; experts];
            for (token, logits) in (chunk * ROW_CHUNK..).zip(logits.chunks_exact(experts)) {
                if mask.is_some_and(|mask| mask[token] == 0) {
                    continue;
                }
                let lse = f64::from(vectorised(
                    #[inline(always)]
                    || softmax(logits, &mut p),
                ));
                for (sum, &p) in sums.iter_mut().zip(&p) {
                    *sum += f64::from(p);
                }
                sums[experts] += lse * lse;
            }
            sums
        })
        .collect();
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = partial.iter().map(|partial| partial[i]).sum::<f64>() as f32;
    }
    Ok(())
}

pub(super) fn router_grad(args: &RouterGrad<CpuBuffer>) -> Result<()> {
    let (weights, dot, kept, ids) =
        (args.weights.read()?, args.dot.read()?, args.kept_of_pair.read()?, args.ids.read()?);
    let (dot_dy, weight) = (read_optional(args.dot_dy.as_ref())?, read_optional(args.weight.as_ref())?);
    let mut d_weights = args.d_weights.write()?;
    let top_k = args.top_k;
    let pairs = elements("pairs", &[args.tokens, top_k])?;
    let (weights, kept, ids) = (weights.f32(pairs)?, kept.u32(pairs)?, ids.u32(pairs)?);
    let rows = args.dot.len_rows(1);
    let (dot, weight) = (dot.f32(rows)?, optional_f32(weight.as_ref(), rows)?);
    let dot_dy = optional_f32(dot_dy.as_ref(), args.tokens)?;
    if let Some(&row) = kept.iter().find(|&&row| row != NONE && row as usize >= rows) {
        return Err(Error::argument("kept_of_pair", row, format!("below {rows}")));
    }
    if top_k == 0 {
        return Ok(());
    }
    d_weights.f32(pairs)?.par_chunks_mut(top_k).with_min_len(ROW_CHUNK).enumerate().for_each(|(token, out)| {
        let pairs = token * top_k..(token + 1) * top_k;
        let sum = weights[pairs.clone()].iter().map(|&g| f64::from(g)).sum::<f64>();
        let baseline = dot_dy.map_or(0.0, |dot_dy| if sum == 0.0 { 0.0 } else { f64::from(dot_dy[token]) / sum });
        for (out, pair) in out.iter_mut().zip(pairs) {
            let row = kept[pair];
            *out = if ids[pair] == NONE {
                0.0
            } else if row == NONE {
                baseline as f32
            } else {
                let dot = dot[row as usize];
                match weight.map_or(1.0, |weight| weight[row as usize]) {
                    1.0 => dot,
                    w => (baseline + f64::from(w) * (f64::from(dot) - baseline)) as f32,
                }
            };
        }
    });
    Ok(())
}

pub(super) fn sigmoid(args: &Sigmoid<CpuBuffer>) -> Result<()> {
    let z = args.z.read()?;
    let mut s = args.s.write()?;
    for (s, &z) in s.f32(args.len)?.iter_mut().zip(z.f32(args.len)?) {
        *s = sigmoid_of(z);
    }
    Ok(())
}

pub(super) fn sigmoid_backward(args: &SigmoidBackward<CpuBuffer>) -> Result<()> {
    let (s, ds) = (args.s.read()?, args.ds.read()?);
    let mut dz = args.dz.write()?;
    for ((dz, &s), &ds) in dz.f32(args.len)?.iter_mut().zip(s.f32(args.len)?).zip(ds.f32(args.len)?) {
        *dz = ds * s * (1.0 - s);
    }
    Ok(())
}
