//! Loads in a safetensors file.

use lrmoe::Result;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::loads::{Matrix, Source};
use super::npy::Element;

const COUNTS: &str = "counts";
const SCORES: &str = "scores";

/// The matrix and the scores.
pub(super) fn parse(source: &Source<'_>, bytes: &[u8]) -> Result<(Matrix, Option<Vec<f64>>)> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| source.error(format!("is no safetensors file: {e}")))?;
    let tensor = |name: &str| file.tensor(name).map_err(|e| source.error(e.to_string()));
    let others: Vec<&str> = file.names().into_iter().filter(|name| *name != SCORES).collect();
    let name = match others[..] {
        _ if others.contains(&COUNTS) => COUNTS,
        [only] => only,
        _ => return Err(source.error(format!("has {} tensors and none is called `{COUNTS}`", others.len()))),
    };
    let counts = tensor(name)?;
    let [rows, columns] = counts.shape()[..] else {
        let dimensions = counts.shape().len();
        return Err(source.error(format!("`{name}` has {dimensions} dimensions; expected 2, ranks x experts")));
    };
    let get = elements(source, name, &counts)?;
    let matrix = Matrix::collect(source, (rows, columns), |row, column| get(row * columns + column))?;
    if !file.names().contains(&SCORES) {
        return Ok((matrix, None));
    }
    let scores = tensor(SCORES)?;
    let [length] = scores.shape()[..] else {
        let dimensions = scores.shape().len();
        return Err(source.error(format!("`{SCORES}` has {dimensions} dimensions; expected 1, experts")));
    };
    let get = elements(source, SCORES, &scores)?;
    Ok((matrix, Some((0..length).map(get).collect())))
}

/// The elements of a tensor by index; the format has checked that there are as many as the shape says.
fn elements<'a>(source: &Source<'_>, name: &str, tensor: &TensorView<'a>) -> Result<impl Fn(usize) -> f64 + use<'a>> {
    let element = match tensor.dtype() {
        Dtype::I8 => Element::I8,
        Dtype::U8 => Element::U8,
        Dtype::I16 => Element::I16,
        Dtype::U16 => Element::U16,
        Dtype::I32 => Element::I32,
        Dtype::U32 => Element::U32,
        Dtype::I64 => Element::I64,
        Dtype::U64 => Element::U64,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        other => {
            let allowed = "integers of 8 to 64 bits, F32, F64";
            return Err(source.error(format!("`{name}` has elements {other:?}; allowed: {allowed}")));
        }
    };
    let data: &'a [u8] = tensor.data();
    Ok(move |i: usize| element.read(&data[i * element.bytes()..]))
}
