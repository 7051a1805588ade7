//! Clusters from files, and sizes as people write them.

use std::path::Path;

use serde_json::{Map, Value};

use super::cluster::{ClusterSpec, Link};
use crate::{Error, Result};

const BYTES: &str =
    "whole bytes, or a number with K, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (of 1024), such as 24GiB";

/// Bytes from text: `4096`, `24GiB`, `80 GB`, `1.5Gi`, `512k`. K, M, G and T are powers of 1000, with an `i` of 1024; the `B` and the case
/// mean nothing. Computed exactly; what is left below a byte is cut off.
///
/// ```
/// use lrmoe::plan::cluster::parse_bytes;
///
/// assert_eq!(parse_bytes("1.5GiB")?, 3 << 29);
/// assert_eq!(parse_bytes("80 GB")?, 80_000_000_000);
/// assert!(parse_bytes("1.5").is_err()); // of what?
/// # Ok::<(), lrmoe::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] for text of another form or more than 2^64 - 1 bytes.
pub fn parse_bytes(text: &str) -> Result<u64> {
    parse(text).ok_or_else(|| Error::argument("bytes", format!("`{text}`"), format!("{BYTES}; at most {}", u64::MAX)))
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (prefix, base) = match unit.strip_suffix('i') {
        Some(prefix) => (prefix, 1024_u64),
        None => (unit, 1000),
    };
    let power = match (prefix, base) {
        ("", 1000) => 0,
        ("k", _) => 1,
        ("m", _) => 2,
        ("g", _) => 3,
        ("t", _) => 4,
        _ => return None,
    };
    let factor = base.pow(power);
    let (whole, fraction) = match number.split_once('.') {
        // A fraction without a prefix is a forgotten one.
        Some((whole, fraction)) if power > 0 => (whole, fraction),
        Some(_) => return None,
        None => (number, "0"),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    // From the last digit to the first: the floor of a nested division is the floor of the whole one.
    let fraction = fraction.bytes().rev().fold(0, |rest, digit| (u64::from(digit - b'0') * factor + rest) / 10);
    whole.parse::<u64>().ok()?.checked_mul(factor)?.checked_add(fraction)
}

/// Reading from files. A file has the fields of [`ClusterSpec`], all of them or those that differ from the `preset` it names. Sizes in bytes
/// are whole numbers or text for [`parse_bytes`].
///
/// ```
/// use lrmoe::plan::ClusterSpec;
///
/// let spec = ClusterSpec::from_toml(
///     r#"
///     preset = "8xh100"
///     ranks = 32
///     bytes_per_rank = "40GiB"
///     inter.bytes_per_s = 20e9
///     "#,
/// )?;
/// assert_eq!((spec.nodes(), spec.budget()), (4, 40 << 30));
/// # Ok::<(), lrmoe::Error>(())
/// ```
impl ClusterSpec {
    /// From JSON text.
    ///
    /// # Errors
    /// [`Error::Input`] for text that is no JSON object; [`Error::Argument`] naming a field that is unknown, missing, of the wrong type
    /// or out of range.
    pub fn from_json(text: &str) -> Result<Self> {
        read(serde_json::from_str(text).map_err(|error| syntax("a cluster in JSON", error))?)
    }

    /// From TOML text.
    ///
    /// # Errors
    /// As [`ClusterSpec::from_json`].
    pub fn from_toml(text: &str) -> Result<Self> {
        read(toml::from_str(text).map_err(|error| syntax("a cluster in TOML", error))?)
    }

    /// From a file whose name ends in `.json` or `.toml`.
    ///
    /// # Errors
    /// [`Error::Input`] where it cannot be read or has another ending; otherwise as [`ClusterSpec::from_json`].
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let from = match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => Self::from_json,
            Some("toml") => Self::from_toml,
            _ => return Err(syntax(&path.display().to_string(), "the name of a cluster file ends in .json or .toml")),
        };
        let text = std::fs::read_to_string(path).map_err(|error| syntax(&path.display().to_string(), error))?;
        from(&text).map_err(|error| match error {
            Error::Input { reason, .. } => Error::Input { what: path.display().to_string(), reason },
            other => other,
        })
    }
}

