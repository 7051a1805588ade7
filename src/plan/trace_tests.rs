use super::*;

fn entry(step: u64, layer: u32, rows: &[&[u32]]) -> TraceEntry {
    TraceEntry { counts: Counts::new(rows).unwrap(), layer, step }
}

fn read(text: &str) -> Result<Vec<TraceEntry>> {
    TraceReader::new(text.as_bytes(), "t.jsonl").collect()
}

fn refused(text: &str, parts: &[&str]) {
    let error = read(text).unwrap_err().to_string();
    assert!(error.contains("t.jsonl, line "), "{error}");
    for part in parts {
        assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
    }
}

#[test]
fn reads_what_it_writes() {
    let entries = [entry(0, 0, &[&[0, 1], &[4_294_967_295, 7]]), entry(u64::MAX, u32::MAX, &[&[0, 0], &[0, 0]])];
    let text: String = entries.iter().map(|e| format!("{e}\n")).collect();
    assert_eq!(read(&text).unwrap(), entries);
    // The same bytes as a JSON library makes of the fields in alphabetical order.
    let json = serde_json::json!({"step": 0, "layer": 0, "counts": entries[0].counts});
    assert_eq!(entries[0].to_string(), json.to_string());
}

#[test]
fn takes_spaces_other_orders_and_blank_lines_at_the_end() {
    let text =
        " {\"step\": 3, \"layer\": 1, \"counts\": [[1, 2]]} \r\n{\"layer\":0,\"counts\":[[0,5]],\"step\":2}\n\n \r\n";
    assert_eq!(read(text).unwrap(), [entry(3, 1, &[&[1, 2]]), entry(2, 0, &[&[0, 5]])]);
    assert_eq!(read("").unwrap(), []);
    assert_eq!(read("\n\n").unwrap(), []);
}

#[test]
fn refusals_name_line_field_and_value() {
    const GOOD: &str = "{\"step\":0,\"layer\":0,\"counts\":[[1,2],[3,4]]}\n";
    let second = |line: &str, parts: &[&str]| {
        let parts = [&["line 2: "], parts].concat();
        refused(&format!("{GOOD}{line}\n"), &parts);
    };
    second("{\"step\":0,\"layer\":0}", &["missing field `counts`"]);
    second("{\"step\":-1,\"layer\":0,\"counts\":[[1]]}", &["`step`", "-1", "column 10"]);
    second("{\"step\":0,\"layer\":4294967296,\"counts\":[[1]]}", &["`layer`", "4294967296"]);
    second("{\"step\":0,\"layer\":null,\"counts\":[[1]]}", &["`layer`", "null"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,2],[3,4.5]]}", &["`counts[1][1]`", "4.5"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,2],[-3,4]]}", &["`counts[1][0]`", "-3"]);
    second(
        "{\"step\":0,\"layer\":0,\"counts\":[[1,4294967296],[3,4]]}",
        &["`counts[0][1]`", "4294967296", "4294967295"],
    );
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,99999999999999999999999]]}", &["`counts[0][1]`"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,NaN]]}", &["column 34"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,\"2\"]]}", &["`counts[0][1]`", "\"2\""]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,2],3]}", &["`counts[1]`", "3"]);
    second("{\"step\":0,\"layer\":0,\"counts\":7}", &["`counts`", "7"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[]}", &["`counts` is empty"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[]]}", &["`counts[0]` has no experts"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,2],[3]]}", &["`counts[1]` has 1 experts", "rank 0 has 2"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,2]]}", &["1 ranks x 2 experts", "2 x 2"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,4294967295],[3,4]]}", &["expert 1", "overflows"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,2],[3,4]],\"seed\":1}", &["unknown field `seed`"]);
    second("{\"step\":0,\"step\":0,\"layer\":0,\"counts\":[[1,2],[3,4]]}", &["duplicate field `step`"]);
    second("{\"step\":0,\"layer\":0,\"counts\":[[1,2],[3,4]]} {}", &["trailing"]);
    second("[0,0,[[1,2],[3,4]]]", &["no JSON object"]);
    second("{\"step\":0,", &["column 10", "EOF"]);
    refused(&format!("{GOOD}\n{GOOD}"), &["line 2", "blank"]);
}

