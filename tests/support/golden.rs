//! Golden data: MoE blocks with inputs, weights and float64 results of code that this project did not write.
//!
//! The folder is `LRMOE_GOLDEN_DIR`, or `tests/golden` of this crate; its README has the format. Every `*.safetensors` is a
//! block case, every `ckpt_*/` a checkpoint whose MoE layers are cases too ([`super::golden_checkpoint`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;

use super::block::{BlockWeights, Swiglu};
use super::golden_checkpoint;
use super::store::{Store, Tensor};

/// One MoE block with everything a test needs.
#[derive(Debug, Clone)]
pub struct BlockCase {
    /// `glm_g1`, or `ckpt_qwen3_moe/layer0 (hub)`.
    pub name: String,
    /// The Hugging Face `config.json` text.
    pub config_text: String,
    /// Index of the layer in its model.
    pub layer: usize,
    /// What the names of the block's weights start with.
    pub prefix: String,
    /// T.
    pub tokens: usize,
    /// H.
    pub hidden_size: usize,
    /// E.
    pub num_experts: usize,
    /// k.
    pub top_k: usize,
    /// I.
    pub moe_intermediate_size: usize,
    /// Block input [T, H], as stored (f64 in checkpoints).
    pub x: Tensor,
    /// Upstream gradient [T, H], as stored (f64 in checkpoints).
    pub dy: Tensor,
    /// Weights as stored. Fused experts are split into their projections.
    pub weights: BlockWeights<Tensor>,
    /// What the block has to produce.
    pub expected: Expected,
}

impl BlockCase {
    /// Stored type of the expert weights. A bf16 model may keep router and bias in f32: see each tensor.
    pub fn storage(&self) -> Dtype {
        self.weights.experts.first().map_or(Dtype::F32, |e| e.gate.dtype)
    }
}

/// The float64 truth of one block.
#[derive(Debug, Clone)]
pub struct Expected {
    /// x W^T, [T, E].
    pub router_logits: Vec<f64>,
    /// Selected experts, [T, k], in arbitrary order within a token. See [`Expected::align`].
    pub topk_indices: Vec<usize>,
    /// Combine weights, [T, k].
    pub topk_weights: Vec<f64>,
    /// Output, [T, H].
    pub y: Vec<f64>,
    /// dL/dx, [T, H].
    pub dx: Vec<f64>,
    /// dL/d(combine weights), [T, k]; not in checkpoints.
    pub d_topk_weights: Option<Vec<f64>>,
    /// dL/d(router logits), [T, E]; not in checkpoints.
    pub d_router_logits: Option<Vec<f64>>,
    /// Gradient of every weight.
    pub grads: BlockWeights<Vec<f64>>,
    /// Norms of the pairs' own contributions.
    pub pair_norms: PairNorms,
    /// Pairs per expert, [E]; not in checkpoints.
    pub expert_counts: Option<Vec<usize>>,
    /// Load-balancing loss; softmax routers only, not in checkpoints.
    pub aux_loss: Option<AuxLoss>,
    /// Results with the selection of transformers 4.x; negative-bias cases only.
    pub fill0: Option<Fill0>,
}

/// Frobenius norms of each pair's contribution to the gradients of its expert, [T, k] each, combine weight included.
#[derive(Debug, Clone)]
pub struct PairNorms {
    /// Of W_gate.
    pub gate: Vec<f64>,
    /// Of W_up.
    pub up: Vec<f64>,
    /// Of W_down.
    pub down: Vec<f64>,
    /// sqrt(gate^2 + up^2 + down^2).
    pub rss: Vec<f64>,
}

/// `load_balancing_loss_func` of one layer, without a coefficient.
#[derive(Debug, Clone)]
pub struct AuxLoss {
    /// The loss.
    pub value: f64,
    /// Its gradient, [T, E].
    pub d_router_logits: Vec<f64>,
}

