//! Writers of the loads formats: what a reader accepted is written out and must be read back the same.

use lrmoe::plan::Counts;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};

use crate::planning::loads::{Format, Loads};

/// The loads as a file of the format; CSV and npy have no place for scores.
pub(crate) fn write(loads: &Loads, format: Format) -> Vec<u8> {
    let Loads { counts, scores } = loads;
    match format {
        Format::Json => match scores {
            Some(scores) => serde_json::json!({"counts": counts, "scores": scores}).to_string().into(),
            None => serde_json::json!({"counts": counts}).to_string().into(),
        },
        Format::Csv => {
            let line = |s| counts.row(s).iter().map(u32::to_string).collect::<Vec<_>>().join(",") + "\n";
            (0..counts.ranks()).map(line).collect::<String>().into()
        }
        Format::Npy => {
            let shape = format!("({}, {})", counts.ranks(), counts.experts());
            npy(&format!("{{'descr': '<u4', 'fortran_order': False, 'shape': {shape}, }}\n"), &bytes(counts))
        }
        Format::Safetensors => {
            let (counts_data, shape) = (bytes(counts), vec![counts.ranks(), counts.experts()]);
            let scores_data: Vec<u8> = scores.iter().flatten().flat_map(|s| s.to_le_bytes()).collect();
            let mut tensors = vec![("counts", TensorView::new(Dtype::U32, shape, &counts_data).unwrap())];
            if let Some(scores) = scores {
                tensors.push(("scores", TensorView::new(Dtype::F64, vec![scores.len()], &scores_data).unwrap()));
            }
            serialize(tensors, None).unwrap()
        }
    }
}

/// A version 1 file.
pub(crate) fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
}

fn bytes(counts: &Counts) -> Vec<u8> {
    counts.flat().iter().flat_map(|n| n.to_le_bytes()).collect()
}
