use super::*;
use crate::rng::Philox;

#[test]
fn sizes_as_people_write_them() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        (" 12 b ", 12),
        ("1K", 1000),
        ("1kib", 1024),
        ("3M", 3_000_000),
        ("24GiB", 24 << 30),
        ("24Gi", 24 << 30),
        ("24 gib", 24 << 30),
        ("80GB", 80_000_000_000),
        ("2TB", 2_000_000_000_000),
        ("1.5GiB", 3 << 29),
        ("0.25Ki", 256),
        ("1.0005kB", 1000),
        ("0.9999999999999999999999999999999999999999Ti", (1 << 40) - 1),
        ("1.99999999999999999999999999999999T", 1_999_999_999_999),
        ("18446744073709551615", u64::MAX),
        ("16777215Ti", 16_777_215 << 40),
        ("16777215.99999999999999999Ti", u64::MAX),
    ] {
        assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
    }
    for text in [
        "",
        " ",
        "B",
        "GiB",
        ".",
        ".5G",
        "5.G",
        "1.5",
        "1.0B",
        "1..5G",
        "1.5.5G",
        "-1",
        "+1",
        "1e9",
        "1iB",
        "1i",
        "1KK",
        "1KBB",
        "1PiB",
        "0x10",
        "1 G B",
        "1,5G",
        "１G",
        "1G1",
        "18446744073709551616",
        "16777216Ti",
        "18446744073709.6M",
        "nan",
        "inf",
    ] {
        let refused = parse_bytes(text).unwrap_err().to_string();
        assert!(refused.contains(&format!("`{text}`")) && refused.contains("24GiB"), "{refused}");
    }
}

/// The fraction against arithmetic on whole numbers.
#[test]
fn fractions_are_exact() {
    let mut random = Philox::new(3, 0);
    for _ in 0..2000 {
        let (whole, digits) = (u64::from(random.next_u32() % 1000), random.next_u32() % 9 + 1);
        let fraction = u64::from(random.next_u32()) % 10_u64.pow(digits);
        for (unit, factor) in [("K", 1000_u128), ("Mi", 1 << 20), ("G", 1_000_000_000), ("Ti", 1 << 40)] {
            let text = format!("{whole}.{fraction:0width$}{unit}", width = digits as usize);
            let scale = 10_u128.pow(digits);
            let want = (u128::from(whole) * scale + u128::from(fraction)) * factor / scale;
            assert_eq!(u128::from(parse_bytes(&text).unwrap()), want, "{text}");
        }
    }
}

const TOML: &str = r#"
ranks = 4
ranks_per_node = 2
bytes_per_rank = "24GiB"
host_reserved_bytes = 1024
gemm_flops = 1e14
copy_bytes_per_s = 900_000_000_000
host_bytes_per_s = 2e10
launch_s = 4e-5
intra = { bytes_per_s = 1e10, latency_s = 1e-5 }
[inter]
bytes_per_s = 1e9
latency_s = 2e-5
"#;