fn syntax(what: &str, reason: impl ToString) -> Error {
    Error::Input { what: what.to_owned(), reason: reason.to_string() }
}

fn read(value: Value) -> Result<ClusterSpec> {
    let Value::Object(fields) = value else {
        return Err(syntax("a cluster", format!("expected an object of fields, got {value}")));
    };
    let mut fields = Fields { prefix: "cluster.", fields };
    let preset = match fields.take("preset") {
        None => None,
        Some(Value::String(name)) => Some(ClusterSpec::preset(&name)?),
        Some(other) => return Err(fields.wrong("preset", &other, &ClusterSpec::PRESETS.join(", "))),
    };
    let base = preset.as_ref();
    let spec = ClusterSpec {
        ranks: fields.count("ranks", base.map(|b| b.ranks))?,
        ranks_per_node: fields.count("ranks_per_node", base.map(|b| b.ranks_per_node))?,
        bytes_per_rank: fields.bytes("bytes_per_rank", base.map(|b| b.bytes_per_rank))?,
        host_reserved_bytes: fields.bytes("host_reserved_bytes", base.map(|b| b.host_reserved_bytes))?,
        gemm_flops: fields.float("gemm_flops", base.map(|b| b.gemm_flops))?,
        copy_bytes_per_s: fields.float("copy_bytes_per_s", base.map(|b| b.copy_bytes_per_s))?,
        intra: fields.link("intra", "cluster.intra.", base.map(|b| b.intra))?,
        inter: fields.link("inter", "cluster.inter.", base.map(|b| b.inter))?,
        host_bytes_per_s: fields.float("host_bytes_per_s", base.map(|b| b.host_bytes_per_s))?,
        launch_s: fields.float("launch_s", base.map(|b| b.launch_s))?,
    };
    fields.finish()?;
    spec.validate()?;
    Ok(spec)
}

/// The fields not yet read.
struct Fields {
    prefix: &'static str,
    fields: Map<String, Value>,
}

impl Fields {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name)
    }

    fn wrong(&self, name: &str, value: &Value, allowed: &str) -> Error {
        Error::argument(format!("{}{name}", self.prefix), value, allowed)
    }

    fn missing(&self, name: &str) -> Error {
        Error::argument(format!("{}{name}", self.prefix), "missing", "a value, or a `preset` that has one")
    }

    fn get<T>(
        &mut self,
        name: &str,
        default: Option<T>,
        allowed: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T> {
        match self.take(name) {
            Some(value) => convert(&value).ok_or_else(|| self.wrong(name, &value, allowed)),
            None => default.ok_or_else(|| self.missing(name)),
        }
    }

    fn count(&mut self, name: &str, default: Option<usize>) -> Result<usize> {
        self.get(name, default, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn bytes(&mut self, name: &str, default: Option<u64>) -> Result<u64> {
        self.get(name, default, BYTES, |value| match value {
            Value::String(text) => parse(text),
            other => other.as_u64(),
        })
    }

    fn float(&mut self, name: &str, default: Option<f64>) -> Result<f64> {
        self.get(name, default, "a finite number", Value::as_f64)
    }

    fn link(&mut self, name: &str, prefix: &'static str, default: Option<Link>) -> Result<Link> {
        let fields = match self.take(name) {
            None => return default.ok_or_else(|| self.missing(name)),
            Some(Value::Object(fields)) => fields,
            Some(other) => return Err(self.wrong(name, &other, "an object with bytes_per_s and latency_s")),
        };
        let mut fields = Self { prefix, fields };
        let link = Link {
            bytes_per_s: fields.float("bytes_per_s", default.map(|link| link.bytes_per_s))?,
            latency_s: fields.float("latency_s", default.map(|link| link.latency_s))?,
        };
        fields.finish()?;
        Ok(link)
    }

    fn finish(&self) -> Result<()> {
        match self.fields.iter().next() {
            Some((name, value)) => Err(self.wrong(name, value, "no field of this name")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "cluster_files_tests.rs"]
mod tests;
