//! The loader and the comparisons themselves: what is broken or missing has to show.

use std::path::{Path, PathBuf};

use libtest_mimic::Trial;

use crate::support::compare::Comparison;
use crate::support::golden::{align, cases_in};
use crate::support::store::Store;
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("loader::own_cases_are_found", own_cases),
        trial("loader::missing_or_empty_folder_fails", no_folder),
        trial("loader::broken_files_fail", broken_files),
        trial("loader::incomplete_checkpoint_fails", incomplete_checkpoint),
        trial("loader::pairs_are_matched_by_expert", matching),
        trial("compare::errors_are_seen", comparisons),
    ]
}

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// An empty folder of this name for one trial.
fn scratch(name: &str) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("golden_loader").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| e.to_string())?;
    }
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    Ok(folder)
}

/// The one entry of a folder, which must be an error that mentions all of `words`.
fn fails_with(compare: &mut Comparison, folder: &Path, words: &[&str]) {
    let found = cases_in(folder);
    compare.holds("something was found", !found.is_empty());
    for (name, case) in found {
        let why = case.err().unwrap_or_default();
        compare
            .holds(&format!("{name} fails with {words:?}, got `{why}`"), words.iter().all(|word| why.contains(word)));
    }
}

fn own_cases() -> Result<(), String> {
    let mut compare = Comparison::new();
    let mut names = Vec::new();
    for (name, case) in cases_in(&own()) {
        let case = case?;
        compare.holds("has experts", !case.weights.experts.is_empty());
        names.push(name);
    }
    compare.equal("names", &names, &["glm_g2_nonorm".to_string(), "mixtral_b".to_string()]);
    compare.finish(3)
}

fn no_folder() -> Result<(), String> {
    let mut compare = Comparison::new();
    fails_with(&mut compare, &own().join("no such folder"), &["no such folder"]);
    let empty = scratch("empty")?;
    std::fs::write(empty.join("README.md"), "no case").map_err(|e| e.to_string())?;
    fails_with(&mut compare, &empty, &["holds no *.safetensors"]);
    compare.finish(4)
}

fn broken_files() -> Result<(), String> {
    let mut compare = Comparison::new();
    let whole = std::fs::read(own().join("mixtral_b.safetensors")).map_err(|e| e.to_string())?;
    for (name, bytes) in
        [("empty_file", &whole[..0]), ("truncated", &whole[..whole.len() - 1]), ("header", &whole[..40])]
    {
        let folder = scratch(name)?;
        std::fs::write(folder.join("case.safetensors"), bytes).map_err(|e| e.to_string())?;
        fails_with(&mut compare, &folder, &["case.safetensors"]);
    }
    for gone in ["f64.y", "model.layers.13.block_sparse_moe.experts.11.w2.weight", "pair.norm_up", "expert_counts"] {
        let folder = scratch("without_tensor")?;
        let mut store = Store::open(&own().join("mixtral_b.safetensors"))?;
        store.tensors.remove(gone).ok_or(format!("no {gone}"))?;
        let views = store.tensors.iter().map(|(name, t)| {
            safetensors::tensor::TensorView::new(t.dtype, t.shape.clone(), &t.bytes).map(|view| (name.clone(), view))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
        let path = folder.join("case.safetensors");
        safetensors::serialize_to_file(views, Some(store.metadata.clone()), &path).map_err(|e| e.to_string())?;
        fails_with(&mut compare, &folder, &["missing", gone.rsplit("experts").next().unwrap_or(gone)]);
    }
    compare.finish(14)
}

fn incomplete_checkpoint() -> Result<(), String> {
    let mut compare = Comparison::new();
    let folder = scratch("checkpoint")?;
    std::fs::create_dir(folder.join("ckpt_x")).map_err(|e| e.to_string())?;
    fails_with(&mut compare, &folder, &["golden.safetensors"]);
    compare.finish(2)
}

fn matching() -> Result<(), String> {
    let mut compare = Comparison::new();
    compare.equal("order", &align(&[7, 2, 5, 1], &[2, 7, 5, 1], 2)?, &[1, 0, 2, 3]);
    let other = align(&[7, 2, 5, 0], &[2, 7, 5, 1], 2).err().unwrap_or_default();
    compare.holds("another expert is an error that names the token", other.contains("token 1"));
    compare.holds("so is a repeated one", align(&[7, 7], &[7, 2], 2).is_err());
    compare.holds("so is another number of pairs", align(&[7], &[7, 2], 2).is_err());
    compare.finish(4)
}

fn comparisons() -> Result<(), String> {
    let relative = |got: &[f64], want: &[f64]| {
        let mut compare = Comparison::new();
        compare.relative("it", got, want, 1e-12);
        compare.finish(1)
    };
    let mut compare = Comparison::new();
    compare.holds("equal passes", relative(&[1.0, 2.0], &[1.0, 2.0]).is_ok());
    compare.holds("zeros pass", relative(&[0.0, -0.0], &[0.0, 0.0]).is_ok());
    compare.holds("1e-11 fails", relative(&[1.0, 2.0 + 3e-11], &[1.0, 2.0]).is_err());
    compare.holds("NaN fails", relative(&[f64::NAN], &[1.0]).is_err());
    compare.holds("NaN in the reference fails", relative(&[f64::NAN], &[f64::NAN]).is_err());
    compare.holds("infinity fails", relative(&[f64::INFINITY], &[1.0]).is_err());
    compare.holds("something for zero fails", relative(&[1e-300], &[0.0]).is_err());
    compare.holds("a missing element fails", relative(&[1.0], &[1.0, 0.0]).is_err());
    compare.holds("nothing compared fails", Comparison::new().finish(0).is_err());
    compare.holds("too little compared fails", {
        let mut few = Comparison::new();
        few.equal("it", &[1], &[1]);
        few.finish(2).is_err()
    });
    compare.finish(10)
}