#[test]
fn every_field_or_those_that_differ() {
    let spec = ClusterSpec::from_toml(TOML).unwrap();
    assert_eq!((spec.ranks, spec.nodes(), spec.bytes_per_rank, spec.budget()), (4, 2, 24 << 30, (24 << 30) - 1024));
    assert_eq!((spec.copy_bytes_per_s, spec.inter.latency_s), (9e11, 2e-5));
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(ClusterSpec::from_json(&json).unwrap(), spec);
    for name in ClusterSpec::PRESETS {
        let spec = ClusterSpec::preset(name).unwrap();
        assert_eq!(ClusterSpec::from_json(&format!(r#"{{"preset": "{name}"}}"#)).unwrap(), spec);
        assert_eq!(ClusterSpec::from_json(&serde_json::to_string(&spec).unwrap()).unwrap(), spec);
    }
    let started = ClusterSpec::from_json(
        r#"{"preset": "8xh100", "ranks": 64, "bytes_per_rank": "1.5GiB", "inter": {"latency_s": 1}}"#,
    );
    let mut want = ClusterSpec::preset("8xh100").unwrap().with_ranks(64, 8);
    want.bytes_per_rank = 3 << 29;
    want.inter.latency_s = 1.0;
    assert_eq!(started.unwrap(), want);
}

#[test]
fn refusals_name_the_field() {
    for (text, named) in [
        ("{}", "cluster.ranks` is missing"),
        (r#"{"preset": "8xh100", "rank": 8}"#, "cluster.rank`"),
        (r#"{"preset": "8xh100", "inter": {"latency": 1}}"#, "cluster.inter.latency`"),
        (r#"{"preset": "8xh100", "inter": 5}"#, "cluster.inter` is 5"),
        (r#"{"preset": "8xh100", "ranks": 8.0}"#, "cluster.ranks` is 8.0"),
        (r#"{"preset": "8xh100", "ranks": 0}"#, "cluster.ranks` is 0"),
        (r#"{"preset": "8xh100", "ranks": -1}"#, "cluster.ranks` is -1"),
        (r#"{"preset": "8xh100", "bytes_per_rank": "80XB"}"#, r#"cluster.bytes_per_rank` is "80XB""#),
        (r#"{"preset": "8xh100", "bytes_per_rank": 1.5}"#, "cluster.bytes_per_rank` is 1.5"),
        (r#"{"preset": "8xh100", "bytes_per_rank": null}"#, "cluster.bytes_per_rank` is null"),
        (r#"{"preset": "8xh100", "host_reserved_bytes": "81GB"}"#, "cluster.host_reserved_bytes`"),
        (r#"{"preset": "8xh100", "gemm_flops": "fast"}"#, "cluster.gemm_flops"),
        (r#"{"preset": "8xh100", "gemm_flops": -2}"#, "cluster.gemm_flops` is -2"),
        (r#"{"preset": "9xh100"}"#, "`preset` is `9xh100`"),
        (r#"{"preset": 8}"#, "cluster.preset` is 8"),
        ("[1]", "expected an object"),
        ("{", "a cluster in JSON"),
    ] {
        let refused = ClusterSpec::from_json(text).unwrap_err().to_string();
        assert!(refused.contains(named), "{text}: {refused}");
    }
    for line in TOML.lines().filter(|line| line.contains('=') && !line.contains('{')) {
        let field = line.split_once(" =").unwrap().0;
        let refused = ClusterSpec::from_toml(&TOML.replace(line, "")).unwrap_err().to_string();
        assert!(refused.contains("missing") && refused.contains(field), "{line}: {refused}");
    }
    let infinite = ClusterSpec::from_toml(&TOML.replace("1e14", "inf")).unwrap_err().to_string();
    assert!(infinite.contains("cluster.gemm_flops"), "{infinite}");
    assert!(ClusterSpec::from_toml("ranks = ").unwrap_err().to_string().contains("a cluster in TOML"));
}

#[test]
fn files_by_their_ending() {
    let dir = std::env::temp_dir().join(format!("lrmoe-cluster-files-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let toml = dir.join("cluster.toml");
    std::fs::write(&toml, TOML).unwrap();
    let spec = ClusterSpec::from_path(&toml).unwrap();
    let json = dir.join("cluster.json");
    std::fs::write(&json, serde_json::to_string(&spec).unwrap()).unwrap();
    assert_eq!(ClusterSpec::from_path(&json).unwrap(), spec);
    for (name, text, said) in
        [("broken.json", "{", "EOF"), ("no.yaml", "", "ends in .json or .toml"), ("cluster", "", "ends in")]
    {
        std::fs::write(dir.join(name), text).unwrap();
        let refused = ClusterSpec::from_path(dir.join(name)).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains(said), "{refused}");
    }
    let absent = ClusterSpec::from_path(dir.join("absent.toml")).unwrap_err();
    assert!(matches!(&absent, Error::Input { what, .. } if what.contains("absent.toml")), "{absent}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Changed texts are read or refused, and what is read is in range.
#[test]
fn no_text_panics() {
    let spec = ClusterSpec::from_toml(TOML).unwrap();
    let sources = [
        TOML.to_owned(),
        serde_json::to_string(&spec).unwrap(),
        r#"{"preset": "8xa100", "bytes_per_rank": "1.5GiB", "inter": {"latency_s": 1e-3}}"#.to_owned(),
        "preset = \"laptop\"\nbytes_per_rank = \"123.456 MiB\"".to_owned(),
        "18446744073709551615.999TiB".to_owned(),
        "24 GiB".to_owned(),
    ];
    let spare: Vec<char> = "0189.-+eE_\"'{}[]=:, \n#KkMGTib\u{e9}\u{ff11}\0".chars().collect();
    let mut random = Philox::new(11, 0);
    let mut read = 0;
    for round in 0..40_000_usize {
        let mut text: Vec<char> = sources[round % sources.len()].chars().collect();
        for _ in 0..random.next_u32() % 4 + 1 {
            let at = random.next_u32() as usize % (text.len() + 1);
            let new = spare[random.next_u32() as usize % spare.len()];
            match random.next_u32() % 4 {
                0 => text.insert(at, new),
                1 if at < text.len() => text[at] = new,
                2 if at < text.len() => drop(text.remove(at)),
                _ => text.truncate(at.max(text.len() / 2)),
            }
        }
        let text: String = text.into_iter().collect();
        for spec in [ClusterSpec::from_json(&text), ClusterSpec::from_toml(&text)].into_iter().flatten() {
            spec.validate().unwrap();
            read += 1;
        }
        if let Ok(bytes) = parse_bytes(&text) {
            assert!(text.contains(|c: char| c.is_ascii_digit()) || bytes == 0);
            read += 1;
        }
    }
    assert!(read > 1000, "{read}: hardly anything was read");
}
