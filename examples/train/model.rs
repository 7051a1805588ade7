//! The language model: everything but the MoE layers is candle's, with candle's autograd.

use candle_core::{D, DType, Device, Tensor, Var};
use lrmoe::Backend;

use crate::cli::HEAD_DIM;
use crate::corpus::CONTEXT;
use crate::failure::Failure;
use crate::moe::MoeSpec;
use crate::moe_op::{MoeLayer, MoeSeconds, Pass};
use crate::rng::Rng;
use crate::softmax::causal_softmax;

/// A model of bytes has 256 words.
const VOCABULARY: usize = 256;
const NORM_EPS: f64 = 1e-6;

/// One transformer layer: x += attention(norm(x)); x += moe(norm(x)).
#[derive(Debug)]
struct Block {
    attention_norm: Var,
    /// `[hidden, hidden]` each, applied as x W.
    query: Var,
    key: Var,
    value: Var,
    output: Var,
    moe_norm: Var,
    /// `[hidden, experts]`: the router's weight is candle's, its gradient comes through the op's second argument.
    router: Var,
    moe: MoeLayer,
}

/// A causal transformer over bytes whose MLPs are MoE layers.
#[derive(Debug)]
pub(crate) struct Model {
    embedding: Var,
    /// Learned positions `[context, hidden]`.
    positions: Var,
    blocks: Vec<Block>,
    final_norm: Var,
    head: Var,
    hidden: usize,
}

impl Model {
    /// Weights drawn from the seed alone, so that two runs start equal. `spec` describes the MoE layers but for their index.
    pub(crate) fn new(layers: usize, spec: &MoeSpec, backend: &impl Backend) -> Result<Self, Failure> {
        let h = spec.config.hidden_size;
        let mut rng = Rng::new(spec.seed, "host weights", 0);
        let mut matrix = |rows: usize, cols: usize, std: f64| {
            Var::from_tensor(&Tensor::from_vec(rng.normal(rows * cols, std), (rows, cols), &Device::Cpu)?)
        };
        let ones = || Var::ones(h, DType::F32, &Device::Cpu);
        let std = 1.0 / (h as f64).sqrt();
        let blocks = (0..layers)
            .map(|layer| {
                Ok(Block {
                    attention_norm: ones()?,
                    query: matrix(h, h, std)?,
                    key: matrix(h, h, std)?,
                    value: matrix(h, h, std)?,
                    // What adds to the residual stream starts smaller the more layers add to it.
                    output: matrix(h, h, std / (2.0 * layers as f64).sqrt())?,
                    moe_norm: ones()?,
                    router: matrix(h, spec.config.num_experts, 0.5 * std)?,
                    moe: MoeLayer::new(&MoeSpec { layer, ..spec.clone() }, backend)?,
                })
            })
            .collect::<Result<_, Failure>>()?;
        Ok(Self {
            embedding: matrix(VOCABULARY, h, 0.5)?,
            positions: matrix(CONTEXT, h, 0.1)?,
            blocks,
            final_norm: ones()?,
            head: matrix(h, VOCABULARY, 0.5 * std)?,
            hidden: h,
        })
    }

    /// Mean cross-entropy in nats a byte of predicting each byte of `windows` (`CONTEXT + 1` bytes each) from those before it.
    pub(crate) fn loss(&self, windows: &[&[u8]], pass: Pass) -> Result<Tensor, Failure> {
        let n = windows.len() * CONTEXT;
        let bytes = |skip: usize| {
            let ids = windows.iter().flat_map(|w| &w[skip..skip + CONTEXT]).map(|b| u32::from(*b)).collect();
            Tensor::from_vec(ids, n, &Device::Cpu)
        };
        let logits = self.logits(&bytes(0)?, windows.len(), pass)?;
        Ok(candle_nn::loss::cross_entropy(&logits, &bytes(1)?)?)
    }

    fn logits(&self, ids: &Tensor, batch: usize, pass: Pass) -> candle_core::Result<Tensor> {
        let tokens = batch * CONTEXT;
        let x = self.embedding.index_select(ids, 0)?.reshape((batch, CONTEXT, self.hidden))?;
        let mut x = x.broadcast_add(&self.positions)?.reshape((tokens, self.hidden))?;
        for block in &self.blocks {
            x = (&x + block.attend(&rms_norm(&x, &block.attention_norm)?, batch)?)?;
            let normed = rms_norm(&x, &block.moe_norm)?;
            x = (&x + block.moe.apply(&normed, &normed.matmul(&block.router)?, pass)?)?;
        }
        rms_norm(&x, &self.final_norm)?.matmul(&self.head)
    }

    /// Weights that candle owns, in a fixed order: matrices, which decay, then the rest, which do not.
    pub(crate) fn host_weights(&self) -> (Vec<Var>, Vec<Var>) {
        let mut matrices = vec![self.head.clone()];
        let mut others = vec![self.embedding.clone(), self.positions.clone(), self.final_norm.clone()];
        for b in &self.blocks {
            matrices.extend([&b.query, &b.key, &b.value, &b.output, &b.router].map(Clone::clone));
            others.extend([&b.attention_norm, &b.moe_norm].map(Clone::clone));
        }
        (matrices, others)
    }

    /// The MoE layers, first to last.
    pub(crate) fn moe_layers(&self) -> impl Iterator<Item = &MoeLayer> {
        self.blocks.iter().map(|b| &b.moe)
    }

    /// Training seconds of all MoE layers.
    pub(crate) fn moe_seconds(&self) -> MoeSeconds {
        self.moe_layers().map(MoeLayer::seconds).fold(MoeSeconds::default(), |a, b| MoeSeconds {
            forward: a.forward + b.forward,
            backward: a.backward + b.backward,
        })
    }
}

impl Block {
    /// Causal multi-head attention of x `[tokens, hidden]` within each of `batch` sequences.
    fn attend(&self, x: &Tensor, batch: usize) -> candle_core::Result<Tensor> {
        let (tokens, hidden) = x.dims2()?;
        let (length, heads) = (tokens / batch, hidden / HEAD_DIM);
        let project = |weight: &Var| {
            let rows = x.matmul(weight)?.reshape((batch, length, heads, HEAD_DIM))?.transpose(1, 2)?.contiguous()?;
            rows.reshape((batch * heads, length, HEAD_DIM))
        };
        let (q, k, v) = (project(&self.query)?, project(&self.key)?, project(&self.value)?);
        let probs = causal_softmax(&q.matmul(&k.t()?)?, 1.0 / (HEAD_DIM as f64).sqrt())?;
        let mixed = probs.matmul(&v)?.reshape((batch, heads, length, HEAD_DIM))?.transpose(1, 2)?;
        mixed.contiguous()?.reshape((tokens, hidden))?.matmul(&self.output)
    }
}

/// Each row of x divided by its root mean square, times `weight`.
fn rms_norm(x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
    let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean_square + NORM_EPS)?.sqrt()?)?.broadcast_mul(weight)
}
