//! The whole example but for printing: options and files in, JSON, tables and chart out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use serde_json::Value;

use super::{Job, NOTHING_FITS, Options, Planned, exit_code, job, object, plan_all, report};

/// H 64, I 32, E 8, top-2, three layers of which all are MoE layers.
const CONFIG: &str = r#"{"model_type": "qwen3_moe", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "num_hidden_layers": 3, "norm_topk_prob": true, "hidden_act": "silu",
    "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 64, "intermediate_size": 64}"#;
const SKEWED: [[u32; 8]; 4] = [
    [300, 20, 20, 20, 10, 10, 10, 10],
    [150, 90, 80, 40, 20, 10, 6, 4],
    [350, 0, 0, 0, 0, 0, 0, 50],
    [0, 0, 0, 0, 1, 0, 0, 1],
];
const KEYS: [&str; 20] = [
    "policy",
    "feasible",
    "instances",
    "quotas",
    "forward",
    "backward",
    "capacity",
    "wave_rows",
    "memory",
    "limits",
    "predicted",
    "plan_micros",
    "hash",
    "dropped",
    "activations",
    "ownership",
    "next",
    "missing",
    "smallest_budget",
    "reason",
];
const CATEGORIES: [&str; 8] =
    ["weights", "gradients", "replicas", "optimizer", "token_buffers", "stash", "exchange", "scratch"];

/// A folder of files that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lrmoe-plan-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let folder = Self(path);
        folder.file("config.json", CONFIG);
        folder
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Of the folder's model, unless another is asked for.
    fn options(&self, loads: &Path, more: &[&str]) -> Options {
        let config = self.0.join("config.json");
        let own = ["--model", config.to_str().unwrap()];
        let model = if more.iter().any(|arg| arg.starts_with("--model")) { &[] } else { own.as_slice() };
        let args = ["plan", "--loads", loads.to_str().unwrap()];
        Options::try_parse_from(args.iter().chain(model).chain(more)).unwrap()
    }

    /// Plans for these loads in JSON.
    fn plan(&self, counts: &[[u32; 8]], more: &[&str]) -> (Job, Vec<Planned>, Vec<Value>) {
        let loads = self.file("loads.json", &serde_json::json!({ "counts": counts }).to_string());
        let job = job(&self.options(&loads, more)).unwrap();
        let planned = plan_all(&self.options(&loads, more), &job).unwrap();
        let list = serde_json::from_str(&object::list(&planned).unwrap()).unwrap();
        (job, planned, list)
    }

    /// What the program says about a loads file.
    fn refuses(&self, name: &str, text: &str, more: &[&str]) -> String {
        let loads = self.file(name, text);
        job(&self.options(&loads, more)).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Rows of numbers, as they stand in the JSON.
fn rows<const N: usize>(object: &Value, key: &str) -> Vec<[u64; N]> {
    serde_json::from_value::<Vec<Vec<u64>>>(object[key].clone())
        .unwrap()
        .into_iter()
        .map(|row| row.try_into().unwrap())
        .collect()
}

/// Sums of the last number of each row by what `key` makes of the row.
fn sums<const N: usize, K: Ord>(rows: &[[u64; N]], key: impl Fn(&[u64; N]) -> K) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for row in rows {
        *sums.entry(key(row)).or_insert(0) += row[N - 1];
    }
    sums.retain(|_, sum| *sum > 0);
    sums
}