/// What the block gives for another selection: experts of masked-out groups score 0 instead of -infinity.
#[derive(Debug, Clone)]
pub struct Fill0 {
    /// [T, k].
    pub topk_indices: Vec<usize>,
    /// [T, k].
    pub topk_weights: Vec<f64>,
    /// [T, H].
    pub y: Vec<f64>,
    /// [T, H].
    pub dx: Vec<f64>,
    /// Gradient of the router weight, [E, H].
    pub grad_router: Vec<f64>,
}

impl Expected {
    /// For every pair (t, j) of `ids` [T, k]: the index of the golden pair with the same token and expert.
    /// An error names the first token whose selected set differs.
    pub fn align(&self, ids: &[usize], top_k: usize) -> Result<Vec<usize>, String> {
        align(ids, &self.topk_indices, top_k)
    }
}

/// For every pair of `ids` [T, k] the index in `golden_ids` of the pair with the same token and expert.
pub fn align(ids: &[usize], golden_ids: &[usize], top_k: usize) -> Result<Vec<usize>, String> {
    if ids.len() != golden_ids.len() {
        return Err(format!("{} pairs, expected {}", ids.len(), golden_ids.len()));
    }
    let mut taken = vec![false; ids.len()];
    let mut map = Vec::with_capacity(ids.len());
    for (p, &id) in ids.iter().enumerate() {
        let row = p / top_k * top_k..p / top_k * top_k + top_k;
        let Some(q) = row.clone().find(|&q| golden_ids[q] == id && !taken[q]) else {
            let t = p / top_k;
            return Err(format!("token {t} selects {:?}, expected {:?}", &ids[row.clone()], &golden_ids[row]));
        };
        taken[q] = true;
        map.push(q);
    }
    Ok(map)
}

/// The folder that the golden cases are read from.
pub fn folder() -> PathBuf {
    std::env::var_os("LRMOE_GOLDEN_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"), PathBuf::from)
}

/// A case by name, or why it could not be read. Targets turn the second into a failing trial.
pub type Found = (String, Result<Arc<BlockCase>, String>);

/// Every case of [`folder`].
pub fn cases() -> Vec<Found> {
    cases_in(&folder())
}

/// Every case of this folder, in order of their names. A folder that is missing or holds none is one failing entry.
pub fn cases_in(folder: &Path) -> Vec<Found> {
    let failed = |why: String| vec![("golden folder".to_string(), Err(format!("{}: {why}", folder.display())))];
    let entries = match std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(entries) => entries,
        Err(e) => return failed(e.to_string()),
    };
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name.starts_with("ckpt_") {
            found.extend(golden_checkpoint::cases_in(&path, &name));
        } else if path.extension().is_some_and(|ext| ext == "safetensors") {
            let case = open_block(&path, &name).map(Arc::new);
            found.push((name, case));
        }
    }
    if found.is_empty() { failed("holds no *.safetensors and no ckpt_*/".to_string()) } else { found }
}