#[test]
fn ends_after_an_error() {
    let mut reader = TraceReader::new(&b"{}\n{\"step\":0,\"layer\":0,\"counts\":[[1]]}\n"[..], "t");
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn absurd_sizes_are_refused_while_reading() {
    let endless = std::io::BufReader::new(std::io::repeat(b' '));
    let error = TraceReader::new(endless, "endless").next().unwrap().unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("longer than"), "{error}");
    let zeros = "0,".repeat(MAX_COUNTS);
    let error = read(&format!("{{\"step\":0,\"layer\":0,\"counts\":[[{zeros}0]]}}")).unwrap_err().to_string();
    assert!(error.contains("more than 4194304 numbers"), "{error}");
    let just = read(&format!("{{\"step\":0,\"layer\":0,\"counts\":[[{}]]}}", zeros.trim_end_matches(','))).unwrap();
    assert_eq!(just[0].counts.experts(), MAX_COUNTS);
}

#[test]
fn a_broken_input_is_an_error_of_its_line() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("unplugged"))
        }
    }
    let error = TraceReader::new(std::io::BufReader::new(Broken), "b").next().unwrap().unwrap_err().to_string();
    assert!(error.contains("b, line 1") && error.contains("unplugged"), "{error}");
}

/// Merging adds rows, splitting deals them out; a hand-made case of each and of both at once.
#[test]
fn regroups_by_hand() {
    let counts = Counts::new(&[[5, 1], [0, 3]]).unwrap();
    assert_eq!(regroup(&counts, 1).unwrap(), Counts::new(&[[5, 4]]).unwrap());
    assert_eq!(regroup(&counts, 2).unwrap(), counts);
    assert_eq!(regroup(&counts, 4).unwrap(), Counts::new(&[[3, 0], [2, 1], [0, 2], [0, 1]]).unwrap());
    // Two ranks onto three: rank 1 of the new ones takes a third of each old one.
    assert_eq!(regroup(&counts, 3).unwrap(), Counts::new(&[[4, 0], [1, 2], [0, 2]]).unwrap());
}

#[test]
fn regrouping_keeps_every_pair_and_deals_evenly() {
    let rows: Vec<Vec<u32>> = (0..8).map(|s| (0..32).map(|e| (s * 7 + e * e * 13) % 41).collect()).collect();
    let counts = Counts::new(&rows).unwrap();
    for ranks in 1..=64 {
        let other = regroup(&counts, ranks).unwrap();
        assert_eq!((other.ranks(), other.per_expert()), (ranks, counts.per_expert()), "{ranks} ranks");
        if ranks % 8 == 0 {
            let parts = ranks / 8;
            for (new, row) in (0..ranks).map(|new| (new, other.row(new))) {
                let old = counts.row(new / parts);
                let near = |a: u64, b: u64| (b / parts as u64..=b.div_ceil(parts as u64)).contains(&a);
                assert!(near(other.per_rank()[new], counts.per_rank()[new / parts]));
                assert!(row.iter().zip(old).all(|(&a, &b)| near(a.into(), b.into())), "{ranks} ranks, rank {new}");
            }
        }
    }
    assert!(regroup(&counts, 0).is_err() && regroup(&counts, usize::MAX).is_err());
}

#[test]
fn scales_by_largest_remainder() {
    let counts = Counts::new(&[[3, 2, 1], [0, 0, 6]]).unwrap();
    // Row 0: 10 x (3, 2, 1) / 6 = (5, 3 1/3, 1 2/3).
    assert_eq!(scaled(&counts, 10).unwrap(), Counts::new(&[[5, 3, 2], [0, 0, 10]]).unwrap());
    assert_eq!(scaled(&counts, 6).unwrap(), counts);
    assert_eq!(scaled(&counts, 0).unwrap().total(), 0);
    let ragged = Counts::new(&[[4, 0], [1, 1], [0, 0]]).unwrap();
    assert_eq!(scaled(&ragged, 300).unwrap().per_rank(), [600, 300, 0]);
    let nothing = Counts::new(&[[0, 0]]).unwrap();
    assert_eq!(scaled(&nothing, 9).unwrap(), nothing);
    assert!(matches!(scaled(&counts, u64::MAX), Err(Error::Overflow { .. })));
    assert!(matches!(scaled(&counts, u64::from(u32::MAX)), Err(Error::Overflow { .. })));
}