/// Everything that the JSON promises, against the counts alone.
fn check(object: &Value, counts: &[[u32; 8]]) {
    let policy = object["policy"].as_str().unwrap();
    let mut keys: Vec<&String> = object.as_object().unwrap().keys().collect();
    let mut expected = KEYS.to_vec();
    keys.sort();
    expected.sort_unstable();
    assert_eq!(keys, expected, "{policy}");

    let instances = rows::<2>(object, "instances");
    let mut unique = instances.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), instances.len(), "{policy}: two copies on one rank");
    assert!((0..8).all(|e| instances.iter().any(|i| i[0] == e)), "{policy}: an expert is nowhere");

    let (forward, backward) = (rows::<4>(object, "forward"), rows::<4>(object, "backward"));
    for [expert, _, to, pairs] in forward.iter().chain(&backward) {
        assert!(instances.contains(&[*expert, *to]) && *pairs > 0, "{policy}: {expert} is not on {to}");
    }
    // Every (expert, source) sends its pairs once, less those dropped.
    let dropped = rows::<3>(object, "dropped");
    assert!(dropped.is_empty() || policy == "symi-drop");
    let mut sent = sums(&forward, |r| (r[0], r[1]));
    for [expert, from, pairs] in dropped {
        *sent.entry((expert, from)).or_insert(0) += pairs;
    }
    let routed: Vec<[u64; 3]> = counts
        .iter()
        .zip(0..)
        .flat_map(|(row, from)| row.iter().zip(0..).map(move |(&n, e)| [e, from, u64::from(n)]))
        .collect();
    assert_eq!(sent, sums(&routed, |r| (r[0], r[1])), "{policy}");

    let quotas: Vec<u64> = serde_json::from_value(object["quotas"].clone()).unwrap();
    let quota_of: Vec<[u64; 2]> = (0..).zip(quotas).map(|(e, q)| [e, q]).collect();
    let quota_of = sums(&quota_of, |r| r[0]);
    assert_eq!(sums(&backward, |r| r[0]), quota_of, "{policy}");
    let capacity = rows::<3>(object, "capacity");
    assert_eq!(sums(&capacity, |r| r[0]), quota_of, "{policy}");
    assert_eq!(capacity.iter().map(|r| [r[0], r[1]]).collect::<Vec<_>>(), instances, "{policy}");
    let room = sums(&capacity, |r| (r[0], r[1]));
    for (at, pairs) in sums(&backward, |r| (r[0], r[2])) {
        assert!(pairs <= room[&at], "{policy}: {pairs} at {at:?}");
    }
    let computed = sums(&forward, |r| (r[0], r[1]));
    for (at, pairs) in sums(&backward, |r| (r[0], r[1])) {
        assert!(pairs <= computed[&at], "{policy}: {pairs} of {at:?} retained");
    }

    let memory = object["memory"].as_array().unwrap();
    assert_eq!(memory.len(), counts.len());
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    for (rank, row) in (0..).zip(memory) {
        assert_eq!(number(row, "rank"), rank);
        assert_eq!(number(row, "total"), CATEGORIES.iter().map(|category| number(row, category)).sum::<u64>());
        assert!(number(row, "used") <= number(row, "total"));
    }
    let fits = memory.iter().all(|row| number(row, "total") <= number(row, "budget"));
    assert_eq!(object["feasible"], fits, "{policy}");
    for key in ["missing", "smallest_budget", "reason"] {
        assert_eq!(object[key].is_null(), fits, "{policy}: {key}");
    }

    let predicted = &object["predicted"];
    for key in ["forward_s", "backward_s", "exchange_s", "optimizer_exchange_s"] {
        assert!(predicted[key].as_f64().is_some_and(|s| s >= 0.0), "{policy}: {key}");
    }
    for (routes, key) in [(&forward, "max_over_mean_forward"), (&backward, "max_over_mean_backward")] {
        let loads = sums(routes, |r| r[2]);
        let total: u64 = loads.values().sum();
        let busiest = loads.values().max().copied().unwrap_or(0);
        let ratio = if total == 0 { 1.0 } else { busiest as f64 * counts.len() as f64 / total as f64 };
        assert!((predicted[key].as_f64().unwrap() - ratio).abs() < 1e-12, "{policy}: {key}");
    }
    assert!(object["wave_rows"].as_u64().unwrap() >= 1);
    assert!(object["plan_micros"].as_f64().unwrap() > 0.0);
    assert_eq!(object["hash"].as_str().map(str::len), Some(16));
}

/// Uneven counts of ranks and experts, some of them without any.
fn random(seed: u64) -> [[u32; 8]; 4] {
    let mut state = seed;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let size: [u64; 4] = std::array::from_fn(|_| next(400));
    size.map(|size| std::array::from_fn(|e| if next(4) == 0 { 0 } else { next(1 + size / (1 + e as u64)) as u32 }))
}

