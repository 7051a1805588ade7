//! Golden checkpoints: a whole model's files, and the truth of each of its MoE blocks inside that model.
//!
//! Every MoE layer is a case once per weight layout (one tensor per expert, and fused) and spelling of the config.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::golden::{BlockCase, Found, TruthNames, assemble, read_block};
use super::store::Store;

/// Names a block may have inside its layer.
const BLOCKS: [&str; 2] = ["mlp.", "block_sparse_moe."];

/// Every MoE layer of the checkpoint in this folder, in every layout and with every config text.
pub(super) fn cases_in(folder: &Path, name: &str) -> Vec<Found> {
    let truth = match Store::open(&folder.join("golden.safetensors")) {
        Ok(truth) => truth,
        Err(why) => return vec![(name.to_string(), Err(why))],
    };
    let fused = folder.join("fused");
    let layouts = [
        ("hub", folder, [("", folder.join("config.json")), (", config.hub4.json", folder.join("config.hub4.json"))]),
        ("fused", &fused, [("", fused.join("config.json")), (", config.hub4.json", folder.join("config.hub4.json"))]),
    ];
    let mut found = Vec::new();
    for (layout, weights_folder, configs) in layouts {
        let model = Store::open_model(weights_folder);
        for (spelling, config) in configs {
            let label = format!("({layout}{spelling})");
            match layers(name, &label, &truth, &model, &config) {
                Ok(cases) => found.extend(cases),
                Err(why) => found.push((format!("{name} {label}"), Err(why))),
            }
        }
    }
    found
}

fn layers(
    name: &str,
    label: &str,
    truth: &Store,
    model: &Result<Store, String>,
    config: &Path,
) -> Result<Vec<Found>, String> {
    let model = model.as_ref().map_err(Clone::clone)?;
    let config_text = std::fs::read_to_string(config).map_err(|e| format!("{}: {e}", config.display()))?;
    let routed = block_layers(model, "", "gate.weight");
    let golden = block_layers(truth, "f64.", "router_logits");
    if golden.is_empty() || routed != golden {
        return Err(format!("{}: routers in layers {routed:?}, golden data for layers {golden:?}", truth.source));
    }
    Ok(golden
        .into_iter()
        .map(|layer| {
            let full_name = format!("{name}/layer{layer} {label}");
            let case = open_layer(&full_name, config_text.clone(), layer, truth, model).map(Arc::new);
            (full_name, case)
        })
        .collect())
}

/// Layers with a tensor `<lead>model.layers.N.<block><what>`.
fn block_layers(store: &Store, lead: &str, what: &str) -> BTreeSet<usize> {
    let layer = |name: &str| {
        let (layer, rest) = name.strip_prefix(lead)?.strip_prefix("model.layers.")?.split_once('.')?;
        let is_block = BLOCKS.iter().any(|block| rest.strip_prefix(block) == Some(what));
        if is_block { layer.parse().ok() } else { None }
    };
    store.tensors.keys().filter_map(|name| layer(name)).collect()
}

/// The prefix under which `<lead><prefix><what>` exists.
fn block_prefix(store: &Store, lead: &str, layer: usize, what: &str) -> Result<String, String> {
    BLOCKS
        .iter()
        .map(|block| format!("model.layers.{layer}.{block}"))
        .find(|prefix| store.has(&format!("{lead}{prefix}{what}")))
        .ok_or_else(|| format!("{}: no `{lead}model.layers.{layer}.*.{what}`", store.source))
}

fn open_layer(
    name: &str,
    config_text: String,
    layer: usize,
    truth: &Store,
    model: &Store,
) -> Result<BlockCase, String> {
    let prefix = block_prefix(model, "", layer, "gate.weight")?;
    let inside = block_prefix(truth, "f64.", layer, "router_logits")?;
    let grads = block_prefix(truth, "f64.grad.", layer, "gate.weight")?;
    let names = TruthNames {
        input: format!("f64.{inside}input"),
        d_output: format!("f64.{inside}d_output"),
        output: format!("f64.{inside}output"),
        d_input: format!("f64.{inside}d_input"),
        routing: format!("f64.{inside}"),
        pairs: format!("pair.{inside}"),
        grads: format!("f64.grad.{grads}"),
    };
    let weights = read_block(model, &prefix)?;
    assemble(name, config_text, layer, prefix, weights, truth, &names)
}
