//! The loads readers: what each format takes, and what its refusals say.

use std::path::Path;

use libtest_mimic::Trial;
use lrmoe::plan::Demand;
use lrmoe::plan::demand::{BINS, bin};

use crate::corpus;
use crate::planning::loads::{Format, Loads, Source};
use crate::write::npy;

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials(
        "loads",
        &[
            ("corpus_reads_alike", corpus_reads_alike),
            ("npy_takes_every_element_type", npy_takes_every_element_type),
            ("json_refusals", json_refusals),
            ("csv_refusals", csv_refusals),
            ("npy_refusals", npy_refusals),
            ("safetensors_refusals", safetensors_refusals),
            ("scores_become_demand", scores_become_demand),
            ("format_by_extension", format_by_extension),
        ],
    )
}

fn read(name: &str) -> Loads {
    Loads::parse(&Source(&name), Format::of(Path::new(name)).unwrap(), &corpus::file(name)).unwrap()
}

fn refused(data: impl AsRef<[u8]>, format: Format, parts: &[&str]) {
    let error = Loads::parse(&Source(&"the file"), format, data.as_ref()).unwrap_err().to_string();
    for part in ["the file: "].iter().chain(parts) {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

/// Files that other programs wrote with the same numbers.
fn corpus_reads_alike() {
    let reference = read("scores.json");
    assert_eq!((reference.counts.ranks(), reference.counts.experts()), (3, 4));
    assert_eq!(reference.scores, Some(vec![0.5, 12.0, 3e-7, 1.25]));
    for name in ["c_i8.npy", "fortran_f4.npy", "u1.npy", "only_one.safetensors"] {
        assert_eq!(read(name), Loads { counts: reference.counts.clone(), scores: None }, "{name}");
    }
    let both = read("counts_scores.safetensors");
    assert_eq!((both.counts, both.scores), (reference.counts, Some(vec![1.5, 0.0, 2.25, 1e-3])));
    assert_eq!(read("names.csv").counts.flat(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(read("plain.csv").counts.flat(), [7, 0, 0, 9, 1, 1]);
    assert_eq!(read("version2_u2.npy").counts.flat(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(read("spaced.json").counts.flat(), [1, 2, 30, 0, 0, 4_294_967_262]);
}

fn npy_takes_every_element_type() {
    let le = |numbers: [u8; 2], width: usize| {
        numbers.iter().flat_map(|&n| (0..width).map(move |i| if i == 0 { n } else { 0 })).collect::<Vec<u8>>()
    };
    let floats = [5.0_f32.to_le_bytes(), 120.0_f32.to_le_bytes()].concat();
    let doubles = [5.0_f64.to_le_bytes(), 120.0_f64.to_le_bytes()].concat();
    let integers = ["|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"]
        .map(|descr| (descr, le([5, 120], usize::from(descr.as_bytes()[2] - b'0'))));
    for (descr, data) in integers.into_iter().chain([("<f4", floats), ("<f8", doubles)]) {
        let file = npy(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 1), }}"), &data);
        let loads = Loads::parse(&Source(&descr), Format::Npy, &file).unwrap();
        assert_eq!((loads.counts.ranks(), loads.counts.flat()), (2, &[5, 120][..]), "{descr}");
    }
}

fn json_refusals() {
    let refused = |text: &str, parts: &[&str]| refused(text, Format::Json, parts);
    refused("{\"counts\": [[1, -2]]}", &["row 0, column 1 is -2", "whole numbers"]);
    refused("{\"counts\": [[1], [2.5]]}", &["row 1, column 0 is 2.5"]);
    refused("{\"counts\": [[4294967296]]}", &["row 0, column 0 is 4294967296", "4294967295"]);
    refused("{\"counts\": [[1e400]]}", &["line 1 column", "out of range"]);
    refused("{\"counts\": [[NaN]]}", &["line 1 column"]);
    refused("{\"counts\": [[1, null]]}", &["null", "line 1 column"]);
    refused("{\"counts\": [[4294967295], [1]]}", &["expert 0", "overflows"]);
    refused("{\"counts\": [[1, 2], [3]]}", &["row 1 has 1 columns", "row 0 has 2"]);
    refused("{\"counts\": []}", &["0 rows"]);
    refused("{\"counts\": [[]]}", &["1 rows x 0 columns"]);
    refused("{}", &["`counts`"]);
    refused("[[[1]]]", &["no JSON object"]);
    refused("{\"counts\": [[1]], \"layer\": 0}", &["unknown field `layer`"]);
    refused("{\"counts\": [[1, 2]], \"scores\": [1]}", &["`scores` has 1 entries for 2 experts"]);
    refused("{\"counts\": [[1, 2]], \"scores\": [1, -1]}", &["scores[1] is -1"]);
    refused("{\"counts\": [[1, 0]], \"scores\": [1, 1]}", &["scores[1] is 1", "no pairs"]);
    refused(std::str::from_utf8(&corpus::file("deep.json")).unwrap(), &["line 1 column"]);
}

fn csv_refusals() {
    let refused = |text: &str, parts: &[&str]| refused(text, Format::Csv, parts);
    refused("1,2\n3,-4\n", &["line 2, column 2 is \"-4\""]);
    refused("a,b\n\n3,x\n", &["line 3, column 2 is \"x\""]);
    refused("nan,1\n", &["line 1, column 1 is \"nan\""]);
    refused("1,inf\n", &["line 1, column 2 is \"inf\""]);
    refused("1,0.5\n", &["column 2 is \"0.5\""]);
    refused("1,4294967296\n", &["column 2 is \"4294967296\""]);
    refused("a,1\n2,3\n", &["line 1, column 1 is \"a\""]);
    refused("1,2\n3\n", &["line 2 has 1 columns; the first has 2"]);
    refused("1,2,\n", &["column 3 is \"\""]);
    refused("a,b\n", &["0 rows x 2 columns"]);
    refused("", &["0 rows"]);
    refused("1;2\n", &["column 1 is \"1;2\""]);
}

fn npy_refusals() {
    let file = |descr: &str, shape: &str, data: &[u8]| {
        npy(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}"), data)
    };
    let refused = |data: Vec<u8>, parts: &[&str]| refused(data, Format::Npy, parts);
    refused(file("<f8", "(1, 1)", &f64::NAN.to_le_bytes()), &["row 0, column 0 is NaN"]);
    refused(file("<f4", "(1, 1)", &f32::INFINITY.to_le_bytes()), &["row 0, column 0 is inf"]);
    refused(file("<i2", "(1, 2)", &[1, 0, 255, 255]), &["row 0, column 1 is -1"]);
    refused(file("<u8", "(1, 1)", &u64::MAX.to_le_bytes()), &["row 0, column 0 is 18446744073709552000"]);
    refused(file(">i4", "(1, 1)", &[0; 4]), &["\">i4\"", "little-endian"]);
    refused(file("<c8", "(1, 1)", &[0; 8]), &["\"<c8\""]);
    refused(file("<i4", "(1, 2)", &[0; 4]), &["4 bytes of data", "take 8"]);
    refused(file("<i4", "(1, 1)", &[0; 5]), &["5 bytes of data", "take 4"]);
    refused(file("<i4", "(4,)", &[0; 16]), &["1 dimensions"]);
    refused(file("<i4", "()", &[0; 4]), &["0 dimensions"]);
    refused(file("<i4", "(0, 4)", &[]), &["0 rows x 4 columns"]);
    refused(file("<i4", "(1, -1)", &[]), &["malformed header", "a size at \"-1"]);
    refused(file("<i4", "(99999999999999999999, 1)", &[]), &["malformed header"]);
    refused(corpus::file("huge_shape.npy"), &["4294967296 rows x 4294967296 columns", "at most"]);
    refused(npy("{'descr': '<i4', 'shape': (1, 1)}", &[0; 4]), &["no key \"fortran_order\""]);
    refused(npy("{'descr': '<i4', 'descr': '<i4'}", &[0; 4]), &["\"descr\" twice"]);
    refused(b"\x93NUMPY\x04\x00\x00\x00".to_vec(), &["version 4"]);
    refused(b"\x93NUMPY\x01\x00\xff\xff{".to_vec(), &["within the header"]);
    refused(b"PK\x03\x04".to_vec(), &["does not begin"]);
}

fn safetensors_refusals() {
    let refused = |name: &str, parts: &[&str]| refused(corpus::file(name), Format::Safetensors, parts);
    refused("two_and_neither.safetensors", &["2 tensors", "`counts`"]);
    refused("huge_header.safetensors", &["no safetensors file"]);
    refused("plain.csv", &["no safetensors file"]);
}

fn scores_become_demand() {
    let parse = |text: &str| Loads::parse(&Source(&"t"), Format::Json, text.as_bytes()).unwrap();
    let loads = parse("{\"counts\": [[1, 2, 0], [3, 2, 0]], \"scores\": [8, 0, 0]}");
    let demand = loads.demand().unwrap();
    let parts = demand.parts();
    assert_eq!((&parts.load[..], &parts.score_sum[..]), (&[4.0, 4.0, 0.0][..], &[8.0, 0.0, 0.0][..]));
    assert_eq!(parts.reference, [2.0, 0.0, 0.0]);
    assert_eq!(parts.histogram[bin(1.0)], 4.0);
    assert_eq!(parts.histogram.iter().sum::<f64>(), 4.0);
    assert_eq!(parts.histogram.len(), 3 * BINS);
    // Scores of 1 for each pair say the same as no scores.
    let ones = parse("{\"counts\": [[5, 7]], \"scores\": [5, 7]}").demand().unwrap();
    assert_eq!(ones, parse("{\"counts\": [[5, 7]]}").demand().unwrap());
    assert_eq!(ones, Demand::uniform(&[5, 7]));
    assert!(parse("{\"counts\": [[5, 7]], \"scores\": [0, 0]}").demand().is_ok());
    assert!(parse("{\"counts\": [[5]], \"scores\": [1e300]}").demand().is_err());
}

fn format_by_extension() {
    assert_eq!(Format::of(Path::new("a/b.JSON")), Ok(Format::Json));
    let error = Format::of(Path::new("a/b.txt")).unwrap_err().to_string();
    assert!(error.contains("a/b.txt") && error.contains(".npy"), "{error}");
    let error = Loads::read(Path::new("no/such.csv")).unwrap_err().to_string();
    assert!(error.contains("no/such.csv: cannot be read"), "{error}");
}