#[test]
fn every_object_keeps_its_promises() {
    let folder = Folder::new("promises");
    let inputs = [SKEWED, [[0; 8]; 4]].into_iter().chain((1..6).map(random));
    for counts in inputs {
        for more in [
            ["--memory=1GiB", "--ranks-per-node=2", "--retain=0.5"].as_slice(),
            &["--memory=1GiB", "--retain=noise:0.3", "--optimizer=host", "--steps=1"],
            &["--memory=300kB", "--retain=0.25"],
            &["--memory=1", "--retain=1", "--ownership=sharded", "--activations=recompute"],
        ] {
            let (job, planned, list) = folder.plan(&counts, more);
            assert_eq!(list.len(), lrmoe::plan::policy::NAMES.len());
            list.iter().for_each(|object| check(object, &counts));
            assert!(report::tables(&job, &planned, true).lines().count() > 8 * 4);
            assert!(report::chart(&job, &planned).unwrap().starts_with("<svg"));
        }
    }
}

#[test]
fn retention_is_what_was_asked_for() {
    let folder = Folder::new("retention");
    let kept = |more: &[&str]| {
        let (job, _, list) = folder.plan(&SKEWED, &[&["--memory=1GiB", "--policy=lrmoe,fixed"], more].concat());
        let sum = |object: &Value| object["quotas"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
        (job.counts.total(), sum(&list[0]), sum(&list[1]), list[0]["limits"].clone())
    };
    // With so many tokens that selecting pairs costs less than it saves.
    let (total, lrmoe, fixed, limits) = kept(&["--retain=0.5", "--tokens=10000000"]);
    assert_eq!((total, lrmoe, fixed), (80_000_000, 40_000_000, 80_000_000), "{limits}");
    let (total, lrmoe, fixed, limits) = kept(&["--retain=0.5"]);
    assert_eq!((lrmoe, fixed, limits), (total, total, serde_json::json!(["no_saving"])));
    let (total, lrmoe, fixed, limits) = kept(&["--retain=1"]);
    assert_eq!((lrmoe, fixed, limits), (total, total, serde_json::json!([])));
}

#[test]
fn the_same_twice() {
    let folder = Folder::new("twice");
    let run = || {
        let (_, _, mut list) = folder.plan(&SKEWED, &["--memory=1GiB"]);
        list.iter_mut().for_each(|object| object["plan_micros"] = Value::Null);
        list
    };
    assert_eq!(run(), run());
}

#[test]
fn too_little_memory_is_a_result() {
    let folder = Folder::new("tiny");
    let (_, planned, list) = folder.plan(&SKEWED, &["--memory=10kB"]);
    assert_eq!(exit_code(&planned), NOTHING_FITS);
    for object in &list {
        check(object, &SKEWED);
        assert_eq!((&object["feasible"], &object["memory"][0]["budget"]), (&Value::Bool(false), &Value::from(10_000)));
        let smallest = object["smallest_budget"].as_u64().unwrap();
        assert_eq!(object["missing"].as_u64(), Some(smallest - 10_000));
        assert!(object["reason"].as_str().unwrap().contains("budget of 10000"), "{object}");
        // What it says would do does, and for a policy without choices nothing less.
        let name = object["policy"].as_str().unwrap();
        let at = |bytes: u64| folder.plan(&SKEWED, &["--policy", name, "--memory", &bytes.to_string()]).1;
        if ["lrmoe", "fixed", "fixed-waves"].contains(&name) {
            assert_eq!(exit_code(&at(smallest)), 0, "{name}");
        }
        if ["fixed", "fixed-waves"].contains(&name) {
            assert_eq!(exit_code(&at(smallest - 1)), NOTHING_FITS, "{name}");
        }
    }
}

#[test]
fn other_numbers_of_ranks_and_tokens() {
    let folder = Folder::new("ranks");
    let (job, _, list) = folder.plan(&SKEWED, &["--ranks=6", "--memory=1GiB", "--policy=lrmoe"]);
    assert_eq!((job.counts.ranks(), job.setup.cluster.ranks, job.setup.cluster.ranks_per_node), (6, 6, 8));
    let counts: Vec<[u32; 8]> = (0..6).map(|rank| job.counts.row(rank).try_into().unwrap()).collect();
    check(&list[0], &counts);
    let per_expert =
        |counts: &[[u32; 8]]| -> [u32; 8] { std::array::from_fn(|e| counts.iter().map(|row| row[e]).sum()) };
    assert_eq!(per_expert(&counts), per_expert(&SKEWED));
    let (job, ..) = folder.plan(&SKEWED, &["--tokens=50", "--policy=fixed"]);
    assert_eq!(job.counts.total(), 4 * 50 * 2);
}

#[test]
fn wrong_files_are_named() {
    let folder = Folder::new("wrong");
    let says = |text: String, parts: &[&str]| parts.iter().for_each(|part| assert!(text.contains(part), "{text}"));
    says(folder.refuses("a.json", r#"{"counts": [[1, 2], [3]]}"#, &[]), &["a.json", "row 1", "1 columns"]);
    says(folder.refuses("a.csv", "1,2\n3,NaN\n", &[]), &["a.csv", "line 2", "column 2", "NaN"]);
    says(folder.refuses("b.csv", "1,-2\n", &[]), &["b.csv", "-2"]);
    says(folder.refuses("c.csv", "1,2\n", &[]), &["c.csv", "2 experts", "num_experts", "is 8", "config.json"]);
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &["--model=glm"]), &["--model", "`glm`", "glm-4.5-air"]);
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &["--cluster=dgx"]), &["--cluster", "`dgx`", "8xh100"]);
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &["--ranks=0"]), &["ranks", "0"]);
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &["--alpha=2"]), &["alpha", "2"]);
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &["--layers=0"]), &["layers", "0"]);
    let cluster = folder.file("cluster.json", r#"{"preset": "8xh100", "gemm_flops": -1}"#);
    let cluster = format!("--cluster={}", cluster.display());
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &[&cluster]), &["gemm_flops", "-1"]);
    folder.file("config.json", r#"{"model_type": "qwen3_moe"}"#);
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &[]), &["config.json", "num_experts"]);
    std::fs::remove_file(folder.0.join("config.json")).unwrap();
    says(folder.refuses("d.csv", "1,2,3,4,5,6,7,8\n", &[]), &["config.json", "cannot be read"]);
}