fn open_block(path: &Path, name: &str) -> Result<BlockCase, String> {
    let store = Store::open(path)?;
    let metadata = |key: &str| {
        store.metadata.get(key).cloned().ok_or_else(|| format!("{}: no `{key}` in the metadata", store.source))
    };
    let config_path = path.with_extension("config.json");
    let config_text = if config_path.exists() {
        std::fs::read_to_string(&config_path).map_err(|e| format!("{}: {e}", config_path.display()))?
    } else {
        metadata("config")?
    };
    let prefix = metadata("prefix")?;
    let layer = metadata("layer")?.parse().map_err(|e| format!("{}: metadata `layer`: {e}", store.source))?;
    let names = TruthNames {
        input: "x".into(),
        d_output: "dy".into(),
        output: "f64.y".into(),
        d_input: "f64.dx".into(),
        routing: "f64.".into(),
        pairs: "pair.".into(),
        grads: format!("f64.grad.{prefix}"),
    };
    let weights = read_block(&store, &prefix)?;
    let mut case = assemble(name, config_text, layer, prefix, weights, &store, &names)?;
    let (t, h, e, k) = (case.tokens, case.hidden_size, case.num_experts, case.top_k);
    let expected = &mut case.expected;
    expected.d_topk_weights = Some(store.f64("f64.d_topk_weights", &[t, k])?);
    expected.d_router_logits = Some(store.f64("f64.d_router_logits", &[t, e])?);
    expected.expert_counts = Some(store.indices("expert_counts", &[e])?);
    if store.has("f64.aux_loss") {
        let value = store.f64("f64.aux_loss", &[1])?[0];
        expected.aux_loss =
            Some(AuxLoss { value, d_router_logits: store.f64("f64.aux_loss_d_router_logits", &[t, e])? });
    }
    if store.has("fill0.f64.topk_indices") {
        expected.fill0 = Some(Fill0 {
            topk_indices: store.indices("fill0.f64.topk_indices", &[t, k])?,
            topk_weights: store.f64("fill0.f64.topk_weights", &[t, k])?,
            y: store.f64("fill0.f64.y", &[t, h])?,
            dx: store.f64("fill0.f64.dx", &[t, h])?,
            grad_router: store.f64(&format!("fill0.f64.grad.{}gate.weight", case.prefix), &[e, h])?,
        });
    }
    Ok(case)
}

/// How the truth of a block is named in its file.
pub(super) struct TruthNames {
    pub(super) input: String,
    pub(super) d_output: String,
    pub(super) output: String,
    pub(super) d_input: String,
    /// Before `router_logits`, `topk_indices`, `topk_weights`.
    pub(super) routing: String,
    /// Before `norm_gate` and so on.
    pub(super) pairs: String,
    /// Before a weight's name inside the block.
    pub(super) grads: String,
}

/// Checks every shape against the input and the router weight, and puts a case together.
pub(super) fn assemble(
    name: &str,
    config_text: String,
    layer: usize,
    prefix: String,
    weights: BlockWeights<Tensor>,
    truth: &Store,
    names: &TruthNames,
) -> Result<BlockCase, String> {
    let [tokens, hidden_size] = two_sizes(truth, &names.input)?;
    let [_, top_k] = two_sizes(truth, &format!("{}topk_indices", names.routing))?;
    let num_experts = weights.experts.len();
    let moe_intermediate_size = weights.experts.first().map_or(0, |e| e.gate.shape[0]);
    let (th, tk, te) = ([tokens, hidden_size], [tokens, top_k], [tokens, num_experts]);
    if weights.router.shape != [num_experts, hidden_size] {
        return Err(format!(
            "{name}: router weight {:?}, hidden size of the input {hidden_size}",
            weights.router.shape
        ));
    }
    let grads = read_block(truth, &names.grads)?;
    let same_parameters = weights.named().iter().map(|(n, w)| (n.clone(), w.shape.clone())).collect::<Vec<_>>()
        == grads.named().iter().map(|(n, g)| (n.clone(), g.shape.clone())).collect::<Vec<_>>();
    if !same_parameters {
        return Err(format!("{name}: gradients and weights differ in number or shape"));
    }
    let routing = |what: &str| format!("{}{what}", names.routing);
    let pair = |what: &str| truth.f64(&format!("{}norm_{what}", names.pairs), &tk);
    let topk_indices = truth.indices(&routing("topk_indices"), &tk)?;
    if let Some(e) = topk_indices.iter().find(|&&e| e >= num_experts) {
        return Err(format!("{name}: expert {e} selected out of {num_experts}"));
    }
    let expected = Expected {
        router_logits: truth.f64(&routing("router_logits"), &te)?,
        topk_indices,
        topk_weights: truth.f64(&routing("topk_weights"), &tk)?,
        y: truth.f64(&names.output, &th)?,
        dx: truth.f64(&names.d_input, &th)?,
        d_topk_weights: None,
        d_router_logits: None,
        grads: grads.try_map(Tensor::f64)?,
        pair_norms: PairNorms { gate: pair("gate")?, up: pair("up")?, down: pair("down")?, rss: pair("rss")? },
        expert_counts: None,
        aux_loss: None,
        fill0: None,
    };
    Ok(BlockCase {
        name: name.to_string(),
        config_text,
        layer,
        prefix,
        tokens,
        hidden_size,
        num_experts,
        top_k,
        moe_intermediate_size,
        x: truth.shaped(&names.input, &th)?.clone(),
        dy: truth.shaped(&names.d_output, &th)?.clone(),
        weights,
        expected,
    })
}

