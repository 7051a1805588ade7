//! Tensors read from safetensors files, kept as stored and widened on demand.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

/// One stored tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Stored element type.
    pub dtype: Dtype,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Little-endian elements.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Elements as f64. Exact for every floating-point type.
    pub fn f64(&self) -> Result<Vec<f64>, String> {
        Ok(match self.dtype {
            Dtype::F64 => self.chunks().map(f64::from_le_bytes).collect(),
            Dtype::F32 => self.chunks().map(|b| f64::from(f32::from_le_bytes(b))).collect(),
            Dtype::BF16 => self.chunks().map(|b| half::bf16::from_le_bytes(b).to_f64()).collect(),
            Dtype::F16 => self.chunks().map(|b| half::f16::from_le_bytes(b).to_f64()).collect(),
            other => return Err(format!("{other:?} is not a floating-point type")),
        })
    }

    /// Elements as f32: exact for f32, bf16 and f16, rounded to nearest for f64.
    pub fn f32(&self) -> Result<Vec<f32>, String> {
        Ok(self.f64()?.into_iter().map(|v| v as f32).collect())
    }

    /// Elements as i64.
    pub fn i64(&self) -> Result<Vec<i64>, String> {
        match self.dtype {
            Dtype::I64 => Ok(self.chunks().map(i64::from_le_bytes).collect()),
            other => Err(format!("{other:?}, expected I64")),
        }
    }

    /// Elements of an index tensor; a negative one is an error.
    pub fn indices(&self) -> Result<Vec<usize>, String> {
        let index = |v: i64| usize::try_from(v).map_err(|_| format!("negative index {v}"));
        self.i64()?.into_iter().map(index).collect()
    }

    /// Entry `i` of the outermost dimension, without that dimension.
    pub fn index(&self, i: usize) -> Result<Self, String> {
        let entry = self.range(i, i + 1)?;
        Ok(Self { shape: self.shape[1..].to_vec(), ..entry })
    }

    /// Entries `start..end` of the outermost dimension.
    pub fn range(&self, start: usize, end: usize) -> Result<Self, String> {
        let rows = self.shape.first().copied().unwrap_or(0);
        if start >= end || end > rows {
            return Err(format!("rows {start}..{end} of shape {:?}", self.shape));
        }
        let row = self.bytes.len() / rows;
        let mut shape = self.shape.clone();
        shape[0] = end - start;
        Ok(Self { dtype: self.dtype, shape, bytes: self.bytes[start * row..end * row].to_vec() })
    }

    fn chunks<const N: usize>(&self) -> impl Iterator<Item = [u8; N]> + '_ {
        self.bytes.chunks_exact(N).map(|chunk| {
            let mut bytes = [0; N];
            bytes.copy_from_slice(chunk);
            bytes
        })
    }
}

/// The tensors of one or more safetensors files.
#[derive(Debug, Default)]
pub struct Store {
    /// Where they come from, for messages.
    pub source: String,
    /// By name.
    pub tensors: BTreeMap<String, Tensor>,
    /// String metadata of the first file.
    pub metadata: HashMap<String, String>,
}

impl Store {
    /// Everything in one file.
    pub fn open(path: &Path) -> Result<Self, String> {
        let source = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| format!("{source}: {e}"))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| format!("{source}: {e}"))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| format!("{source}: {e}"))?;
        let tensors = file
            .iter()
            .map(|(name, view)| {
                let tensor = Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
                (name.to_string(), tensor)
            })
            .collect();
        Ok(Self { source, tensors, metadata: header.metadata().clone().unwrap_or_default() })
    }

    /// A Hugging Face model folder: `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
    pub fn open_model(folder: &Path) -> Result<Self, String> {
        let index = folder.join("model.safetensors.index.json");
        if !index.exists() {
            return Self::open(&folder.join("model.safetensors"));
        }
        let source = folder.display().to_string();
        let text = std::fs::read_to_string(&index).map_err(|e| format!("{}: {e}", index.display()))?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", index.display()))?;
        let map = json["weight_map"].as_object().ok_or_else(|| format!("{}: no `weight_map`", index.display()))?;
        let mut shards = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        for (name, file) in map {
            let file = file.as_str().ok_or_else(|| format!("{}: `{name}` names no file", index.display()))?;
            if !shards.contains_key(file) {
                shards.insert(file, Self::open(&folder.join(file))?);
            }
            tensors.insert(name.clone(), shards[file].get(name)?.clone());
        }
        Ok(Self { source, tensors, metadata: HashMap::new() })
    }

    /// The tensor of this name, or an error that names the file.
    pub fn get(&self, name: &str) -> Result<&Tensor, String> {
        self.tensors.get(name).ok_or_else(|| format!("{}: tensor `{name}` is missing", self.source))
    }

    /// The tensor of this name in this shape.
    pub fn shaped(&self, name: &str, shape: &[usize]) -> Result<&Tensor, String> {
        let tensor = self.get(name)?;
        if tensor.shape != shape {
            return Err(format!("{}: `{name}` has shape {:?}, expected {shape:?}", self.source, tensor.shape));
        }
        Ok(tensor)
    }

    /// f64 elements of the tensor of this name and shape.
    pub fn f64(&self, name: &str, shape: &[usize]) -> Result<Vec<f64>, String> {
        self.shaped(name, shape)?.f64().map_err(|e| format!("{}: `{name}`: {e}", self.source))
    }

    /// Indices in the tensor of this name and shape.
    pub fn indices(&self, name: &str, shape: &[usize]) -> Result<Vec<usize>, String> {
        self.shaped(name, shape)?.indices().map_err(|e| format!("{}: `{name}`: {e}", self.source))
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}