#[test]
fn options() {
    let command = Options::command();
    command.clone().debug_assert();
    for arg in command.get_arguments() {
        assert!(arg.get_help().is_some(), "--{} has no help", arg.get_id());
    }
    let parse = |args: &[&str]| Options::try_parse_from(["plan", "--loads", "x"].iter().chain(args));
    let names = |options: &Options| options.setup.machine.policy.names().map(str::to_owned).collect::<Vec<_>>();
    let options = parse(&[]).unwrap();
    assert_eq!((names(&options)[0].as_str(), names(&options).len()), ("lrmoe", lrmoe::plan::policy::NAMES.len()));
    assert_eq!(options.chart(), Some(Path::new("plan.svg")));
    let options = parse(&["--policy=eplb, lrmoe,eplb", "--json"]).unwrap();
    assert_eq!((names(&options), options.chart()), (vec!["eplb".into(), "lrmoe".into()], None));
    assert_eq!(parse(&["--json", "--svg=a.svg"]).unwrap().chart(), Some(Path::new("a.svg")));
    for (option, value) in [
        ("--policy", "lrmoe,best"),
        ("--policy", ""),
        ("--memory", "24 apples"),
        ("--memory", "1.5"),
        ("--retain", "2"),
        ("--retain", "noise:-1"),
        ("--steps", "0"),
        ("--tokens", "0"),
        ("--optimizer", "disk"),
    ] {
        let text = parse(&[&format!("{option}={value}")]).unwrap_err().to_string();
        let says_what =
            ["allowed", "possible values", "is not in", "a value is required"].iter().any(|w| text.contains(w));
        assert!(text.contains(option) && says_what, "{text}");
    }
    let text = parse(&["--policy=best"]).unwrap_err().to_string();
    assert!(lrmoe::plan::policy::NAMES.iter().all(|name| text.contains(name)), "{text}");
}