/// All weights (or gradients) of the block whose names start with `prefix`.
pub(super) fn read_block(store: &Store, prefix: &str) -> Result<BlockWeights<Tensor>, String> {
    let [num_experts, hidden] = two_sizes(store, &format!("{prefix}gate.weight"))?;
    let optional = |name: &str| store.tensors.get(&format!("{prefix}{name}")).cloned();
    let experts = (0..num_experts).map(|e| read_expert(store, prefix, e, hidden)).collect::<Result<_, _>>()?;
    let shared = ["shared_experts.", "shared_expert."]
        .iter()
        .map(|shared| format!("{prefix}{shared}"))
        .find(|shared| store.has(&format!("{shared}gate_proj.weight")));
    Ok(BlockWeights {
        router: store.get(&format!("{prefix}gate.weight"))?.clone(),
        correction_bias: optional("gate.e_score_correction_bias"),
        experts,
        shared: shared
            .map(|shared| read_swiglu(store, &shared, ["gate_proj", "up_proj", "down_proj"], hidden))
            .transpose()?,
        shared_gate: optional("shared_expert_gate.weight"),
    })
}

fn read_expert(store: &Store, prefix: &str, expert: usize, hidden: usize) -> Result<Swiglu<Tensor>, String> {
    let own = format!("{prefix}experts.{expert}.");
    if store.has(&format!("{own}w1.weight")) {
        return read_swiglu(store, &own, ["w1", "w3", "w2"], hidden);
    }
    let fused = format!("{prefix}experts.gate_up_proj");
    if !store.has(&fused) {
        return read_swiglu(store, &own, ["gate_proj", "up_proj", "down_proj"], hidden);
    }
    let gate_up = store.get(&fused)?.index(expert)?;
    let down = store.get(&format!("{prefix}experts.down_proj"))?.index(expert)?;
    let &[rows, columns] = gate_up.shape.as_slice() else {
        return Err(format!("{}: `{fused}` is not [E, 2I, H]", store.source));
    };
    let width = rows / 2;
    if rows % 2 != 0 || columns != hidden || down.shape != [hidden, width] {
        return Err(format!("{}: `{fused}` and `down_proj` do not fit together", store.source));
    }
    Ok(Swiglu { gate: gate_up.range(0, width)?, up: gate_up.range(width, rows)?, down })
}

fn read_swiglu(store: &Store, prefix: &str, names: [&str; 3], hidden: usize) -> Result<Swiglu<Tensor>, String> {
    let [gate, up, down] = names.map(|name| format!("{prefix}{name}.weight"));
    let [width, _] = two_sizes(store, &gate)?;
    Ok(Swiglu {
        gate: store.shaped(&gate, &[width, hidden])?.clone(),
        up: store.shaped(&up, &[width, hidden])?.clone(),
        down: store.shaped(&down, &[hidden, width])?.clone(),
    })
}

fn two_sizes(store: &Store, name: &str) -> Result<[usize; 2], String> {
    let shape = &store.get(name)?.shape;
    <[usize; 2]>::try_from(shape.as_slice()).map_err(|_| format!("{}: `{name}` has shape {shape:?}", store.source))
}
